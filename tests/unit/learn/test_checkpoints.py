"""A run's folder: it goes on from what is whole, belongs to one training at a time, and outlives a full disk."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from helpers.trainer import TINY
from reinet.agents.learn import checkpoint
from reinet.agents.learn.checkpoint import Checkpoint, checkpoints
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.ddpg import Ddpg
from reinet.agents.learn.export import export
from reinet.agents.learn.loop import Result
from reinet.agents.learn.train import train
from reinet.agents.model import artifact
from reinet.cli.main import app
from reinet.core.disk import durable
from reinet.core.errors import ConfigError, ModelError, ReinetError

COMMAND = "from reinet.cli.main import main; main()"


def run(folder: Path, iterations: int, **changes: Any) -> Result:
    return train(
        TrainConfig.model_validate({**TINY, "run": {**TINY["run"], "iterations": iterations}, **changes}), folder
    )


def damage(folder: Path, name: str = checkpoint.LEARNER_FILE) -> None:
    path = folder / name
    path.write_bytes(bytes(path.stat().st_size))  # what a power cut may leave of a file that was not synchronised


# --- going on ---


def test_a_run_goes_on_from_the_newest_checkpoint_that_is_whole_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(tmp_path / "whole", 7)
    run(tmp_path / "cut", 5)
    assert [folder.name[-1] for folder in checkpoints(tmp_path / "cut")] == ["2", "4", "5"]
    for folder, name in zip(checkpoints(tmp_path / "cut")[1:], ("state.json", "learner.safetensors"), strict=True):
        damage(folder, name)
    again = run(tmp_path / "cut", 5)  # whose last iteration writes none of its own, where one is there
    told = capsys.readouterr().err
    assert "iteration-000004/state.json: document: Invalid JSON" in told
    assert "iteration-000005/learner.safetensors: damaged" in told
    assert "goes on from" in told
    assert "iteration-000002" in told
    assert Checkpoint(again.checkpoint).state.iteration == 5
    assert sorted(path.name for path in (tmp_path / "cut" / "checkpoints").glob("damaged-*")) == [
        "damaged-iteration-000004", "damaged-iteration-000005",
    ]  # fmt: skip
    ours, theirs = (Checkpoint(run(tmp_path / name, 7).checkpoint).learner for name in ("cut", "whole"))
    assert whole.iterations == 7
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_run_that_another_version_judged_on_other_links_goes_on_and_chooses_its_best_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training on the reference path alone once had a second link for each selection trace."""
    alone = {"links": {"reference_share": 1.0}}
    made = Checkpoint(run(tmp_path, 4, **alone).checkpoint)
    baselines, best = made.state.baselines, made.state.best
    assert best is not None
    older = {"baselines": [*baselines, *baselines], "best": best.model_copy(update={"score": 1000.0})}
    checkpoint.save(made.folder, made.state.model_copy(update=older), made.learner, made.replay)
    capsys.readouterr()
    state = Checkpoint(run(tmp_path, 6, **alone).checkpoint).state
    assert f"{tmp_path}: another version judged its run on 4 links, this one has 2" in capsys.readouterr().err
    assert state.baselines == baselines
    assert state.best is not None
    assert state.best.iteration == Checkpoint(tmp_path / "best").state.iteration == 6


def test_how_often_a_run_writes_checkpoints_may_change_and_changes_nothing_that_is_learned(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 6)
    run(tmp_path / "cut", 3)
    often = {**TINY["run"], "checkpoint_every": 1, "keep": 9}
    again = train(TrainConfig.model_validate({**TINY, "run": often}), tmp_path / "cut")
    assert [folder.name[-1] for folder in checkpoints(tmp_path / "cut")] == ["2", "3", "4", "5", "6"]
    ours, theirs = (Checkpoint(result.checkpoint).learner for result in (again, whole))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_configuration_that_an_older_version_took_is_no_damage_and_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = run(tmp_path, 2).checkpoint
    path = folder / checkpoint.STATE_FILE
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"config": state["config"] | {"ddpg": state["config"]["ddpg"] | {"gamma": 0}}}))
    refused = r"state\.json: this version refuses its configuration: ddpg\.gamma: Input .* greater than 0, not 0; use"
    for use in (Checkpoint, lambda _: run(tmp_path, 4)):
        with pytest.raises(ModelError, match=refused) as caught:
            use(folder)
        assert "damaged" not in str(caught.value)


