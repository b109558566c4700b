"""The agents that are not learned: no cap, a fixed cap, the hand rule, the clairvoyant cap and a random walk."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reinet.core import RULE_GAIN, round_caps
from reinet.core.errors import ConfigError

FloatArray = NDArray[np.float32]
CapArray = NDArray[np.uint32]
StatsArray = NDArray[Any]


class Agent(Protocol):
    """Turns flows' records and states into caps."""

    name: str

    def reset(self) -> None:
        """Forgets everything about earlier flows."""

    def decide(self, stats: StatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Caps in packets, 0 = none, for N flows: FLOW_STATS_DTYPE[N], states (N, S), rule_pkts (N,).

        rule_pkts is (max delivery rate of the last 10 periods) x (min RTT) / mss, 0 while unknown. Records without an
        RTT sample are not shown to agents: the cap in force stays.
        """


class NoCap:
    """``none``: plain congestion control."""

    name = "none"

    def reset(self) -> None:
        """Holds no state."""

    def decide(self, stats: StatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Zeros."""
        return np.zeros(len(stats), np.uint32)


class FixedCap:
    """``fixed:N``: every flow's window stops at N packets."""

    def __init__(self, cap_pkts: int) -> None:
        self.cap_pkts = cap_pkts
        self.name = f"fixed:{cap_pkts}"

    def reset(self) -> None:
        """Holds no state."""

    def decide(self, stats: StatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """N for every flow."""
        return np.full(len(stats), self.cap_pkts, np.uint32)


class Rule:
    """``rule:G``: the hand rule, cap = G x (max delivery rate of the last 10 periods) x min RTT / mss."""

    def __init__(self, gain: float = RULE_GAIN) -> None:
        self.gain = gain
        self.name = f"rule:{gain:g}"

    def reset(self) -> None:
        """Holds no state; the maximum lives in the StateBank."""

    def decide(self, stats: StatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """G x rule_pkts, no cap while the product is unknown."""
        return np.where(rule_pkts > 0, round_caps(self.gain * rule_pkts.astype(np.float64)), 0).astype(np.uint32)


class Clairvoyant:
    """``clairvoyant:MS``: opportunities in the next min RTT + MS of the trace, plus one packet; simulator only.

    A yardstick, not a bound: it knows the link's future but neither the queue nor the window's own dynamics.
    """

    def __init__(self, horizon_ms: int) -> None:
        self.horizon_ms = horizon_ms
        self.name = f"clairvoyant:{horizon_ms}"
        self._oracle: Callable[[int], CapArray] | None = None

    def bind(self, oracle: Callable[[int], CapArray]) -> None:
        """Gives it the future: ``SimBatch.clairvoyant_caps`` of the batch it is going to decide for."""
        self._oracle = oracle

    def reset(self) -> None:
        """Holds no state."""

    def decide(self, stats: StatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """One cap per link of the bound simulation, in its order."""
        if self._oracle is None:
            raise ConfigError(f"agent {self.name} sees a link's future, which only the simulator knows: use --link sim")
        caps = np.asarray(self._oracle(self.horizon_ms), np.uint32)
        if len(caps) != len(stats):
            raise ValueError(f"agent {self.name} is bound to {len(caps)} links but was asked about {len(stats)}")
        return caps


class RandomCap:
    """``random``: 2^a x cwnd with a uniform in [-1, 1], drawn anew for every period; the same sequence per seed."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self.reset()

    def reset(self) -> None:
        """Starts the sequence again."""
        self._rng = np.random.Generator(np.random.PCG64(self._seed))

    def decide(self, stats: StatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """A random multiple of each flow's window."""
        multiplier = np.exp2(self._rng.uniform(-1.0, 1.0, len(stats)))
        return round_caps(multiplier * stats["cwnd_pkts"])
