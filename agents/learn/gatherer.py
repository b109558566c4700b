"""Experience: many simulated flows under one policy, as a pure function of policy, normaliser, seed and iteration.

Every iteration starts fresh flows, so no state of a link outlives it: training is repeatable bit for bit, also across a
checkpoint, whatever ran in between.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.baselines import NoCap, Rule
from reinet.agents.decide.decider import Decider
from reinet.agents.decide.protocol import Agent, FloatArray, View
from reinet.agents.evaluation.batch import batch_seen, figures, figures_if_any
from reinet.agents.evaluation.frontier import Baseline, baselines
from reinet.agents.learn.actors import WALK, Explorer, FoldedActor, NoisyActor, Walker
from reinet.agents.learn.config import DdpgSection, TrainConfig
from reinet.agents.learn.evolution import Generation, Members, cost
from reinet.agents.learn.hidden import SIZE, hidden_of
from reinet.agents.learn.hindsight import teach
from reinet.agents.learn.links import domain_of
from reinet.agents.learn.replay import Fragment
from reinet.agents.model.mlp import Folded
from reinet.core import FEATURE_SETS, Normaliser, PeriodConfig, delay_ratios
from reinet.envs.link.metrics import Metrics
from reinet.envs.link.spec import LinkSpec
from reinet.envs.trace import Trace


@dataclass
class Experience:
    """One worker's flows of one iteration, as the learner takes them."""

    fragments: list[Fragment]
    normaliser: Normaliser
    """The statistics of this iteration's records alone, to be merged."""
    periods: int
    """How many were simulated, those without an RTT sample included."""
    summary: dict[str, float] = field(default_factory=dict)
    """The means over decided records, by TensorBoard tag."""


class Ranked(NamedTuple):
    """What flows cost by which links or members are ranked."""

    costs: NDArray[np.float64]
    periods: int
    """How many periods of flows were simulated for that, those beside which they are judged among them."""


