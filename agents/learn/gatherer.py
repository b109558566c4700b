"""Experience: many simulated flows under one policy, as a pure function of policy, normaliser, seed and iteration.

Every iteration starts fresh flows, so no state of a link outlives it: training is repeatable bit for bit, also across a
checkpoint, whatever ran in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.decider import Decider
from reinet.agents.decide.guard import Guard
from reinet.agents.decide.protocol import Agent, FloatArray, View
from reinet.agents.learn.actors import WALK, Explorer, NoisyActor, Walker
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.links import domain_of
from reinet.agents.learn.replay import Fragment
from reinet.agents.model.mlp import Layers
from reinet.core import FEATURE_SETS, Normaliser, delay_ratios
from reinet.envs.link.metrics import LinkLog, Metrics, compute
from reinet.envs.link.spec import LinkSpec
from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace


@dataclass
class Experience:
    """One worker's flows of one iteration, as the learner takes them."""

    fragments: list[Fragment]
    normaliser: Normaliser
    """The statistics of this iteration's records alone, to be merged."""
    records: int
    """How many periods were simulated, those without an RTT sample included."""
    summary: dict[str, float] = field(default_factory=dict)
    """The means over decided records, by TensorBoard tag."""


class Gatherer:
    """Steps batches of simulated flows."""

    def __init__(self, config: TrainConfig, traces: Sequence[Trace], worker: int) -> None:
        self._config = config
        self._traces = list(traces)
        self._worker = worker
        features = FEATURE_SETS[config.feature_set]
        self._history, self._frame = features.history, len(features.features)

    def gather(self, layers: Layers | None, normaliser: Normaliser, iteration: int) -> Experience:
        """Returns one iteration's flows under a folded actor with noise, or without one under the cold start's walk."""
        config = self._config
        rng = np.random.Generator(np.random.PCG64([config.seed, iteration, self._worker]))
        domain = domain_of(config.links, self._traces)
        links = [domain.draw(rng) for _ in range(config.rollout.links)]
        view = config.view(normaliser)
        sim = _batch(links, view, reward=config.reward.kind, delay_weight=config.reward.delay_weight)
        count, periods = len(links), config.rollout.periods
        noise = rng.normal(0.0, config.ddpg.noise, (periods, count)) + rng.normal(0.0, config.ddpg.flow_noise, count)
        phases = rng.integers(len(WALK), size=count)
        agent: Explorer = (
            Walker(phases, periods, config.head, view)
            if layers is None
            else NoisyActor(layers, noise.astype(np.float32), config.head, view)
        )
        # No guard: links are drawn with targets that can be kept and the heads keep caps within their limits; and where
        # the guard put its own cap in place of an action's, the replay would say that the action had done it.
        decider = Decider(agent, count, guard=None)

        states = np.empty((periods + 1, count, self._history * self._frame), np.float32)
        stats = np.empty((periods + 1, count), sim.stats.dtype)
        rewards = np.empty((periods + 1, count), np.float32)
        decided = np.empty((periods + 1, count), np.bool_)
        sim.reset()
        for period in range(periods + 1):
            states[period], stats[period] = sim.states, sim.stats
            rewards[period], decided[period] = sim.rewards, sim.decided
            if period == periods:
                break
            agent.period = period
            sim.step_caps(decider.decide(sim.stats, sim.states, sim.rule_pkts, sim.decided))

        total = np.cumsum(rewards.astype(np.float64), axis=0)
        observed = Normaliser(config.feature_set)
        observed.observe(stats.reshape(-1))
        return Experience(
            fragments=[
                self._fragment(states[:, i], agent.actions[:, i], total[:, i], decided[:, i]) for i in range(count)
            ],
            normaliser=observed,
            records=(periods + 1) * count,
            summary=_summary(stats[1:][decided[1:]], np.diff(total, axis=0)),
        )

    def _fragment(
        self, states: FloatArray, actions: FloatArray, total: NDArray[np.float64], decided: NDArray[np.bool_]
    ) -> Fragment:
        """Returns one flow's transitions between decided records; ``total`` is its reward summed from the start."""
        rows = np.flatnonzero(decided)
        if len(rows) == 0:
            return Fragment(np.zeros((self._history, self._frame), np.float32), actions[:0], actions[:0])
        older = states[rows[0]].reshape(self._history, self._frame)[:0:-1]
        return Fragment(
            frames=np.concatenate([older, states[rows, : self._frame]]),
            actions=actions[rows[:-1]],
            rewards=np.diff(total[rows]).astype(np.float32),
        )

    def evaluate(self, agent: Agent, links: Sequence[LinkSpec]) -> list[Metrics]:
        """Returns the figures of one flow per link, without noise, behind the guard."""
        sim = _batch(links, agent.view, record_log=True)
        agent.bind(sim.clairvoyant_caps)
        decider = Decider(agent, len(links), Guard())
        evaluate_s = self._config.run.evaluate_s
        end_ns = np.array([round((link.start_offset_ms / 1e3 + evaluate_s) * 1e9) for link in links])
        sim.reset()
        while np.any(sim.stats["time_ns"] < end_ns):
            sim.step_caps(decider.decide(sim.stats, sim.states, sim.rule_pkts, sim.decided))
        return [_metrics(sim.log(row), link.mrtt_ms, end_ns[row] / 1e6) for row, link in enumerate(links)]


def _batch(links: Sequence[LinkSpec], view: View, **options: Any) -> SimBatch:
    return SimBatch(list(links), view.period, view.feature_set, normaliser=view.normaliser, **options)


def _metrics(log: dict[str, Any], mrtt_ms: float, end_ms: float) -> Metrics:
    return compute(LinkLog.of_flow(log), mrtt_ms, end_ms)


def _summary(stats: NDArray[Any], rewards: NDArray[np.float64]) -> dict[str, float]:
    rho = delay_ratios(stats)
    queueing_us = stats["rtt_mean_us"].astype(np.float64) - stats["min_rtt_us"]
    return {
        "charts/reward_per_period": float(rewards.mean()),
        "charts/rho_median": float(np.median(rho)),
        "charts/rho_above_1_share": float((rho > 1).mean()),
        "charts/queueing_delay_ms": float(queueing_us.mean() / 1e3),
        "charts/cwnd_pkts": float(stats["cwnd_pkts"].mean()),
    }
