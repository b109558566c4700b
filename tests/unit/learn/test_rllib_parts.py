"""What stands between RLlib and reinet, each part by itself: configuration, environment, policy. None needs RLlib."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.configs import as_toml
from helpers.places import ROOT
from helpers.trainer import TINY
from reinet.agents.learn import checkpoint
from reinet.agents.learn.checkpoint import Checkpoint, State
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.ddpg import Ddpg
from reinet.agents.learn.export import export
from reinet.agents.learn.learners import train_any
from reinet.agents.learn.rllib import peers
from reinet.agents.learn.rllib.config import PeerConfig, load_config
from reinet.agents.learn.rllib.environments import SimLinks, make_sim_link
from reinet.agents.learn.rllib.policy import layers_of, put_into
from reinet.agents.model.mlp import Folded, act
from reinet.cli import main
from reinet.core import FEATURE_SETS, Normaliser
from reinet.core.errors import ConfigError, ReinetError
from reinet.envs.sim_link import SimLinkEnv
from reinet.envs.sim_vector import SimLinkVectorEnv

SET = "timescales-24x1"
PEER: dict[str, Any] = {
    **TINY,
    "feature_set": SET,
    "ddpg": {"hidden": [16, 8], "batch_norm": False},
    "rllib": {"algorithm": "PPO", "training": {"lr": 0.001, "nested": {"key": 1}}},
}
STATES = FEATURE_SETS[SET].state_size


def module_state(rng: np.random.Generator, prefix: str) -> dict[str, Any]:
    """A module's arrays as RLlib names them: mean and deviation at the end, a critic beside the policy."""
    shapes = {f"{prefix}net.mlp.0": (16, STATES), f"{prefix}net.mlp.2": (8, 16), "pi.net.mlp.0": (2, 8),
              "vf.net.mlp.0": (1, 8)}  # fmt: skip
    arrays = {}
    for name, shape in shapes.items():
        arrays[f"{name}.weight"] = rng.normal(size=shape).astype(np.float32)
        arrays[f"{name}.bias"] = rng.normal(size=shape[0]).astype(np.float32)
    return arrays


def test_a_table_rllib_makes_a_training_of_rllibs_and_the_rest_means_what_it_meant(tmp_path: Path) -> None:
    (tmp_path / "peer.toml").write_text(as_toml(PEER))
    (tmp_path / "own.toml").write_text(as_toml(TINY))
    peer, own = load_config(tmp_path / "peer.toml"), load_config(tmp_path / "own.toml")
    assert isinstance(peer, PeerConfig)
    assert peer.rllib.training == {"lr": 0.001, "nested": {"key": 1}}
    assert type(own) is TrainConfig
    assert (peer.traces, peer.links) == (own.traces, own.links)
    with pytest.raises(ConfigError, match="unknown key 'rllib'"):
        TrainConfig.load(tmp_path / "peer.toml")  # as jobs and sweeps read it


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("hindsight", {"iterations": 1}),
        ("evolution", {"generations": 1}),
        ("ddpg", {"batch_norm": True}),
        ("ddpg", {"gru": 4}),
        ("curriculum", {"share": 0.5}),
    ],
)
def test_what_only_reinets_learner_does_is_refused_beside_rllib(section: str, keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{section}\.{next(iter(keys))} is of reinet's own learner"):
        PeerConfig.model_validate({**PEER, "feature_set": "scalefree-5x20", section: {**PEER.get(section, {}), **keys}})
    for key in ("calm_rtts", "room_beyond_ms"):
        with pytest.raises(ValueError, match=f"{key} is of"):
            PeerConfig.model_validate({**PEER, key: 1.0})


def test_what_would_only_keep_reinets_learner_from_learning_is_no_matter_beside_rllib() -> None:
    """RLlib's trainings have typical statistics and a replay of their own; the limit of a model is the same."""
    changes: dict[str, Any] = {"normaliser_iterations": 0, "replay": 1000}
    own = {**PEER, "feature_set": "deepcc-5x20", "rollout": {"periods": 1000}, "ddpg": {**PEER["ddpg"], **changes}}
    config = PeerConfig.model_validate(own)
    assert config.ddpg.normaliser_iterations == 0
    state = State(
        config=config, iteration=1, env_steps=1, updates=1, wall_s=1.0, rng={}, baselines=[], best=None, normaliser={}
    )
    assert State.model_validate_json(state.model_dump_json()).config == config, "so its checkpoints are kept and read"
    with pytest.raises(ValueError, match=r"makes \d+ parameters; an actor has at most"):
        PeerConfig.model_validate({**own, "ddpg": {**own["ddpg"], "hidden": [4000, 4000]}})


def test_a_sweep_of_rllibs_trainings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "peer.toml").write_text(as_toml(PEER))
    (tmp_path / "sweep.toml").write_text("[sweep.grid]\nseed = [1, 2]\n")
    files = [str(tmp_path / "peer.toml"), "--sweep", str(tmp_path / "sweep.toml")]
    with pytest.raises(ConfigError, match=r"has \[rllib\], and sweeps are of reinet's own learner"):
        CliRunner().invoke(main.app, ["train", *files], catch_exceptions=False)