SHORT = {"period": {"min_ms": 5, "packet_timed": False}, "rollout": {**TINY["rollout"], "periods": 8}}


@pytest.mark.parametrize("generations", [0, 2])
def test_a_training_whose_flows_are_over_before_any_cap_acts_ends_with_what_to_do_and_has_no_best(
    tmp_path: Path, generations: int
) -> None:
    evolution = {"generations": generations, "members": 4, "links": 1, "seconds": 2}
    with pytest.raises(ConfigError, match=r"taught nothing: .* more than rollout\.periods = 8, .*, as another job or"):
        run(tmp_path, 6, **SHORT, evolution=evolution)
    assert not (tmp_path / "best").exists()


def test_such_a_training_that_is_told_to_end_before_says_so_as_well_and_leaves_its_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainConfig.model_validate({**TINY, **SHORT})
    ended = train(config, tmp_path, progress=lambda _step: os.kill(os.getpid(), signal.SIGINT))
    assert "taught nothing" not in capsys.readouterr().err, "an iteration that calibrates is not to teach anything"
    again = train(config, tmp_path, progress=lambda _step: os.kill(os.getpid(), signal.SIGINT))
    assert "2 iterations taught nothing" in capsys.readouterr().err
    assert (ended.iterations, again.iterations, Checkpoint(again.checkpoint).state.updates) == (1, 2, 0)


def test_a_training_that_has_only_calibrated_so_far_is_none_that_was_taught_nothing(tmp_path: Path) -> None:
    config = TrainConfig.model_validate({**TINY, "run": {**TINY["run"], "iterations": 3}})
    begun = train(config, tmp_path, progress=lambda _step: os.kill(os.getpid(), signal.SIGINT))
    assert (begun.iterations, begun.updates, begun.best) == (1, 0, None)
    assert run(tmp_path, 3).updates == 2 * TINY["run"]["updates"]


@pytest.mark.parametrize("lost", ["losses/critic", "actor/out.bias"])
def test_a_training_that_diverges_ends_with_its_name_and_keeps_what_was_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Weights that an iteration's last update loses are in no loss of it."""
    before = run(tmp_path, 4).checkpoint
    update = Ddpg.update

    def diverged(self: Ddpg, *given: Any) -> dict[str, torch.Tensor]:
        losses = update(self, *given)
        if lost in losses:
            return losses | {lost: torch.tensor(torch.nan)}
        if self.updates % TINY["run"]["updates"] == 0:
            self.actor.out.bias.data.fill_(torch.nan)
        return losses

    monkeypatch.setattr(Ddpg, "update", diverged)
    with pytest.raises(ReinetError, match=rf"{lost} is not finite in iteration 5: the training diverged"):
        run(tmp_path, 5)
    assert checkpoints(tmp_path)[-1] == before


