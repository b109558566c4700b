"""SimLink as a vector environment: every sub-environment is the single environment, whatever is beside it."""

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from helpers.links import MIXED, TRACES
from reinet.core import FLOW_STATS_DTYPE, ConfigError
from reinet.envs.link.domain import LinkDomain
from reinet.envs.registration import register_envs
from reinet.envs.sim import SimBatch
from reinet.envs.sim_link import SimLinkEnv
from reinet.envs.sim_vector import SimLinkVectorEnv
from reinet.envs.trace import Trace

register_envs()


def rollout(count: int, threads: int, steps: int = 60, first: int = 0) -> list[np.ndarray[Any, Any]]:
    """Observations and rewards of the links seeded ``first``, ``first + 1``, ..., all under the same actions."""
    env = SimLinkVectorEnv(count, MIXED, head="bdp", episode_periods=25, threads=threads)
    states, _ = env.reset(seed=first)
    seen = [np.column_stack([states, np.zeros(count)])]
    for action in np.random.default_rng(0).uniform(-1, 1, steps):
        states, rewards, _, _, info = env.step(np.full((count, 1), action))
        seen.append(np.column_stack([states, rewards]))
        assert info["time_ns"].shape == (count,)
    return seen


def test_results_depend_neither_on_the_batch_nor_on_threads() -> None:
    together = rollout(40, threads=1)
    assert all(np.array_equal(a, b) for a, b in zip(together, rollout(40, threads=3), strict=True))
    for row in (0, 17, 39):
        alone = rollout(1, threads=1, first=row)
        assert all(np.array_equal(a[row], b[0]) for a, b in zip(together, alone, strict=True))


def test_a_link_is_the_single_environment_with_its_seed() -> None:
    vector = SimLinkVectorEnv(3, traces=TRACES[0], random_start=True, episode_periods=None)
    states, _ = vector.reset(seed=5)
    singles = [SimLinkEnv(TRACES[0], random_start=True, episode_periods=None) for _ in range(3)]
    for row, single in enumerate(singles):
        assert np.array_equal(single.reset(seed=5 + row)[0], states[row])
    for action in np.random.default_rng(1).uniform(-1, 1, (50, 3)).astype(np.float32):
        states, rewards, *_, info = vector.step(action[:, None])
        for row, single in enumerate(singles):
            state, reward, *_, single_info = single.step(action[row : row + 1])
            assert np.array_equal(state, states[row])
            assert reward == rewards[row]
            for key, value in single_info.items():
                if key not in ("cookie", "slot"):
                    assert info[key][row] == value


def test_an_episode_that_is_over_is_followed_by_the_next() -> None:
    env = SimLinkVectorEnv(2, MIXED, episode_periods=3)
    env.reset(seed=0)
    truncated = []
    for _ in range(9):
        _, rewards, terminated, ended, info = env.step(np.zeros((2, 1)))
        assert not terminated.any()
        truncated.append(bool(ended[0]))
        if len(truncated) >= 2 and truncated[-2]:
            assert not rewards.any()
            assert (info["cap_pkts"] == 0).all()  # a first record, which ran without a cap
    assert truncated == [False, False, True, False] * 2 + [False]


def test_a_finite_flow_terminates() -> None:
    env = SimLinkVectorEnv(1, traces=TRACES[0], link={"flow_bytes": 100_000})
    single = SimLinkEnv(TRACES[0], link={"flow_bytes": 100_000})
    env.reset(seed=0)
    single.reset(seed=0)
    ends = [bool(env.step([[1.0]])[2][0]) for _ in range(50)]
    assert True in ends[1:]
    assert [single.step([1.0])[2] for _ in range(ends.index(True) + 1)] == ends[: ends.index(True) + 1]
    assert ends.count(True) > 1  # the next flow is as finite


def test_gymnasium_makes_it() -> None:
    env = gym.make_vec("reinet/SimLink-v0", num_envs=4, traces=TRACES, threads=2, render_mode=None)
    assert isinstance(env.unwrapped, SimLinkVectorEnv)
    states, info = env.reset(seed=0)
    assert env.observation_space.contains(states)
    assert set(FLOW_STATS_DTYPE.names or ()) <= set(info)
    stepped, rewards, terminated, truncated, _ = env.step(env.action_space.sample())
    assert env.observation_space.contains(stepped)
    assert rewards.shape == terminated.shape == truncated.shape == (4,)
    assert not np.shares_memory(stepped, env.step(env.action_space.sample())[0])


