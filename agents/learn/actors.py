"""Agents of training: the folded actor as it is evaluated, and what rollouts explore with."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import Agent, CapArray, FloatArray, View
from reinet.agents.model.mlp import Folded, act
from reinet.core import calm_caps, caps_from_actions
from reinet.core.records import FlowStatsArray

WALK = np.log2(np.linspace(2.0, 0.5, 16)).astype(np.float32)
"""The cold start's multipliers, as actions: x2.0 down to x0.5 in steps of 0.1. Each flow starts somewhere on the walk
and goes on from its other end, so that the way out of a starved window is seen too (L4 in
docs/deviations.md)."""


class FoldedActor(Agent):
    """The actor as it stands, without noise: what is exported, before it is."""

    def __init__(self, actor: Folded, head: str, view: View, calm_rtts: float = 0.0) -> None:
        super().__init__("actor", view)
        self._actor, self._head, self._calm_rtts = actor, head, calm_rtts

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns the caps that the network's actions stand for."""
        caps_pkts = caps_from_actions(self._head, act(self._actor, states), stats["cwnd_pkts"], rule_pkts)
        return calm_caps(caps_pkts, stats, self._calm_rtts)


class Explorer(Agent):
    """A rollout's agent: acts for each of its flows in every period, and keeps its actions. Subclasses say how."""

    def __init__(self, head: str, view: View, periods: int, flows: int, calm_rtts: float = 0.0) -> None:
        super().__init__("explorer", view)
        self._head, self._calm_rtts = head, calm_rtts
        self.period = 0
        """The rollout's period that is decided; the rollout counts, since nobody is asked in a silence."""
        self.actions = np.zeros((periods, flows), np.float32)
        """The actions so far; those of a flow without an RTT sample had no effect."""

    @abstractmethod
    def act(self, states: FloatArray) -> FloatArray:
        """Returns this period's actions (flows,) in [-1, 1]."""

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns the caps that this period's actions stand for."""
        self.actions[self.period] = self.act(states)
        caps_pkts = caps_from_actions(self._head, self.actions[self.period], stats["cwnd_pkts"], rule_pkts)
        return calm_caps(caps_pkts, stats, self._calm_rtts)


class NoisyActor(Explorer):
    """A folded actor with ``noise`` (periods, flows) on its actions."""

    def __init__(self, actor: Folded, noise: FloatArray, head: str, view: View, calm_rtts: float = 0.0) -> None:
        periods, flows = noise.shape
        super().__init__(head, view, periods, flows, calm_rtts)
        self._actor, self._noise = actor, noise

    def act(self, states: FloatArray) -> FloatArray:
        """Returns the network's actions plus the period's noise (flows,), within [-1, 1]."""
        return np.asarray(np.clip(act(self._actor, states) + self._noise[self.period], -1.0, 1.0), np.float32)


class Walker(Explorer):
    """The cold start: every flow walks down the multipliers once, from its own of the ``phases`` (flows,)."""

    def __init__(self, phases: NDArray[np.int64], periods: int, head: str, view: View, calm_rtts: float = 0.0) -> None:
        super().__init__(head, view, periods, len(phases), calm_rtts)
        self._phases = phases

    def act(self, states: FloatArray) -> FloatArray:
        """Returns the action at each flow's place on its walk (flows,)."""
        return WALK[(len(WALK) * self.period // len(self.actions) + self._phases) % len(WALK)]
