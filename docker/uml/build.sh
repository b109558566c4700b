#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds a User-Mode Linux with virtual time for `reinet fidelity --kernel uml`, from Debian's source package of Linux 6.1
# (Debian 12: apt checks its signature). About 10 minutes on one core and 2 GB of disk; with the kernel there it does nothing.
# Usage: docker/uml/build.sh [FOLDER]   (default ${XDG_CACHE_HOME:-~/.cache}/reinet/uml); the kernel is FOLDER/linux
# Needs no root, but gcc, make, flex, bison, bc, xz-utils and libc6-dev. JOBS is make's -j (default 1).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/reinet/uml}
say() { echo "reinet: $*"; }

if [ -x "$folder/linux" ]; then
  say "$folder/linux is there; remove it to build it again"
  exit 0
fi
missing=""
for program in apt-get dpkg-deb gcc make flex bison bc xz; do
  command -v $program >/dev/null 2>&1 || missing="$missing $program"
done
if [ -n "$missing" ]; then
  say "missing:$missing. On Debian 12, as root: apt-get install gcc make libc6-dev flex bison bc xz-utils" >&2
  exit 1
fi

mkdir -p "$folder"
cd "$folder"
if [ ! -f source/Makefile ]; then
  say "fetching the kernel's source (140 MB)"
  apt-get -q -o APT::Sandbox::User="$(id -un)" download linux-source-6.1 || {
    say "apt knows no linux-source-6.1: this is made for Debian 12, with its package lists read (apt-get update)" >&2
    exit 1
  }
  rm -rf package unpacked
  dpkg-deb -x linux-source-6.1_*_all.deb package
  mkdir unpacked
  tar -xf package/usr/src/linux-source-6.1.tar.xz --strip-components=1 -C unpacked
  # The tick of Debian's own kernels, in which TCP counts its timers; User-Mode Linux has 100.
  sed -i '/^config HZ$/,/^$/s/default 100/default 250/' unpacked/arch/um/Kconfig
  # Its processes' registers must fit: 11 KB on processors with AMX (Intel's servers since 2023), where 6.1 expects 2.7.
  sed -i 's/HOST_FP_SIZE, 2696/HOST_FP_SIZE, 16384/' unpacked/arch/x86/um/user-offsets.c
  mv unpacked source
  rm -rf package linux-source-6.1_*_all.deb
fi
say "building, by $(gcc --version | head -1)"
make -s -C source ARCH=um KCONFIG_ALLCONFIG="$here/kernel.config" allnoconfig
lacking=$(grep '^CONFIG' "$here/kernel.config" | grep -vxF -f source/.config || true)
if [ -n "$lacking" ]; then
  say "this source does not take:" $lacking >&2
  exit 1
fi
make -s -C source ARCH=um -j "${JOBS:-1}" linux
cp source/linux linux.new
strip linux.new
mv linux.new linux
say "built $folder/linux ($(./linux --version)); the folder source is no longer needed"
