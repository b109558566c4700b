#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command under another kernel than the host's: in an emulated machine (QEMU, no KVM needed) whose root file system is
# the host's, read only, beneath a layer of its own in memory. So the tests of the kernel shim run on any of Debian's kernels.
# Usage: docker/guest.sh KERNEL.deb [MODULES.deb] -- COMMAND [ARGUMENT ...]
#   apt-get download linux-image-6.12.117+deb13-amd64        up to 6.18 one package has kernel and modules
#   docker/guest.sh linux-image-6.12*.deb -- .venv/bin/pytest tests/kernel/test_shim_caps.py
# The command runs as root in the current folder, and its exit status is the script's; what it writes is gone with the guest.
# Needs no root. GUEST_MEMORY is the guest's memory (default 4G), which holds what the command writes too.
set -eu

folder=${XDG_CACHE_HOME:-$HOME/.cache}/reinet/guest
say() { echo "reinet: $*" >&2; }
usage() {
  say "$*"
  sed -n 's/^# Usage: /usage: /p' "$0" >&2
  exit 2
}

packages=""
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  [ -f "$1" ] || usage "$1 is no file"
  packages="$packages $(realpath "$1")"
  shift
done
[ -n "$packages" ] || usage "no kernel is given"
[ $# -gt 1 ] || usage "no command is given"
shift
missing=""
for program in qemu-system-x86_64 busybox cpio depmod modprobe dpkg-deb xz; do
  command -v $program >/dev/null 2>&1 || missing="$missing $program"
done
if [ -n "$missing" ]; then
  say "missing:$missing. As root: apt-get install qemu-system-x86 busybox-static cpio kmod dpkg xz-utils"
  exit 1
fi

mkdir -p "$folder"
scratch=$(mktemp -d "$folder/run-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

unpacked=$scratch/unpacked
for package in $packages; do dpkg-deb -x "$package" "$unpacked"; done
# Debian 13's packages have the modules below /usr/lib, Debian 12's below /lib; so both lead there.
if [ ! -e "$unpacked/usr/lib" ] && [ -d "$unpacked/lib" ]; then
  mkdir -p "$unpacked/usr"
  ln -s ../lib "$unpacked/usr/lib"
fi
kernel=$(find "$unpacked" -name 'vmlinuz*' -type f | head -n 1)
release=$(ls "$unpacked/usr/lib/modules" 2>/dev/null | head -n 1)
if [ -z "$kernel" ] || [ -z "$release" ] || [ ! -d "$unpacked/usr/lib/modules/$release/kernel" ]; then
  say "these packages hold no kernel with its modules; from 6.19 on these are two: linux-binary-... and linux-modules-..."
  exit 1
fi
[ -e "$unpacked/lib" ] || ln -s usr/lib "$unpacked/lib"
depmod -b "$unpacked" "$release" 2>/dev/null

# What the guest needs before it has the host's files: the drivers of the shared root, and of the layer above it.
early=$scratch/early
mkdir -p "$early/drivers" "$early/proc" "$early/sys" "$early/dev" "$early/host" "$early/layer" "$early/root"
cp "$(command -v busybox)" "$early/busybox"
count=100 # so that their names sort in the order in which they load
{
  modprobe -d "$unpacked" -S "$release" --show-depends -q virtio_pci || true # part of the kernel itself since Debian 13
  modprobe -d "$unpacked" -S "$release" --show-depends -a 9pnet_virtio 9p overlay
} |
  awk '/^insmod/ && !seen[$2]++ {print $2}' |
  while read -r driver; do
    count=$((count + 1))
    case $driver in
      *.xz) xz -dc "$driver" >"$early/drivers/$count.ko" ;;
      *) cp "$driver" "$early/drivers/$count.ko" ;;
    esac
  done
quote() { printf " '%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }
command=$(for word in "$@"; do quote "$word"; done)
cat >"$early/init" <<INIT
#!/busybox sh
run=/busybox
\$run mount -t proc proc /proc
for driver in /drivers/*; do \$run insmod \$driver; done
\$run mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro host /host
\$run mount -t tmpfs layer /layer
\$run mkdir /layer/upper /layer/work
\$run mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /root
for kind in proc sysfs:sys devtmpfs:dev devpts:dev/pts tmpfs:dev/shm tmpfs:run cgroup2:sys/fs/cgroup bpf:sys/fs/bpf; do
  \$run mkdir -p /root/\${kind#*:} 2>/dev/null
  \$run mount -t \${kind%:*} none /root/\${kind#*:}
done
\$run mkdir -p /root/lib/modules
\$run mount --bind "/root$unpacked/usr/lib/modules" /root/lib/modules
\$run cp /command /root/run/command
exec \$run switch_root /root /bin/sh /run/command
INIT
cat >"$early/command" <<COMMAND
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb PYTHONDONTWRITEBYTECODE=1
ip link set lo up
modprobe -a tun tcp_bbr
echo "reinet: Linux \$(uname -r)"
cd$(quote "$(pwd)") &&$command </dev/null
printf "\nreinet: ended with %s\n" \$?  # also behind a line that is not ended
echo b >/proc/sysrq-trigger
COMMAND
chmod +x "$early/init"
(cd "$early" && find . | cpio -o -H newc --quiet | gzip -1) >"$scratch/early.gz"

# With -icount the guest's clock counts instructions (of 2 ns) while it computes: a test finds the same fast processor however
# slowly this one emulates it. While it waits its clock is the host's.
qemu-system-x86_64 -accel tcg,thread=single -icount shift=1,sleep=on -rtc clock=vm -cpu max -smp 1 -m "${GUEST_MEMORY:-4G}" \
  -display none -serial stdio -monitor none -net none -no-reboot \
  -kernel "$kernel" -initrd "$scratch/early.gz" -append "console=ttyS0 quiet panic=-1" \
  -fsdev local,id=host,path=/,security_model=none,multidevs=remap,readonly=on -device virtio-9p-pci,fsdev=host,mount_tag=host \
  </dev/null | stdbuf -o0 tr -d '\r' | tee "$scratch/said" # each character as it comes: a test is a dot within a line
status=$(sed -n 's/^reinet: ended with \([0-9]*\)$/\1/p' "$scratch/said" | tail -n 1)
[ -n "$status" ] || say "the guest ended before its command; its last lines say why"
exit "${status:-1}"
