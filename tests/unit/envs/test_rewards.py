"""Rewards and feature sets in the environments: what training uses is what every user of an environment gets."""

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.utils.env_checker import check_env

from reinet.agents.learn.actors import WALK
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.gatherer import Gatherer
from reinet.agents.learn.links import domain_of, training_traces
from reinet.core import (
    DELAY_WEIGHT,
    FEATURE_SETS,
    FLOW_STATS_DTYPE,
    HEADER_BYTES,
    OPPORTUNITY_BYTES,
    REWARDS,
    ConfigError,
    Flag,
    Normaliser,
    Offers,
    StateBank,
)
from reinet.envs import kernel_link
from reinet.envs.kernel_link import KernelLinkEnv
from reinet.envs.link.domain import LinkDomain
from reinet.envs.link.spec import LinkSpec
from reinet.envs.registration import register_envs
from reinet.envs.sim import SimBatch
from reinet.envs.sim_link import SimLinkEnv
from reinet.envs.sim_vector import SimLinkVectorEnv
from reinet.envs.trace import Trace

register_envs()

Stats = npt.NDArray[np.void]
SETS = list(FEATURE_SETS)


def cellular(seed: int, seconds: int = 30) -> Trace:
    """Rates that change every 100 ms, and outages of a second or so."""
    rng = np.random.Generator(np.random.PCG64(seed))
    counts = np.minimum(rng.integers(0, 4, seconds * 1000), np.repeat(rng.integers(0, 4, seconds * 10), 100))
    for start_ms in rng.integers(1000, seconds * 1000 - 3000, seconds // 4):
        counts[start_ms : start_ms + int(rng.integers(400, 1500))] = 0
    times_ms = np.repeat(np.arange(1, seconds * 1000 + 1), counts)
    return Trace(np.append(times_ms, seconds * 1000).astype(np.uint32), "cellular")


def flow(trace: Trace, steps: int, delay_weight: float, **link: Any) -> tuple[Stats, npt.NDArray[np.float64]]:
    """One flow's records and rewards under caps that come and go."""
    batch = SimBatch([{"trace": trace.opportunities_ms, **link}], reward="regret", delay_weight=delay_weight)
    stats, rewards = np.zeros(steps + 1, FLOW_STATS_DTYPE), np.zeros(steps + 1)
    rng = np.random.default_rng(1)
    batch.reset()
    for i in range(steps + 1):
        stats[i], rewards[i] = batch.stats[0], batch.rewards[0]
        batch.step_caps([int(rng.integers(10, 200))])
    return stats, rewards


def newly_delivered(stats: Stats) -> npt.NDArray[np.float64]:
    """Payload that each record is the first to tell of, by the sum of all that is known."""
    told, closed = np.zeros(len(stats)), 0.0
    known = 0.0
    for i, s in enumerate(stats):
        total = closed + float(s["delivered_bytes"])
        told[i], known = max(0.0, total - known), max(known, total)
        if i + 1 == len(stats) or stats["time_ns"][i + 1] - stats["period_ns"][i + 1] >= s["time_ns"]:
            closed = total
    return told


def summed_regret(stats: Stats, trace: Trace, mrtt_ms: float, weight: float) -> npt.NDArray[np.float64]:
    """The formula of ``reward.hpp`` without its limit, summed from the first record."""
    times_ms = trace.opportunities_ms
    loops, within_ms = np.divmod(stats["time_ns"] / 1e6 - mrtt_ms / 2, float(times_ms[-1]))
    offered = OPPORTUNITY_BYTES * (loops * len(times_ms) + np.searchsorted(times_ms, within_ms, side="right"))
    delivered = newly_delivered(stats) * (1448 + HEADER_BYTES) / 1448
    min_rtt_us = stats["min_rtt_us"].astype(np.float64)
    rho = (stats["rtt_mean_us"] - min_rtt_us) / np.maximum(stats["target_us"] - min_rtt_us, 0.1 * min_rtt_us)
    lost = np.diff(offered, prepend=offered[0]) - delivered
    lost += weight * delivered * np.log1p(4 * np.maximum(rho, 0)) / np.log(5)
    lost[0] = 0
    unit_bytes = max(OPPORTUNITY_BYTES * len(times_ms) / times_ms[-1] * 20, OPPORTUNITY_BYTES)
    return np.asarray(np.cumsum(-lost / unit_bytes), np.float64)


@pytest.mark.parametrize(("seed", "weight"), [(4, DELAY_WEIGHT), (2, DELAY_WEIGHT), (3, 10.0)])
def test_regret_adds_up_to_the_formula_between_decisions_across_outages(seed: int, weight: float) -> None:
    trace = cellular(seed)
    stats, rewards = flow(trace, 700, weight, mrtt_ms=30.0, target_us=60_000, start_offset_ms=12_345)
    decided = np.flatnonzero((stats["flags"] & Flag.NO_SAMPLE) == 0)
    assert len(stats) - len(decided) > 10
    whole = summed_regret(stats, trace, 30.0, weight)
    expected = np.clip(np.diff(whole[decided]), -10, 10)
    assert (np.abs(expected).max() == 10) == (weight == 10)
    np.testing.assert_allclose(np.diff(np.cumsum(rewards)[decided]), expected, atol=1e-4)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_regret_counts_the_bytes_that_the_flow_delivered_and_no_more(seed: int) -> None:
    """Counted from the records of a flow across outages, against what the receiver got."""
    batch = SimBatch([{"trace": cellular(seed).opportunities_ms}])
    bank, unit_bytes = StateBank(1, reward="regret", delay_weight=0.0), 1e12
    counted = told = 0.0
    silences = 0
    batch.reset()
    for _ in range(700):
        offers = Offers(np.zeros(1), np.full(1, unit_bytes))
        counted += float(bank.update([0], batch.stats, offers).rewards[0]) * unit_bytes / (1448 + HEADER_BYTES)
        told += int(batch.stats["delivered_bytes"][0]) / 1448
        silences += bool(batch.stats["flags"][0] & Flag.SILENCE)
        batch.step_caps([40])
    assert silences > 0
    delivered = batch.packets(0)["delivered_pkts"]
    assert delivered - 200 < counted <= delivered  # the first period, and what no ACK has told of yet
    assert told > delivered  # the records themselves tell of some bytes twice


@pytest.mark.parametrize("kind", REWARDS)
def test_training_sums_up_the_rewards_of_the_environment(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fragment's rewards are those of the steps from one record with an RTT sample to the next."""
    config = TrainConfig.model_validate(
        {
            "traces": {"train_count": 3, "select_count": 1, "seconds": 10},
            "rollout": {"workers": 0, "links": 3, "periods": 60},
            "reward": {"kind": kind, "delay_weight": 0.4},
        }
    )
    traces = training_traces(config)
    gathered = Gatherer(config, traces, 0).gather(None, Normaliser.reference(), 0)
    rng = np.random.Generator(np.random.PCG64([config.seed, 0, 0]))
    domain = domain_of(config.links, traces)
    links = [domain.draw(rng) for _ in range(3)]
    rng.normal(0.0, config.ddpg.noise, (60, 3)), rng.normal(0.0, config.ddpg.flow_noise, 3)
    phases = rng.integers(len(WALK), size=3)
    for i, (link, fragment) in enumerate(zip(links, gathered.fragments, strict=True)):
        env = SimLinkEnv(traces[0], head="bdp", reward=kind, delay_weight=0.4)
        monkeypatch.setattr(LinkDomain, "draw", lambda *_, same=link: same)
        _, info = env.reset(seed=0)
        monkeypatch.undo()
        earned, rewards = 0.0, []
        for period in range(60):
            _, reward, _, _, info = env.step([WALK[(len(WALK) * period // 60 + phases[i]) % len(WALK)]])
            earned += reward
            if not info["no_sample"]:
                rewards.append(earned)
                earned = 0.0
        np.testing.assert_allclose(rewards[-len(fragment.rewards) :], fragment.rewards, rtol=1e-5, atol=1e-5)
        assert np.abs(fragment.rewards).max() > 0


@pytest.mark.parametrize("kind", REWARDS)
@pytest.mark.parametrize("feature_set", SETS)
def test_one_link_and_many_earn_the_same(kind: str, feature_set: str) -> None:
    options: dict[str, Any] = {"trace": cellular(4), "reward": kind, "feature_set": feature_set, "delay_weight": 0.5}
    one, many = SimLinkEnv(**options), SimLinkVectorEnv(2, **options)
    alone = [one.reset(seed=4)[0]]
    states, _ = many.reset(seed=3)
    assert np.array_equal(states[1], alone[0])
    for _ in range(80):
        state, reward, *_ = one.step([0.2])
        states, rewards, *_ = many.step(np.full((2, 1), 0.2, np.float32))
        assert rewards[1] == reward
        assert np.array_equal(states[1], state)


def test_a_finite_flow_earns_nothing_with_its_end() -> None:
    env = SimLinkEnv(Trace.constant(12.0, 5.0), reward="regret", link={"flow_bytes": 500_000})
    env.reset(seed=0)
    terminated, reward = False, 1.0
    while not terminated:
        _, reward, terminated, *_ = env.step([0.0])
    assert reward == 0


def test_unknown_rewards_are_refused() -> None:
    for make in (SimLinkEnv, KernelLinkEnv, SimLinkVectorEnv):
        with pytest.raises(ConfigError, match="choose one of deepcc, regret"):
            make(reward="profit")


@pytest.mark.parametrize("feature_set", SETS)
def test_simulated_links_pass_gymnasiums_checker_with_every_set(feature_set: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*render.*")
        check_env(gym.make("reinet/SimLink-v0", feature_set=feature_set, reward="regret", head="bdp").unwrapped)


# --- the kernel environment, on a flow that the simulator plays ---


class Played:
    """A KernelSession whose flow is a simulated one on the same path; its clock started long ago."""

    clock_ns = 10**15

    def __init__(self, spec: LinkSpec, **options: Any) -> None:
        self._target_us = spec.target_us
        self._waiting = 0

    def start(self, spec: LinkSpec) -> None:
        self.spec = spec
        times_ms = spec.trace.opportunities_ms.astype(np.int64)
        start_ms = int(times_ms[np.searchsorted(times_ms, spec.start_offset_ms)]) if spec.start_offset_ms else 0
        self._batch = SimBatch(
            [{"trace": spec.trace.opportunities_ms, "start_offset_ms": start_ms, "mrtt_ms": spec.mrtt_ms,
              "target_us": self._target_us, "buffer_bytes": spec.buffer_bytes}]
        )  # fmt: skip
        self.zero_ns, self.started_ns = self.clock_ns, self.clock_ns
        self._shift_ns = self.clock_ns - start_ms * 1_000_000
        self.seen: list[Any] = []
        self._cap_pkts: int | None = None

    def next_record(self) -> Stats:
        if self._cap_pkts is None:
            self._batch.reset()
            self._cap_pkts = 0
        else:
            self._batch.step_caps([self._cap_pkts])
        record = self._batch.stats.copy()
        self.seen.append(record[0].copy())
        record["time_ns"] += np.uint64(self._shift_ns)
        return record

    def waiting(self) -> bool:
        """Now and then two records have come while the caller computed."""
        self._waiting = (self._waiting + 1) % 9
        return self._waiting in (7, 8)

    def set_cap(self, record: Stats, cap_pkts: int) -> None:
        if not record["flags"][0] & Flag.NO_SAMPLE:
            self._cap_pkts = cap_pkts

    def close(self) -> None:
        pass


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_link, "KernelSession", Played)
    monkeypatch.setattr(kernel_link, "why_not_capped", lambda cc: "")


@pytest.mark.parametrize("random_start", [False, True])
def test_the_kernel_environment_earns_what_the_simulator_does(played: None, random_start: bool) -> None:
    trace = cellular(5)
    env = KernelLinkEnv(trace, mrtt_ms=30.0, target_ms=60.0, reward="regret", random_start=random_start)
    env.reset(seed=6)
    total = sum(float(env.step([0.5])[1]) for _ in range(500))
    session: Any = env._session
    while session.seen[-1]["flags"] & Flag.NO_SAMPLE:  # what an outage cost is told after it
        total += float(env.step([0.5])[1])
    seen = np.array(session.seen, FLOW_STATS_DTYPE)
    assert len(seen) > 550  # some steps took several records
    decided = np.flatnonzero((seen["flags"] & Flag.NO_SAMPLE) == 0)
    whole = summed_regret(seen, trace, 30.0, DELAY_WEIGHT)
    expected = np.clip(np.diff(whole[[0, *decided[decided > 0]]]), -10, 10).sum()
    assert decided[-1] == len(seen) - 1
    assert total == pytest.approx(expected, abs=1e-3)


def test_the_kernel_environment_tells_time_on_the_trace(played: None) -> None:
    """From the opportunity where the path starts, which is seldom the very millisecond that was drawn."""
    env = KernelLinkEnv(cellular(5), random_start=True)
    for seed in range(5):
        _, info = env.reset(seed=seed)
        session: Any = env._session
        assert info["time_ns"] == session.seen[-1]["time_ns"]


@pytest.mark.parametrize("feature_set", SETS)
def test_the_kernel_environment_shows_every_set(played: None, feature_set: str) -> None:
    options: dict[str, Any] = {"trace": cellular(5), "feature_set": feature_set, "head": "bdp"}
    env = KernelLinkEnv(**options)
    assert env.observation_space == SimLinkEnv(**options).observation_space
    state, _ = env.reset(seed=0)
    for _ in range(50):
        assert env.observation_space.contains(state)
        state, reward, *_ = env.step([0.0])
        assert -100 <= reward <= 100
    assert np.count_nonzero(state) >= len(state) // 5
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*render.*")
        check_env(gym.make("reinet/KernelLink-v0", **options).unwrapped)
