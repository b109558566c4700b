#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the Debian package's unit under a real systemd, which is pid 1 of namespaces of its own in a bare Debian 12, and
# breaks it on purpose: for hosts, such as a build machine, that have no service manager themselves.
# Usage: sudo docker/prove-unit.sh PACKAGE.deb [FOLDER]     FOLDER (default /var/tmp/reinet-unit) takes 1 GB; the package
#                                                          is what docker/build-deb.sh made.
# It needs root, debootstrap, nsenter, cgroup v2 somewhere and the network. What it cannot show: limits of memory, tasks
# and CPU where this host keeps those controllers in cgroup v1.
set -euo pipefail

package=$(realpath "$1")
folder=${2:-/var/tmp/reinet-unit}
base=$folder/base
root=$folder/root
mirror=http://deb.debian.org/debian
cgroup=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)/reinet-unit-$$
say() { echo "reinet: $*"; }
fail() {
  say "FAILED: $*" >&2
  inside journalctl -u reinet.service --no-pager -n 20 >&2 || true
  exit 1
}

if [ ! -e "$base/etc/os-release" ]; then
  say "making a bare Debian 12 with systemd in $base"
  mkdir -p "$folder"
  debootstrap --variant=minbase --include=ca-certificates,systemd,systemd-sysv,dbus,python3,iproute2 \
    bookworm "$base.partial" "$mirror" >"$folder/debootstrap.log"
  mv "$base.partial" "$base"
fi
rm -rf "$root"
cp -a --reflink=auto "$base" "$root"
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp "$package" "$root/var/cache/reinet.deb"

# systemd wants a cgroup namespace of its own, /run and /tmp empty, and a few devices.
cat >"$folder/boot.sh" <<BOOT
set -e
mount --make-rprivate /
mount --bind $root $root
mount -t proc proc $root/proc
mount -t sysfs sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
for place in run tmp dev; do mount -t tmpfs tmpfs $root/\$place; done
for device in null zero full random urandom tty; do
  touch $root/dev/\$device
  mount --bind /dev/\$device $root/dev/\$device
done
mkdir $root/dev/pts $root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts $root/dev/pts
ln -s pts/ptmx $root/dev/ptmx
ln -s /proc/self/fd $root/dev/fd
mount -t tmpfs tmpfs $root/dev/shm
cd $root
pivot_root . mnt
umount -l /mnt
exec env -i container=chroot PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target
BOOT
mkdir -p "$cgroup/init"
bash -c "echo \$\$ >$cgroup/init/cgroup.procs
  exec unshare --mount --pid --cgroup --uts --ipc --fork --kill-child bash $folder/boot.sh" &
outer=$!
end() {
  kill -KILL "$outer" 2>/dev/null || true # --kill-child takes systemd along, and with pid 1 goes everything
  wait "$outer" 2>/dev/null || true
  sleep 1
  find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
}
trap end EXIT
for _ in $(seq 300); do
  manager=$(pgrep -P "$outer" || true)
  [ -z "$manager" ] || [ "$(cat "/proc/$manager/comm")" != systemd ] || break
  sleep 0.1
done
inside() {
  nsenter -t "$manager" -a env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"
}
until_true() { # SECONDS COMMAND...
  local left=$1
  shift
  while ! "$@" >/dev/null 2>&1; do
    left=$((left - 1))
    [ "$left" -gt 0 ] || return 1
    sleep 1
  done
}
shown() { inside systemctl show -P "$1" reinet.service; }
until_true 60 inside systemctl is-system-running --wait || true # degraded is enough: this is no whole machine
say "$(inside systemctl --version | head -1) is pid 1 of its namespaces"

inside apt-get -q -y install /var/cache/reinet.deb >"$folder/apt.log" 2>&1 || { tail -5 "$folder/apt.log"; exit 1; }
[ "$(inside systemctl is-active reinet.service || true)" = inactive ] || fail "the package starts something by itself"
say "the package installs and starts nothing"

# A service whose flows are capped, and one that is not, each a listener that keeps a connection to itself open.
cat >"$root/var/cache/flow.py" <<'FLOW'
import socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
client = socket.create_connection(server.getsockname())
other = server.accept()[0]
while True:
    client.send(bytes(20000)); other.recv(20000, socket.MSG_WAITALL); time.sleep(0.05)
FLOW
inside systemd-run -q --unit=capped --slice=reinet.slice python3 /var/cache/flow.py 7001
inside systemd-run -q --unit=other python3 /var/cache/flow.py 7002
inside reinet serve /etc/reinet/daemon.toml --check >/dev/null 2>&1 || fail "the installed configuration does not pass --check"

