"""What a sweep says of its trials: the figures of the checkpoint that a row names, and of damaged files nothing."""

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.trainer import TINY
from reinet.agents.learn import sweep as sweeps
from reinet.agents.learn.checkpoint import Checkpoint
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.loop import Progress, Result
from reinet.agents.learn.sweep import PLAN_FILE, TRIAL_FILE, Law, SweepConfig, folder_of, sweep
from reinet.agents.learn.train import train
from reinet.core.errors import ConfigError, ReinetError


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The scores that Tune was told; trials run here, without it, and each ends with an evaluation that is worse."""
    scores: list[float] = []

    def worse_at_the_end(*arguments: Any, progress: Any) -> Result:
        result = train(*arguments, progress=progress)
        progress(Progress(result.iterations, result.iterations, 0, 0.0, {"eval/score": -99.0, "eval/utilization": 0.0}))
        return result

    def here(config: TrainConfig, points: Any, left: list[int], _at_once: int, run_dir: Path, _ray: Any) -> list[str]:
        for number in left:
            sweeps._run_trial(config, points[number], number, run_dir)
        return []

    tune = SimpleNamespace(report=lambda row: scores.append(row["score"]))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(tune=tune))
    monkeypatch.setattr(sweeps, "train", worse_at_the_end)
    monkeypatch.setattr(sweeps, "_run", here)
    return scores


def test_a_row_tells_of_its_best_checkpoint_and_a_damaged_one_is_made_again(tmp_path: Path, told: list[float]) -> None:
    config, plan = TrainConfig.model_validate(TINY), SweepConfig(grid={"seed": [1]})
    (row,) = sweep(config, plan, tmp_path)
    best = Checkpoint(Path(row["best"])).state.best
    assert best is not None
    assert told[-1] == -99.0
    assert row["score"] == best.score > -99
    path = folder_of(tmp_path, 0) / TRIAL_FILE
    kept = json.loads(path.read_text())
    assert kept["metrics"] == {f"eval/{name}": value for name, value in best.metrics.items()}
    for damaged in (b"", bytes(50), b"\xff\xfe", b"[1]"):
        path.write_bytes(damaged)
        (again,) = sweep(config, plan, tmp_path)
        assert (again["state"], again["score"]) == ("done", row["score"])
        assert json.loads(path.read_text())["metrics"] == kept["metrics"]


def test_the_best_checkpoint_of_a_sweep_that_was_moved_is_named_where_it_lies_now(
    tmp_path: Path, told: list[float]
) -> None:
    """It was named in the folder that the sweep was made in: nothing lies there any more, or another sweep does."""
    config, plan = TrainConfig.model_validate(TINY), SweepConfig(grid={"seed": [1]})
    (made,) = sweep(config, plan, tmp_path / "made")
    (tmp_path / "made").rename(tmp_path / "moved")
    (row,) = sweep(config, plan, tmp_path / "moved")
    assert (row["state"], row["score"]) == ("done", made["score"])
    assert Path(row["best"]) == folder_of(tmp_path / "moved", 0) / "best"
    assert Checkpoint(Path(row["best"])).state.best is not None


def test_a_plan_is_whole_or_not_there(tmp_path: Path, told: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of one would be taken for another sweep's from then on."""
    config, plan = TrainConfig.model_validate(TINY), SweepConfig(grid={"seed": [1]})

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            sweep(config, plan, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert sweep(config, plan, tmp_path)[0]["state"] == "done"
    assert [path.name for path in tmp_path.glob("*.json")] == [PLAN_FILE]
    with pytest.raises(ConfigError, match="holds another sweep"):
        sweep(config, SweepConfig(grid={"seed": [2]}), tmp_path)


@pytest.mark.parametrize(
    "plan",
    [
        SweepConfig(grid={"seed": [1, 2, 1]}),
        SweepConfig(grid={"ddpg.noise": [1, 1.0]}),
        SweepConfig(random={"ddpg.noise": Law(low=0.1, high=0.1)}, samples=2),
    ],
)
def test_the_same_training_twice_is_refused_before_anything_runs(tmp_path: Path, plan: SweepConfig) -> None:
    """Equal rows would be taken for what two seeds agree on."""
    with pytest.raises(ConfigError, match="are the same training"):
        sweep(TrainConfig.model_validate(TINY), plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_trial_that_failed_says_why_and_is_tried_again(tmp_path: Path, told: list[float]) -> None:
    """It was called unfinished, with nothing else, after three tries and their tracebacks."""
    config = TrainConfig.model_validate({**TINY, "period": {"min_ms": 5, "packet_timed": False}})
    good, bad = sweep(config, SweepConfig(grid={"rollout.periods": [8, 300]}), tmp_path)
    assert (good["state"], good["rollout.periods"], good["problem"]) == ("done", 300, None)
    assert (bad["state"], bad["score"]) == ("failed", None)
    assert "iterations taught nothing" in bad["problem"]
    shutil.rmtree(folder_of(tmp_path, 0) / "checkpoints")
    count = len(told)
    sweep(config, SweepConfig(grid={"rollout.periods": [8, 300]}), tmp_path)
    assert (folder_of(tmp_path, 0) / "checkpoints").exists()
    assert len(told) == count, "what is done is left"
    with pytest.raises(ReinetError, match=r"every trial of the sweep failed: .* taught nothing"):
        sweep(config, SweepConfig(grid={"rollout.periods": [8]}), tmp_path / "alone")
