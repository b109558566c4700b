"""Training on recordings: the model tells of all of them, is judged on none, and what cannot be is refused at once."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reinet.agents.decide.policy import Policy
from reinet.agents.evaluation.plan import Plan
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.export import export
from reinet.agents.learn.loop import Result
from reinet.agents.learn.train import train
from reinet.cli import main
from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

SMALL: dict[str, Any] = {
    "name": "small",
    "rollout": {"workers": 0, "links": 3, "periods": 40},
    "ddpg": {"hidden": [8], "batch": 32, "replay": 1000, "cold_start_iterations": 1, "normaliser_iterations": 1},
    "run": {"iterations": 3, "updates": 3, "evaluate_every": 3, "evaluate_s": 5, "checkpoint_every": 100},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four recordings in a folder, where the command is started."""
    (tmp_path / "mine").mkdir()
    for seed in range(4):
        generate("lte-driving", 10.0, 100 + seed).save(tmp_path / "mine" / f"{seed}.down")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(sets: list[Any], **changes: Any) -> TrainConfig:
    return TrainConfig.model_validate({**SMALL, "traces": {"presets": [], "sets": sets}, **changes})


def trained(folder: Path, sets: list[Any], **changes: Any) -> Result:
    return train(config(sets, **changes), folder / "run")


def test_a_model_of_recordings_tells_of_them_all_and_is_judged_on_none(folder: Path) -> None:
    links = {
        "rate_scale": [0.5, 2], "loss": [0, 0.01], "codel_share": 0.3, "cross_share": 0.3, "short_share": 0.3,
        "congestion_controls": ["cubic", "bbr"], "decision_ms": [0, 3],
    }  # fmt: skip
    result = trained(folder, ["mine"], links=links)
    assert result.best is not None
    files = {path.name: Trace.load(path) for path in sorted((folder / "mine").iterdir())}
    for path in (folder / "mine").iterdir():
        path.unlink()  # the model knows what it learned from, wherever that is now
    export(result.best, folder / "model")
    policy = Policy.load(folder / "model")
    uses = {use.name: use for use in policy.manifest.training.traces}
    assert {name: use.sha256 for name, use in uses.items()} == {f"mine/{name}": t.sha256 for name, t in files.items()}
    assert sorted(use.role for use in uses.values()) == ["select", "train", "train", "train"]
    assert policy.congestion_controls == ["cubic", "bbr"]
    card = (folder / "model" / "README.md").read_text()
    assert "over 3 recordings (and 1 to choose among checkpoints) only" in card
    assert "random loss" in card.partition("## Limits")[0]
    assert "applications slower than the link" in card.partition("## Limits")[2]
    for name, trace in files.items():
        renamed = Trace(trace.opportunities_ms, "innocent")
        with pytest.raises(ConfigError, match=rf"trace innocent has the content of mine/{name}, which the model was"):
            Plan(f"none,{folder / 'model'}", [Scenario.of(renamed, "sim", seconds=1.0)])
    assert (
        len(Plan(f"none,{folder / 'model'}", [Scenario.of(generate("lte-driving", 10.0, 1), "sim", seconds=1.0)])) == 2
    )


def test_generated_traces_and_recordings_stand_in_one_manifest(folder: Path) -> None:
    traces = {"sets": [{"path": "mine", "weight": 2.0}], "train_count": 3, "select_count": 1, "seconds": 10}
    result = trained(folder, [], traces=traces)
    assert result.best is not None
    export(result.best, folder / "model")
    uses = Policy.load(folder / "model").manifest.training.traces
    assert [use.name.partition("/")[0] for use in uses if "/" in use.name] == ["mine"] * 4
    assert len(uses) == 3 + 1 + 4
    assert "and 3 recordings (and 1 to choose among checkpoints)" in (folder / "model" / "README.md").read_text()


def test_a_run_goes_on_with_the_recordings_it_began_with(folder: Path) -> None:
    trained(folder, ["mine"])
    longer = {**SMALL["run"], "iterations": 4}
    assert trained(folder, ["mine"], run=longer).iterations == 4
    generate("lte-driving", 10.0, 200).save(folder / "mine" / "one-more.down")
    with pytest.raises(ConfigError, match="began with other recordings"):
        trained(folder, ["mine"], run={**longer, "iterations": 5})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[traces]\nsets = ['nowhere']", "traces.sets: nowhere: no such file"),
        ("[traces]\nsets = ['mine']\nforbid = ['mine/2.down']", "mine/2.down has the content of mine/2.down, which"),
        ("[traces]\nsets = ['$NOT_SET/mine']", "the environment has no $NOT_SET"),
        ("[traces]\npresets = []\nsets = ['mine/1.down']", "no recording is left to choose among checkpoints by"),
    ],
)
def test_what_cannot_be_is_refused_before_ray_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    import ray

    def started(**_: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", started)
    (folder / "own.toml").write_text(text)
    done = CliRunner().invoke(main.app, ["train", "own.toml"])
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
    assert not (folder / "runs").exists()