inside systemctl enable -q --now reinet.service || fail "systemctl start does not succeed"
[ "$(shown Type)/$(shown ActiveState)" = notify/active ] || fail "$(shown Type) $(shown ActiveState)"
say "Type=notify: started in $(($(shown ActiveEnterTimestampMonotonic) / 1000 - $(shown InactiveExitTimestampMonotonic) / 1000)) ms; $(shown StatusText)"
inside reinet ctl health >/dev/null 2>&1 || fail "health"
until_true 20 bash -c "[ \"\$(nsenter -t $manager -a reinet ctl flows --json - | python3 -c 'import json, sys; print(len(json.load(sys.stdin)[\"rows\"]))')\" = 1 ]" ||
  fail "it does not have the sending socket of reinet.slice alone: $(inside reinet ctl flows --json -)"
say "the socket that sends of the service in reinet.slice, which was open before, is its flow; that of another service is not"

main=$(shown MainPID)
for pid in $main $(inside pgrep -P "$main"); do
  echo "  pid $pid: $(inside grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' "/proc/$pid/status" | tr -s '\t\n' ' ')"
done
within() { inside nsenter -t "$main" -m "$@"; }
for place in /usr/x /etc/x /var/lib/x /sys/kernel/x /sys/fs/cgroup/x /proc/sys/kernel/hostname; do
  ! within sh -c "echo x >$place" 2>/dev/null || fail "the service's processes may write $place"
done
! within ls /root/.profile >/dev/null 2>&1 || fail "ProtectHome"
for place in /run/reinet/x /var/log/reinet/x /var/lib/reinet/x /tmp/x; do
  within sh -c "echo x >$place && rm $place" || fail "they may not write $place"
done
[ "$(within sh -c 'ls /dev/kmsg /dev/mem 2>/dev/null | wc -l')" = 0 ] || fail "PrivateDevices"
[ "$(inside awk '/^NoNewPrivs/ { print $2 }' "/proc/$main/status")" = 1 ] || fail "NoNewPrivs"
[ "$(inside awk '/^Seccomp:/ { print $2 }' "/proc/$main/status")" = 2 ] || fail "SystemCallFilter"
say "sandbox: the file system is read-only but for its own folders, no home, no devices, seccomp and no_new_privs on"

inside sed -i '0,/^# mode = .*/s//mode = "shadow"/' /etc/reinet/daemon.toml
inside systemctl reload reinet.service
until_true 10 bash -c "nsenter -t $manager -a reinet ctl health 2>&1 | grep -q shadow" || fail "reload did not take the new mode"
[ "$(shown MainPID)" = "$main" ] || fail "reload restarted it"
say "systemctl reload puts another mode in force in the same process"

restarts=$(shown NRestarts)
decider=$(inside pgrep -P "$main" | head -1)
inside kill -STOP "$decider"
began=$SECONDS
until_true 40 bash -c "[ \"\$(nsenter -t $manager -a systemctl show -P NRestarts reinet.service)\" -gt $restarts ]" ||
  fail "the watchdog did not restart it"
until_true 30 inside systemctl is-active -q reinet.service || fail "it did not come up again after the watchdog"
inside journalctl -u reinet.service --no-pager | grep -m1 -i watchdog | sed 's/^/  /' || fail "no word of the watchdog"
say "watchdog: with its decision process stopped it was restarted after $((SECONDS - began)) s"

main=$(shown MainPID)
inside kill -KILL "$main"
until_true 30 bash -c "p=\$(nsenter -t $manager -a systemctl show -P MainPID reinet.service); [ \$p != 0 ] && [ \$p != $main ]" ||
  fail "kill -9 was not answered by a restart"
until_true 30 inside systemctl is-active -q reinet.service || fail "it did not come up again after kill -9"
say "Restart=on-failure: up again after kill -9"

main=$(shown MainPID)
inside apt-get -q -y install --reinstall /var/cache/reinet.deb >>"$folder/apt.log" 2>&1 || fail "the upgrade failed"
until_true 30 inside systemctl is-active -q reinet.service || fail "not active after the upgrade"
[ "$(shown MainPID)" != "$main" ] || fail "the upgrade left the old one running"
until_true 20 bash -c "[ \"\$(nsenter -t $manager -a reinet ctl flows --json - | python3 -c 'import json, sys; print(len(json.load(sys.stdin)[\"rows\"]))')\" = 1 ]" ||
  fail "the new daemon has not taken the open flows over"
inside systemctl is-active -q capped.service || fail "a service whose flows were taken over has ended"
say "upgrade: the package's restart keeps the services' connections, and the new daemon has their flows"

inside systemctl disable -q --now reinet.service || fail "stop"
[ "$(shown Result)" = success ] || fail "it ended with $(shown Result)"
# It sees the whole kernel: what other daemons and tests of this host have loaded is none of the package's.
inside reinet ctl detach 2>&1 | tail -3 | sed 's/^/  detach: /' || true
inside apt-get -q -y purge reinet >>"$folder/apt.log" 2>&1 || fail "purge"
[ ! -e "$root/opt/reinet" ] && [ ! -e "$root/lib/systemd/system/reinet.service" ] || fail "files stay after the purge"
inside systemctl is-active -q capped.service || fail "a service has ended with the daemon"
say "stopped, detached and purged; the services go on"
say "all of it held"
