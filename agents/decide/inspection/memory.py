"""The loop's memory for whoever looks at it: the latest records and state of each flow, and what is counted.

Whoever looks gets copies; what is looked at never changes what is decided.
"""

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.decider import Rows
from reinet.agents.decide.inspection.facts import KINDS, Distribution, Figures
from reinet.agents.decide.verdicts import Verdicts
from reinet.core.records import FlowStatsArray
from reinet.core.states.flow_memory import FlowMemory
from reinet.kshim.shim import Shim

COUNTERS_INTERVAL_NS = 1_000_000_000
"""The shim's counters are read so often, in the loop's thread, since the shim has one thread."""

LATENCY_BOUNDS_S = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.5)
"""A decision is to take less than 1 ms; half a second is a lease, after which it is of no use."""
DELAY_BOUNDS_S = (1e-3, 2e-3, 5e-3, 10e-3, 15e-3, 20e-3, 30e-3, 50e-3, 75e-3, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
"""Close together where targets lie, 15 to 80 ms of queueing; a full buffer of a phone's link holds a second or two."""
RATE_BOUNDS_BYTES_PER_S = tuple(mbps * 125_000.0 for mbps in (0.1, 0.3, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
"""In Mbit/s: from a link that hardly moves to a gigabit."""


class Seen(NamedTuple):
    """What is remembered of one flow."""

    records: FlowStatsArray  # (K,), oldest first
    decided_ns: int  # when its latest decision was, 0 = never


class LoopMemory:
    """Remembers and counts; any thread may ask, only the loop's calls those that change it."""

    def __init__(self, rows: int, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._flows = FlowMemory(rows, DELAY_BOUNDS_S, RATE_BOUNDS_BYTES_PER_S, LATENCY_BOUNDS_S)
        self._ticks = 0
        self._shim_counters: Mapping[str, int] = {}
        self._counters_ns: int | None = None

    @property
    def ticks(self) -> int:
        """Returns how many ticks were completed."""
        return self._ticks

    def reset(self, rows: Rows) -> None:
        """Empties the rows of new flows."""
        with self._lock:
            self._flows.reset(rows)

    def record(self, rows: Rows, live: FlowStatsArray) -> None:
        """Keeps N records, whose flows own these rows; of one flow there may be several, in order."""
        with self._lock:
            self._flows.record(rows, live)

    def decide(
        self, rows: Rows, stats: FlowStatsArray, verdicts: Verdicts, stored_ns: NDArray[np.uint64] | None = None
    ) -> None:
        """Counts N decisions on these records, whose caps were stored then (N,), None = just now."""
        if stored_ns is None:
            stored_ns = np.full(len(rows), self._clock_ns(), np.uint64)
        with self._lock:
            self._flows.decide(rows, stored_ns, stats, verdicts)

    def tick(self, shim: Shim, now_ns: int) -> None:
        """Counts a completed tick and now and then looks at the shim's counters."""
        self._ticks += 1
        if self._counters_ns is None or now_ns - self._counters_ns >= COUNTERS_INTERVAL_NS:
            self._counters_ns = now_ns
            self._shim_counters = dict(shim.counters())

    def grow(self, rows: int) -> None:
        """Adds rows, up to ``rows``; those there keep what they hold."""
        with self._lock:
            self._flows.grow(rows)

    def seen(self, row: int, cookie: int) -> Seen:
        """Returns copies of what is remembered of the flow that owns a row; nothing, if that is another by now."""
        with self._lock:
            return Seen(*self._flows.seen(row, cookie))

    def figures(self, codes: NDArray[np.uint8]) -> Figures:
        """Returns what was counted; ``codes`` are the verdicts of the live flows now."""
        flows = np.bincount(codes, minlength=len(KINDS))
        with self._lock:
            counts = self._flows.counts()
        return Figures(
            ticks=self._ticks,
            verdicts={kind: counts["verdicts"][code] for code, kind in KINDS.items()},
            flows={kind: int(flows[code]) for code, kind in KINDS.items()},
            decision_latency_s=_distribution(LATENCY_BOUNDS_S, counts["latency_s"]),
            rtt_s=_distribution(DELAY_BOUNDS_S, counts["rtt_s"]),
            queueing_delay_s=_distribution(DELAY_BOUNDS_S, counts["queueing_s"]),
            delivery_rate_bytes_per_s=_distribution(RATE_BOUNDS_BYTES_PER_S, counts["rate"]),
            shim=dict(self._shim_counters),
        )


def _distribution(bounds: tuple[float, ...], counted: tuple[list[int], float]) -> Distribution:
    counts, total = counted
    return Distribution(bounds, np.array(counts, np.int64), total)
