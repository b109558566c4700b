"""RLlib's SAC and PPO on reinet's environments, and reinet's learner as an RLlib algorithm."""

import gc
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from typer.testing import CliRunner

from helpers.configs import as_toml
from helpers.trainer import TINY
from reinet.agents.decide.policy import Policy
from reinet.agents.learn import checkpoint
from reinet.agents.learn.checkpoint import Checkpoint
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.rllib import peers
from reinet.agents.learn.rllib.config import PeerConfig
from reinet.agents.learn.rllib.environments import SIM_LINK
from reinet.agents.learn.train import train
from reinet.agents.learn.workers import start_ray
from reinet.agents.model.mlp import Folded, act
from reinet.cli import main
from reinet.core import FEATURE_SETS

pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib has many of its own, and others with each of its releases
SET = "timescales-24x1"
SETTINGS = {
    "SAC": {"train_batch_size_per_learner": 32, "num_steps_sampled_before_learning_starts": 40,
            "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 1000}},
    "PPO": {"train_batch_size_per_learner": 120, "minibatch_size": 60, "num_epochs": 1},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_ray() -> Iterator[None]:
    """A Ray for all of these tests; starting one takes longer than what they do in it."""
    start_ray(ray, 2)
    yield
    ray.shutdown()
    gc.collect()  # what RLlib left open is found here, and not in somebody else's test


def tiny(algorithm: str, workers: int) -> dict[str, Any]:
    return {
        **TINY,
        "feature_set": SET,
        "rollout": {**TINY["rollout"], "workers": workers},
        "ddpg": {"hidden": [16, 8], "batch_norm": False},
        "run": {"iterations": 2, "evaluate_every": 2, "evaluate_s": 5, "checkpoint_every": 1},
        "rllib": {"algorithm": algorithm, "fragment_periods": 10, "training": SETTINGS[algorithm]},
    }


def own_actions(algorithm: Any, states: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The centre of RLlib's own policy, without the tanh that its SAC learns with and leaves out without noise."""
    (module,) = algorithm.learner_group.foreach_learner(lambda learner: learner.module["default_policy"])
    inputs = module.get().forward_inference({"obs": torch.from_numpy(states)})["action_dist_inputs"]
    chosen = module.get().get_inference_action_dist_cls().from_logits(inputs).to_deterministic().sample()
    return np.asarray(chosen.detach().numpy()[:, 0])


@pytest.mark.parametrize(("algorithm", "workers"), [("SAC", 1), ("PPO", 0)])
def test_rllibs_own_algorithms_train_from_a_file_and_their_policies_become_models(
    algorithm: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = FEATURE_SETS[SET]
    rng = np.random.default_rng(1)
    states = rng.uniform(space.low(), np.minimum(space.high(), 3.0), (50, space.state_size)).astype(np.float32)
    compared = []

    def compare(config: PeerConfig, trained: Any) -> list[Any]:
        layers = policy_of(config, trained)
        theirs = own_actions(trained, states)
        ours = act(Folded(layers), states)
        np.testing.assert_allclose(ours, np.tanh(theirs), atol=1e-5)
        compared.append(layers)
        return layers

    policy_of, save = peers.policy_of, checkpoint.save
    monkeypatch.setattr(peers, "policy_of", compare)
    saved: list[Path] = []
    monkeypatch.setattr(checkpoint, "save", lambda folder, *rest: (saved.append(folder), save(folder, *rest)))
    (tmp_path / "tiny.toml").write_text(as_toml(tiny(algorithm, workers)))
    run, model = tmp_path / "run", tmp_path / "model"
    cli = CliRunner()
    options = ["--run-dir", str(run), "--json", str(tmp_path / "out.json")]
    done = cli.invoke(main.app, ["train", str(tmp_path / "tiny.toml"), *options])
    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["iterations"] == 2
    records = 2 * TINY["rollout"]["links"] * TINY["rollout"]["periods"]
    assert records <= told["env_steps"] < 2 * records
    assert told["updates"] > 0
    assert len(compared) >= 2
    kept = [folder for folder in saved if folder.parent.name == "checkpoints"]
    assert kept == [checkpoint.place(run, iteration) for iteration in (1, 2)], "each is written once, also the last"

    done = cli.invoke(main.app, ["export", str(run / "best"), "--out", str(model)])
    assert done.exit_code == 0, (done.output, done.exception)
    policy = Policy.load(model)
    assert policy.manifest.training.config["rllib"]["algorithm"] == algorithm
    assert f"RLlib's {algorithm}" in (model / "README.md").read_text()
    again = cli.invoke(main.app, ["train", str(tmp_path / "tiny.toml"), *options])
    assert again.exit_code != 0, "a run of RLlib's is not resumed"


def test_reinets_learner_is_an_algorithm_of_rllib_that_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    from reinet.agents.learn.rllib.algorithm import ReinetConfig  # here, where RLlib's warnings are no errors

    settings = TrainConfig.model_validate(TINY)
    chosen = ReinetConfig().training(configuration=settings, varied={"seed": 3, "run.iterations": 4})
    whole = train(chosen.train_config(), tmp_path / "whole")
    first, second = chosen.build_algo(), chosen.build_algo()
    try:
        for _ in range(3):
            told = first.train()
        assert told["training_iteration"] == 3
        assert told["num_env_steps_sampled_lifetime"] == 3 * 3 * 41
        assert "score" in told["eval"]
        first.save_checkpoint(str(tmp_path / "kept"))
        second.load_checkpoint(str(tmp_path / "kept"))
        assert second.train()["done"]
        second.save_checkpoint(str(tmp_path / "end"))
    finally:
        for algorithm in (first, second):
            algorithm.stop()
            shutil.rmtree(algorithm.logdir)
    end = Checkpoint(tmp_path / "end" / "reinet").state
    assert end.iteration == 4
    assert end.files == Checkpoint(whole.checkpoint).state.files, "as reinet train has it, bit for bit"
    assert (tmp_path / "end" / "best" / checkpoint.STATE_FILE).is_file()


def test_under_tune_every_result_has_the_newest_evaluation_and_the_last_iteration_ends_the_trial(
    tmp_path: Path,
) -> None:
    from ray import tune

    from reinet.agents.learn.rllib.algorithm import Reinet, ReinetConfig

    config = {**TINY, "run": {"iterations": 5, "evaluate_every": 2, "evaluate_s": 5, "updates": 5}}
    chosen = ReinetConfig().training(configuration=TrainConfig.model_validate(config))
    tuner = tune.Tuner(
        Reinet,
        param_space=chosen,
        tune_config=tune.TuneConfig(metric="eval/score", mode="max"),  # which a result without it would end
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    (found,) = tuner.fit()
    assert found.error is None
    rows = [json.loads(line) for line in (Path(found.path) / "result.json").read_text().splitlines()]
    assert [row["done"] for row in rows] == [False] * 4 + [True]
    scores = [row["eval"]["score"] for row in rows]
    assert np.isnan(scores[0]), "nothing was evaluated yet"
    assert np.isfinite(scores[1:]).all()
    assert scores[2] == scores[1]
    assert len({scores[1], scores[3], scores[4]}) == 3
    assert all(set(row["eval"]) == set(rows[1]["eval"]) for row in rows)
    assert tuner.get_results().get_best_result().metrics["eval"]["score"] == scores[-1]


def test_gymnasiums_name_of_the_environment_is_known_to_rllib() -> None:
    """Without vectors too, and with the arguments of its documentation."""
    from ray.rllib.algorithms.ppo import PPOConfig

    from reinet.agents.learn.rllib.environments import register_with_rllib

    register_with_rllib()
    chosen = PPOConfig().environment(SIM_LINK, env_config={"mrtt_ms": 40.0, "head": "bdp", "reward": "regret"})
    chosen.env_runners(num_env_runners=0, rollout_fragment_length=20).training(**SETTINGS["PPO"])
    algorithm = chosen.build_algo()
    try:
        told = algorithm.train()
    finally:
        algorithm.stop()
        shutil.rmtree(algorithm.logdir)
    assert told["num_env_steps_sampled_lifetime"] >= 120
