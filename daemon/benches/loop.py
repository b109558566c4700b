"""How fast the decision loop is: many flows in memory, each with a record a period, evenly spread over the period.

The loop is the daemon's own, with the model, the guard and the leases; only the kernel is not there. Time is real:
a record bears the moment at which it was due, and a decision's latency counts from there to just after its cap was
stored, however late the loop came to read the record.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.protocol import Agent
from reinet.core.closing import Closing
from reinet.core.records import FLOW_STATS_DTYPE, FlowStatsArray
from reinet.core.states.reflex import Answered, Reflex
from reinet.core.target import Target
from reinet.kshim.gathering import GATHER_MS
from reinet.kshim.leases import LEASE_MS

RING_RECORDS = (8 << 20) // (FLOW_STATS_DTYPE.itemsize + 8)
"""So many records, each with the kernel's header of 8 bytes, wait for the reader at most, as in the daemon's ring
buffer of 8 MiB (``daemon/config.py``); more are lost."""
VARIANTS = 61
"""A flow's records take turns among so many; a prime, so that flows do not stay in step."""
ROUNDS = 5
"""The rate is the median of so many measurements."""
_ONE_S_NS = 1_000_000_000


@dataclass(frozen=True)
class LoopSpeed:
    """What was measured with one number of flows."""

    flows: int
    period_ms: float
    seconds: float
    records: int
    records_lost: int
    decision_latency_us_p50: float
    decision_latency_us_p99: float
    decisions_per_s: float
    """All flows have a record whenever the loop asks: the most that one core can do."""


