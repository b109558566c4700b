"""The log of refusals: each flow's first, but of many at once one in a second."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reinet.agents.decide.flows import Rows
from reinet.agents.decide.protocol import StatsArray
from reinet.agents.decide.verdicts import Codes, Verdicts, Why, refused, text

INTERVAL_S = 1.0
"""Between two lines; `reinet ctl flows` shows all refusals."""
_NO_QUEUE = int(Why.NO_QUEUE)


class RefusalLog:
    """Logs flows that are refused now and were not before."""

    def __init__(self, log: Any, ceiling_pkts: int, clock_ns: Callable[[], int]) -> None:
        self._log, self._ceiling_pkts, self._clock_ns = log, ceiling_pkts, clock_ns
        self._latest_ns: int | None = None

    def note(self, rows: Rows, stats: StatsArray, verdicts: Verdicts, known: Codes) -> None:
        """Looks at M decisions; ``known`` has the verdicts of all rows before them."""
        codes = verdicts["code"]
        if not codes.any():
            return
        is_refused = refused(codes) & (codes != _NO_QUEUE)
        if not is_refused.any():
            return
        before = known[rows]
        new = np.flatnonzero(is_refused & (~refused(before) | (before == _NO_QUEUE)))
        now_ns = self._clock_ns()
        if new.size and (self._latest_ns is None or now_ns - self._latest_ns >= INTERVAL_S * 1e9):
            self._latest_ns = now_ns
            first = int(new[0])
            reason = text(verdicts[first], self._ceiling_pkts)
            self._log.warning("flow refused", cookie=int(stats["cookie"][first]), reason=reason, flows=int(new.size))