@pytest.mark.parametrize("link", [{"loss": 0.05}, {"queue": "codel", "buffer_pkts": 50}, {"jitter_us": 0}])
def test_the_same_arguments_make_a_vector_whoever_steps_it(link: dict[str, Any]) -> None:
    """The single environment has some fields in ``link`` alone, where the vector refused them."""
    arguments: dict[str, Any] = {"trace": TRACES[0], "link": link}
    together, apart = (
        gym.make_vec("reinet/SimLink-v0", num_envs=2, vectorization_mode=mode, **arguments)
        for mode in ("vector_entry_point", "sync")
    )
    plain = gym.make_vec("reinet/SimLink-v0", num_envs=2, trace=TRACES[0])
    assert np.array_equal(together.reset(seed=3)[0], apart.reset(seed=3)[0])
    plain.reset(seed=3)
    for _ in range(100):
        states, same, others = (env.step(np.zeros((2, 1), np.float32))[0] for env in (together, apart, plain))
        assert np.array_equal(states, same)
    assert not np.array_equal(states, others)


def test_buffers_are_returned_on_demand() -> None:
    env = SimLinkVectorEnv(2, traces=TRACES[0], copy=False)
    first, _ = env.reset(seed=0)
    assert all(np.shares_memory(first, env.step(np.zeros((2, 1)))[0]) for _ in range(2))


def test_a_domain_draws_what_it_was_told() -> None:
    links = [MIXED.draw(np.random.default_rng(seed)) for seed in range(300)]
    mrtts = np.array([link.mrtt_ms for link in links])
    assert 4.0 <= mrtts.min() < 6.0 < 60.0 < mrtts.max() <= 80.0
    assert 0.3 < np.mean(mrtts < np.sqrt(4.0 * 80.0)) < 0.7
    assert all(link.target_us >= 1100 * link.mrtt_ms - 1 for link in links)
    assert {(link.cc, link.queue) for link in links} == set(itertools.product(MIXED.cc, MIXED.queue))
    assert {int(link.trace_ms[-1]) for link in links} == {5000, 4000}


