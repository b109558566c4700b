"""Prerequisites: what this host offers the shim."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from reinet.kshim.shim import WRAPPED_CC

BTF = Path("/sys/kernel/btf/vmlinux")
_MOUNTS = Path("/proc/self/mounts")
_OCTAL = re.compile(rb"\\([0-7]{3})")
"""How the kernel writes blanks, line ends and backslashes there."""
_STATUS = Path("/proc/self/status")
_CONGESTION_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")

_TIME_OFFSETS = Path("/proc/self/timens_offsets")

_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_PERFMON": 38, "CAP_BPF": 39}
"""Loading struct_ops asks for these on 6.18; CAP_BPF and CAP_NET_ADMIN alone fail with EPERM."""

_KFUNCS = {
    "cubic": (
        "cubictcp_cong_avoid", "cubictcp_init", "cubictcp_recalc_ssthresh", "cubictcp_state", "cubictcp_cwnd_event",
        "cubictcp_acked", "tcp_reno_undo_cwnd",
    ),
    "reno": ("tcp_reno_cong_avoid", "tcp_reno_ssthresh", "tcp_reno_undo_cwnd"),
    "bbr": (
        "bbr_main", "bbr_init", "bbr_ssthresh", "bbr_set_state", "bbr_cwnd_event", "bbr_min_tso_segs", "bbr_undo_cwnd",
        "bbr_sndbuf_expand",
    ),
}  # fmt: skip
"""The functions that each wrapper calls (``bpf/wrap_*.bpf.h``); the first is its congestion control's main one."""

_TX_START = "cwnd_event_tx_start"
"""Where the kernel knows this operation, it is in place of ``cwnd_event`` (``bpf/kernel.h``)."""

_STRUCT_OPS, _LINK, _RING_BUFFER, _ITERATOR = _TYPES = (
    "bpf_struct_ops_tcp_congestion_ops", "bpf_struct_ops_link", "bpf_ringbuf", "bpf_iter__tcp",
)  # fmt: skip
"""The types that a kernel has which offers what the shim is made of."""


class Feature(NamedTuple):
    """One prerequisite: whether it is there, what was found, and how to mend it where it is not."""

    ok: bool
    why: str
    cure: str = ""


def features() -> dict[str, Feature]:
    """Returns every prerequisite of ``KernelShim`` by name; all must be ok for it to attach."""
    return {name: look() for name, look in _FEATURES.items()}


def lacking(found: Mapping[str, Feature]) -> str:
    """Returns which prerequisites are not there and what mends each; empty where all are."""
    return "; ".join(f"{name}: {one.why}; cure: {one.cure}" for name, one in found.items() if not one.ok)


def wrappable() -> dict[str, Feature]:
    """Returns for every congestion control of ``WRAPPED_CC`` whether this host has the functions to delegate to."""
    found = {}
    for cc in WRAPPED_CC:
        if not BTF.exists():
            found[cc] = Feature(False, f"cannot tell without {BTF}", "see btf")
            continue
        functions = _functions(cc)
        lacking = [name for name in functions if not _in_btf(name, BTF, BTF.with_name(f"tcp_{cc}"))]
        if not lacking:
            found[cc] = Feature(True, f"the kernel has {functions[0]}")
        elif functions[0] in lacking:
            found[cc] = Feature(
                False,
                f"the running kernel lacks {cc}'s functions ({functions[0]})",
                f"modprobe tcp_{cc}, or boot a kernel with CONFIG_TCP_CONG_{cc.upper()}=y",
            )
        else:
            found[cc] = Feature(
                False,
                f"{cc} has another form in the running kernel, without {', '.join(lacking)}",
                "boot a kernel that the README says was tried, or install a newer reinet",
            )
    return found


def _functions(cc: str) -> list[str]:
    """Returns the functions that the wrapper of a congestion control calls on the running kernel."""
    return _renamed(_KFUNCS[cc]) if _in_btf(_TX_START, BTF) else list(_KFUNCS[cc])


def _renamed(functions: Iterable[str]) -> list[str]:
    """Returns the functions as a kernel calls them that knows ``_TX_START``."""
    return [re.sub("cwnd_event$", _TX_START, name) for name in functions]


def wrapper_names(suffix: str = "") -> dict[str, str]:
    """Returns the name of each wrapper that this host can run, by the congestion control that it wraps.

    The suffix tells the wrappers of shims that run side by side apart: three characters at most.
    """
    return {cc: f"reinet_{cc}{suffix}" for cc, feature in wrappable().items() if feature.ok}


def why_not_capped(cc: str) -> str:
    """Returns why no flow of a congestion control can be capped on this host; empty where it can."""
    feature = wrappable().get(cc)
    if feature is None:
        return f"the shim wraps only {', '.join(WRAPPED_CC)}"
    return "" if feature.ok else f"{feature.why}; cure: {feature.cure}"


def cgroup2_mount() -> Path | None:
    """Returns where the cgroup v2 hierarchy is mounted, or None."""
    with _MOUNTS.open("rb") as mounts:  # as text, lines would end at more than what the kernel writes as numbers
        for line in mounts:
            _, where, kind, *_ = line.split(b" ")
            if kind == b"cgroup2":
                return Path(os.fsdecode(_OCTAL.sub(lambda written: bytes([int(written[1], 8)]), where)))
    return None


