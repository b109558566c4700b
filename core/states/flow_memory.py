"""What a loop remembers of its flows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.guard import verdict_bytes
from reinet.core.records import FLOW_STATS_DTYPE, FlowStatsArray, as_bytes

KEPT_RECORDS: int = _core.KEPT_RECORDS
"""So many records of each flow are remembered."""


class FlowMemory:
    """The latest records of each row's flow, and counts since the start: ``flow_memory.hpp``."""

    def __init__(
        self, rows: int, delays_s: Sequence[float], rates_bytes_per_s: Sequence[float], latencies_s: Sequence[float]
    ) -> None:
        """Takes the bounds between which RTTs and queueing delays, delivery rates, and decisions' ages are counted."""
        self._core = _core.FlowMemory(rows, list(delays_s), list(rates_bytes_per_s), list(latencies_s))

    def grow(self, rows: int) -> None:
        """Adds rows, up to ``rows``; those there keep what they hold."""
        self._core.grow(rows)

    def reset(self, rows: npt.NDArray[np.intp]) -> None:
        """Empties the rows of new flows. Raises ValueError for a row that is not there."""
        self._core.reset(np.ascontiguousarray(rows, np.int64))

    def record(self, rows: npt.NDArray[np.intp], stats: FlowStatsArray) -> None:
        """Keeps and counts N records, FLOW_STATS_DTYPE (N,), whose flows own these rows; a flow's come in order.

        Raises ValueError for a row that is not there.
        """
        self._core.record(np.ascontiguousarray(rows, np.int64), as_bytes(stats))

    def decide(
        self,
        rows: npt.NDArray[np.intp],
        stored_ns: npt.NDArray[np.uint64],
        stats: FlowStatsArray,
        verdicts: npt.NDArray[np.void],
    ) -> None:
        """Counts decisions on N records, whose caps were stored then (N,); verdicts as of ``Guard.judge``."""
        self._core.decide(
            np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(stored_ns),
            as_bytes(stats), verdict_bytes(verdicts),
        )  # fmt: skip

    def seen(self, row: int, cookie: int) -> tuple[FlowStatsArray, int]:
        """Returns the records that are kept of the flow that owns a row, oldest first, and when it was decided on, 0 =
        never; none, if the row is another's by now.
        """
        records = np.zeros(KEPT_RECORDS, FLOW_STATS_DTYPE)
        count, decided_ns = self._core.seen(row, cookie, as_bytes(records))
        return records[:count], decided_ns

    def counts(self) -> dict[str, Any]:
        """Returns ``rtt_s``, ``queueing_s``, ``rate`` (in bytes/s) and ``latency_s``, each as the numbers between the
        bounds and the sum of all values, and ``verdicts``, how many decisions came to each by its number.
        """
        return self._core.counts()
