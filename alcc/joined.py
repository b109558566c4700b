"""Two shims as one: flows that the kernel caps, and flows of programs that cap themselves."""

import select
import time

import numpy as np
import numpy.typing as npt

from reinet.alcc.processes import Listening, ProcessShim
from reinet.core.closing import Closing
from reinet.core.period import PeriodConfig
from reinet.core.records import FlowStatsArray
from reinet.kshim.mapped import MappedShim
from reinet.kshim.shim import Shim

REST_MS = 1
"""Programs wake the loop at most so often; the kernel's records do at any time."""


def with_programs(kernel: Shim, listening: Listening | None, period: PeriodConfig) -> Shim:
    """Returns the kernel's shim, joined with the flows of programs where somebody listens for them."""
    if listening is None:
        return kernel
    records_fd = kernel.records_fd if isinstance(kernel, MappedShim) else -1
    return JoinedShim(kernel, ProcessShim(listening, period), records_fd)


class JoinedShim(Closing):
    """A ``Shim`` of both: the kernel's flows have the even slots, those of programs the odd ones."""

    def __init__(self, kernel: Shim, processes: ProcessShim, kernel_fd: int) -> None:
        """Joins them; ``kernel_fd`` is readable when the kernel's shim has records, -1 = it never waits."""
        self._kernel, self._processes = kernel, processes
        self._kernel_only, self._all = select.epoll(), select.epoll()
        if kernel_fd >= 0:
            self._kernel_only.register(kernel_fd, select.EPOLLIN)
            self._all.register(kernel_fd, select.EPOLLIN)
        self._all.register(processes.fileno(), select.EPOLLIN)
        self._rested_ns = 0

    def poll(self, timeout_ms: int) -> FlowStatsArray:
        """Returns the records of both, as ``Shim.poll`` does."""
        rest_ms = self._rested_ns / 1e6 + REST_MS - time.monotonic_ns() / 1e6
        woken = bool(self._kernel_only.poll(min(rest_ms, timeout_ms) / 1e3)) if rest_ms > 0 else False
        if not woken and timeout_ms > max(rest_ms, 0.0):
            self._all.poll((timeout_ms - max(rest_ms, 0.0)) / 1e3)
        kernel = np.array(self._kernel.poll(0))
        self._processes.give_way(kernel["cookie"])
        now_ns = time.monotonic_ns()
        own = self._processes.take(now_ns)
        self._rested_ns = now_ns
        kernel["slot"] *= 2
        own["slot"] = 2 * own["slot"] + 1
        return np.concatenate([kernel, own])

    def apply(
        self,
        cookies: npt.NDArray[np.uint64],
        slots: npt.NDArray[np.uint32],
        caps_pkts: npt.NDArray[np.uint32],
        expires_ns: int,
        targets_us: npt.NDArray[np.uint32],
        renews: bool = False,
    ) -> None:
        """Writes caps as ``Shim.apply`` does."""
        for shim, mine in self._parts(slots):
            shim.apply(cookies[mine], slots[mine] // 2, caps_pkts[mine], expires_ns, targets_us[mine], renews)

    def release(self, cookies: npt.NDArray[np.uint64], slots: npt.NDArray[np.uint32]) -> None:
        """Lifts caps as ``Shim.release`` does."""
        for shim, mine in self._parts(slots):
            shim.release(cookies[mine], slots[mine] // 2)

    def outstanding(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Returns what ``Shim.outstanding`` does."""
        found = np.zeros(len(slots), np.bool_)
        for shim, mine in self._parts(slots):
            found[mine] = shim.outstanding(slots[mine] // 2)
        return found

    def pids(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Returns the process that caps each slot's flow itself, 0 = the kernel does."""
        found = np.zeros(len(slots), np.uint32)
        mine = slots % 2 == 1
        found[mine] = self._processes.pids(slots[mine] // 2)
        return found

    def counters(self) -> dict[str, int]:
        """Returns what the kernel counted."""
        return self._kernel.counters()

    def close(self) -> None:
        """Lifts every cap of both."""
        self._processes.close()
        self._kernel.close()
        self._kernel_only.close()
        self._all.close()

    def _parts(self, slots: npt.NDArray[np.uint32]) -> "list[tuple[Shim | ProcessShim, npt.NDArray[np.bool_]]]":
        own = slots % 2 == 1
        parts: list[tuple[Shim | ProcessShim, npt.NDArray[np.bool_]]] = [(self._kernel, ~own), (self._processes, own)]
        return [(shim, mine) for shim, mine in parts if mine.any()]
