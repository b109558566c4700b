"""A shim in memory: the kernel's rules about slots, cookies and leases without a kernel, for tests."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reinet.core import MIN_CAP_PKTS
from reinet.core.closing import Closing
from reinet.core.records import FLOW_STATS_DTYPE, Flag, FlowStatsArray
from reinet.kshim.leases import LONGEST_LEASE_MS
from reinet.kshim.shim import NO_CAP_PKTS

COUNTERS = (
    "flows_chosen",
    "flows_adopted",
    "flows_without_slot",
    "flows_not_switched",
    "flows_switched_back",
    "slots_used",
    "leases_too_long",
    "answers_replaced",
    "records_lost",
    "acks_lost",
)
"""The names of ``slot.h``, which is not built everywhere."""


@dataclass
class _Slot:
    """A flow as ``slot.h`` holds it, without the period."""

    cookie: int = 0  # owner, 0 = free
    cap_cookie: int = 0
    cap_pkts: int = NO_CAP_PKTS
    expires_ns: int = 0
    longest_ns: int = 0  # what expires_ns may be at most: set by the moment of writing
    target_us: int = 0
    outstanding: bool = True
    counted_too_long: bool = False
    void: bool = False  # the cap answers what was before an idle time


class FakeShim(Closing):
    """A ``Shim`` whose flows, records and clock are the test's.

    ``now_ns`` is the clock, set or advanced by hand; pass ``lambda: shim.now_ns`` where a clock is wanted.
    """

    def __init__(self, now_ns: int = 1_000_000_000) -> None:
        self.now_ns = now_ns
        self.closed = False
        self._slots: list[_Slot] = []
        self._slot_of: dict[int, int] = {}
        self._records: list[FlowStatsArray] = []
        self._counters = dict.fromkeys(COUNTERS, 0)

    def advance_ms(self, ms: float) -> None:
        """Lets time pass."""
        self.now_ns += round(ms * 1_000_000)

    def open_flow(self, cookie: int) -> int:
        """Starts a flow; returns its slot, the lowest that is free."""
        if cookie in self._slot_of:
            raise ValueError(f"flow {cookie} is open already")
        slot = next((index for index, entry in enumerate(self._slots) if not entry.cookie), len(self._slots))
        if slot == len(self._slots):
            self._slots.append(_Slot())
        self._slots[slot].cookie, self._slots[slot].outstanding = cookie, True
        self._slot_of[cookie] = slot
        self._counters["flows_chosen"] += 1
        self._counters["slots_used"] = len(self._slots)
        return slot

    def feed(self, cookie: int, **fields: int) -> None:
        """Queues a record of an open flow: FlowStats fields by name, the others as the kernel would fill them, or 0."""
        slot = self._slot_of[cookie]
        values = {
            "cookie": cookie,
            "time_ns": self.now_ns,
            "slot": slot,
            "cap_pkts": self.cap_pkts(cookie),
            "target_us": self.target_us(cookie),
        }
        record = np.zeros(1, FLOW_STATS_DTYPE)
        for name, value in {**values, **fields}.items():
            record[name] = value
        self._records.append(record)

    def close_flow(self, cookie: int) -> None:
        """Ends a flow: queues its CLOSED record and frees its slot."""
        self.feed(cookie, flags=int(Flag.CLOSED))
        self._slots[self._slot_of.pop(cookie)].cookie = 0

    def set_outstanding(self, cookie: int, outstanding: bool) -> None:
        """Says whether data of an open flow awaits an ACK, as it does from its start on."""
        self._slots[self._slot_of[cookie]].outstanding = outstanding

    def void_cap(self, cookie: int) -> None:
        """Has an open flow's cap act no more until another one is decided, as the end of a restarted period has."""
        self._slots[self._slot_of[cookie]].void = True

    def cap_pkts(self, cookie: int) -> int:
        """Returns the cap in force on an open flow at ``now_ns``, 0 = none."""
        entry = self._slots[self._slot_of[cookie]]
        if entry.void:
            return NO_CAP_PKTS
        if entry.cap_cookie == cookie and entry.expires_ns > entry.longest_ns:
            self._count_too_long(entry)
            return NO_CAP_PKTS
        in_force = entry.cap_cookie == cookie and entry.cap_pkts and self.now_ns < entry.expires_ns
        return max(entry.cap_pkts, MIN_CAP_PKTS) if in_force else NO_CAP_PKTS

    def target_us(self, cookie: int) -> int:
        """Returns the target set for an open flow, 0 = none."""
        entry = self._slots[self._slot_of[cookie]]
        return entry.target_us if entry.cap_cookie == cookie else 0

    def poll(self, timeout_ms: int) -> FlowStatsArray:
        """Returns the queued records at once; nothing arrives while a fake waits."""
        records = np.concatenate([np.zeros(0, FLOW_STATS_DTYPE), *self._records])
        self._records.clear()
        return records

    def apply(
        self,
        cookies: npt.NDArray[np.uint64],
        slots: npt.NDArray[np.uint32],
        caps_pkts: npt.NDArray[np.uint32],
        expires_ns: int,
        targets_us: npt.NDArray[np.uint32],
        renews: bool = False,
    ) -> None:
        """Writes caps as ``Shim.apply`` does; a slot that was never used is a caller's mistake (IndexError)."""
        for cookie, slot, cap_pkts, target_us in zip(cookies, slots, caps_pkts, targets_us, strict=True):
            entry = self._slots[int(slot)]
            if renews and entry.void:
                continue
            entry.void = False
            entry.cap_cookie, entry.cap_pkts, entry.target_us = int(cookie), int(cap_pkts), int(target_us)
            entry.expires_ns = int(expires_ns)
            entry.longest_ns = self.now_ns + LONGEST_LEASE_MS * 1_000_000
            entry.counted_too_long = False

    def release(self, cookies: npt.NDArray[np.uint64], slots: npt.NDArray[np.uint32]) -> None:
        """Lifts the caps that were written for these flows."""
        for cookie, slot in zip(cookies, slots, strict=True):
            entry = self._slots[int(slot)]
            if entry.cap_cookie == int(cookie):
                entry.cap_pkts = NO_CAP_PKTS

    def outstanding(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Returns what ``Shim.outstanding`` does."""
        return np.array([self._slots[int(slot)].outstanding for slot in slots], np.bool_)

    def counters(self) -> dict[str, int]:
        """Returns what ``Shim.counters`` does; a fake loses nothing, and has a slot for every flow."""
        return dict(self._counters)

    def close(self) -> None:
        """Lifts every cap."""
        for entry in self._slots:
            entry.cap_pkts = NO_CAP_PKTS
        self.closed = True

    def _count_too_long(self, entry: _Slot) -> None:
        """Counts a lease that is not obeyed once, when an ACK finds it."""
        self._counters["leases_too_long"] += not entry.counted_too_long
        entry.counted_too_long = True
