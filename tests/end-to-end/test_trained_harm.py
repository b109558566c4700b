"""A training asks what its best checkpoint costs short transfers, and says it wherever a model comes from it."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from helpers.trainer import TINY
from reinet.agents.learn.checkpoint import Checkpoint
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.train import train
from reinet.agents.model.artifact import load_artifact, parse_manifest
from reinet.cli.main import app
from reinet.core.errors import ModelError

# The policy has seen hardly anything, and no cell may be above its limit, nor any take a millionth longer.
STRICT = TINY | {"harm": {"repeat": 1, "most_failed_share": 0.0, "most_ratio": 1.000001}}


def test_a_checkpoint_that_does_harm_is_exported_only_by_force_and_its_card_says_so(tmp_path: Path) -> None:
    result = train(TrainConfig.model_validate(STRICT), tmp_path / "run")
    assert result.best is not None
    assert " bytes " in result.harms, "the worst cells are named"
    metrics = Checkpoint(result.best).state.best.metrics  # type: ignore[union-attr]
    assert (metrics["harm_ok"], metrics["harm_cells"]) == (0.0, 72.0)
    assert any(name.startswith("stratum_") for name in metrics)

    command = ["export", str(result.best), "--out", str(tmp_path / "model")]
    with pytest.raises(ModelError, match=r"harm: .* bytes .*; train on, or export it all the same with --force"):
        raise CliRunner().invoke(app, command).exception or AssertionError
    assert not (tmp_path / "model").exists()
    figures = {"frontier_mean": [0.765, 0.761, 0.767]}
    record = {"spread": {"tiny": {"seeds": [1, 2, 3], "traces": 7, "seconds": 300, "figures": figures}}}
    (tmp_path / "seeds.json").write_text(json.dumps(record))
    command += ["--force", "--spread", str(tmp_path / "seeds.json")]
    assert CliRunner().invoke(app, command).exit_code == 0
    card = (tmp_path / "model" / "README.md").read_text()
    assert "The gate refused it" in card
    assert "| frontier_mean | 0.765 | 0.761 to 0.767 |" in card
    _tells_a_models_spread(tmp_path / "model", tmp_path)
    (tmp_path / "seeds.json").write_text(json.dumps({"spread": {"other": {}}}))
    with pytest.raises(ModelError, match=r"seeds\.json: has no spread over seeds of tiny"):
        raise CliRunner().invoke(app, command).exception or AssertionError
    assert json.loads((tmp_path / "model" / "manifest.json").read_text())["metrics"]["harm_ok"] == 0.0


def _tells_a_models_spread(model: Path, folder: Path) -> None:
    """A model that is made already gets another spread onto its card, in place of the first; all else stays."""
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    record = {"seeds": [7], "traces": 2, "seconds": 60, "figures": {"frontier_mean": [0.9, 0.8, 1.0]}}
    (folder / "others.json").write_text(json.dumps({"spread": {"tiny": record}}))
    assert CliRunner().invoke(app, ["export", str(model), "--spread", str(folder / "others.json")]).exit_code == 0
    card = (model / "README.md").read_text()
    assert card.count("## Spread over seeds") == card.count("## Limits") == 1
    assert "| frontier_mean | 0.900 | 0.800 to 1.000 |" in card
    assert (
        card.replace("seeds 7 (2 traces of 60", "seeds 1, 2, 3 (7 traces of 300").replace(
            "0.900 | 0.800 to 1.000", "0.765 | 0.761 to 0.767"
        )
        == before["README.md"].decode()
    )
    changed = {path.name for path in model.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"README.md", "manifest.json"}
    assert load_artifact(model).manifest.model_copy(update={"files": {}}) == parse_manifest(
        before["manifest.json"], model
    ).model_copy(update={"files": {}})


def test_how_checkpoints_are_chosen_changes_nothing_that_is_learned(tmp_path: Path) -> None:
    once = TINY | {"run": TINY["run"] | {"evaluate_seeds": 1}}
    learned = [
        Checkpoint(train(TrainConfig.model_validate(config), tmp_path / name).checkpoint).learner
        for name, config in (("asked", STRICT), ("unasked", once))
    ]
    assert learned[0].keys() == learned[1].keys()
    assert all(torch.equal(tensor, learned[1][name]) for name, tensor in learned[0].items())
