"""Evolution: the actor's last layer, polished on what flows are judged by.

No reward says quite what a frontier ratio does: the 95th percentile of a delay is no sum over time. So at the end the
last layer's weights, some dozens of numbers, are moved by CMA-ES (Hansen 2016, the library ``cma``): members of a
generation run over the same fresh links with the same seeds (common random numbers), and what is lowered is

    (log(mean queueing delay + 1 ms) + log(its 95th percentile + 1 ms)) / 2 - trade x log(throughput / plain throughput)

on the mean of the links; more throughput than plain counts for nothing. A step is as long in every direction by what it
does to the action, not to the weight: a weight's deviation is the inverse of its unit's.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import Agent, CapArray, FloatArray, View
from reinet.agents.learn.config import EvolutionSection
from reinet.agents.model.mlp import Folded, hidden_units
from reinet.core import calm_caps, caps_from_actions
from reinet.core.records import FlowStatsArray
from reinet.envs.link.metrics import Metrics

Members = NDArray[np.float64]
"""(P, H + 1): each row the last layer's weights and, at its end, its bias."""


def last_layer(actor: Folded) -> NDArray[np.float64]:
    """Returns the last layer as a member (H + 1,)."""
    weight, bias = actor.layers[-1]
    return np.append(weight[0], bias).astype(np.float64)


def with_last_layer(actor: Folded, member: NDArray[np.float64]) -> Folded:
    """Returns the actor with another last layer."""
    last = (member[None, :-1].astype(np.float32), member[-1:].astype(np.float32))
    return replace(actor, layers=[*actor.layers[:-1], last])


class Generation(Agent):
    """The members of a generation side by side: rows come as one block of flows for each."""

    def __init__(
        self, actor: Folded, members: Members, flows: int, head: str, view: View, calm_rtts: float = 0.0
    ) -> None:
        super().__init__("generation", view)
        self._actor, self._head, self._calm_rtts = actor, head, calm_rtts
        self._weights = np.repeat(members[:, :-1].astype(np.float32), flows, axis=0)
        self._biases = np.repeat(members[:, -1].astype(np.float32), flows)

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns the caps of each row's member."""
        outputs = np.einsum("nh,nh->n", hidden_units(self._actor, states), self._weights) + self._biases
        caps_pkts = caps_from_actions(self._head, np.tanh(outputs), stats["cwnd_pkts"], rule_pkts)
        return calm_caps(caps_pkts, stats, self._calm_rtts)


def cost(figures: Metrics | None, plain: Metrics | None, trade: float) -> float:
    """Returns what a member's flow costs, beside plain congestion control on the same link.

    It is 0 where of either nothing left the link (None): whatever a member does, an outage does to all of them.
    """
    if figures is None or plain is None:
        return 0.0
    delay = math.log(figures.qdelay_mean_ms + 1.0) + math.log(figures.qdelay_p95_ms + 1.0)
    kept = max(figures.throughput_mbps, 1e-3) / max(plain.throughput_mbps, 1e-3)
    return delay / 2 - trade * min(math.log(kept), 0.0)


class Evolution:
    """CMA-ES over last layers. Its state is the costs that it was told: told again, it is where it was, bit for bit."""

    def __init__(self, section: EvolutionSection, seed: int, start: NDArray[np.float64], units: FloatArray) -> None:
        """Starts from a member, with the units (N, H) that states it will meet make."""
        import cma  # here: with SciPy and pyplot it takes longer than all else that a gatherer imports

        self.start = start
        self.scale = np.append(1.0 / np.maximum(units.std(axis=0), 1e-3), 1.0) * (units.std(axis=0).max() > 0)
        self.told: list[list[float]] = []
        rng = np.random.Generator(np.random.PCG64([seed, 1]))
        self._strategy = cma.CMAEvolutionStrategy(
            np.zeros(len(start)),
            section.spread / math.sqrt(len(start)),
            {
                "popsize": section.members,
                "randn": lambda *shape: rng.standard_normal(shape),
                "seed": math.nan,  # it must not touch NumPy's global generator
                "verbose": -9,
                "tolflatfitness": 1_000_000,
            },
        )

    def members(self) -> Members:
        """Returns a generation (P, H + 1), its mean last; ``tell`` follows."""
        self._asked = self._strategy.ask()
        return np.asarray(self.start + self.scale * np.array([*self._asked, self._strategy.mean]), np.float64)

    def tell(self, costs: Sequence[float]) -> None:
        """Takes the costs of a generation, without its mean's."""
        self._strategy.tell(self._asked, list(costs))
        self.told.append([float(value) for value in costs])

    def mean(self) -> NDArray[np.float64]:
        """Returns the member that the strategy believes in (H + 1,)."""
        return np.asarray(self.start + self.scale * self._strategy.mean, np.float64)
