"""``reinet train``: what it refuses before it prepares anything."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.places import ROOT
from reinet.agents.learn import learners
from reinet.agents.learn.loop import Progress, Result
from reinet.cli.entry import INTERRUPTED
from reinet.cli.main import app
from reinet.cli.train import pace
from reinet.core.errors import ConfigError


@pytest.mark.parametrize("run_dir", ["loop", "file/deep", "file"])
def test_a_run_folder_that_cannot_be_one_is_refused_before_anything_is_prepared(tmp_path: Path, run_dir: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    command = ["train", str(tmp_path / "none.toml"), "--run-dir", str(tmp_path / run_dir)]
    with pytest.raises(ConfigError, match=r"--run-dir .*: .*/(loop|file) is no folder"):
        raise CliRunner().invoke(app, command).exception or AssertionError


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--minutes", "1"], "--minutes: the trainings of a --sweep run to their ends"),
        (["--fresh"], "--fresh: a --sweep goes on where it was"),
    ],
)
def test_what_a_sweep_does_not_heed_is_refused(tmp_path: Path, option: list[str], message: str) -> None:
    command = [
        "train",
        str(ROOT / "configs" / "small.toml"),
        "--sweep",
        "none.toml",
        "--run-dir",
        str(tmp_path / "new"),
    ]
    with pytest.raises(ConfigError, match=message):
        raise CliRunner().invoke(app, [*command, *option]).exception or AssertionError
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["train", str(ROOT / "configs" / "small.toml")],
        ["train", str(ROOT / "configs" / "small.toml"), "--sweep", "none.toml"],
        ["bench", "learners", "--traces", "none.trace"],
        ["bench", "effects", "--traces", "none.trace", "--options", "none.toml"],
        ["bench", "flywheel"],
        ["models", "pull", "latest"],
    ],
    ids=lambda command: " ".join(command[:2])[:15],
)
def test_a_folder_that_nobody_named_is_looked_at_too_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """In a checkout of somebody else's; ``runs`` failed with no cure, after traces had been generated."""
    (tmp_path / "runs").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"--(run-dir|out) runs/.*: .*/runs is no folder; name another folder"):
        raise CliRunner().invoke(app, command).exception or AssertionError


def test_the_bar_says_steps_a_second_of_this_sitting_and_the_return() -> None:
    since = Progress(10, 40, 1_000_000, 100.0, {})
    step = Progress(12, 40, 1_030_000, 102.0, {"charts/reward_per_period": -0.25})
    assert pace(step, since) == "15,000 steps/s  return -0.250 a period  1.03 M periods"
    assert pace(since, None) == pace(since, since) == "1.00 M periods"


@pytest.mark.parametrize(("interrupted", "status"), [(False, 0), (True, INTERRUPTED)])
def test_who_goes_on_after_a_training_hears_that_it_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool, status: int
) -> None:
    found = Result(tmp_path / "checkpoint", None, 3, 100, 0, 1.0, interrupted)
    monkeypatch.setattr(learners, "train_any", lambda *_, **__: found)
    command = ["train", str(ROOT / "configs" / "small.toml"), "--run-dir", str(tmp_path / "run"), "--json", "-"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == status
    assert json.loads(done.stdout)["interrupted"] == interrupted
