"""The loop's table of flows: one row for each slot of the shim, brought up to date by all records of a tick at once.

A slot has one live flow. A new cookie in it means that the old flow is gone, also where its CLOSED record was lost.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.decider import Rows
from reinet.agents.decide.inspection.own_targets import OwnTargets
from reinet.agents.decide.protocol import CapArray
from reinet.agents.decide.verdicts import Verdicts
from reinet.core.guard import VERDICT_DTYPE
from reinet.core.records import FLOW_STATS_DTYPE, Flag, FlowStatsArray
from reinet.core.states.reflex import ANSWER_NONE, Answered

FIRST_ROWS = 64
"""The tables hold so many flows before they first grow; they double from there."""

_CLOSED = int(Flag.CLOSED)


class FlowTable:
    """What is known of each flow. The loop's thread writes, holding ``lock``; others read, holding it."""

    def __init__(self, on_grow: Callable[[int], None]) -> None:
        """Makes an empty table; ``on_grow`` is told the new number of rows, before any flow takes one of them."""
        self.lock = threading.Condition()
        self.stats: FlowStatsArray = np.zeros(FIRST_ROWS, FLOW_STATS_DTYPE)
        """(rows,), each flow's latest record; cookie 0 = the row is free."""
        self.caps_pkts: CapArray = np.zeros(FIRST_ROWS, np.uint32)
        """(rows,), decided and applied, 0 = none."""
        self.verdicts: Verdicts = np.zeros(FIRST_ROWS, VERDICT_DTYPE)
        """(rows,), why."""
        self.places: NDArray[np.int32] = np.zeros(FIRST_ROWS, np.int32)
        """(rows,), the policy that the flow is under, by its number; -1 = not known yet."""
        self.own_targets = OwnTargets()
        """Those of single flows; the others have their policies'."""
        self._scratch = np.zeros(FIRST_ROWS, np.int64)
        self._owners = np.zeros(FIRST_ROWS, np.uint64)
        self._on_grow = on_grow

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.stats)

    def live(self) -> Rows:
        """Returns the rows that hold a flow."""
        return np.flatnonzero(self.stats["cookie"])

    def column(self, name: str) -> NDArray[Any]:
        """Returns what is known of all rows under a name of a record's, or ``caps_pkts``; not copied."""
        found: NDArray[Any] = self.caps_pkts if name == "caps_pkts" else self.stats[name]
        return found

    def under(self, place: int) -> Rows:
        """Returns the rows whose flows are under this policy."""
        return np.flatnonzero((self.stats["cookie"] != 0) & (self.places == place))

    def count(self) -> int:
        """Returns the number of flows."""
        return int(np.count_nonzero(self.stats["cookie"]))

    def forget_closed(self, records: FlowStatsArray) -> tuple[NDArray[np.bool_], FlowStatsArray]:
        """Frees the rows of flows that ended; returns which records are of flows that go on, and the CLOSED ones.

        A socket that connects anew goes on with the same cookie: what comes after its CLOSED record is another flow's.
        """
        is_closed = (records["flags"] & _CLOSED) != 0
        if not is_closed.any():
            return ~is_closed, records[:0]
        closed = records[is_closed]
        rows = closed["slot"].astype(np.intp)
        own = rows < len(self.stats)
        own[own] = self.stats["cookie"][rows[own]] == closed["cookie"][own]
        freed = rows[own]
        with self.lock:
            self.own_targets.forget(closed["cookie"])
            self.stats["cookie"][freed] = 0
            self.caps_pkts[freed] = 0
            self.verdicts[freed] = 0
        order = np.argsort(closed["cookie"], kind="stable")  # of several ends of one cookie the last one stays last
        ended, ends = closed["cookie"][order], np.flatnonzero(is_closed)[order]
        latest = np.maximum(np.searchsorted(ended, records["cookie"], side="right") - 1, 0)
        is_over = (ended[latest] == records["cookie"]) & (np.arange(len(records)) <= ends[latest])
        return ~is_over, closed

    def admit(self, records: FlowStatsArray, code: int) -> tuple[FlowStatsArray, Rows, Rows]:
        """Gives new flows fresh rows, with this code as their verdict.

        Returns the records and rows of flows that own their slot, and the rows that changed hands.
        """
        rows = records["slot"].astype(np.intp)
        if not len(rows):
            return records, rows, rows
        if rows.max() >= len(self.stats):
            self._grow(int(rows.max()) + 1)
        cookies = records["cookie"]
        self._owners[rows] = cookies  # of several owners of one slot the last one stays
        present = self._owners[rows] == cookies
        if not present.all():
            records, rows, cookies = records[present], rows[present], cookies[present]
        new = self.stats["cookie"][rows] != cookies
        if not new.any():
            return records, rows, rows[:0]
        fresh = np.unique(rows[new])
        with self.lock:
            self.own_targets.forget(self.stats["cookie"][fresh])  # of flows whose CLOSED record was lost
            self.own_targets.take_expected(cookies[new])
            self.caps_pkts[fresh] = 0
            self.verdicts[fresh] = 0
            self.verdicts["code"][fresh] = code
            self.places[fresh] = 0
        return records, rows, fresh

    def owned(self, records: FlowStatsArray) -> NDArray[np.bool_]:
        """Returns (N,) whose records ``admit``, which just had them, gave back."""
        return np.asarray(self._owners[records["slot"].astype(np.intp)] == records["cookie"], np.bool_)

    def last_of_each(self, rows: Rows, among: Rows) -> Rows:
        """Returns the indices in ``among`` of the records that are the last of their row, in order."""
        chosen = rows[among] if among.size < rows.size else rows
        self._scratch[chosen] = among  # of several indices of one row the last one stays
        return np.asarray(among[self._scratch[chosen] == among], np.intp)

    def caps_pkts_then(self, rows: Rows, answered: Answered) -> NDArray[np.uint32]:
        """Returns what was in force after each of N records: its own cap, or where it had none its flow's before it."""
        by_row = np.argsort(rows, kind="stable")
        places = np.arange(len(rows))
        begins = np.concatenate([[True], np.diff(rows[by_row]) != 0])
        first = np.maximum.accumulate(np.where(begins, places, 0))
        decided = np.maximum.accumulate(np.where(answered.answers[by_row] != ANSWER_NONE, places, -1))
        own = answered.verdicts["allowed_pkts"][by_row[decided]]
        caps_pkts = np.empty(len(rows), np.uint32)
        caps_pkts[by_row] = np.where(decided >= first, own, self.caps_pkts[rows[by_row]])
        return caps_pkts

    def uncap(self, rows: Rows, code: int) -> None:
        """Marks flows uncapped; the caller holds the lock."""
        self.caps_pkts[rows] = 0
        self.verdicts["code"][rows] = code

    def _grow(self, least_rows: int) -> None:
        rows = max(least_rows, 2 * len(self.stats))
        missing = rows - len(self.stats)
        self._on_grow(rows)
        with self.lock:
            self.stats = np.concatenate([self.stats, np.zeros(missing, FLOW_STATS_DTYPE)])
            self.caps_pkts = np.concatenate([self.caps_pkts, np.zeros(missing, np.uint32)])
            self.verdicts = np.concatenate([self.verdicts, np.zeros(missing, VERDICT_DTYPE)])
            self.places = np.concatenate([self.places, np.zeros(missing, np.int32)])
            self._scratch = np.zeros(rows, np.int64)
            self._owners = np.zeros(rows, np.uint64)