class Gatherer:
    """Steps batches of simulated flows."""

    def __init__(self, config: TrainConfig, traces: Sequence[Trace], worker: int) -> None:
        self._config = config
        self._traces = list(traces)
        self._worker = worker
        features = FEATURE_SETS[config.feature_set]
        self._history, self._frame = features.history, len(features.features)

    def gather(self, actor: Folded | None, normaliser: Normaliser, iteration: int) -> Experience:
        """Returns one iteration's flows under a folded actor with noise, or without one under the cold start's walk."""
        config = self._config
        rng = np.random.Generator(np.random.PCG64([config.seed, iteration, self._worker]))
        links, behind_rule, tried_periods = self._links(actor, normaliser, rng)
        # Targets as they are: what is learned from a network that is told of others is in docs/training-options.md.
        view = replace(config.view(normaliser), room_beyond_ms=None)
        sim = batch_seen(view, links, reward=config.reward.kind, delay_weight=config.reward.delay_weight)
        count, periods = len(links), config.rollout.periods
        agent = self._explorer(actor, view, count, rng)
        # No guard: links are drawn with targets that can be kept and the heads keep caps within their limits; and where
        # the guard put its own cap in place of an action's, the replay would say that the action had done it.
        decider = Decider(agent, count, guard=None)

        states = np.empty((periods + 1, count, self._history * self._frame), np.float32)
        stats = np.empty((periods + 1, count), sim.stats.dtype)
        rewards = np.empty((periods + 1, count), np.float32)
        decided = np.empty((periods + 1, count), np.bool_)
        may_cap = np.empty((periods + 1, count), np.bool_)
        taught = np.zeros((periods + 1, count, config.hindsight.taught_size), np.float32)
        hidden = np.empty((periods + 1, count, SIZE if config.ddpg.privileged else 0), np.float32)
        sim.reset()
        for period in range(periods + 1):
            states[period], stats[period] = sim.states, sim.stats
            rewards[period], decided[period], may_cap[period] = sim.rewards, sim.decided, sim.may_cap
            if config.ddpg.privileged:
                hidden[period] = hidden_of(sim)
            if config.hindsight.iterations or config.hindsight.weight:
                taught[period] = teach(sim, config.hindsight, config.head)
            if period == periods:
                break
            agent.period = period
            sim.step_caps(decider.decide(sim.stats, sim.states, sim.rule_pkts, sim.decided, sim.may_cap))

        total = np.cumsum(rewards.astype(np.float64), axis=0)
        observed = Normaliser(config.feature_set)
        observed.observe(stats.reshape(-1))
        return Experience(
            fragments=[
                self._fragment(
                    states=states[rows, i],
                    hidden=hidden[rows, i],
                    actions=agent.actions[rows[:-1], i],
                    taught=taught[rows[:-1], i],
                    total=total[rows, i],
                    time_ns=stats["time_ns"][rows, i],
                )
                for i in range(count)
                for rows in _stretches(decided[:, i], may_cap[:, i])
            ],
            normaliser=observed,
            periods=(periods + 1) * count + tried_periods,
            summary=_summary(stats[1:][decided[1:]], np.diff(total, axis=0)) | behind_rule,
        )

    def _links(
        self, actor: Folded | None, normaliser: Normaliser, rng: np.random.Generator
    ) -> tuple[list[LinkSpec], dict[str, float], int]:
        """Returns an iteration's links, with a curriculum those last that it sought, what it says of these, and how
        many periods it took to find them."""
        config, section = self._config, self._config.curriculum
        domain = domain_of(config.links, self._traces)
        count = config.rollout.links
        if not section.share or actor is None:
            return [domain.draw(rng) for _ in range(count)], {}, 0
        sought = max(round(section.share * count), 1)
        links = [domain.draw(rng) for _ in range(count - sought)]
        tried = [domain.draw(rng) for _ in range(section.candidates * sought)]
        behind, periods = self.behind_rule(actor, normaliser, tried)
        worst = np.argsort(-behind, kind="stable")[:sought]
        told = {"curriculum/behind_rule": behind[worst], "curriculum/behind_rule_all": behind}
        return [*links, *(tried[row] for row in worst)], {tag: _mean(values) for tag, values in told.items()}, periods

    def behind_rule(self, actor: Folded, normaliser: Normaliser, links: Sequence[LinkSpec]) -> Ranked:
        """Returns what an actor costs more than the hand rule on each link (L,): below 0 it is ahead (``cost``).

        Where nothing left the link in so short a time it is minus infinity.
        """
        config, seconds = self._config, self._config.curriculum.seconds
        policy = FoldedActor(actor, config.head, config.view(normaliser), config.calm_rtts)
        ran = [figures_if_any(agent, links, seconds) for agent in (NoCap(), Rule(), policy)]
        (plain, rule, own), trade = (metrics for metrics, _ in ran), config.evolution.trade
        costs = [
            cost(a, c, trade) - cost(b, c, trade) if a and b and c else -math.inf
            for a, b, c in zip(own, rule, plain, strict=True)
        ]
        return Ranked(np.array(costs), sum(periods for _, periods in ran))

    def _explorer(self, actor: Folded | None, view: View, flows: int, rng: np.random.Generator) -> Explorer:
        """Returns who acts for so many flows: a folded actor with noise, or without one the cold start's walk."""
        config, periods = self._config, self._config.rollout.periods
        noise = rng.normal(0.0, config.ddpg.noise, (periods, flows))
        if config.ddpg.noise_ms:
            correlate(noise, math.exp(-config.period.min_ms / config.ddpg.noise_ms))
        noise += rng.normal(0.0, config.ddpg.flow_noise, flows)
        phases = rng.integers(len(WALK), size=flows)
        if actor is None:
            return Walker(phases, periods, config.head, view, config.calm_rtts)
        return NoisyActor(actor, noise.astype(np.float32), config.head, view, config.calm_rtts)

    def _fragment(
        self,
        *,
        states: FloatArray,
        hidden: FloatArray,
        actions: FloatArray,
        taught: FloatArray,
        total: NDArray[np.float64],
        time_ns: NDArray[np.uint64],
    ) -> Fragment:
        """Returns the transitions between a stretch's n + 1 records; ``total`` is the flow's reward from its start."""
        older = states[0].reshape(self._history, self._frame)[:0:-1]
        rewards, discounts, steps = returns(np.diff(total), time_ns, self._config.ddpg)
        return Fragment(
            frames=np.concatenate([older, states[:, : self._frame]]),
            hidden=hidden,
            actions=actions,
            taught=taught,
            rewards=rewards,
            discounts=discounts,
            steps=steps,
        )

    def evaluate(self, links: Sequence[LinkSpec], agent: Agent) -> list[Metrics]:
        """Returns the figures of one flow per link, without noise, behind the guard."""
        return figures(agent, links, self._config.run.evaluate_s)

    def costs(self, actor: Folded, members: Members, normaliser: Normaliser, iteration: int) -> Ranked:
        """Returns what each member costs on each of this iteration's links (P, L), in place of the last layer."""
        config = self._config
        rng = np.random.Generator(np.random.PCG64([config.seed, iteration, self._worker]))
        domain = domain_of(config.links, self._traces)
        links = [domain.draw(rng) for _ in range(config.evolution.links)]
        seconds, count = config.evolution.seconds, len(links)
        plain, plain_periods = figures_if_any(NoCap(), links, seconds)
        generation = Generation(actor, members, count, config.head, config.view(normaliser), config.calm_rtts)
        ran, periods = figures_if_any(generation, links * len(members), seconds)
        values = [cost(metrics, plain[row % count], config.evolution.trade) for row, metrics in enumerate(ran)]
        return Ranked(np.array(values).reshape(len(members), count), periods + plain_periods)

    def baselines(self, links: Sequence[LinkSpec], period: PeriodConfig) -> list[Baseline]:
        """Returns what policies of this cadence are judged by on each link."""
        return baselines(links, self._config.run.evaluate_s, period)


