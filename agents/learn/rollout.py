"""Experience: many simulated flows under one policy, as a pure function of policy, normaliser, seed and iteration.

Every iteration starts fresh flows, so no state of a link outlives it: training is repeatable bit for bit, also across a
checkpoint, whatever ran in between. ``Gatherer`` does the work in this process, ``RayGatherers`` in one Ray actor per
worker.

Reward ``regret`` (default; the paper's is in ``core/state.hpp``). Between two decisions, with C the bytes of the link's
opportunities, D the delivered ones (both with headers, C seen half a base RTT earlier, when the acknowledged bytes
left the bottleneck), rho = (RTT - min RTT) / (target - min RTT) and w = ``delay_weight``:

    r = -[(C - D) + w D log(1 + 4 rho) / log 5] / U,  within [-10, 10]
    U = the trace's mean capacity x 20 ms, at least a packet

Capacity left unused and delay are both losses, in units of what the link carries in one of the paper's periods;
summed over a flow they are the same whatever the link's rate. At a queue as long as the target allows the delay costs
w; the logarithm asks for less delay also where there is little, and gives up less throughput where an outage makes a
long queue anyway. C does not depend on the action and only takes the link's luck out of the sum. It is known in a
simulator alone: the reward uses it, the state does not.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.baselines import Agent, CapArray
from reinet.agents.decide.guard import Guard
from reinet.agents.learn.config import LinkSection, TrainConfig
from reinet.agents.learn.replay import Fragment
from reinet.agents.model.mlp import FloatArray, Layers, act
from reinet.core import FEATURE_SETS, HEADER_BYTES, OPPORTUNITY_BYTES, Normaliser, PeriodConfig, caps_from_actions
from reinet.core.errors import ReinetError
from reinet.core.state import LEAST_TARGET_PER_RTT
from reinet.envs.link.metrics import LinkLog, Metrics, compute
from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

REWARD_PERIOD_S = 0.020
DELAY_CURVE = 4.0
"""How much more the first part of a queue costs than the last. At 1 (measured) a weight that keeps links with outages
busy leaves fast steady links with 0.43 of Cubic's delay."""
REWARD_LIMIT = 10.0
"""Of a transition: a retransmission timeout after an outage leaves seconds of capacity unused, and would outweigh
all."""

REFERENCE_MRTT_MS = 20.0
REFERENCE_BUFFER_BYTES = 150_000
REFERENCE_TARGET_MS = 50.0
"""The paper's link."""

WALK = np.log2(np.linspace(2.0, 0.5, 16)).astype(np.float32)
"""The cold start's multipliers, as actions: x2.0 down to x0.5 in steps of 0.1. Each flow starts somewhere on the walk
and goes on from its other end, so that the way out of a starved window is seen too (L4 in
docs/deviations.md)."""
_SELECT_SEED_GAP = 1_000_000
"""Far from any training trace's seed."""


def training_traces(config: TrainConfig) -> list[Trace]:
    """The traces to learn from."""
    section = config.traces
    return _traces(section.presets, section.train_count, section.seconds, section.seed)


def selection_traces(config: TrainConfig) -> list[Trace]:
    """The traces that choose among checkpoints; none of them is a training trace."""
    section = config.traces
    return _traces(section.presets, section.select_count, section.seconds, section.seed + _SELECT_SEED_GAP)


def _traces(presets: Sequence[str], count: int, seconds: float, seed: int) -> list[Trace]:
    return [generate(presets[index % len(presets)], seconds, seed + index) for index in range(count)]