class PacedShim(Closing):
    """A ``Shim`` of flows that never end, whose records fall due by the clock or, without a pace, at every poll.

    ``latencies_ns`` gathers one value for each record that a cap answered; of several records of a flow that one cap
    answers the oldest counts.
    """

    def __init__(self, flows: int, period_ns: int, paced: bool = True) -> None:
        self._flows, self._gap_ns, self._paced = flows, period_ns / flows, paced
        self._table = _records(flows, period_ns, np.random.default_rng(0))
        self._caps_pkts = np.zeros(flows, np.uint32)
        self._expires_ns = np.zeros(flows, np.int64)
        self._waiting_ns = np.zeros(flows, np.int64)  # the oldest record that no cap has answered; 0 = none
        self._start_ns = time.monotonic_ns()
        self._given = 0
        self.records_lost = 0
        self.latencies_ns: list[NDArray[np.int64]] = []

    def poll(self, timeout_ms: int) -> FlowStatsArray:
        """Returns what fell due, once; waits for the next record up to the time-out."""
        now_ns = time.monotonic_ns()
        due = int((now_ns - self._start_ns) / self._gap_ns) if self._paced else self._given + self._flows
        if due == self._given:
            next_ns = self._start_ns + (self._given + 1) * self._gap_ns
            time.sleep(min(max(next_ns - now_ns, 0) / 1e9, timeout_ms / 1e3))
            now_ns = time.monotonic_ns()
            due = max(int((now_ns - self._start_ns) / self._gap_ns), self._given)
        lost = max(due - self._given - RING_RECORDS, 0)
        self.records_lost += lost
        serial = np.arange(self._given + lost, due)
        self._given = due
        slots = serial % self._flows
        records: FlowStatsArray = self._table[serial // self._flows % VARIANTS, slots]
        times_ns = (self._start_ns + (serial + 1) * self._gap_ns).astype(np.int64) if self._paced else now_ns
        records["time_ns"] = times_ns
        waiting_ns = self._waiting_ns[slots]
        self._waiting_ns[slots[::-1]] = np.where(waiting_ns, waiting_ns, times_ns)[::-1]  # of several the oldest stays
        return records

    def apply(
        self,
        cookies: NDArray[np.uint64],
        slots: NDArray[np.uint32],
        caps_pkts: NDArray[np.uint32],
        expires_ns: int,
        targets_us: NDArray[np.uint32],
        renews: bool = False,
    ) -> None:
        """Stores caps, then looks at the clock."""
        self._caps_pkts[slots] = caps_pkts
        self._expires_ns[slots] = expires_ns
        now_ns = time.monotonic_ns()
        waiting_ns = self._waiting_ns[slots]
        answered = waiting_ns != 0  # a renewal answers nothing
        self._waiting_ns[slots] = 0
        self.latencies_ns.append(now_ns - waiting_ns[answered])

    def answer(self, reflex: Reflex, timeout_ms: int, hold_ms: int, rest_us: int, most: int) -> Answered:
        """Answers what fell due, as the kernel's shim does; the loop takes it up at once."""
        done = reflex.answer(np.array(self.poll(timeout_ms)), time.monotonic_ns())
        records, now_ns = done.records, time.monotonic_ns()
        self.apply(
            records["cookie"],
            records["slot"],
            done.verdicts["allowed_pkts"],
            now_ns + LEASE_MS * 1_000_000,
            records["target_us"],
        )
        return done._replace(stored_ns=np.full(len(records), now_ns, np.uint64))

    def release(self, cookies: NDArray[np.uint64], slots: NDArray[np.uint32]) -> None:
        """Lifts caps."""
        self._caps_pkts[slots] = 0

    def outstanding(self, slots: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Returns True for every flow: it always has something to send."""
        return np.ones(len(slots), np.bool_)

    def counters(self) -> dict[str, int]:
        """Returns what was left out."""
        return {"records_lost": self.records_lost}

    def close(self) -> None:
        """Lifts every cap."""
        self._caps_pkts[:] = 0


def measure(agent: Agent, flows: int, rtt_ms: float = 20.0, seconds: float = 5.0) -> LoopSpeed:
    """Returns the loop's speed with so many flows of one minimum RTT, under the agent's own period.

    Belongs to a process that has nothing else to do: other threads take the interpreter's time.
    """
    period = agent.view.period
    period_ns = max(period.min_period_ns, round(rtt_ms * 1e6) if period.packet_timed else 0)
    shim = PacedShim(flows, period_ns)
    loop = ControlLoop(shim, agent, Target.parse("+30ms"), bounds_steps=True, gather_ms=GATHER_MS)
    _run(loop, min(seconds, 0.5))  # tables grow and histories fill
    shim.latencies_ns.clear()
    shim.records_lost, before = 0, loop.status().records
    _run(loop, seconds)
    latencies_us = np.concatenate([np.zeros(0, np.int64), *shim.latencies_ns]) / 1e3
    records = loop.status().records - before
    rates = [_rate(agent, flows, period_ns, max(seconds / ROUNDS, 0.1)) for _ in range(ROUNDS)]
    p50_us, p99_us = np.percentile(latencies_us, [50, 99]) if latencies_us.size else (float("nan"), float("nan"))
    return LoopSpeed(
        flows=flows,
        period_ms=period_ns / 1e6,
        seconds=seconds,
        records=records,
        records_lost=shim.records_lost,
        decision_latency_us_p50=float(p50_us),
        decision_latency_us_p99=float(p99_us),
        decisions_per_s=float(np.median(rates)),
    )


def _rate(agent: Agent, flows: int, period_ns: int, seconds: float) -> float:
    loop = ControlLoop(PacedShim(flows, period_ns, paced=False), agent, Target.parse("+30ms"), bounds_steps=True)
    loop.tick()
    before, start_ns = loop.status().decisions, time.monotonic_ns()
    _run(loop, seconds)
    return (loop.status().decisions - before) * _ONE_S_NS / (time.monotonic_ns() - start_ns)


def _run(loop: ControlLoop, seconds: float) -> None:
    end_ns = time.monotonic_ns() + round(seconds * 1e9)
    while time.monotonic_ns() < end_ns:
        loop.tick(1)


def _records(flows: int, period_ns: int, rng: np.random.Generator) -> FlowStatsArray:
    """Returns records (VARIANTS, flows) of flows at 1000 packets/s over 20 ms, each with a queue of its own."""
    records = np.zeros((VARIANTS, flows), FLOW_STATS_DTYPE)
    size: Any = records.shape
    rtt_us = rng.integers(30_000, 50_000, size)
    records["cookie"], records["slot"] = np.arange(1, flows + 1), np.arange(flows)
    records["period_ns"], records["min_rtt_us"], records["mss_bytes"] = period_ns, 20_000, 1448
    records["rtt_mean_us"] = records["rtt_last_us"] = records["srtt_us"] = rtt_us
    records["rtt_least_us"], records["rtt_samples"] = rtt_us - 2_000, rng.integers(1, 20, size)
    records["delivery_rate_bytes_per_s"] = rng.integers(1_200_000, 1_700_000, size)
    records["delivered_bytes"] = records["delivery_rate_bytes_per_s"] * period_ns // _ONE_S_NS
    records["cwnd_pkts"] = records["inflight_pkts"] = rng.integers(20, 80, size)
    records["ssthresh_pkts"] = 40
    return records
