#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds a Debian package of the daemon alone: a virtual environment below /opt/reinet with what serving needs, the
# commands, systemd's units, the default model and a configuration that an operator edits.
# Usage: docker/build-deb.sh [FOLDER]      The package is written there (default dist) and is for this release of Debian,
#                                          whose /usr/bin/python3 it runs under. docker/packages.sh --serve comes first.
set -eu
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
python=/usr/bin/python3 # the packaged one: the package depends on its version

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
home=$stage/opt/reinet
pip() { PIP_DISABLE_PIP_VERSION_CHECK=1 "$home/bin/python" -m pip --quiet "$@"; }

echo "reinet: building the package (some minutes)"
"$python" -m venv "$home"
pip install --upgrade 'pip>=24'
pip install "${REINET_WHEEL:-.}[serve]" # a wheel that was built already, or this checkout
version=$("$home/bin/python" -c 'from importlib.metadata import version; print(version("reinet"))')
pip uninstall --yes pip setuptools
find "$home" -name __pycache__ -prune -exec rm -rf {} +
rm -f "$home"/bin/activate* "$home"/bin/Activate*
# An environment says where it lies in its scripts and its configuration; it lies elsewhere once it is installed.
grep -rlIF "$stage" "$home/bin" "$home/pyvenv.cfg" | xargs -r sed -i "s#$stage##g"

put() { # MODE FILE PLACE
  install -D -m "$1" "$2" "$stage/$3"
}
mkdir -p "$stage/usr/bin"
ln -s /opt/reinet/bin/reinet "$stage/usr/bin/reinet"
put 644 docker/systemd/reinet.service lib/systemd/system/reinet.service
put 644 docker/systemd/reinet.slice lib/systemd/system/reinet.slice
for file in checkpoints/default/*; do put 644 "$file" "usr/share/reinet/models/default/$(basename "$file")"; done
for file in docs/*.md docs/monitoring/alerts.yml docs/monitoring/grafana.json LICENSE; do
  put 644 "$file" "usr/share/doc/reinet/$(basename "$file")"
done
sed -e 's#^model = .*#model = "/usr/share/reinet/models/default"#' \
  -e 's#^cgroups = .*#cgroups = ["/sys/fs/cgroup/reinet.slice"]#' configs/daemon.toml >"$stage/daemon.toml"
put 644 "$stage/daemon.toml" etc/reinet/daemon.toml
rm "$stage/daemon.toml"

minor=$("$python" -c 'import sys; print(sys.version_info[1])')
mkdir "$stage/DEBIAN"
echo /etc/reinet/daemon.toml >"$stage/DEBIAN/conffiles"
cat >"$stage/DEBIAN/control" <<CONTROL
Package: reinet
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: reinet <reinet@localhost>
Installed-Size: $(du -sk "$stage" | cut -f1)
Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1))), libbpf1, libelf1, libseccomp2, libstdc++6, zlib1g
Section: net
Priority: optional
Description: caps TCP congestion windows on cellular links, under leases
 A daemon that measures the TCP flows of chosen cgroups once per round trip and caps their congestion windows with a
 trained model. Caps lapse within a second of its end, however it ends.
CONTROL
# The service is not started by itself: an operator reads the configuration first.
cat >"$stage/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
/opt/reinet/bin/python -m compileall -q /opt/reinet/lib || true
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  [ "$1" != configure ] || [ -z "${2:-}" ] || systemctl try-restart reinet.service
fi
POSTINST
cat >"$stage/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl stop reinet.service; fi
if [ "$1" = remove ]; then find /opt/reinet -name __pycache__ -prune -exec rm -rf {} +; fi
PRERM
chmod 755 "$stage/DEBIAN/postinst" "$stage/DEBIAN/prerm"
package=$out/reinet_${version}_$(dpkg --print-architecture).deb
dpkg-deb --root-owner-group -Zzstd -z6 --build "$stage" "$package" >/dev/null
echo "reinet: $package"
