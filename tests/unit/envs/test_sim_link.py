"""SimLink as a Gymnasium environment."""

import copy
import functools
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from reinet.core import FLOW_STATS_DTYPE, ConfigError, Normaliser, TraceError, caps_from_actions
from reinet.envs.link.spec import LinkSpec, check_target
from reinet.envs.registration import register_envs
from reinet.envs.sim import SimBatch
from reinet.envs.sim_link import SimLinkEnv
from reinet.envs.trace import Trace

register_envs()


def constant(mbps: float = 12.0, seconds: float = 5.0) -> Trace:
    return Trace.constant(mbps, seconds)


def outage() -> Trace:
    """12 Mbit/s, 3 s of nothing, 12 Mbit/s."""
    ms = np.concatenate([np.arange(1, 3001), np.arange(6000, 10001)]).astype(np.uint32)
    return Trace(ms, name="outage")


def rollout(env: gym.Env[Any, Any], steps: int, seed: int) -> list[np.ndarray[Any, Any]]:
    state, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    seen = [state]
    for _ in range(steps):
        state, reward, *_ = env.step(env.action_space.sample())
        seen.append(np.append(state, reward))
    return seen


@pytest.mark.parametrize("head", ["cwnd", "bdp"])
def test_passes_gymnasiums_checker(head: str) -> None:
    with warnings.catch_warnings():
        # An environment without rendering need not be told a render mode.
        warnings.filterwarnings("ignore", message=".*render.*")
        check_env(gym.make("reinet/SimLink-v0", head=head).unwrapped)


def test_is_deterministic_per_seed_and_differs_between_seeds() -> None:
    def once(seed: int) -> list[np.ndarray[Any, Any]]:
        return rollout(SimLinkEnv(random_start=True), 100, seed)

    first, second, other = once(1), once(1), once(2)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_info_names_every_field_of_the_record() -> None:
    env = SimLinkEnv(constant())
    _, info = env.reset(seed=0)
    assert set(info) == {*(FLOW_STATS_DTYPE.names or ()), "no_sample", "rule_pkts", "may_cap"}
    assert info["target_us"] == 50_000
    assert 21_000 <= info["min_rtt_us"] <= 24_000
    assert info["cap_pkts"] == 0
    before, after = info, env.step([1.0])[4]
    while not after["cap_pkts"]:  # until the gate opens
        before, after = after, env.step([1.0])[4]
    assert after["cap_pkts"] == 2 * before["cwnd_pkts"]


def test_an_outage_is_reported_and_decides_nothing() -> None:
    env = SimLinkEnv(outage(), episode_periods=None, episode_s=8.0)
    before, info = env.reset(seed=0)
    silent_ms, truncated = [], False
    while not truncated:
        state, reward, terminated, truncated, info = env.step([0.0])
        assert not terminated
        if info["no_sample"]:
            silent_ms.append(info["time_ns"] / 1e6)
            assert reward == 0.0
            assert np.array_equal(state, before)
        before = state
    assert len(silent_ms) >= 10
    assert 3200 < silent_ms[0] < 3400
    assert np.allclose(np.diff([t for t in silent_ms if t < 6000]), 250.0)


def test_an_action_after_a_silence_is_ignored_and_the_cap_stays_as_the_decider_holds_it() -> None:
    env = SimLinkEnv(outage(), head="bdp", episode_periods=None)
    env.reset(seed=0)
    held = SimBatch([LinkSpec(outage(), seed=int(np.random.default_rng(0).integers(2**32)))], head="bdp")
    held.reset()
    cap_pkts, silences = 0, set()
    for action in np.random.default_rng(2).uniform(-1, 1, 400):
        if held.decided[0]:
            cap_pkts = int(caps_from_actions("bdp", [action], held.stats["cwnd_pkts"], held.rule_pkts)[0])
            cap_pkts *= int(held.may_cap[0])
        else:
            silences.add(cap_pkts)
        held.step_caps([cap_pkts])
        *_, info = env.step([action])
        for name in FLOW_STATS_DTYPE.names or ():
            assert info[name] == held.stats[name][0], name
    assert len(silences - {0}) >= 1


@pytest.mark.parametrize("vector", [False, True])
def test_gymnasium_may_hand_on_that_nothing_is_to_be_drawn(vector: bool) -> None:
    if vector:
        assert gym.make_vec("reinet/SimLink-v0", num_envs=2, render_mode=None).render_mode is None
    else:
        assert gym.make("reinet/SimLink-v0", render_mode=None).render_mode is None


def test_who_asks_every_environment_for_pictures_is_told_as_of_an_unknown_argument() -> None:
    """``make_vec_env`` of stable-baselines3 asks so, and makes the environment without after a TypeError alone."""
    with pytest.raises(TypeError, match="render_mode: SimLink draws nothing"), pytest.warns(match="render_mode"):
        gym.make("reinet/SimLink-v0", render_mode="rgb_array")