def _mean(values: NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else 0.0


def _stretches(decided: NDArray[np.bool_], may_cap: NDArray[np.bool_]) -> Iterator[NDArray[np.intp]]:
    """Yields the decided rows of each stretch in which a flow's gate stood open: elsewhere actions did nothing."""
    rows = np.flatnonzero(decided)
    for stretch in np.split(rows, np.flatnonzero(np.diff(may_cap[rows])) + 1):
        if len(stretch) > 1 and may_cap[stretch[0]]:
            yield stretch


def correlate(noise: NDArray[np.float64], correlation: float) -> None:
    """Makes independent noise (periods, flows) one whose neighbours in time correlate, in place; the spread stays."""
    fresh = math.sqrt(1.0 - correlation**2)
    for period in range(1, len(noise)):
        noise[period] = correlation * noise[period - 1] + fresh * noise[period]


def returns(
    rewards: NDArray[np.float64], time_ns: NDArray[np.uint64], config: DdpgSection
) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """Returns for n rewards between n + 1 times: discounted sums over ``config.steps``, or as many as are left, of
    them, the discounts of what follows, and how many steps each spans.
    """
    count = len(rewards)
    if config.horizon_ms is None:
        age = np.arange(count + 1) * -np.log(config.gamma)
    else:
        age = (time_ns - time_ns[0]).astype(np.float64) / (config.horizon_ms * 1e6)
    steps = np.minimum(config.steps, count - np.arange(count))
    sums = np.zeros(count)
    for step in range(min(config.steps, count)):
        sums[: count - step] += np.exp(age[: count - step] - age[step:count]) * rewards[step:]
    discounts = np.exp(age[:count] - age[np.arange(count) + steps])
    return sums.astype(np.float32), discounts.astype(np.float32), steps


def _summary(stats: NDArray[Any], rewards: NDArray[np.float64]) -> dict[str, float]:
    """Returns the means over decided records; ``rewards`` are those of all, since a silence's count to the next one.

    Where no record is decided there is nothing to tell.
    """
    if not len(stats):
        return {}
    rho = delay_ratios(stats)
    queueing_us = stats["rtt_mean_us"].astype(np.float64) - stats["min_rtt_us"]
    return {
        "charts/reward_per_period": float(rewards.sum()) / len(stats),
        "charts/rho_median": float(np.median(rho)),
        "charts/rho_above_1_share": float((rho > 1).mean()),
        "charts/queueing_delay_ms": float(queueing_us.mean() / 1e3),
        "charts/cwnd_pkts": float(stats["cwnd_pkts"].mean()),
    }