def registered_congestion_controls() -> set[str]:
    """Returns the names that a socket could choose now."""
    return set(_CONGESTION_CONTROLS.read_text(encoding="ascii").split())


def missing_capabilities(wanted: Mapping[str, int]) -> list[str]:
    """Returns the names of the wanted capabilities (by number) that this process lacks."""
    status = _STATUS.read_text(encoding="ascii", errors="replace")
    held = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    return [name for name, bit in wanted.items() if not held >> bit & 1]


def _privileges() -> Feature:
    missing = missing_capabilities(_CAPABILITIES)
    if missing:
        return Feature(False, f"this process lacks {', '.join(missing)}", "run as root, or grant these capabilities")
    return Feature(True, f"has {', '.join(_CAPABILITIES)}")


def _in_btf(name: str, *files: Path) -> bool:
    """Returns whether type information of the kernel or one of its modules knows the name."""
    return any(file.exists() and _mentions(file)[name] for file in files)


@cache
def _mentions(btf: Path) -> dict[str, bool]:
    """Returns which of all the names that are ever asked for are in a file: megabytes, which nobody need keep."""
    with btf.open("rb") as file:
        data = file.read()  # sysfs allows no mapping on kernels before 6.16
    functions = [name for of_cc in _KFUNCS.values() for name in of_cc]
    asked = {_TX_START, *_TYPES, *functions, *_renamed(functions)}
    return {name: data.find(b"\0" + name.encode("ascii") + b"\0") >= 0 for name in asked}


def _btf() -> Feature:
    if not BTF.exists():
        return Feature(
            False, f"{BTF} does not exist", "boot a kernel built with CONFIG_DEBUG_INFO_BTF, as distributions' are"
        )
    return Feature(True, f"{BTF}, {BTF.stat().st_size} bytes")


def _kernel_has(name: str, meaning: str, since: str) -> Callable[[], Feature]:
    def look() -> Feature:
        if not BTF.exists():
            return Feature(False, f"cannot tell without {BTF}", "see btf")
        if not _in_btf(name, BTF):
            return Feature(False, f"the running kernel lacks {meaning} ({name})", f"boot {since}")
        return Feature(True, f"the kernel has {meaning}")

    return look


def _congestion_controls() -> Feature:
    """Returns ok where any congestion control can be wrapped: one is enough."""
    found = wrappable()
    lacking = "; ".join(f"{cc}: {feature.why}" for cc, feature in found.items() if not feature.ok)
    cures = "; ".join(dict.fromkeys(feature.cure for feature in found.values() if not feature.ok))
    if able := ", ".join(wrapper_names()):
        return Feature(True, f"can wrap {able}" + (f"; not {lacking} ({cures})" if lacking else ""))
    return Feature(False, lacking, cures)


def _cgroup2() -> Feature:
    mount = cgroup2_mount()
    if mount is None:
        return Feature(False, "no cgroup v2 hierarchy is mounted", "mount -t cgroup2 none /sys/fs/cgroup/unified")
    return Feature(True, f"mounted at {mount}")


def _clock() -> Feature:
    """Returns ok where this process's CLOCK_MONOTONIC is the kernel's own, by which leases end."""
    try:
        offsets = dict(line.split(maxsplit=1) for line in _TIME_OFFSETS.read_text(encoding="ascii").splitlines())
    except OSError:
        return Feature(True, "this kernel has no time namespaces")
    if any(int(part) for part in offsets.get("monotonic", "0").split()):
        return Feature(
            False,
            f"this time namespace moves CLOCK_MONOTONIC by {offsets['monotonic'].split()[0]} s, so no cap would act",
            "start it in the host's time namespace: without unshare --time, or a container's own",
        )
    return Feature(True, "CLOCK_MONOTONIC is the kernel's own")


def _native() -> Feature:
    try:
        import reinet.kshim._kshim
    except ImportError as error:
        return Feature(
            False,
            f"the native loader is missing: {error}",
            "install clang, libbpf-dev (1.0 or newer), libelf-dev and zlib1g-dev, then install reinet again",
        )
    return Feature(True, f"built with libbpf {reinet.kshim._kshim.LIBBPF_VERSION}")


_FEATURES: dict[str, Callable[[], Feature]] = {
    "privileges": _privileges,
    "btf": _btf,
    "struct_ops": _kernel_has(_STRUCT_OPS, "congestion controls in BPF", "Linux 5.6 or newer with CONFIG_BPF_JIT"),
    "struct_ops_link": _kernel_has(_LINK, "BPF links for congestion controls", "Linux 6.4 or newer"),
    "congestion_controls": _congestion_controls,
    "ring_buffer": _kernel_has(_RING_BUFFER, "BPF ring buffers", "Linux 5.8 or newer"),
    "tcp_iterator": _kernel_has(_ITERATOR, "BPF iterators over TCP sockets", "Linux 5.9 or newer"),
    "cgroup2": _cgroup2,
    "clock": _clock,
    "native": _native,
}
