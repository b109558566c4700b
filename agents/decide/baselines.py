"""The agents that are not learned: no cap, a fixed cap, the hand rule, the clairvoyant cap and a random walk."""

from collections.abc import Sequence

import numpy as np

from reinet.agents.decide.protocol import Agent, CapArray, FloatArray, Future, View
from reinet.alcc.launch import Law
from reinet.core import MIN_CAP_PKTS, RULE_GAIN, round_caps
from reinet.core.errors import ConfigError
from reinet.core.records import FlowStatsArray


class NoCap(Agent):
    """``none``: plain congestion control."""

    sets_caps = False

    def __init__(self, view: View | None = None) -> None:
        super().__init__("none", view)

    def law_of_the_gate(self) -> Law:
        """Returns the law of the same name."""
        return Law(self.name)

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns zeros."""
        return np.zeros(len(stats), np.uint32)


class FixedCap(Agent):
    """``fixed:N``: every flow's window stops at N packets."""

    def __init__(self, cap_pkts: int, view: View | None = None) -> None:
        super().__init__(f"fixed:{cap_pkts}", view)
        self.cap_pkts = cap_pkts

    def law_of_the_gate(self) -> Law:
        """Returns the law of the same name."""
        return Law(self.name)

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns N for every flow, or the ceiling where that is lower."""
        return np.full(len(stats), min(self.cap_pkts, self.ceiling_pkts), np.uint32)


class Rule(Agent):
    """``rule:G``: the hand rule, cap = G x (max delivery rate of the last 10 periods) x min RTT / mss.

    It holds no state: the maximum lives in the StateBank.
    """

    def __init__(self, gain: float = RULE_GAIN) -> None:
        super().__init__(f"rule:{gain:g}")
        self.gain = gain

    def law_of_the_gate(self) -> Law:
        """Returns the law of the same name."""
        return Law(self.name)

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns G x rule_pkts, no cap while the product is unknown."""
        caps_pkts = round_caps(self.gain * rule_pkts.astype(np.float64), self.ceiling_pkts)
        return np.where(rule_pkts > 0, caps_pkts, 0).astype(np.uint32)


class Clairvoyant(Agent):
    """``clairvoyant:MS``: opportunities in the next min RTT + MS of the trace, plus one packet; simulator only.

    A yardstick, not a bound: it knows the link's future but neither the queue nor the window's own dynamics. Like every
    cap it leaves ``MIN_CAP_PKTS``: a lower one would be refused, and the flow uncapped just when the link is slow.
    """

    needs_future = True

    def __init__(self, horizon_ms: int | Sequence[int], view: View | None = None) -> None:
        super().__init__(f"clairvoyant:{horizon_ms}", view)
        self._horizon_ms = np.array(horizon_ms, np.uint64)
        """One for all links, or one for each (N,)."""
        self._future: Future | None = None

    def bind(self, future: Future) -> None:
        """Takes the future of the batch that it is going to decide for: ``SimBatch.clairvoyant_caps``."""
        self._future = future

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns one cap per link of the bound simulation, in its order."""
        if self._future is None:
            raise ConfigError(
                f"agent {self.name} sees a link's future, which only the simulator knows: "
                "name it where links are simulated (--link sim)"
            )
        caps = np.asarray(self._future(self._horizon_ms), np.uint32)
        if len(caps) != len(stats):
            raise ValueError(f"agent {self.name} is bound to {len(caps)} links but was asked about {len(stats)}")
        return np.maximum(caps, MIN_CAP_PKTS)


class RandomCap(Agent):
    """``random``: 2^a x cwnd with a uniform in [-1, 1], drawn anew for every period; the same sequence per seed."""

    draws = True

    def __init__(self, seed: int = 0) -> None:
        super().__init__("random")
        self._seed = seed
        self.reset()

    def reset(self) -> None:
        """Starts the sequence again."""
        self._rng = np.random.Generator(np.random.PCG64(self._seed))

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns a random multiple of each flow's window."""
        multiplier = np.exp2(self._rng.uniform(-1.0, 1.0, len(stats)))
        return round_caps(multiplier * stats["cwnd_pkts"], self.ceiling_pkts)
