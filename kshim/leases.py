"""Leases: a cap holds only while somebody keeps saying so, and lapses in the kernel when nobody does.

Outage and idleness look alike from afar: no ACK comes. An outage has data outstanding, gives a record every 250 ms and
must not lift the cap, for the queue that the cap keeps short is still there. An idle flow has nothing outstanding and
gives no record at all; its queue has drained, its cap answers nothing any more, and would only bind what comes next.
"""

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from reinet.core.period import SILENCE_NS
from reinet.core.records import Flag, FlowStatsArray
from reinet.kshim.shim import Shim

LEASE_MS = 500
"""A lease is half of the second within which no cap may act after its owner was killed."""

LONGEST_LEASE_MS = 1000
"""After kill -9 no cap acts for longer: REINET_LONGEST_LEASE_NS of cap.h, beyond which a cap counts as none."""

RENEWALS_PER_LEASE = 3
"""Two renewals in a row may be late or lost before a cap lapses."""

IDLE_AFTER_NS = 2 * SILENCE_NS
"""A flow with data outstanding that nobody acknowledges has given two records by then, so that a late one of them does
not make it idle; and no gap between two writes of a busy application lasts so long."""

_NS_PER_MS = 1_000_000


class LeaseKeeper:
    """Gives every cap a lease and renews it by time, through outages too, until its flow is idle.

    Whoever runs the loop calls ``see_alive`` with all records and ``tick`` as long as the loop is well. One thread.
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
        self._heard_ns = np.zeros(0, np.int64)  # when a flow's latest record came, of whatever kind
        self._expires_ns = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Returns how many flows are kept."""
        return int(np.count_nonzero(self._cookies))

    def set(self, records: FlowStatsArray, caps_pkts: npt.NDArray[np.uint32]) -> None:
        """Caps the flows of N records, each with the target its record says, and keeps them capped; 0 lifts a cap.

        A record flagged CLOSED drops its flow. One flagged NO_SAMPLE asks for no decision: its flow's cap stays. The
        records count as heard.
        """
        self.see_alive(records)
        closed = (records["flags"] & Flag.CLOSED) != 0
        if closed.any():
            self.drop(records["cookie"][closed], records["slot"][closed])
        decided = ~closed & ((records["flags"] & Flag.NO_SAMPLE) == 0)
        if not decided.any():
            return
        slots = records["slot"][decided]
        last = slots.size - 1 - np.unique(slots[::-1], return_index=True)[1]  # the last of each flow's
        self.put(
            records["cookie"][decided][last],
            slots[last],
            np.asarray(caps_pkts, np.uint32)[decided][last],
            records["target_us"][decided][last],
        )

    def put(
        self,
        cookies: npt.NDArray[np.uint64],
        slots: npt.NDArray[np.uint32],
        caps_pkts: npt.NDArray[np.uint32],
        targets_us: npt.NDArray[np.uint32],
    ) -> None:
        """Caps N flows, each named once, and keeps them capped, as ``set`` does."""
        now_ns = self._clock_ns()
        self.keep(cookies, slots, caps_pkts, targets_us, now_ns)
        self._shim.apply(cookies, slots, caps_pkts, now_ns + self._lease_ns, targets_us)

    def keep(
        self,
        cookies: npt.NDArray[np.uint64],
        slots: npt.NDArray[np.uint32],
        caps_pkts: npt.NDArray[np.uint32],
        targets_us: npt.NDArray[np.uint32],
        now_ns: int,
    ) -> None:
        """Keeps N flows capped, each named once, whose caps somebody has applied already."""
        self._grow(int(slots.max()) + 1)
        self._cookies[slots] = cookies
        self._caps_pkts[slots] = caps_pkts
        self._targets_us[slots] = targets_us
        self._heard_ns[slots] = now_ns
        self._expires_ns[slots] = now_ns + self._lease_ns

    def see_alive(self, records: FlowStatsArray) -> None:
        """Takes N records as signs of life; those without a sample, which tell of an outage, are signs as well."""
        here = records[records["slot"] < self._cookies.size]
        slots = here["slot"][self._cookies[here["slot"]] == here["cookie"]]
        self._heard_ns[slots] = self._clock_ns()

    def tick(self, now_ns: int) -> npt.NDArray[np.uint32]:
        """Renews every lease that is not void when a third of it has passed; call it at least that often.

        Returns the slots of flows that turned out to be idle, whose caps it lifted instead; their next decision caps
        them again.
        """
        due_ns = self._lease_ns // RENEWALS_PER_LEASE
        if self._renewed_ns is not None and now_ns - self._renewed_ns < due_ns:
            return np.zeros(0, np.uint32)
        self._renewed_ns = now_ns
        idle = self._drop_idle(now_ns)
        self._renew(np.flatnonzero(self._cookies).astype(np.uint32), now_ns)
        return idle

    def drop(self, cookies: npt.NDArray[np.uint64], slots: npt.NDArray[np.uint32]) -> None:
        """Forgets flows, each named by its cookie and its slot; a cap that still lives lapses with its lease."""
        known = slots < self._cookies.size
        cookies, slots = cookies[known], slots[known]
        self._cookies[slots[self._cookies[slots] == cookies]] = 0

    def release(self, slots: npt.NDArray[np.uint32]) -> None:
        """Lifts the caps in these slots now and forgets their flows; a slot may hold none."""
        slots = slots[slots < self._cookies.size]
        slots = slots[self._cookies[slots] != 0].astype(np.uint32)
        if slots.size:
            self._shim.release(self._cookies[slots], slots)
        self._cookies[slots] = 0

    def expires_ns(self, slot: int, cookie: int) -> int:
        """Returns when the lease of a flow's cap ends, 0 where none is kept; other threads may ask."""
        cookies, expires_ns = self._cookies, self._expires_ns  # each is replaced as a whole when it grows
        kept = slot < min(cookies.size, expires_ns.size) and int(cookies[slot]) == cookie
        return int(expires_ns[slot]) if kept else 0

    def release_all(self) -> None:
        """Lifts every cap now and forgets the flows."""
        self.release(np.flatnonzero(self._cookies).astype(np.uint32))

    def _drop_idle(self, now_ns: int) -> npt.NDArray[np.uint32]:
        """Lifts the caps of idle flows and forgets the flows; returns their slots.

        Having given no record is not enough: under a model that decides once a round trip a flow whose RTT has grown to
        seconds is heard of as rarely, while its ACKs go on coming.
        """
        quiet = np.flatnonzero((self._cookies != 0) & (now_ns - self._heard_ns > IDLE_AFTER_NS)).astype(np.uint32)
        idle = quiet[~self._shim.outstanding(quiet)] if quiet.size else quiet
        self.release(idle)
        return idle

    def _renew(self, slots: npt.NDArray[np.uint32], now_ns: int) -> None:
        if slots.size:
            expires_ns = now_ns + self._lease_ns
            self._expires_ns[slots] = expires_ns
            cookies, caps_pkts, targets_us = self._cookies[slots], self._caps_pkts[slots], self._targets_us[slots]
            self._shim.apply(cookies, slots, caps_pkts, expires_ns, targets_us, renews=True)

    def _grow(self, slots: int) -> None:
        missing = slots - self._cookies.size
        if missing > 0:
            self._cookies = np.concatenate([self._cookies, np.zeros(missing, np.uint64)])
            self._caps_pkts = np.concatenate([self._caps_pkts, np.zeros(missing, np.uint32)])
            self._targets_us = np.concatenate([self._targets_us, np.zeros(missing, np.uint32)])
            self._heard_ns = np.concatenate([self._heard_ns, np.zeros(missing, np.int64)])
            self._expires_ns = np.concatenate([self._expires_ns, np.zeros(missing, np.int64)])
