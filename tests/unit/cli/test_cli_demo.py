"""``reinet demo``: what it trains."""

from pathlib import Path
from typing import Any

import pytest

from helpers.places import ROOT
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.loop import Result
from reinet.cli import demo


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
