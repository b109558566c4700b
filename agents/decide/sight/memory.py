"""The loop's memory for whoever looks at it: the latest records and state of each flow, and what is counted.

The loop's thread only notes what each tick had, and works it off for many ticks at once: it takes a tick of few records
as long as one of many. Whoever looks has the rest worked off first and gets copies; what is looked at never changes
what is decided.
"""

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.sight.facts import KINDS, Distribution, Figures
from reinet.core.records import FLOW_STATS_DTYPE, Flag
from reinet.kshim.shim import FlowStatsArray, Shim

KEPT_RECORDS = 5
"""The records of each flow that are kept: they fit a screen, and take 600 bytes."""
_NO_SAMPLE = int(Flag.NO_SAMPLE)
MOST_NOTED = 512
"""So many records wait to be worked off at most, for a millisecond and 60 kB."""
COUNTERS_INTERVAL_NS = 1_000_000_000
"""The shim's counters are read so often, in the loop's thread, since the shim has one thread."""

LATENCY_BOUNDS_S = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.5)
"""A decision is to take less than 1 ms; half a second is a lease, after which it is of no use."""
DELAY_BOUNDS_S = (1e-3, 2e-3, 5e-3, 10e-3, 15e-3, 20e-3, 30e-3, 50e-3, 75e-3, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
"""Close together where targets lie, 15 to 80 ms of queueing; a full buffer of a phone's link holds a second or two."""
RATE_BOUNDS_BYTES_PER_S = tuple(mbps * 125_000.0 for mbps in (0.1, 0.3, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
"""In Mbit/s: from a link that hardly moves to a gigabit."""


Rows = NDArray[np.intp]
Heard = tuple[Rows, FlowStatsArray]
Decided = tuple[Rows, int, NDArray[np.uint64], NDArray[np.uint8]]
"""Rows, when they were decided, and of each the record's time and the verdict."""


class Histogram:
    """Counts values between bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._edges = np.array(bounds)
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._total = 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Counts N values; one that equals a bound lies below it, as Prometheus has it."""
        places = np.searchsorted(self._edges, values, side="left")
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._total += float(values.sum())

    def taken(self) -> Distribution:
        """Returns a copy."""
        return Distribution(self._bounds, self._counts.copy(), self._total)


class Seen(NamedTuple):
    """What is remembered of one flow."""

    records: FlowStatsArray  # (K,), oldest first
    decided_ns: int  # when its latest decision was, 0 = never


class Sight:
    """Remembers and counts; ``hear``, ``decide``, ``tick`` and ``grow`` are for the loop's thread, the rest for any."""

    def __init__(self, rows: int, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._noted: list[Heard | Decided] = []
        self._noted_records = 0
        self._cookies = np.zeros(rows, np.uint64)
        self._heard = np.zeros(rows, np.int64)
        self._records = np.zeros((rows, KEPT_RECORDS), FLOW_STATS_DTYPE)
        self._decided_ns = np.zeros(rows, np.int64)
        self._ticks = 0
        self._verdicts = np.zeros(len(KINDS), np.int64)
        self._latency_s = Histogram(LATENCY_BOUNDS_S)
        self._rtt_s = Histogram(DELAY_BOUNDS_S)
        self._queueing_s = Histogram(DELAY_BOUNDS_S)
        self._rate = Histogram(RATE_BOUNDS_BYTES_PER_S)
        self._shim_counters: Mapping[str, int] = {}
        self._counters_ns: int | None = None

    @property
    def ticks(self) -> int:
        """Returns how many ticks were completed."""
        return self._ticks

    def hear(self, rows: Rows, live: FlowStatsArray) -> None:
        """Keeps N records, whose flows own these rows; of one flow there may be several, in order.

        The arrays are kept: nobody may write into them any more.
        """
        with self._lock:
            self._noted.append((rows, live))
            self._noted_records += len(live)

    def decide(self, rows: Rows, time_ns: NDArray[np.uint64], codes: NDArray[np.uint8]) -> None:
        """Counts N decisions whose caps were just stored, each on a record that ended at ``time_ns``."""
        with self._lock:
            self._noted.append((rows, self._clock_ns(), time_ns, codes))

    def tick(self, shim: Shim, now_ns: int) -> None:
        """Counts a completed tick and now and then looks at the shim's counters, where it has some."""
        self._ticks += 1
        if self._noted_records >= MOST_NOTED:
            with self._lock:
                self._work_off()
        if self._counters_ns is None or now_ns - self._counters_ns >= COUNTERS_INTERVAL_NS:
            self._counters_ns = now_ns
            counters = getattr(shim, "counters", None)
            if counters is not None:
                self._shim_counters = dict(counters())

    def grow(self, rows: int) -> None:
        """Adds rows, up to ``rows``; those there keep what they hold."""
        with self._lock:
            self._work_off()
            for name in ("_cookies", "_heard", "_records", "_decided_ns"):
                held = getattr(self, name)
                setattr(self, name, np.concatenate([held, np.zeros((rows - len(held), *held.shape[1:]), held.dtype)]))

    def seen(self, row: int, cookie: int) -> Seen:
        """Returns copies of what is remembered of the flow that owns a row; nothing, if that is another by now."""
        with self._lock:
            self._work_off()
            heard = int(self._heard[row]) if self._cookies[row] == cookie else 0
            order = np.arange(max(heard - KEPT_RECORDS, 0), heard) % KEPT_RECORDS
            return Seen(self._records[row][order], int(self._decided_ns[row]) if heard else 0)

    def figures(self, codes: NDArray[np.uint8]) -> Figures:
        """Returns what was counted; ``codes`` are the verdicts of the live flows now."""
        flows = np.bincount(codes, minlength=len(KINDS))
        with self._lock:
            self._work_off()
            return Figures(
                ticks=self._ticks,
                verdicts={kind: int(self._verdicts[code]) for code, kind in KINDS.items()},
                flows={kind: int(flows[code]) for code, kind in KINDS.items()},
                decision_latency_s=self._latency_s.taken(),
                rtt_s=self._rtt_s.taken(),
                queueing_delay_s=self._queueing_s.taken(),
                delivery_rate_bytes_per_s=self._rate.taken(),
                shim=dict(self._shim_counters),
            )

    def _work_off(self) -> None:
        """Does what was noted, in order; the caller has the lock."""
        noted, self._noted, self._noted_records = self._noted, [], 0
        together: list[Heard] = []
        decided: list[Decided] = []
        for note in noted:
            if len(note) == 2:
                rows, live = note
                if together and (self._cookies[rows] != live["cookie"]).any():
                    # A row may have changed hands: what is the former owner's comes first.
                    self._take(together, decided)
                    together, decided = [], []
                together.append((rows, live))
            else:
                decided.append(note)
        if together:
            self._take(together, decided)

    def _take(self, heard: list[Heard], decided: list[Decided]) -> None:
        live = np.concatenate([records for _, records in heard])
        self._keep(np.concatenate([rows for rows, _ in heard]), live)
        sampled = live[(live["flags"] & _NO_SAMPLE) == 0]
        rtt_s = sampled["rtt_mean_us"] * 1e-6
        self._rtt_s.add(rtt_s)
        self._queueing_s.add(np.maximum(rtt_s - sampled["min_rtt_us"] * 1e-6, 0))
        self._rate.add(sampled["delivery_rate_bytes_per_s"].astype(np.float64))
        if not decided:
            return
        for rows, now_ns, _, _ in decided:
            self._decided_ns[rows] = now_ns
        ages_ns = np.concatenate([now_ns - time_ns.astype(np.int64) for _, now_ns, time_ns, _ in decided])
        self._latency_s.add(np.maximum(ages_ns, 0) / 1e9)
        self._verdicts += np.bincount(np.concatenate([codes for *_, codes in decided]), minlength=len(KINDS))

    def _keep(self, rows: Rows, live: FlowStatsArray) -> None:
        changed = self._cookies[rows] != live["cookie"]
        if changed.any():
            fresh = rows[changed]
            self._heard[fresh] = self._decided_ns[fresh] = 0
            self._cookies[rows] = live["cookie"]
        left = np.arange(len(rows))
        while left.size:  # as many rounds as one flow has records, usually one
            _, first = np.unique(rows[left], return_index=True)
            now = left[first]
            self._records[rows[now], self._heard[rows[now]] % KEPT_RECORDS] = live[now]
            self._heard[rows[now]] += 1
            left = np.delete(left, first)
