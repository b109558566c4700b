"""Many flows on a simulated clock whose paths differ and whose fate under a cap is known: a shim to test modes with."""

from types import TracebackType

import numpy as np

from reinet.core.records import FLOW_STATS_DTYPE, Flag, FlowStatsArray

PERIOD_MS = 200
GOOD_PKTS, WORSE_PKTS = 10_000, 20_000
"""Caps stand for models: what a model does to a flow is told by its cap. None is to seem to hold a flow back: they are
far above what any delivers in a period."""


class Population:
    """A ``Shim`` of ``flows`` flows; every poll is a period later and gives one record for each of them.

    ``effects`` are (RTT, rate) under each cap, in those of an uncapped flow. Paths and moments are drawn: minimum RTTs
    from 15 to 150 ms, queues as long again, rates over a factor of thirty, all of it wandering. A flow ends when it has
    sent its object, and another takes its slot.
    """

    def __init__(self, flows: int, effects: dict[int, tuple[float, float]], seed: int, mean_bytes: float = 2e7) -> None:
        self._rng = np.random.default_rng(seed)
        self._effects = effects
        self._mean_bytes = mean_bytes
        self.now_ns = 1_000_000_000
        self.caps_pkts = np.zeros(flows, np.uint32)
        self.expires_ns = np.zeros(flows, np.int64)
        self._cookies = np.zeros(flows, np.uint64)
        self._next_cookie = 1
        self._min_rtt_us, self._queue_us, self._rate, self._left_bytes = np.zeros((4, flows))
        self._drift = np.zeros((2, flows))
        self.ended = 0
        self._begin(np.arange(flows))

    def clock_ns(self) -> int:
        return self.now_ns

    def poll(self, timeout_ms: int) -> FlowStatsArray:
        self.now_ns += PERIOD_MS * 1_000_000
        closed = self._close(np.flatnonzero(self._left_bytes <= 0))
        flows = len(self._cookies)
        self._drift = 0.9 * self._drift + 0.15 * self._rng.normal(size=(2, flows))
        caps = np.where(self.expires_ns > self.now_ns, self.caps_pkts, 0)
        delay, rate = (np.ones(flows), np.ones(flows))
        for cap_pkts, (on_delay, on_rate) in self._effects.items():
            delay[caps == cap_pkts], rate[caps == cap_pkts] = on_delay, on_rate
        rtt_us = (self._min_rtt_us + self._queue_us) * np.exp(self._drift[0]) * delay
        rate_bytes_per_s = self._rate * np.exp(self._drift[1]) * rate
        records = np.zeros(flows, FLOW_STATS_DTYPE)
        records["cookie"], records["slot"], records["time_ns"] = self._cookies, np.arange(flows), self.now_ns
        records["period_ns"], records["rtt_samples"], records["mss_bytes"] = PERIOD_MS * 1_000_000, 10, 1448
        records["rtt_mean_us"] = records["rtt_least_us"] = records["rtt_last_us"] = records["srtt_us"] = rtt_us
        records["min_rtt_us"] = np.minimum(self._min_rtt_us, rtt_us)
        records["delivery_rate_bytes_per_s"] = rate_bytes_per_s
        records["delivered_bytes"] = rate_bytes_per_s * PERIOD_MS / 1e3
        records["cwnd_pkts"] = 100
        records["inflight_pkts"] = 40
        records["cap_pkts"] = caps
        self._left_bytes -= records["delivered_bytes"]
        return np.concatenate([closed, records])

    def apply(self, cookies, slots, caps_pkts, expires_ns, targets_us, renews=False) -> None:  # type: ignore[no-untyped-def]
        own = self._cookies[slots] == cookies
        self.caps_pkts[slots[own]] = caps_pkts[own]
        self.expires_ns[slots[own]] = expires_ns

    def release(self, cookies, slots) -> None:  # type: ignore[no-untyped-def]
        self.caps_pkts[slots] = 0

    def counters(self) -> dict[str, int]:
        return {}

    def outstanding(self, slots) -> np.ndarray:  # type: ignore[no-untyped-def]
        return np.ones(len(slots), np.bool_)

    def capped(self) -> np.ndarray:
        """Which flows have a cap in force."""
        return (self.caps_pkts != 0) & (self.expires_ns > self.now_ns)

    def _begin(self, slots: np.ndarray) -> None:
        rng, count = self._rng, len(slots)
        self._cookies[slots] = self._next_cookie + np.arange(count)
        self._next_cookie += count
        self._min_rtt_us[slots] = np.exp(rng.uniform(np.log(15_000), np.log(150_000), count))
        self._queue_us[slots] = self._min_rtt_us[slots] * rng.uniform(0.5, 1.5, count)
        self._rate[slots] = np.exp(rng.uniform(np.log(2e5), np.log(6e6), count))
        self._left_bytes[slots] = self._mean_bytes * rng.lognormal(0.0, 1.0, count)
        self._drift[:, slots] = 0.3 * rng.normal(size=(2, count))
        self.caps_pkts[slots] = 0

    def _close(self, slots: np.ndarray) -> FlowStatsArray:
        closed = np.zeros(len(slots), FLOW_STATS_DTYPE)
        closed["cookie"], closed["slot"], closed["time_ns"] = self._cookies[slots], slots, self.now_ns
        closed["flags"] = int(Flag.CLOSED)
        self.ended += len(slots)
        self._begin(slots)
        return closed

    def close(self) -> None:
        self.caps_pkts[:] = 0

    def __enter__(self) -> "Population":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
