"""``reinet demo``: what it trains, and what it refuses before that."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helpers.places import ROOT
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.loop import Result
from reinet.cli import demo
from reinet.cli.main import app
from reinet.core.errors import ReinetError


def test_it_trains_the_default_configuration_under_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    def train(*arguments: Any, minutes: float, **_: Any) -> Result:
        told.extend([*arguments, minutes])
        return Result(tmp_path / "checkpoint", None, 1, 1, 1, 1.0, interrupted=False)

    monkeypatch.setattr("reinet.agents.learn.train.train", train)
    monkeypatch.setattr("reinet.agents.learn.export.export", lambda *arguments: told.append(arguments))
    monkeypatch.chdir(ROOT)
    assert demo._train(2.5, tmp_path) == tmp_path / "model"
    config, run_dir, minutes, exported = told
    default = TrainConfig.load(ROOT / "configs" / "default.toml")
    assert config.name == "demo"
    assert config.model_copy(update={"name": "default"}) == default
    assert (run_dir, minutes) == (tmp_path / "train", 2.5)
    assert exported == (tmp_path / "checkpoint", tmp_path / "model")


def test_a_transfer_that_cannot_be_is_refused_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_train", lambda *_: pytest.fail("the training has begun"))
    done = CliRunner().invoke(app, ["demo", "--seconds", "100000", "--run-dir", str(tmp_path)])
    assert isinstance(done.exception, ReinetError)
    assert "generate: 100000.0 s; between" in str(done.exception)