def test_the_default_target_follows_a_path_that_is_too_long_for_it() -> None:
    links = [LinkDomain(TRACES, mrtt_ms=(4.0, 80.0)).draw(np.random.default_rng(seed)) for seed in range(200)]
    assert {link.target_us for link in links if link.mrtt_ms < 45} == {50_000}
    long = [link for link in links if link.mrtt_ms > 46]
    assert long
    assert all(link.target_us == round(1100 * link.mrtt_ms) for link in long)
    assert SimLinkEnv(TRACES[0], mrtt_ms=60.0).reset(seed=0)[1]["target_us"] == 66_000
    assert SimLinkEnv(TRACES[0]).reset(seed=0)[1]["target_us"] == 50_000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mrtt": 20.0}, "unknown argument mrtt"),
        ({"trace": TRACES[0], "traces": TRACES[1]}, "trace: give it or traces, not both"),
        ({"mrtt_ms": (80.0, 4.0)}, "mrtt_ms"),
        ({"mrtt_ms": (0.0, 4.0)}, "mrtt_ms"),
        ({"cc": ("cubic", "cubik")}, "did you mean 'cubic'"),
        ({"queue": "codl"}, "did you mean 'codel'"),
        ({"traces": ()}, "at least one"),
        ({"trace": 5}, "5 is neither a Trace nor a path"),
        ({"trace": np.arange(1, 9)}, "neither a Trace nor a path; of delivery opportunities in ms make one"),
        ({"mrtt_ms": (4.0, 80.0), "target_ms": 50.0}, "at least 88 ms"),
        ({"link": {"seed": 1}}, "seed is the domain's own; it is drawn for each path"),
        ({"link": {"bufer_pkts": 1}}, "unknown key bufer_pkts"),
        ({"link": {"loss": 0.1}, "loss": 0.2}, "loss is the domain's own; give it beside link"),
        ({"num_envs": 0}, "num_envs"),
        ({"threads": 0}, "threads"),
        ({"episode_periods": 0}, "episode_periods"),
        ({"episode_s": float("inf")}, "episode_s: inf is above 1e.09; give None"),
        ({"render_mode": "human"}, "render_mode: SimLink draws nothing, so it has no 'human'; leave it None"),
        ({"domain": MIXED, "mrtt_ms": 4.0}, "not both"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimLinkVectorEnv(**fields)


def test_steps_that_make_no_sense_are_refused() -> None:
    env = SimLinkVectorEnv(2, traces=TRACES[0])
    with pytest.raises(ConfigError, match="3 are given for 2"):
        env.reset(seed=[1, 2, 3])
    env.reset(seed=0)
    nonsense: list[Any] = ["ab", [0.0, "a"], [0j, 1j], [[0.0], [0.0, 0.0]], None, [1e300, 0.0]]
    for actions in ([0.0, float("nan")], [0.0] * 3, [[0.0] * 3] * 2, *nonsense):
        with pytest.raises(ConfigError, match="2 finite numbers"):
            env.step(actions)


@pytest.mark.parametrize("limits", [{"link": {"flow_bytes": 8000}}, {"episode_s": 0.05}])
def test_episodes_that_end_with_their_first_record_end_where_single_environments_do(limits: dict[str, Any]) -> None:
    """The step that begins an episode ends none, or no transition would ever be seen."""
    ended = {}
    for mode in ("vector_entry_point", "sync"):
        vector = gym.make_vec("reinet/SimLink-v0", num_envs=2, vectorization_mode=mode, **limits)
        vector.reset(seed=1)
        steps = [vector.step(np.zeros((2, 1), np.float32)) for _ in range(8)]
        ended[mode] = [(terminated | truncated).tolist() for _, _, terminated, truncated, _ in steps]
        vector.close()
    assert ended["vector_entry_point"] == ended["sync"]
    assert [True, True] in ended["sync"]


def test_an_episode_of_whole_milliseconds_ends_at_the_same_record_in_both_environments() -> None:
    """Without jitter records end at whole milliseconds; in seconds as floats some of them were just below the limit."""
    limits: dict[str, Any] = {"episode_s": 0.9, "episode_periods": None, "random_start": True}
    single = SimLinkEnv(Trace.constant(12, 100), link={"late_us": 0, "jitter_us": 0}, **limits)
    vector = SimLinkVectorEnv(1, trace=Trace.constant(12, 100), link={"late_us": 0}, jitter_us=0.0, **limits)
    for seed in range(20):
        single.reset(seed=seed)
        vector.reset(seed=seed)
        for _ in range(30):
            truncated = single.step([0.0])[3]
            assert truncated == vector.step([[0.0]])[3][0]
            if truncated:
                break


def test_a_further_flows_end_is_not_the_episodes() -> None:
    link = {"flows": [{"stepped": True, "cc": "reno", "flow_bytes": 200_000}]}
    env = gym.make("reinet/SimLink-v0", episode_periods=None, link=link)
    vector = gym.make_vec("reinet/SimLink-v0", num_envs=1, episode_periods=None, link=link)
    env.reset(seed=1)
    vector.reset(seed=1)
    for _ in range(200):
        assert not env.step(np.zeros(1, np.float32))[2]
        assert not vector.step(np.zeros((1, 1), np.float32))[2].any()


def test_rows_are_numbers_or_a_mask() -> None:
    batch = SimBatch([{"trace": np.arange(1, 1001, dtype=np.uint32)}] * 4)
    batch.reset()
    for _ in range(50):
        batch.step_caps(np.zeros(4, np.uint32))
    before_ns = batch.stats["time_ns"].copy()
    batch.reset(np.array([False, False, False, True]))
    assert (batch.stats["time_ns"] != before_ns).tolist() == [False, False, False, True]
    for wrong in ([0.7], [2**32], [-1], [True, False]):
        with pytest.raises(ConfigError, match="numbers from 0 to 3 or a mask of 4"):
            batch.reset(np.array(wrong))


def test_a_trace_that_is_written_into_later_is_not_the_links() -> None:
    times_ms = np.arange(1, 1001, dtype=np.uint32)
    batch = SimBatch([{"trace": times_ms}])
    batch.reset()
    first_ns = int(batch.stats["time_ns"][0])
    times_ms[:] = 0  # no trace at all
    batch.reset()
    assert batch.stats["time_ns"][0] == first_ns


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_envs", 2.5), ("num_envs", "2"), ("domain", 3), ("threads", 2.5), ("threads", "2"), ("link", 5),
        ("conditions", 5), ("seeds", "5"), ("reference_share", "x"), ("queue", 5),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_by_the_arguments_name(name: str, value: Any) -> None:
    """It was a TypeError or an AttributeError from the midst of the code."""
    with pytest.raises(ConfigError, match=f"^{name}: "):
        SimLinkVectorEnv(**{name: value})
