#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the system packages that building and running reinet need; with all there it does nothing.
# Usage: docker/packages.sh [--serve] [--bench] [--browser] [--servers] [--dry-run]
#   --serve    only what the daemon needs (no Mahimahi: it is for measuring and training on real sockets)
#   --bench    also nginx and curl, with which `reinet bench harm --link mahimahi` measures (Debian starts nginx on port
#              80; `systemctl disable --now nginx` ends that, the measurement needs only the program), and a JDK for
#              `reinet bench alcc --against java`, and openvpn for `--against tunnel` (nothing of it is configured)
#   --browser  also Chromium and its driver, with which tests look at TensorBoard's pages
#   --servers  also vsftpd and iperf3, which tests run under the gate of `reinet run` (Debian starts vsftpd on port 21)
#   --dry-run  say what would be installed and how, change nothing
# Needs root or sudo. Without either it prints the command to run and exits 0: simulation works without most of it.
# PYTHON names the interpreter that reinet is installed for (default python3).
set -eu

serve=no
bench=no
browser=no
servers=no
dry_run=no
for option in "$@"; do
  case $option in
    --serve) serve=yes ;;
    --bench) bench=yes ;;
    --browser) browser=yes ;;
    --servers) servers=yes ;;
    --dry-run) dry_run=yes ;;
    *)
      sed -n '3,13s/^# //p' "$0" >&2
      exit 2
      ;;
  esac
done
here=$(cd "$(dirname "$0")" && pwd)
say() { echo "reinet: $*"; }

if ! command -v apt-get >/dev/null 2>&1; then
  say "this is neither Debian nor Ubuntu; install by hand: clang, libbpf >= 1.0, libelf, zlib (with headers), a C++20"
  say "compiler, make, Python's venv and headers, and Mahimahi for real-kernel links. Without them only simulation works."
  exit 0
fi

wanted="" # names
reasons=""
want() { # PACKAGE WHY
  if ! dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q ' installed$'; then
    wanted="$wanted $1"
    reasons="$reasons
  $1: $2"
  fi
}

want g++ "compiles the C++ core"
want make "make demo, make test"
want clang "compiles the BPF programs"
want libbpf-dev "loads the BPF programs"
want libelf-dev "libbpf reads BPF objects with it"
want zlib1g-dev "libelf needs it"

want libseccomp2 "what decides and what answers run confined"

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
  want python3-venv "the environment that reinet is installed in"
  want python3-dev "Python's headers, for the C++ core"
else
  # An interpreter that did not come from a package brings its own; a packaged one has both in packages by its version.
  package=python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$python" -c 'import ensurepip, venv' 2>/dev/null || want "$package-venv" "the environment that reinet is installed in"
  "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    want "$package-dev" "Python's headers, for the C++ core"
fi

if [ $bench = yes ]; then
  want nginx-light "the web server of reinet bench harm"
  want curl "its client"
  want iproute2 "gives the web server its congestion control"
  want default-jdk-headless "the Java client of reinet bench alcc --against java, and its tests"
  want openvpn "the tunnel of reinet bench alcc --against tunnel"
fi

if [ $browser = yes ]; then
  want chromium "a browser without a window, for tests"
  want chromium-driver "drives it"
  want fonts-dejavu-core "a font at least, without which it may not start"
fi

if [ $servers = yes ]; then
  want vsftpd "a server that confines itself, for tests"
  want iperf3 "sends over several connections, for tests"
fi