def test_truncates_after_periods_and_after_seconds() -> None:
    env = SimLinkEnv(constant(), episode_periods=7)
    env.reset(seed=0)
    assert [env.step([0.0])[3] for _ in range(7)] == [False] * 6 + [True]
    env = SimLinkEnv(constant(), episode_periods=None, episode_s=1.0)
    env.reset(seed=0)
    truncated, info = False, {}
    while not truncated:
        *_, truncated, info = env.step([0.0])
    assert 1.0 <= info["time_ns"] / 1e9 < 1.3


def test_the_normaliser_shapes_the_observation() -> None:
    wide = Normaliser.reference()
    wide.table[:, 2] *= 100
    plain, _ = SimLinkEnv(constant()).reset(seed=0)
    scaled, _ = SimLinkEnv(constant(), normaliser=wide).reset(seed=0)
    assert scaled[4] == pytest.approx(plain[4] / 10)


@pytest.mark.parametrize("target_ms", [21.9, 0.0, float("nan")])
def test_refuses_a_target_below_the_paths_rtt(target_ms: float) -> None:
    with pytest.raises(ConfigError, match=r"target_ms.*at least 22 ms"):
        SimLinkEnv(constant(), target_ms=target_ms)


@pytest.mark.parametrize("mrtt_ms", [3.0, 12.0, 33.3333, 24.0])
def test_the_least_target_that_a_refusal_names_is_not_refused(mrtt_ms: float) -> None:
    with pytest.raises(ConfigError) as refused:
        check_target(1.0, mrtt_ms)
    named = re.search("at least (.+) ms", str(refused.value))
    assert named
    check_target(float(named[1]), mrtt_ms)


@pytest.mark.parametrize("target_ms", [0.0, "2.5x"])
def test_refuses_a_target_of_nothing(target_ms: float | str) -> None:
    """To the guard and to rewards a target of 0 is one that is not known yet."""
    with pytest.raises(ConfigError, match="target_ms: 0 ms, of a path whose mrtt_ms is 0, is no target"):
        SimLinkEnv(constant(), mrtt_ms=0, target_ms=target_ms)
    assert SimLinkEnv(constant(), mrtt_ms=0, target_ms="+30ms").reset(seed=0)[1]["target_us"] == 30_000


def test_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cc: .*'vegaz'.*cubic"):
        SimLinkEnv(constant(), cc="vegaz")
    with pytest.raises(ConfigError, match=r"head: .*cwnd, bdp"):
        SimLinkEnv(constant(), head="rate")
    with pytest.raises(ConfigError, match="render_mode: SimLink draws nothing"):
        SimLinkEnv(constant(), render_mode="rgb_array")
    with pytest.raises(ConfigError, match="episode_s: inf"):
        SimLinkEnv(constant(), episode_s=float("inf"))
    with pytest.raises(ConfigError, match="deepcc-5x20"):
        SimLinkEnv(constant(), feature_set="none")
    with pytest.raises(ConfigError, match="episode_s"):
        SimLinkEnv(constant(), episode_s=0)
    with pytest.raises(ConfigError, match="action"):
        SimLinkEnv(constant()).step([float("nan")])
    (tmp_path / "empty.down").write_text("")
    with pytest.raises(TraceError):
        SimLinkEnv(tmp_path / "empty.down")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("link", 5), ("link", {5: 5}), ("cc", 5), ("period", 5), ("normaliser", 5), ("feature_set", ["deepcc-5x20"]),
        ("episode_s", "5"), ("episode_periods", [5]), ("delay_weight", "x"), ("target_ms", [50]),
        ("random_start", "no"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_by_the_arguments_name(name: str, value: Any) -> None:
    """It was a TypeError or an AttributeError from the midst of the code."""
    with pytest.raises(ConfigError, match=f"^{name}: "):
        SimLinkEnv(constant(), **{name: value})


@pytest.mark.parametrize("action", ["a", ["a"], [1j], [[0.0], [0.0, 1.0]], {}, None, [1e300], [0.0, 0.0], []])
def test_what_is_no_action_is_refused_as_such_without_a_warning(action: Any) -> None:
    """An imaginary part was dropped, and text showed NumPy's own error."""
    env = SimLinkEnv(Trace.constant(12, 2))
    env.reset(seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConfigError, match="action: one finite number"):
            env.step(action)


def test_a_copy_of_a_simulation_is_refused_with_what_to_hand_on_instead() -> None:
    """What makes one can be pickled, its trace too: so the processes of Gymnasium and others each make their own."""
    make = functools.partial(gym.make, "reinet/SimLink-v0", trace=Trace.constant(12, 10), mrtt_ms=[4, 40])
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"hand on what makes them, such as functools\.partial"):
            copied(make().unwrapped)
    (here, _), (there, _) = make().reset(seed=3), pickle.loads(pickle.dumps(make))().reset(seed=3)
    assert np.array_equal(here, there)
