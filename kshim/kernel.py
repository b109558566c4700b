"""The shim on a stock Linux kernel: BPF programs that measure and cap the TCP flows of chosen cgroups."""

import errno
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from reinet.core.errors import ShimError
from reinet.core.period import PeriodConfig
from reinet.core.records import ACK_DTYPE, FLOW_STATS_DTYPE
from reinet.kshim.probe import features, registered_congestion_controls, wrapper_names
from reinet.kshim.shim import FlowStatsArray

if TYPE_CHECKING:
    from reinet.kshim import _kshim

MAX_FLOWS = 4096
"""A slot takes 256 bytes, so all of them a mebibyte; further flows are left alone and counted."""

RECORDS_BYTES = 1 << 20
"""The ring buffer holds 8700 records of 120 bytes: 0.9 s of 100 flows at the shortest period."""

EVENTS_BYTES = 16 << 20
"""The ring buffer of recorded ACKs holds 160 000 of them: some ten seconds at 200 Mbit/s."""

_SUFFIXES = ["", *(str(number) for number in range(1, 100))]
"""Chosen flows run ``reinet_cubic`` and the like; those of a second shim on the host ``reinet_cubic1`` and so on."""

EVENT_DTYPE = np.dtype([("cookie", "<u8"), ("kind", "<u8"), ("ack", ACK_DTYPE)])
"""What moves a flow's period, as ``KernelShim.take_events`` gives it: ``struct reinet_event`` of ``slot.h``."""


class KernelShim:
    """A ``Shim`` for the TCP sockets of the given cgroup v2 folders.

    A socket is chosen when its connection is established, its process is in one of the cgroups (or below) and it then
    runs a congestion control of ``wrappers``; every other socket is left alone. Nothing is pinned: when the process
    dies the cgroups are free at once, caps lapse by their leases, and open flows go on with their algorithm under the
    wrapper's name until they close. ``close`` also switches them back.

    target_us is what records say of a flow until ``apply`` sets its target. record_events keeps every chosen flow's
    ACKs for ``take_events``; it costs a ring buffer entry per ACK. Raises ShimError when the host lacks something or a
    cgroup does not exist, and leaves nothing behind then.
    """

    def __init__(
        self,
        cgroups: Sequence[Path],
        *,
        target_us: int = 0,
        max_flows: int = MAX_FLOWS,
        period: PeriodConfig | None = None,
        record_events: bool = False,
    ) -> None:
        _require_features()
        for cgroup in cgroups:
            _require_cgroup(cgroup)
        from reinet.kshim import _kshim  # not built everywhere

        period = period or PeriodConfig()
        options = _kshim.Options()
        options.max_flows = max_flows
        options.records_bytes = RECORDS_BYTES
        options.events_bytes = EVENTS_BYTES if record_events else 0
        options.set_period(period.min_period_ns, period.packet_timed)
        options.default_target_us = target_us
        self.wrappers: dict[str, str]
        """The name that a chosen flow runs under, by its own congestion control: those of WRAPPED_CC the host has."""
        self.wrappers, self._native = _attach([str(cgroup) for cgroup in cgroups], options)

    def poll(self, timeout_ms: int) -> FlowStatsArray:
        """Returns records as ``Shim.poll`` does; a signal ends the wait early."""
        return self._native.poll(timeout_ms).view(FLOW_STATS_DTYPE)

    def apply(
        self,
        cookies: npt.NDArray[np.uint64],
        slots: npt.NDArray[np.uint32],
        caps_pkts: npt.NDArray[np.uint32],
        expires_ns: int,
        targets_us: npt.NDArray[np.uint32],
    ) -> None:
        """Writes caps as ``Shim.apply`` does; they act at each flow's next ACK. Raises IndexError for no such slot."""
        self._native.apply(
            np.ascontiguousarray(cookies, np.uint64),
            np.ascontiguousarray(slots, np.uint32),
            np.ascontiguousarray(caps_pkts, np.uint32),
            expires_ns,
            np.ascontiguousarray(targets_us, np.uint32),
        )

    def release(self, cookies: npt.NDArray[np.uint64], slots: npt.NDArray[np.uint32]) -> None:
        """Lifts caps as ``Shim.release`` does, in the slots that the BPF programs read."""
        self._native.release(np.ascontiguousarray(cookies, np.uint64), np.ascontiguousarray(slots, np.uint32))

    def outstanding(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Returns what ``Shim.outstanding`` does, as of the latest ACK or restart. Raises IndexError for no slot."""
        return self._native.outstanding(np.ascontiguousarray(slots, np.uint32)).view(np.bool_)

    def counters(self) -> dict[str, int]:
        """Returns what happened to the flows so far; ``_kshim.COUNTERS`` says what each means."""
        return dict(self._native.counters())

    def take_events(self) -> npt.NDArray[np.void]:
        """Returns the recorded ACKs and restarts so far (EVENT_DTYPE), once; needs ``record_events``."""
        return self._native.take_events().view(EVENT_DTYPE)

    def replay(self, events: npt.NDArray[np.void]) -> FlowStatsArray:
        """Returns the records that the kernel's period code makes of one flow's events; needs ``record_events``.

        cookie, slot, target_us and cap_pkts are 0: no flow owns the records.
        """
        return self._native.replay(np.ascontiguousarray(events).view(np.uint8)).view(FLOW_STATS_DTYPE)

    def close(self) -> None:
        """Lifts every cap, detaches and unloads.

        Open flows go back to their own congestion control, in every network namespace; bounded in time. Where one
        cannot be entered (CAP_SYS_ADMIN) or is held by nothing that can be looked at, they do so at their next ACK.
        """
        self._native.close()

    def __enter__(self) -> "KernelShim":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _require_features() -> None:
    missing = [f"{name}: {feature.why}; cure: {feature.cure}" for name, feature in features().items() if not feature.ok]
    if missing:
        raise ShimError("this host cannot run the kernel shim: " + "; ".join(missing))


def _require_cgroup(cgroup: Path) -> None:
    if not (cgroup / "cgroup.procs").is_file():
        raise ShimError(f"{cgroup} is no cgroup: create it below the cgroup v2 mount, or name one that exists")
    if not (cgroup / "cgroup.controllers").is_file():
        raise ShimError(f"{cgroup} is a cgroup of version 1: name one below the cgroup v2 mount")


def _attach(cgroups: list[str], options: "_kshim.Options") -> "tuple[dict[str, str], _kshim.Shim]":
    """Loads under the first names that are free, the next where another loader takes one; returns them and the shim."""
    from reinet.kshim import _kshim

    for suffix in _SUFFIXES:
        names = wrapper_names(suffix)
        if registered_congestion_controls() & set(names.values()):
            continue
        options.wrappers = list(names.items())
        try:
            return names, _kshim.Shim(cgroups, options)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise ShimError(f"the kernel shim cannot be loaded: {error}") from error
    raise ShimError("every name of a wrapper is taken, up to reinet_cubic99: stop some of the other shims")
