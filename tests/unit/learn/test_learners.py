"""``reinet bench learners``: what it refuses before the first training."""

import json
from pathlib import Path

import pytest

from helpers.configs import as_toml
from helpers.trainer import TINY
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.learn import learners
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.export import Spread
from reinet.agents.learn.learners import JUDGED, seeded, side_by_side, spread
from reinet.agents.learn.loop import Result
from reinet.agents.learn.rllib.config import PeerConfig
from reinet.agents.learn.train import train
from reinet.cli.benches.learners import learners as bench_learners
from reinet.core.errors import ConfigError, ModelError
from reinet.envs.trace import Trace, generate

OWN = generate("lte-walking", 10.0, 77)
MEAN = dict.fromkeys(JUDGED, 0.8) | {"below_rule": 0.0, "valid": True}
SHOWN = TrainConfig.model_validate(TINY).traces


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (OWN, "judge.trace has the content of .*/own.trace, which second learns or selects by"),
        (generate(SHOWN.presets[0], 10.0, SHOWN.seed), "judge.trace has the content of lte-driving.*, which first"),
        (Trace.constant(0.01, 10), r"over judge.trace ends before the trace lets any data through"),
    ],
)
def test_nobody_is_judged_on_what_it_learned_from_or_where_nothing_comes_through(
    trace: Trace, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = OWN.save(tmp_path / "own.trace")
    judge = Trace.load(trace.save(tmp_path / "judge.trace"))
    first = TrainConfig.model_validate({**TINY, "name": "first"})
    second = TrainConfig.model_validate(
        {**TINY, "name": "second", "traces": {**TINY["traces"], "sets": [{"path": str(own), "role": "train"}]}}
    )
    monkeypatch.setattr(learners, "train", lambda *_: pytest.fail("a training began"))
    scenario = Scenario.of(judge, "sim", seconds=1.0)
    with pytest.raises(ConfigError, match=message):
        list(side_by_side([first, second], [scenario], None, tmp_path / "out"))


def test_a_configuration_with_several_seeds_is_several_trainings_and_their_spread() -> None:
    one = TrainConfig.model_validate(TINY)
    assert [(each.name, each.seed) for each in seeded(one, [3, 1, 3])] == [("tiny-seed3", 3), ("tiny-seed1", 1)]
    assert seeded(one, []) == [one]
    assert seeded(one, [3])[0] == one.model_copy(update={"seed": 3, "name": "tiny-seed3"})
    for refused, seed, key in ((one, -1, "seed"), (one.model_copy(update={"name": "n" * 60}), 1, "name")):
        with pytest.raises(ConfigError, match=f"^--seeds {seed}: {key}: "):
            seeded(refused, [seed])
    rows = [MEAN | dict.fromkeys(JUDGED, value) for value in (0.9, 0.7, 0.8)]
    assert spread(rows) == {key: [0.8, 0.7, 0.9] for key in JUDGED}
    stalled = MEAN | dict.fromkeys(JUDGED, 0.1) | {"valid": False}
    assert spread([*rows, stalled]) == spread(rows), "a flow that stands still has hardly any delay"
    assert spread([stalled]) == {key: [0.1, 0.1, 0.1] for key in JUDGED}


def test_a_training_of_the_bench_itself_finds_the_spread_of_its_seeds(tmp_path: Path) -> None:
    """The file was refused for whatever the bench had trained, where a run by hand found itself in it."""
    told = {"seeds": [1, 3], "traces": 7, "seconds": 60.0, "figures": {"frontier_mean": [0.8, 0.7, 0.9]}}
    (tmp_path / "seeds.json").write_text(json.dumps({"spread": {"tiny": told}}))
    for config in (TrainConfig.model_validate(TINY), *seeded(TrainConfig.model_validate(TINY), [1, 3])):
        assert Spread.load(tmp_path / "seeds.json", config.name, config.seed).seeds == [1, 3]
    with pytest.raises(ModelError, match=r"seeds\.json: has no spread over seeds of tiny-seed3"):
        Spread.load(tmp_path / "seeds.json", "tiny-seed3", 1)


def test_a_row_says_what_its_judgement_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy whose flow had stalled on every trace stood beside the others as if it were the best of them."""
    config = TrainConfig.model_validate(TINY)
    done = Result(tmp_path, None, iterations=1, env_steps=1, updates=1, wall_s=1.0, interrupted=False)
    monkeypatch.setattr(learners, "train_any", lambda *_, **__: done)
    monkeypatch.setattr(learners, "export", lambda *_: "")
    monkeypatch.setattr(learners, "make_agent", lambda _: None)
    file = tmp_path / "tiny.toml"
    file.write_text(as_toml(TINY))
    trace = Trace.constant(12, 10).save(tmp_path / "12.trace")
    for is_valid, told in ((True, "so it is not in the means"), (False, "as on every trace, so do not quote it")):
        mean = MEAN | {"trace": "mean", "valid": is_valid, "below_rule": 0.25}
        judged = [MEAN | {"trace": "deaf.trace", "valid": False}, mean]
        monkeypatch.setattr(learners, "against_frontier", lambda *_, judged=judged, **__: judged)
        (row,) = side_by_side([config], [], None, tmp_path / "out")
        assert (row["valid"], row["stalled"], row["below_rule"]) == (is_valid, ["deaf.trace"], 0.25)
        bench_learners([trace], [file], run_dir=tmp_path / "out")
        said = " ".join(capsys.readouterr().err.split())
        assert f"note: tiny: the flow stalled on deaf.trace, {told}" in said
        assert "note: tiny: less utilisation than every setting of the rule on 25 % of the traces" in said


def test_a_row_says_from_which_checkpoint_its_training_went_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig.model_validate(TINY)
    done = Result(tmp_path, None, iterations=1, env_steps=1, updates=1, wall_s=1.0, interrupted=False)
    monkeypatch.setattr(learners, "train_any", lambda *_, **__: done)
    monkeypatch.setattr(learners, "refuse_another_run", lambda *_: None)  # the checkpoints below are empty folders
    monkeypatch.setattr(learners, "export", lambda *_: "")
    monkeypatch.setattr(learners, "make_agent", lambda _: None)
    monkeypatch.setattr(learners, "against_frontier", lambda *_, **__: [MEAN])
    (fresh,) = side_by_side([config], [], None, tmp_path)
    newest = tmp_path / config.name / "checkpoints" / "iteration-000040"
    for folder in (newest.with_name("iteration-000020"), newest):
        folder.mkdir(parents=True)
    (again,) = side_by_side([config], [], None, tmp_path)
    assert (fresh["went_on_from"], again["went_on_from"]) == (None, str(newest))


def test_a_run_that_a_training_cannot_go_on_from_is_refused_before_the_first_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused when its turn came, and what the trainings before it had reached was told nowhere."""
    first = TrainConfig.model_validate({**TINY, "name": "first"})
    earlier = TrainConfig.model_validate({**TINY, "name": "second", "run": {**TINY["run"], "iterations": 2}})
    train(earlier, tmp_path / "second")
    second = earlier.model_copy(update={"seed": earlier.seed + 1})
    peer = PeerConfig.model_validate({
        **TrainConfig().model_dump(mode="json"), "name": "second", "rllib": {"algorithm": "PPO"},
        "ddpg": {"batch_norm": False},
    })  # fmt: skip
    monkeypatch.setattr(learners, "train_any", lambda *_, **__: pytest.fail("a training began"))
    for other, message in ((second, "second: its run has seed"), (peer, "RLlib's are not resumed"), (first, "first")):
        with pytest.raises(ConfigError, match=message):
            list(side_by_side([first, other], [], None, tmp_path))
