"""Leases: a cap holds only while somebody keeps saying so, and lapses in the kernel when nobody does."""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from reinet.core.records import Flag
from reinet.kshim.shim import FlowStatsArray, Shim

LEASE_MS = 500
"""A lease is half of the second within which no cap may act after its owner was killed."""

LONGEST_LEASE_MS = 1000
"""After kill -9 no cap acts for longer: REINET_LONGEST_LEASE_NS of cap.h, beyond which a cap counts as none."""

RENEWALS_PER_LEASE = 3
"""Two renewals in a row may be late or lost before a cap lapses."""

_NS_PER_MS = 1_000_000


class LeaseKeeper:
    """Gives every cap a lease and renews it by time, whether or not its flow had an event.

    Outages in cellular traces last seconds and must not lift a cap, so renewal asks nothing of the flow: whoever runs
    the loop calls ``tick`` as long as the loop is well. One thread.
    """

    def __init__(self, shim: Shim, lease_ms: int = LEASE_MS, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        if lease_ms < 1:
            raise ValueError(f"a lease lasts at least 1 ms, not {lease_ms} ms")
        if lease_ms > LONGEST_LEASE_MS:
            raise ValueError(f"a lease lasts at most {LONGEST_LEASE_MS} ms, not {lease_ms} ms: the kernel ignores it")
        self._shim = shim
        self._lease_ns = lease_ms * _NS_PER_MS
        self._clock_ns = clock_ns
        self._renewed_ns: int | None = None
        self._cookies = np.zeros(0, np.uint64)  # by slot; 0 = no flow
        self._caps_pkts = np.zeros(0, np.uint32)
        self._targets_us = np.zeros(0, np.uint32)

    def __len__(self) -> int:
        """Returns how many flows are kept."""
        return int(np.count_nonzero(self._cookies))

    def set(self, records: FlowStatsArray, caps_pkts: npt.NDArray[np.uint32]) -> None:
        """Caps the flows of N records, each with the target its record says, and keeps them capped; 0 lifts a cap.

        A record flagged CLOSED drops its flow. One flagged NO_SAMPLE asks for no decision: its flow's cap stays.
        """
        closed = (records["flags"] & Flag.CLOSED) != 0
        for cookie in records["cookie"][closed]:
            self.drop(int(cookie))
        decided = ~closed & ((records["flags"] & Flag.NO_SAMPLE) == 0)
        if not decided.any():
            return
        slots = records["slot"][decided]
        self._grow(int(slots.max()) + 1)
        self._cookies[slots] = records["cookie"][decided]
        self._caps_pkts[slots] = np.asarray(caps_pkts, np.uint32)[decided]
        self._targets_us[slots] = records["target_us"][decided]
        self._write(np.unique(slots), self._clock_ns())

    def tick(self, now_ns: int) -> None:
        """Renews every lease when a third of it has passed; call it at least that often."""
        due_ns = self._lease_ns // RENEWALS_PER_LEASE
        if self._renewed_ns is None or now_ns - self._renewed_ns >= due_ns:
            self._renewed_ns = now_ns
            self._write(np.flatnonzero(self._cookies).astype(np.uint32), now_ns)

    def drop(self, cookie: int) -> None:
        """Forgets a flow; its cap, if it still lives, lapses with its lease."""
        self._cookies[self._cookies == np.uint64(cookie)] = 0

    def release_all(self) -> None:
        """Lifts every cap now and forgets the flows."""
        slots = np.flatnonzero(self._cookies).astype(np.uint32)
        if slots.size:
            self._shim.release(self._cookies[slots], slots)
        self._cookies[:] = 0

    def _write(self, slots: npt.NDArray[np.uint32], now_ns: int) -> None:
        if slots.size:
            self._shim.apply(
                self._cookies[slots], slots, self._caps_pkts[slots], now_ns + self._lease_ns, self._targets_us[slots]
            )

    def _grow(self, slots: int) -> None:
        missing = slots - self._cookies.size
        if missing > 0:
            self._cookies = np.concatenate([self._cookies, np.zeros(missing, np.uint64)])
            self._caps_pkts = np.concatenate([self._caps_pkts, np.zeros(missing, np.uint32)])
            self._targets_us = np.concatenate([self._targets_us, np.zeros(missing, np.uint32)])