def test_a_network_that_is_no_numbers_is_not_exported(tmp_path: Path) -> None:
    state = Checkpoint(run(tmp_path / "run", 2).checkpoint)
    broken = {name: tensor * torch.nan for name, tensor in state.learner.items()}
    checkpoint.save(tmp_path / "broken", state.state, broken, None)
    with pytest.raises(ModelError, match=r"0\.weight is not finite: its training diverged"):
        export(tmp_path / "broken", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_checkpoints_stand_by_their_number(tmp_path: Path) -> None:
    for iteration in (999_980, 1_000_000, 20):
        checkpoint.place(tmp_path, iteration).mkdir(parents=True)
    assert [int(folder.name.partition("-")[2]) for folder in checkpoints(tmp_path)] == [20, 999_980, 1_000_000]


def test_where_no_checkpoint_is_whole_the_run_says_what_to_do(tmp_path: Path) -> None:
    run(tmp_path, 4)
    for folder in checkpoints(tmp_path):
        damage(folder)
    with pytest.raises(ModelError, match=r"iteration-000004/.*damaged.*move .*/checkpoints away and it begins anew"):
        run(tmp_path, 6)
    assert len(checkpoints(tmp_path)) == 2, "what may still be mended is left where it is"


def test_a_run_that_has_begun_its_evolution_cannot_become_longer(tmp_path: Path) -> None:
    evolution = {"generations": 2, "members": 4, "links": 1, "seconds": 2}
    done = run(tmp_path, 4, evolution=evolution)
    gathered = 2 * 3 * 41  # iterations, links, periods; two generations of four, their mean and plain flows count too
    assert done.env_steps >= gathered + 2 * 6
    with pytest.raises(ConfigError, match=r"its evolution, the last of its 4 iterations, has begun.*iterations = 4"):
        run(tmp_path, 8, evolution=evolution)
    assert run(tmp_path, 4, evolution=evolution).iterations == 4


def test_before_its_evolution_a_run_may_have_other_iterations_that_leave_room_for_it(tmp_path: Path) -> None:
    evolution = {"generations": 2, "members": 4, "links": 1, "seconds": 2}
    config = TrainConfig.model_validate({**TINY, "evolution": evolution})

    def interrupt(step: Any) -> None:
        if step.iteration == 3:
            os.kill(os.getpid(), signal.SIGINT)

    assert train(config, tmp_path, progress=interrupt).iterations == 3
    with pytest.raises(ConfigError, match=r"3 iterations .* of 4 the last 2 are evolution.*iterations = 5 or more"):
        run(tmp_path, 4, evolution=evolution)
    assert run(tmp_path, 5, evolution=evolution).iterations == 5


def test_a_run_of_hindsight_alone_gets_no_policy_gradients_whose_critic_has_learned_nothing(tmp_path: Path) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    run(alone, 3, hindsight={"iterations": 4})
    with pytest.raises(ConfigError, match=r"hindsight alone, 4 iterations.*another --run-dir.*iterations = 4 or less"):
        run(alone, 6, hindsight={"iterations": 4})
    assert run(alone, 4, hindsight={"iterations": 4}).iterations == 4
    run(both, 5, hindsight={"iterations": 4})
    assert run(both, 6, hindsight={"iterations": 4}).iterations == 6


def test_evolution_after_hindsight_alone_changes_nothing_about_that(tmp_path: Path) -> None:
    changes = {"hindsight": {"iterations": 3}, "evolution": {"generations": 1, "members": 4, "links": 1, "seconds": 2}}
    config = TrainConfig.model_validate({**TINY, "run": {**TINY["run"], "iterations": 4}, **changes})

    def interrupt(step: Any) -> None:
        if step.iteration == 2:
            os.kill(os.getpid(), signal.SIGINT)

    assert train(config, tmp_path, progress=interrupt).iterations == 2
    with pytest.raises(ConfigError, match=r"hindsight alone, 3 iterations.*iterations = 4 or less"):
        run(tmp_path, 5, **changes)
    assert run(tmp_path, 4, **changes).iterations == 4


def test_a_second_training_in_the_same_folder_is_refused_and_a_later_one_is_not(tmp_path: Path) -> None:
    refused = []

    def second(_step: Any) -> None:
        with pytest.raises(ConfigError, match=rf"{tmp_path}: another training is at work.*another --run-dir") as caught:
            run(tmp_path, 6)
        refused.append(caught.value)

    config = TrainConfig.model_validate({**TINY, "run": {**TINY["run"], "iterations": 2}})
    assert train(config, tmp_path, progress=second).iterations == 2
    assert len(refused) == 2
    assert run(tmp_path, 3).iterations == 3


# --- what is on the disk ---


def test_what_a_killed_training_left_half_written_is_cleared_by_the_next_and_by_no_other(tmp_path: Path) -> None:
    run(tmp_path, 3)
    left = [tmp_path / ".staged-best", tmp_path / "checkpoints" / ".staged-one"]
    for folder in left:
        (folder / "made").mkdir(parents=True)
        (folder / "made" / "learner.safetensors").write_bytes(b"half")
    with checkpoint.folder_lock.locked(tmp_path, "at work"), pytest.raises(ConfigError, match="at work"):
        run(tmp_path, 4)
    assert all(folder.is_dir() for folder in left), "they may be those of the training at work"
    run(tmp_path, 4)
    assert not list(tmp_path.rglob(".staged-*"))


def test_a_best_that_was_being_replaced_when_the_training_was_killed_is_put_back(tmp_path: Path) -> None:
    best = run(tmp_path, 3).best
    assert best is not None
    staged = tmp_path / ".staged-best"
    staged.mkdir()
    best.rename(staged / "replaced")
    run(tmp_path, 3)
    assert Checkpoint(best).state.iteration == 3
    assert not staged.exists()


def test_what_a_name_stands_for_is_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        sync(fd)

    def renamed(source: Path, target: Path) -> None:
        done.append(f"{source.name} -> {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    folder = tmp_path / "model"
    artifact.write_folder(folder, {"a": b"1", "b": b"2"})
    assert done == ["a", "b", "made", "made -> model", tmp_path.name]
    done.clear()
    artifact.write_folder(folder, {"a": b"3"})
    assert done == ["a", "made", "model -> replaced", "made -> model", tmp_path.name]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("a", b"3")]
    assert folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o640), (0o600, 0o600)])