@pytest.mark.parametrize("algorithm", ["SAC", "PPO"])
def test_the_configurations_that_ship_are_rllibs(algorithm: str) -> None:
    config = load_config(ROOT / "configs" / f"rllib-{algorithm.lower()}.toml")
    assert isinstance(config, PeerConfig)
    assert config.rllib.algorithm == algorithm


def test_an_unbounded_action_is_the_action_of_its_tanh() -> None:
    arguments: dict[str, Any] = {"num_envs": 2, "head": "bdp", "reward": "regret"}
    theirs, ours = make_sim_link({**arguments, "unbounded": True}), SimLinkVectorEnv(**arguments)
    assert isinstance(theirs, SimLinks)
    assert not np.isfinite(theirs.single_action_space.high).any()
    seen = [env.reset(seed=7)[0] for env in (theirs, ours)]
    for number in np.random.default_rng(1).normal(0.0, 2.0, (200, 2, 1)):
        np.testing.assert_array_equal(*seen)
        a, b = theirs.step(number), ours.step(np.tanh(number))
        np.testing.assert_array_equal(a[1], b[1])
        assert a[4] == {}, "RLlib makes a dictionary for each flow and step of what stands there"
        seen = [a[0], b[0]]
    assert isinstance(make_sim_link({"mrtt_ms": 30.0}), SimLinkEnv)