# Mahimahi 0.98: packaged up to Debian 11 and Ubuntu 22.04. Later releases take these packages, and these only, from the
# last release that has them; its other needs come from the machine's own release.
mahimahi=no
suite=""
archive=""
if [ $serve = no ]; then
  want iptables "Mahimahi's address translation, inside a link's own network namespace"
  if ! command -v mm-link >/dev/null 2>&1 || ! command -v mm-delay >/dev/null 2>&1; then
    mahimahi=plain
    . /etc/os-release
    case "${ID:-}:${VERSION_ID:-}" in
      debian:11 | ubuntu:20.04 | ubuntu:22.04) ;;
      debian:12 | debian:13)
        mahimahi=older suite=bullseye components=main foreign="mahimahi libprotobuf23 libssl1.1"
        keyring=/usr/share/keyrings/debian-archive-keyring.gpg
        archive=http://archive.debian.org/debian # where Debian keeps releases that left its mirrors
        ;;
      ubuntu:24.04) # not run: nobody has tried this on a real machine yet
        mahimahi=older suite=jammy components="main universe" foreign="mahimahi libprotobuf23"
        keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
        archive="" # jammy is on every mirror
        ;;
      *)
        mahimahi=unknown
        say "no Mahimahi package is known for ${PRETTY_NAME:-this release}: real-kernel links need it built from source"
        say "(https://github.com/ravinet/mahimahi); simulation goes on without."
        ;;
    esac
  fi
fi

plan_mahimahi=""
case $mahimahi in
  plain) plan_mahimahi="mahimahi" ;;
  older) plan_mahimahi="$foreign from $suite" ;;
esac
if [ -z "$wanted$plan_mahimahi" ]; then
  exit 0
fi

say "system packages to install:$reasons"
[ -z "$plan_mahimahi" ] || echo "  $plan_mahimahi: emulates the link for real kernel sockets"
if [ $dry_run = yes ]; then
  exit 0
fi

if [ "$(id -u)" = 0 ]; then
  as_root=""
elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
  as_root="sudo"
  say "using sudo, which may ask for your password"
else
  say "this needs root, and there is no sudo that could be used. Have this command run as root:"
  echo "    $here/packages.sh${1:+ $*}"
  say "going on without; what lacks these packages will say so, simulation needs only the compiler and Python's parts."
  exit 0
fi
apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"; }

say "reading the package lists"
apt update >/dev/null || say "some package list could not be read (see above); trying with the others"
if [ -n "$wanted" ]; then
  # shellcheck disable=SC2086 # a list of names
  apt install --no-install-recommends $wanted || {
    say "installing$wanted failed (see above): mend that and run $here/packages.sh again"
    exit 1
  }
fi

without_mahimahi() {
  say "Mahimahi could not be installed (see above): real-kernel links will not work, simulation goes on."
  say "To try again: $here/packages.sh"
  exit 0
}

# Fetches packages of another release through an apt configuration of its own, signatures checked as always: nothing of
# it reaches /etc/apt or the machine's package lists. Check-Valid-Until is off because archived releases are not re-dated.
fetch() { # MIRROR FOLDER PACKAGE...
  mirror=$1 folder=$2
  shift 2
  echo "deb [signed-by=$keyring] $mirror $suite $components" >"$folder/sources.list"
  mkdir -p "$folder/lists" "$folder/cache" "$folder/debs"
  (
    cd "$folder/debs"
    private="-o Dir::Etc::sourcelist=$folder/sources.list -o Dir::Etc::sourceparts=/dev/null
      -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
      -o Dir::State::lists=$folder/lists -o Dir::Cache=$folder/cache -o Acquire::Check-Valid-Until=false
      -o APT::Sandbox::User=root -o Acquire::AllowInsecureRepositories=false"
    # shellcheck disable=SC2086 # options without spaces, and names
    apt $private update >/dev/null && apt $private download "$@"
  )
}

case $mahimahi in
  plain) apt install --no-install-recommends mahimahi || without_mahimahi ;;
  older)
    folder=$(mktemp -d)
    trap '$as_root rm -rf "$folder"' EXIT
    fetched=no
    # The mirrors that this machine uses already, for its own release.
    mirrors=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $VERSION_CODENAME" | sort -u)
    for mirror in $mirrors $archive; do
      # shellcheck disable=SC2086 # a list of names
      if fetch "$mirror" "$folder" $foreign; then
        fetched=yes
        break
      fi
      say "$suite could not be read from $mirror"
    done
    [ $fetched = yes ] || without_mahimahi
    apt install --no-install-recommends "$folder"/debs/*.deb || without_mahimahi
    ;;
esac
say "system packages are there"
