"""The shim on a stock Linux kernel: BPF programs that measure and cap the TCP flows of chosen cgroups."""

import errno
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from reinet.core.errors import ShimError
from reinet.core.period import PeriodConfig
from reinet.core.records import FLOW_STATS_DTYPE, FlowStatsArray
from reinet.kshim.leftovers import ask_leftovers_to_leave, suffixes_of
from reinet.kshim.mapped import MappedShim
from reinet.kshim.probe import features, lacking, registered_congestion_controls, wrapper_names

if TYPE_CHECKING:
    from reinet.kshim import _kshim

MAX_FLOWS = 4096
"""For measurements with a few flows. A flow takes 324 bytes, all of them 1.3 MiB; further flows are left alone
and counted."""

RECORDS_BYTES = 1 << 20
"""The ring buffer holds 6553 records of 160 bytes, header included: 0.6 s of 100 flows with periods of 10 ms."""

EVENTS_BYTES = 16 << 20
"""The ring buffer of recorded ACKs holds 150 000 of them: some ten seconds at 200 Mbit/s."""

_CURES = {
    errno.EMFILE: "have more open files allowed (ulimit -n 1024, or LimitNOFILE= in its unit)",
    errno.ENOMEM: "set `max_flows` or `records_mb` lower, or have more memory allowed (MemoryMax= in its unit)",
    errno.EPERM: "run it as root; where root is refused, a container's seccomp profile or the kernel's lockdown is why "
    "(docker/compose.yml has what it asks for)",
}
"""What mends the commonest reasons why the kernel takes no program; ``reinet doctor`` has found none of these."""

_SUFFIXES = ["", *(str(number) for number in range(1, 100))]
"""Chosen flows run ``reinet_cubic`` and the like; those of a second shim on the host ``reinet_cubic1`` and so on."""


class Adopted(NamedTuple):
    """What became of the flows that were open."""

    waiting: int
    """So many wait for a further call: they recover from a loss."""
    in_time: bool = True
    """Whether there was time for every network namespace, which is two seconds for all but the loader's own."""


class KernelLoader:
    """Keeps BPF programs loaded that measure and cap the TCP sockets of the given cgroup v2 folders.

    It makes every ``bpf()`` call there is; whoever reads records and writes caps needs its ``descriptors`` only. A
    socket is chosen, once ``attach`` was called, when its connection is established, its process is in one of the
    cgroups (or below) and it then runs a congestion control of ``wrappers``; every other socket is left alone. Nothing
    is pinned: when the process dies the cgroups are free at once, caps lapse by their leases, and open flows go on with
    their algorithm under the wrapper's name until they close, or until the next loader starts.

    target_us is what records say of a flow until ``apply`` sets its target. record_events keeps every chosen flow's
    ACKs; it costs a ring buffer entry per ACK. Raises ShimError when the host lacks something or a cgroup does not
    exist, and leaves nothing behind then.
    """

    def __init__(
        self,
        cgroups: Sequence[Path],
        *,
        target_us: int = 0,
        max_flows: int = MAX_FLOWS,
        records_bytes: int = RECORDS_BYTES,
        period: PeriodConfig | None = None,
        record_events: bool = False,
    ) -> None:
        if records_bytes < mmap.PAGESIZE or records_bytes & (records_bytes - 1):
            raise ShimError(f"a ring of {records_bytes} bytes: it has to be a power of two, and a page at least")
        if missing := lacking(features()):
            raise ShimError(f"this host cannot run the kernel shim: {missing}")
        for cgroup in cgroups:
            _require_cgroup(cgroup)
        from reinet.kshim import _kshim  # not built everywhere

        left = ask_leftovers_to_leave()
        period = period or PeriodConfig()
        options = _kshim.Options()
        options.max_flows = max_flows
        options.records_bytes = records_bytes
        options.events_bytes = EVENTS_BYTES if record_events else 0
        options.set_period(period.min_period_ns, period.packet_timed)
        options.default_target_us = target_us
        self._cgroups = list(cgroups)
        self.wrappers: dict[str, str]
        """The name that a chosen flow runs under, by its own congestion control: those of WRAPPED_CC the host has."""
        self.wrappers, self._native = _load(options, suffixes_of(left))
        self.descriptors: _kshim.Descriptors = self._native.descriptors()
        """What ``MappedShim`` asks for; they are closed with the loader."""

    def attach(self) -> None:
        """Chooses the cgroups' new flows from now on. Raises ShimError and unloads everything where that fails.

        A cgroup that has gone since it was named, as short-lived containers' do, is left out.
        """
        try:
            self.follow([cgroup for cgroup in self._cgroups if cgroup.is_dir()])
        except ShimError:
            self._native.close()
            raise

    def follow(self, cgroups: Sequence[Path]) -> None:
        """Chooses the new flows of these cgroups from now on, in place of those before; flows that were chosen stay.

        Raises ShimError where one of them cannot be attached; those that could are.
        """
        try:
            self._native.attach(list(cgroups))
        except OSError as error:
            raise ShimError(f"the kernel shim cannot be attached: {error}") from error

    def adopt(self) -> Adopted:
        """Takes over the cgroups' flows that were open before ``attach``, also what a shim that ended left; may be
        called again.

        None is reset: the wrapper goes on with what the flow's congestion control knows. Flows of network namespaces
        that cannot be entered stay alone. Raises ShimError where the kernel refuses.
        """
        try:
            return Adopted(*self._native.adopt())
        except OSError as error:
            raise ShimError(f"open flows cannot be taken over: {error}") from error

    def lift_caps(self) -> None:
        """Ends every lease, whoever wrote it; a writer that goes on writes new ones."""
        self._native.lift_caps()

    def replay(self, events: npt.NDArray[np.void]) -> FlowStatsArray:
        """Returns the records that the kernel's period code makes of one flow's events; needs ``record_events``.

        cookie, slot, target_us and cap_pkts are 0: no flow owns the records.
        """
        return self._native.replay(np.ascontiguousarray(events).view(np.uint8)).view(FLOW_STATS_DTYPE)

    def close(self) -> None:
        """Lifts every cap, detaches and unloads.

        No flow is reset: each goes back to its own congestion control at its next ACK, wherever it lives, and takes
        along what that has learned. The wrapper stays on flows that are idle, inert, until their next ACK or their end;
        ``leftovers`` lists it, ``remove_leftovers`` does not wait.
        """
        self._native.close()