@pytest.mark.parametrize(("algorithm", "prefix"), [("SAC", "pi_encoder."), ("PPO", "encoder.actor_encoder.")])
def test_a_policy_of_rllibs_is_kept_and_exported_as_a_model(algorithm: str, prefix: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    arrays = module_state(rng, prefix)
    layers = layers_of(algorithm, arrays)
    states = rng.normal(size=(20, STATES)).astype(np.float32)
    hidden = np.maximum(states @ arrays[f"{prefix}net.mlp.0.weight"].T + arrays[f"{prefix}net.mlp.0.bias"], 0)
    hidden = np.maximum(hidden @ arrays[f"{prefix}net.mlp.2.weight"].T + arrays[f"{prefix}net.mlp.2.bias"], 0)
    mean = hidden @ arrays["pi.net.mlp.0.weight"][0] + arrays["pi.net.mlp.0.bias"][0]
    np.testing.assert_allclose(act(Folded(layers), states), np.tanh(mean), atol=1e-5)

    config = PeerConfig.model_validate({**PEER, "rllib": {"algorithm": algorithm}})
    learner = Ddpg(config.ddpg, STATES, config.seed)
    put_into(learner, layers)
    np.testing.assert_allclose(act(learner.best_actor().folded(), states), np.tanh(mean), atol=1e-5)
    state = State(
        config=config, iteration=3, env_steps=10, updates=2, wall_s=1.0, rng={}, baselines=[], best=None,
        normaliser=Normaliser.reference(SET).to_dict(),
    )  # fmt: skip
    checkpoint.save(checkpoint.place(tmp_path, 3), state, learner.state(), None)
    kept = Checkpoint(checkpoint.place(tmp_path, 3))
    assert kept.state.config == config
    export(kept.folder, tmp_path / "model")
    assert (
        f"Method: RLlib's {algorithm} (at most 6 iterations); 10 periods"
        in (tmp_path / "model" / "README.md").read_text()
    )
    with pytest.raises(ConfigError, match="holds a run, and RLlib's are not resumed"):
        train_any(config, tmp_path)


def test_reinets_checkpoints_are_what_they_were() -> None:
    """A configuration without [rllib] is read and written without it, so that older versions take it."""
    config = TrainConfig.model_validate(TINY)
    assert "rllib" not in config.model_dump()
    state = State(
        config=config, iteration=0, env_steps=0, updates=0, wall_s=0.0, rng={}, baselines=[], best=None, normaliser={}
    )
    assert type(State.model_validate_json(state.model_dump_json()).config) is TrainConfig


def peer_run(folder: Path, state: dict[str, Any], trained: Callable[[], dict[str, Any]]) -> Any:
    """A run before its first iteration, whose RLlib has these weights and does this."""
    run = object.__new__(peers._PeerRun)
    run._config, run._run_dir, run.iteration, run.updates = PeerConfig.model_validate(PEER), folder, 0, 0
    group = SimpleNamespace(get_state=lambda **_: {"learner": {"rl_module": {"default_policy": state}}})
    run._algorithm = SimpleNamespace(train=trained, learner_group=group)
    return run


@pytest.mark.parametrize(
    ("ended", "reward"),
    [
        ({"episode_return_mean": -4.0, "episode_len_mean": 6.4}, -0.625),  # of short flows; rollout.periods are 40
        ({"episode_return_mean": np.nan, "episode_len_mean": np.nan}, None),
        ({}, None),  # no episode ended yet
    ],
)
def test_rllibs_reward_per_period_is_that_of_the_periods_that_its_episodes_had(
    ended: dict[str, float], reward: float | None, tmp_path: Path
) -> None:
    state = module_state(np.random.default_rng(1), "encoder.actor_encoder.")
    run = peer_run(tmp_path, state, lambda: {"num_env_steps_sampled_lifetime": 9, "env_runners": ended})
    assert run.iterate().get("charts/reward_per_period") == reward


@pytest.mark.parametrize("lost", [np.nan, 1e30])
@pytest.mark.parametrize("told", [{"num_env_steps_sampled_lifetime": 9, "env_runners": {}}, RuntimeError("std >= 0")])
def test_a_training_of_rllibs_that_diverged_says_so(
    told: dict[str, Any] | RuntimeError, lost: float, tmp_path: Path
) -> None:
    """RLlib goes on with weights that are lost, up to whatever they break first, in words that tell nobody why."""
    state = module_state(np.random.default_rng(1), "encoder.actor_encoder.")

    def trained() -> dict[str, Any]:
        if isinstance(told, RuntimeError):
            raise told
        return told

    run = peer_run(tmp_path, state, trained)
    with nullcontext() if isinstance(told, dict) else pytest.raises(RuntimeError, match="std"):
        run.iterate()  # the weights are whole, so whatever broke is another matter
    for part in ("pi.net.mlp.0", "encoder.actor_encoder.net.mlp.2"):
        state[f"{part}.weight"][0, 3] = lost
    with pytest.raises(ReinetError, match=r"PPO of RLlib diverged after iteration .: .* a lower lr in rllib\.training"):
        run.iterate()