def test_a_folders_files_have_the_mode_asked_for_or_the_umasks(tmp_path: Path, mode: int | None, expected: int) -> None:
    folder, staging = tmp_path / "models" / "one", tmp_path / "staged"
    staging.mkdir()
    before = os.umask(0o027)
    try:
        artifact.write_folder(folder, {"a": b"1"}, staging, mode)
    finally:
        os.umask(before)
    assert (folder / "a").stat().st_mode & 0o777 == expected
    assert list(staging.iterdir()) == []


def test_a_link_that_leads_to_itself_is_neither_a_checkpoint_nor_a_place_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    exported = CliRunner().invoke(app, ["export", str(tmp_path / "loop")])
    assert isinstance(exported.exception, ConfigError | ModelError), exported.exception
    with pytest.raises(ModelError, match="is a link that leads to itself"):
        artifact._refuse_to_replace(tmp_path / "loop")


def test_who_may_not_write_where_a_model_is_to_lie_is_told_so_with_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a folder that the export makes for a moment, and "Permission denied", told nobody what to do."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    asked = ["export", str(tmp_path / "best"), "--out", str(tmp_path / "model")]
    with pytest.raises(ConfigError, match=f"--out {tmp_path}: this user may not write into {tmp_path}; name another"):
        raise CliRunner().invoke(app, asked).exception or AssertionError


def test_a_folder_that_cannot_be_written_leaves_nothing_where_it_was_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        artifact.write_folder(tmp_path / "models" / "one", {"a/b": b"1"}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize("interrupted", ["the first", "the second"])
def test_a_folder_that_is_interrupted_as_it_is_replaced_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    """By an alarm or a second Ctrl-C, before or after either of the two moves."""
    folder, rename = tmp_path / "best", os.rename
    artifact.write_folder(folder, {"a": b"1"})

    def renamed(source: Path, target: Path) -> None:
        if interrupted == "the second" and source.name == "made":
            raise KeyboardInterrupt
        rename(source, target)
        if interrupted == "the first" and target.name == "replaced":
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", renamed)
    with pytest.raises(KeyboardInterrupt):
        artifact.write_folder(folder, {"a": b"2"})
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    assert (folder / "a").read_bytes() == b"1"


def test_a_file_that_cannot_be_written_leaves_the_older_one_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    durable.write(path, b"old", 0o644)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        durable.write(path, b"new", 0o644)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_ends_a_training_with_what_to_do_and_damages_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole", 6)
    run(tmp_path / "cut", 2)
    real, calls = os.fsync, 0

    def full(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReinetError, match=r"cannot be written \(No space left on device\).*make room, then go on"):
        run(tmp_path / "cut", 6)
    monkeypatch.setattr(os, "fsync", real)
    assert not list((tmp_path / "cut").rglob(".staged-*"))
    for folder in checkpoints(tmp_path / "cut"):
        assert Checkpoint(folder).replay is not None
    ours, theirs = (Checkpoint(at).learner for at in (run(tmp_path / "cut", 6).checkpoint, whole.checkpoint))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("most_bytes", [100, 20_000])  # the event file's end, a checkpoint's
def test_the_command_shows_no_traceback_where_a_file_may_not_grow(tmp_path: Path, most_bytes: int) -> None:
    config = tmp_path / "tiny.toml"
    config.write_text(
        "[traces]\ntrain_count = 3\nselect_count = 1\nseconds = 10\n[rollout]\nworkers = 0\nlinks = 3\nperiods = 40\n"
        "[ddpg]\nhidden = [64]\nbatch = 32\nreplay = 1000\ncold_start_iterations = 1\nnormaliser_iterations = 1\n"
        "[run]\niterations = 4\nupdates = 2\nevaluate_every = 4\nevaluate_s = 5\ncheckpoint_every = 2\n"
    )
    train = [sys.executable, "-c", COMMAND, "train", str(config), "--run-dir", str(tmp_path / "run")]
    command = ["prlimit", f"--fsize={most_bytes}", *train]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "cannot be written (File too large)" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert checkpoints(tmp_path / "run") == []
