"""Checkpoints: everything the next iteration depends on, as safetensors and JSON (no pickle), written in one step.

``runs/NAME/checkpoints/iteration-000120/``: ``learner.safetensors`` (networks, targets, optimisers),
``replay.safetensors``, ``state.json`` (the rest, and the digests of the other two). ``runs/NAME/best/`` is the same
without the replay: enough to export.
"""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
import safetensors.torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, SerializeAsAny, ValidationError, field_validator
from torch import Tensor

from reinet.agents.evaluation.frontier import Baseline
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.rllib.config import kind_of
from reinet.agents.model import folder_lock
from reinet.agents.model.artifact import TraceUse, write_folder
from reinet.core import toml_file
from reinet.core.disk import durable
from reinet.core.errors import ConfigError, ModelError

STATE_FILE = "state.json"
LEARNER_FILE = "learner.safetensors"
REPLAY_FILE = "replay.safetensors"


class Best(BaseModel):
    """The evaluation with the highest score so far."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    iteration: int
    score: float
    metrics: dict[str, float]
    harms: str = ""
    """What it was found to do to short transfers, beyond the configuration's ``[harm]``; empty = nothing."""


class Evolved(BaseModel):
    """Where evolution stands: told the same again from the same start, it stands there again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: list[float]
    """The last layer that it began with."""
    costs: list[list[float]]
    """Those of each generation's members."""


class State(BaseModel):
    """The content of ``state.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    config: SerializeAsAny[TrainConfig]
    iteration: int
    """How many iterations are done."""
    env_steps: int
    updates: int
    wall_s: float
    """The time of training, all sittings together."""
    normaliser: dict[str, dict[str, float]]
    rng: dict[str, Any]
    """The state of the generator that draws batches, in NumPy's own form."""
    baselines: list[Baseline]
    """What policies are judged by on each selection link."""
    best: Best | None
    evolved: Evolved | None = None
    recordings: list[TraceUse] = []
    """What was read from files to learn from and to select by; generated traces follow from the configuration."""
    files: dict[str, str] = {}
    """The sha256 of the other files, by name."""

    @field_validator("config", mode="plain")
    @classmethod
    def _checked(cls, config: Any) -> TrainConfig:
        """Returns a configuration as what it is; raises ConfigError, for it is no damage where one is refused.

        One that was made already is not looked at again: that would be by what ``TrainConfig`` asks, and ``PeerConfig``
        asks something else.
        """
        if isinstance(config, TrainConfig):
            return config
        if not isinstance(config, dict):
            raise ValueError("a configuration is an object")
        return toml_file.check(config, "this version refuses its configuration", kind_of(config), "")


class Checkpoint:
    """A checkpoint folder, read once and checked against its digests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.state = State.model_validate_json((folder / STATE_FILE).read_bytes())
            content = {name: (folder / name).read_bytes() for name in self.state.files}
        except OSError as error:
            raise ModelError(
                f"{error.filename}: {error.strerror}; give a checkpoint folder, such as runs/NAME/best"
            ) from None
        except ValidationError as error:
            raise ModelError(
                f"{folder / STATE_FILE}: {toml_file.first_fault(error)}; it is damaged, or of another version"
            ) from None
        except ConfigError as error:  # the version that wrote it may have taken it
            raise ModelError(f"{folder / STATE_FILE}: {error}; use the version that wrote it") from None
        for name, data in content.items():
            if hashlib.sha256(data).hexdigest() != self.state.files[name]:
                raise ModelError(f"{folder / name}: damaged (sha256 differs from {STATE_FILE}); use another checkpoint")
        if LEARNER_FILE not in content:
            raise ModelError(f"{folder / STATE_FILE}: lists no {LEARNER_FILE}; use another checkpoint")
        self.learner: dict[str, Tensor] = safetensors.torch.load(content[LEARNER_FILE])
        self.replay: dict[str, NDArray[Any]] | None = None
        if REPLAY_FILE in content:
            self.replay = safetensors.numpy.load(content[REPLAY_FILE])


def save(folder: Path, state: State, learner: dict[str, Tensor], replay: dict[str, NDArray[Any]] | None) -> None:
    """Writes a checkpoint beside its place and moves it there, replacing an older one."""
    content = {LEARNER_FILE: safetensors.torch.save(learner)}
    if replay is not None:
        content[REPLAY_FILE] = safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in replay.items()})
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    content[STATE_FILE] = state.model_copy(update={"files": digests}).model_dump_json(indent=1).encode() + b"\n"
    write_folder(folder, content)


def place(run_dir: Path, iteration: int) -> Path:
    """Returns where the checkpoint after so many iterations lies."""
    return run_dir / "checkpoints" / f"iteration-{iteration:06d}"


def checkpoints(run_dir: Path) -> list[Path]:
    """Returns the folders of all checkpoints of a run, oldest first."""
    found = (run_dir / "checkpoints").glob("iteration-*")
    return sorted(found, key=lambda folder: (len(folder.name), folder.name))  # a seventh digit comes after six


def refuse_a_run(run_dir: Path) -> None:
    """Raises ConfigError where a run folder holds a run, for a training by RLlib, which goes on from none."""
    if checkpoints(run_dir) or (run_dir / "best").exists():
        raise ConfigError(f"{run_dir}: holds a run, and RLlib's are not resumed; choose another --run-dir")


def newest_whole(run_dir: Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """Returns a run's newest checkpoint that is whole, None where there is none at all, and what is wrong with each
    newer one. Raises ModelError where all are damaged."""
    damaged: dict[Path, str] = {}
    for folder in reversed(checkpoints(run_dir)):
        try:
            return Checkpoint(folder), damaged
        except ModelError as error:
            damaged[folder] = str(error)
    if damaged:
        raise ModelError(
            f"{next(iter(damaged.values()))}; no older one of the run can be used: move {run_dir / 'checkpoints'} away "
            "and it begins anew"
        )
    return None, {}


def set_aside(folder: Path) -> Path:
    """Gives a damaged checkpoint a name that no run goes on from, in the place of an earlier one; returns it."""
    aside = folder.with_name(f"damaged-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Makes the run folder and keeps a second training out of it; the lock goes with the process, however that ends.

    What a killed training left there half-written is cleared. Raises ConfigError where a training is at work there.
    """
    with folder_lock.locked(
        run_dir, "another training is at work in this folder; wait for its end, or choose another --run-dir"
    ):
        _clear_staged(run_dir)
        yield


def _clear_staged(run_dir: Path) -> None:
    """Removes what ``write_folder`` left; a best that was being replaced, and lay nowhere else then, is put back."""
    best = run_dir / "best"
    for replaced in run_dir.glob(".staged-*/replaced"):
        if (replaced / STATE_FILE).exists() and not best.exists():
            replaced.rename(best)
    for folder in (run_dir, run_dir / "checkpoints"):
        durable.clear_staged(folder)


def prune(run_dir: Path, keep: int) -> None:
    """Removes all but the newest ``keep``."""
    for folder in checkpoints(run_dir)[:-keep]:
        shutil.rmtree(folder)