def draw_link(section: LinkSection, traces: Sequence[Trace], rng: np.random.Generator) -> dict[str, Any]:
    """One link for ``SimBatch``: a trace with a random start, and a path around it."""
    trace = traces[int(rng.integers(len(traces)))]
    start_ms = int(rng.integers(int(trace.opportunities_ms[-1])))
    reference, mrtt, buffer, queueing, jitter, pkts_per_ack = rng.random(6)
    if reference < section.reference_share:
        mrtt_ms, buffer_bytes, target_ms = REFERENCE_MRTT_MS, REFERENCE_BUFFER_BYTES, REFERENCE_TARGET_MS
    else:
        mrtt_ms = 2.0 * round(_between(section.mrtt_ms, mrtt) / 2)  # mm-delay takes whole milliseconds each way
        buffer_bytes = round(_between(section.buffer_bytes, buffer))
        target_ms = section.target_ms(mrtt_ms, _between(section.queueing_target_ms, queueing))
    return {
        "trace": trace.opportunities_ms,
        "start_offset_ms": start_ms,
        "mrtt_ms": mrtt_ms,
        "buffer_bytes": buffer_bytes,
        "target_us": round(target_ms * 1000),
        "jitter_us": round(_between(section.jitter_us, jitter)),
        "pkts_per_ack": _between(section.pkts_per_ack, pkts_per_ack),
        "seed": int(rng.integers(2**31)),
    }


def _between(limits: tuple[float, float], share: float) -> float:
    """Log-uniform: every factor is as likely as any other."""
    low, high = limits
    return float(low * (high / low) ** share)


@dataclass
class Experience:
    """What one worker gathered in one iteration."""

    fragments: list[Fragment]
    normaliser: Normaliser
    """Of this iteration's records alone, to be merged."""
    records: int
    """Periods simulated, those without an RTT sample included."""
    summary: dict[str, float] = field(default_factory=dict)
    """Means over decided records, by TensorBoard tag."""