class KernelShim(MappedShim):
    """A ``Shim`` with its loader, in one process; what either says holds."""

    def __init__(
        self,
        cgroups: Sequence[Path],
        *,
        target_us: int = 0,
        max_flows: int = MAX_FLOWS,
        records_bytes: int = RECORDS_BYTES,
        period: PeriodConfig | None = None,
        record_events: bool = False,
    ) -> None:
        """Loads and attaches as ``KernelLoader`` does."""
        self._loader = KernelLoader(
            cgroups,
            target_us=target_us,
            max_flows=max_flows,
            records_bytes=records_bytes,
            period=period,
            record_events=record_events,
        )
        self.wrappers = self._loader.wrappers
        super().__init__(self._loader.descriptors)
        self._loader.attach()

    def follow(self, cgroups: Sequence[Path]) -> None:
        """Chooses the new flows of these cgroups as ``KernelLoader.follow`` does."""
        self._loader.follow(cgroups)

    def adopt(self) -> Adopted:
        """Takes over open flows as ``KernelLoader.adopt`` does."""
        return self._loader.adopt()

    def replay(self, events: npt.NDArray[np.void]) -> FlowStatsArray:
        """Returns what ``KernelLoader.replay`` does."""
        return self._loader.replay(events)

    def close(self) -> None:
        """Lifts every cap and detaches as ``KernelLoader.close`` does. Further calls do nothing."""
        super().close()
        self._loader.close()


def _require_cgroup(cgroup: Path) -> None:
    if not (cgroup / "cgroup.procs").is_file():
        raise ShimError(f"{cgroup} is no cgroup: create it below the cgroup v2 mount, or name one that exists")
    if not (cgroup / "cgroup.controllers").is_file():
        raise ShimError(f"{cgroup} is a cgroup of version 1: name one below the cgroup v2 mount")


def _load(options: "_kshim.Options", left: Sequence[str]) -> "tuple[dict[str, str], _kshim.Loader]":
    """Loads under the first names that are free, the next where another takes one; returns them and the loader.

    Those that a killed shim ``left`` come first: only what runs under one's own can be taken over while it is idle.
    """
    from reinet.kshim import _kshim

    for suffix in dict.fromkeys([*left, *_SUFFIXES]):
        names = wrapper_names(suffix)
        if registered_congestion_controls() & set(names.values()):
            continue
        options.wrappers = list(names.items())
        try:
            return names, _kshim.Loader(options)
        except OSError as error:
            if error.errno != errno.EEXIST:
                cure = f"; {_CURES[error.errno]}" if error.errno in _CURES else ""
                raise ShimError(f"the kernel shim cannot be loaded{cure}: {error}") from error
    raise ShimError("every name of a wrapper is taken, up to reinet_cubic99: stop some of the other shims")
