"""A sweep: a training for each point, side by side in TensorBoard, which goes on where it was ended."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from helpers.configs import as_toml
from helpers.trainer import TINY
from reinet.agents.learn.checkpoint import Checkpoint
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.sweep import SweepConfig, configured, sweep
from reinet.agents.learn.train import train
from reinet.core.errors import ConfigError

SWEEP = '[sweep]\nat_once = 2\n[sweep.grid]\nseed = [1, 2]\n"ddpg.noise" = [0.1]\n'


def run(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", "from reinet.cli.main import main; main()", "train", str(folder / "tiny.toml"),
         "--sweep", str(folder / "sweep.toml"), "--run-dir", str(folder / "run"), "--json", "-"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))  # nothing else is there: Tune's words go to standard error


def test_each_point_is_a_training_of_its_own_and_a_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(as_toml(TINY))
    (tmp_path / "sweep.toml").write_text(SWEEP)
    rows = run(tmp_path)["rows"]
    assert sorted(row["seed"] for row in rows) == [1, 2]
    assert {row["state"] for row in rows} == {"done"}
    assert rows[0]["score"] >= rows[1]["score"]
    for row in rows:
        point = {"seed": row["seed"], "ddpg.noise": 0.1}
        alone = train(configured(TrainConfig.model_validate(TINY), point), tmp_path / f"alone-{row['seed']}")
        assert alone.best is not None
        assert Checkpoint(alone.best).state.files == Checkpoint(Path(row["best"])).state.files
        events = EventAccumulator(row["run_dir"], size_guidance={"scalars": 0})
        events.Reload()
        assert "eval/score" in events.Tags()["scalars"]
        assert "_hparams_/session_start_info" in events.summary_metadata
        assert "best/score" in events.Tags()["scalars"]
        assert all(event.step > 0 for event in events.Scalars("eval/score")), "nothing is evaluated before learning"

    shutil.rmtree(rows[1]["run_dir"])
    before = (Path(rows[0]["run_dir"]) / "trial.json").stat().st_mtime_ns
    config, plan = TrainConfig.load(tmp_path / "tiny.toml"), SweepConfig.load(tmp_path / "sweep.toml")
    interrupt = signal.getsignal(signal.SIGINT)
    assert [row["score"] for row in sweep(config, plan, tmp_path / "run")] == [row["score"] for row in rows]
    assert signal.getsignal(signal.SIGINT) is interrupt
    assert (Path(rows[0]["run_dir"]) / "trial.json").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="holds another sweep"):
        sweep(config, plan.model_copy(update={"grid": {"seed": [1, 3]}}), tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[sweep]\n", "neither"),
        ('[sweep.grid]\n"ddpg.nose" = [1]\n', "no key 'ddpg.nose'"),
        ('[sweep.grid]\nname = ["a"]\n', "no key 'name'"),
        ('[sweep.grid]\n"ddpg.noise" = [-1]\n', "ddpg.noise"),
        ('[sweep.random]\n"ddpg.noise" = { low = 2, high = 1 }\n', "low comes first"),
        ('[sweep.random]\n"ddpg.noise" = { low = -1e308, high = 1e308 }\n', "nearer to each other"),
        ("[sweep.grid]\nseed = []\n", "0 trials"),
        (
            '[sweep.grid]\n"ddpg.noise" = [0.1, 0.2]\n[sweep.random]\n"ddpg.noise" = { low = 0.5, high = 0.6 }\n',
            r"ddpg\.noise stands in \[sweep.grid\] and in \[sweep.random\]",
        ),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_before_anything_runs(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "sweep.toml").write_text(text)
    config = TrainConfig.model_validate(TINY)

    def checked() -> None:
        for point in SweepConfig.load(tmp_path / "sweep.toml").points():
            configured(config, point)

    with pytest.raises(ConfigError, match=error):
        checked()


def test_draws_are_the_same_each_time_and_within_their_law() -> None:
    plan = SweepConfig.model_validate(
        {"grid": {"seed": [1, 2]}, "random": {"ddpg.noise": {"low": 0.01, "high": 1, "log": True}}, "samples": 20}
    )
    points = plan.points()
    assert points == plan.points()
    noises = [point["ddpg.noise"] for point in points]
    assert len(set(noises)) == 40
    assert 0.01 <= min(noises) < 0.1 < max(noises) <= 1