class Gatherer:
    """Steps batches of simulated flows."""

    def __init__(self, config: TrainConfig, traces: Sequence[Trace], worker: int) -> None:
        self._config = config
        self._traces = list(traces)
        self._worker = worker
        self._period = PeriodConfig(config.period.min_period_ns, config.period.packet_timed)
        features = FEATURE_SETS[config.feature_set]
        self._history, self._frame = features.history, len(features.features)

    def gather(self, layers: Layers | None, normaliser: Normaliser, iteration: int) -> Experience:
        """One iteration's flows under a folded actor with noise, or under the cold start's walk when there is none."""
        config = self._config
        rng = np.random.Generator(np.random.PCG64([config.seed, iteration, self._worker]))
        links = [draw_link(config.links, self._traces, rng) for _ in range(config.rollout.links)]
        sim = SimBatch(links, period=self._period, feature_set=config.feature_set, normaliser=normaliser)
        count, periods = len(links), config.rollout.periods
        noise = rng.normal(0.0, config.ddpg.noise, (periods, count)) + rng.normal(0.0, config.ddpg.flow_noise, count)
        noise = noise.astype(np.float32)
        phases = rng.integers(len(WALK), size=count)

        states = np.empty((periods + 1, count, self._history * self._frame), np.float32)
        stats = np.empty((periods + 1, count), sim.stats.dtype)
        rewards = np.empty((periods + 1, count), np.float32)
        decided = np.empty((periods + 1, count), np.bool_)
        actions = np.empty((periods, count), np.float32)
        caps: CapArray = np.zeros(count, np.uint32)
        sim.reset()
        for period in range(periods + 1):
            states[period], stats[period] = sim.states, sim.stats
            rewards[period], decided[period] = sim.rewards, sim.decided
            if period == periods:
                break
            if layers is None:
                actions[period] = WALK[(len(WALK) * period // periods + phases) % len(WALK)]
            else:
                actions[period] = np.clip(act(layers, sim.states) + noise[period], -1.0, 1.0)
            wanted = caps_from_actions(config.head, actions[period], sim.stats["cwnd_pkts"], sim.rule_pkts)
            caps = np.where(sim.decided, wanted, caps)  # a record without a sample leaves the cap as it is
            sim.step_caps(caps)

        if config.reward.kind == "regret":
            total = np.stack([cumulative_regret(stats[:, i], link, self._config) for i, link in enumerate(links)], 1)
        else:
            total = np.cumsum(rewards.astype(np.float64), axis=0)
        observed = Normaliser()
        observed.observe(stats.reshape(-1))
        return Experience(
            fragments=[self._fragment(states[:, i], actions[:, i], total[:, i], decided[:, i]) for i in range(count)],
            normaliser=observed,
            records=(periods + 1) * count,
            summary=_summary(stats[1:][decided[1:]], np.diff(total, axis=0)),
        )

    def _fragment(
        self, states: FloatArray, actions: FloatArray, total: NDArray[np.float64], decided: NDArray[np.bool_]
    ) -> Fragment:
        """One flow's transitions between decided records; ``total`` is its reward summed from the start."""
        limit = REWARD_LIMIT if self._config.reward.kind == "regret" else np.inf  # the paper's has its own
        rows = np.flatnonzero(decided)
        if len(rows) == 0:
            return Fragment(np.zeros((self._history, self._frame), np.float32), actions[:0], actions[:0])
        older = states[rows[0]].reshape(self._history, self._frame)[:0:-1]
        return Fragment(
            frames=np.concatenate([older, states[rows, : self._frame]]),
            actions=actions[rows[:-1]],
            rewards=np.clip(np.diff(total[rows]), -limit, limit).astype(np.float32),
        )

    def evaluate(self, agent: Agent | Layers, normaliser: Normaliser, links: Sequence[dict[str, Any]]) -> list[Metrics]:
        """One flow per link, without noise, behind the guard; an agent or a folded actor decides."""
        config = self._config
        sim = SimBatch(
            list(links), period=self._period, feature_set=config.feature_set, normaliser=normaliser, record_log=True
        )
        end_ns = np.array([round((link["start_offset_ms"] / 1e3 + config.run.evaluate_s) * 1e9) for link in links])
        caps: CapArray = np.zeros(len(links), np.uint32)
        guard = Guard()
        sim.reset()
        while np.any(sim.stats["time_ns"] < end_ns):
            if not hasattr(agent, "decide"):
                wanted = caps_from_actions(config.head, act(agent, sim.states), sim.stats["cwnd_pkts"], sim.rule_pkts)
            else:
                wanted = agent.decide(sim.stats, sim.states, sim.rule_pkts)
            caps[sim.decided], _ = guard.check(sim.stats[sim.decided], wanted[sim.decided])
            sim.step_caps(caps)
        return [_metrics(sim.log(row), link["mrtt_ms"], end_ns[row] / 1e6) for row, link in enumerate(links)]


def cumulative_regret(stats: NDArray[Any], link: dict[str, Any], config: TrainConfig) -> NDArray[np.float64]:
    """The reward ``regret`` of one flow, summed from its first record: (T,) for FLOW_STATS_DTYPE[T]."""
    trace_ms = link["trace"]
    end_ms = stats["time_ns"] / 1e6 - link["mrtt_ms"] / 2
    offered = OPPORTUNITY_BYTES * opportunities_until(trace_ms, end_ms)
    capacity = np.diff(offered, prepend=offered[0])
    mss = np.maximum(stats["mss_bytes"].astype(np.float64), 1.0)
    delivered = stats["delivered_bytes"] * (mss + HEADER_BYTES) / mss
    delivered[0] = 0.0
    cost = config.reward.delay_weight * delivered * _delay_cost(_rho(stats))
    unit = max(OPPORTUNITY_BYTES * len(trace_ms) / (trace_ms[-1] / 1e3) * REWARD_PERIOD_S, OPPORTUNITY_BYTES)
    return np.asarray(np.cumsum(-(capacity - delivered + cost) / unit), np.float64)


def _delay_cost(rho: NDArray[np.float64]) -> NDArray[np.float64]:
    """0 at an empty queue, 1 at the target; see ``DELAY_CURVE``."""
    return np.asarray(np.log1p(DELAY_CURVE * np.maximum(rho, 0.0)) / np.log1p(DELAY_CURVE))


def _rho(stats: NDArray[Any]) -> NDArray[np.float64]:
    """Queueing delay as a share of what the target allows; the guard's margin is the least that it can allow."""
    min_rtt_us = stats["min_rtt_us"].astype(np.float64)
    room_us = np.maximum(stats["target_us"] - min_rtt_us, (LEAST_TARGET_PER_RTT - 1) * min_rtt_us)
    return np.asarray((stats["rtt_mean_us"] - min_rtt_us) / np.maximum(room_us, 1.0), np.float64)


def opportunities_until(trace_ms: NDArray[np.uint32], times_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many opportunities a looping trace had by each time, counted from its own start."""
    loops, within_ms = np.divmod(times_ms, float(trace_ms[-1]))
    return np.asarray(loops * len(trace_ms) + np.searchsorted(trace_ms, within_ms, side="right"), np.float64)


def _metrics(log: dict[str, Any], mrtt_ms: float, end_ms: float) -> Metrics:
    return compute(LinkLog.of_flow(log), mrtt_ms, end_ms)


def _summary(stats: NDArray[Any], rewards: NDArray[np.float64]) -> dict[str, float]:
    rho = _rho(stats)
    queueing_us = stats["rtt_mean_us"].astype(np.float64) - stats["min_rtt_us"]
    return {
        "charts/reward_per_period": float(rewards.mean()),
        "charts/rho_median": float(np.median(rho)),
        "charts/rho_above_1_share": float((rho > 1).mean()),
        "charts/queueing_delay_ms": float(queueing_us.mean() / 1e3),
        "charts/cwnd_pkts": float(stats["cwnd_pkts"].mean()),
    }


RAY_STARTS = 3
"""Now and then a Ray of one's own does not come up within its 30 s, without a word why; the next one does."""


def start_ray(ray: Any, workers: int) -> None:
    """Starts a Ray of this process, a CPU for each worker. ``ray``: the module. Raises ReinetError."""
    for start in range(1, RAY_STARTS + 1):
        try:
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            return
        except Exception as error:  # Ray raises no narrower one
            ray.shutdown()
            if start == RAY_STARTS:
                raise ReinetError(
                    f"Ray did not start in {RAY_STARTS} attempts ({error}); look into /tmp/ray/session_latest/logs, or "
                    "train without it: rollout.workers = 0"
                ) from error


class RayGatherers:
    """One ``Gatherer`` per worker, each in a Ray actor of one CPU; without workers, one in this process.

    Results come back in the order of the workers, whichever finished first.
    """

    def __init__(self, config: TrainConfig, traces: Sequence[Trace], ray_address: str | None = None) -> None:
        self._config = config
        self._local = Gatherer(config, traces, 0) if config.rollout.workers == 0 else None
        self._actors: list[Any] = []
        if self._local is None:
            self._start(traces, ray_address)

    def _start(self, traces: Sequence[Trace], ray_address: str | None) -> None:
        import ray  # here, for a run without workers needs none

        workers = self._config.rollout.workers
        self._ray = ray
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray and ray_address:
            ray.init(address=ray_address, log_to_driver=False)
        elif self._owns_ray:
            start_ray(ray, workers)
        shared = ray.put(list(traces))
        actor = ray.remote(num_cpus=1)(Gatherer)
        self._actors = [actor.remote(self._config, shared, worker) for worker in range(workers)]

    def gather(self, layers: Layers | None, normaliser: Normaliser, iteration: int) -> list[Experience]:
        """Every worker's experience of this iteration."""
        if self._local is not None:
            return [self._local.gather(layers, normaliser, iteration)]
        sent_layers, sent_normaliser = self._ray.put(layers), self._ray.put(normaliser)
        results = self._ray.get([a.gather.remote(sent_layers, sent_normaliser, iteration) for a in self._actors])
        return list(results)

    def evaluate(self, agent: Agent | Layers, normaliser: Normaliser, links: Sequence[dict[str, Any]]) -> list[Metrics]:
        """One flow per link, the links shared out among the workers."""
        if self._local is not None:
            return self._local.evaluate(agent, normaliser, links)
        share = -(-len(links) // len(self._actors))
        parts = [links[i * share : (i + 1) * share] for i in range(len(self._actors))]
        futures = [a.evaluate.remote(agent, normaliser, p) for a, p in zip(self._actors, parts, strict=True) if p]
        return [metrics for part in self._ray.get(futures) for metrics in part]

    def close(self) -> None:
        """Ends the workers, and Ray unless it was running in this process before."""
        if self._actors:
            self._actors.clear()
            if self._owns_ray:
                self._ray.shutdown()

    def __enter__(self) -> "RayGatherers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
