"""Sweeps: many trainings of one configuration, with seeds and options varied, under Ray Tune.

Each trial is a run of its own, ``<run_dir>/trials/<number>``, with checkpoints and TensorBoard files as ``train``
leaves them, and the options that make it another one as hparams. A sweep that was ended goes on: trials that are done
are left, the others go on from their newest checkpoints. What a trial learns does not hang on the others beside it.
"""

import contextlib
import copy
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch.utils.tensorboard import SummaryWriter

from reinet.agents.learn.checkpoint import Checkpoint
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.loop import Progress
from reinet.agents.learn.train import train
from reinet.agents.learn.workers import bundles, join_ray
from reinet.core import toml_file
from reinet.core.disk import durable
from reinet.core.errors import ConfigError, ReinetError

MOST_TRIALS = 1000
"""More is a mistyped grid."""
RETRIES = 2
"""A trial whose process or node was killed begins again where it was; what fails three times fails by itself."""
PLAN_FILE = "sweep.json"
TRIAL_FILE = "trial.json"
TUNE_FOLDER = "tune"
READABLE = 0o644
"""The mode of both files: as checkpoints, whoever may enter the folder may read them."""
Value = bool | int | float | str | list[Any]


class Law(BaseModel):
    """Numbers between two ends, evenly or, with ``log``, evenly in their logarithm."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    low: float
    high: float
    log: bool = False

    @model_validator(mode="after")
    def _ends(self) -> "Law":
        if self.low > self.high or (self.log and self.low <= 0):
            raise ValueError(f"low = {self.low:g} and high = {self.high:g}: low comes first, and lies above 0 with log")
        if math.isinf(self.high - self.low):
            raise ValueError(f"low = {self.low:g} and high = {self.high:g}: choose them nearer to each other")
        return self

    def draw(self, rng: np.random.Generator) -> float:
        """Returns a number."""
        if self.log:
            return float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))


class SweepConfig(BaseModel):
    """``[sweep]``: keys of a training configuration, as ``section.key``, and what each of them is to be."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    grid: dict[str, list[Value]] = {}
    """Every value with every other key's."""
    random: dict[str, Law] = {}
    """Drawn anew for each sample."""
    samples: int = Field(default=1, ge=1, le=MOST_TRIALS)
    """So many draws of ``random`` at each point of the grid."""
    at_once: int = Field(default=1, ge=1, le=256)
    """Trials that run side by side; each takes as many CPUs as a training of its own."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    """Of the draws."""

    @classmethod
    def load(cls, path: Path) -> "SweepConfig":
        """Returns the sweep in a TOML file; raises ConfigError."""
        return toml_file.load(path, cls, "give a sweep: [sweep.grid] with seed = [1, 2, 3], say", table="sweep")

    def points(self) -> list[dict[str, Any]]:
        """Returns what each trial is to have, the same ones each time. Raises ConfigError."""
        count = math.prod(map(len, self.grid.values())) * self.samples
        if not 1 <= count <= MOST_TRIALS:
            raise ConfigError(f"sweep: {count} trials; 1 to {MOST_TRIALS} are possible")
        if both := sorted(self.grid.keys() & self.random.keys()):
            raise ConfigError(f"sweep: {both[0]} stands in [sweep.grid] and in [sweep.random]; give it once")
        points: list[dict[str, Any]] = [{}]
        for key, values in self.grid.items():
            points = [{**point, key: value} for point in points for value in values]
        rng = np.random.Generator(np.random.PCG64(self.seed))
        drawn = [{**point, **{key: law.draw(rng) for key, law in self.random.items()}}
                 for point in points for _ in range(self.samples)]  # fmt: skip
        if not any(drawn):
            raise ConfigError("sweep: neither [sweep.grid] nor [sweep.random] names a key")
        return drawn


def configured(config: TrainConfig, point: Mapping[str, Any], source: str = "sweep") -> TrainConfig:
    """Returns the configuration, of its own kind, with these keys changed; raises ConfigError naming ``source`` and
    what is wrong.
    """
    data = copy.deepcopy(config.model_dump(mode="json"))
    for key, value in point.items():
        *sections, last = key.split(".")
        table: Any = data
        for section in sections:
            table = table.get(section) if isinstance(table, dict) else None
        if not isinstance(table, dict) or last not in table or key == "name":
            raise ConfigError(f"{source}: a configuration has no key {key!r} to vary; write section.key, as ddpg.noise")
        table[last] = value
    return toml_file.check(data, f"{source} {dict(point)}", type(config), "see agents/learn/config.py for its bounds")


def sweep(
    config: TrainConfig, plan: SweepConfig, run_dir: Path, ray_address: str | None = None
) -> list[dict[str, Any]]:
    """Runs what is left of a sweep; returns a row for each trial, the best score first, those without one last.

    A trial that failed is tried again the next time. Raises ConfigError for keys that make no sense, before anything
    runs, and where the folder holds another sweep; ReinetError where every trial failed.
    """
    points = plan.points()
    _refuse_twice(points, [configured(config, point) for point in points])
    run_dir = run_dir.absolute()
    _keep_plan(run_dir, {"config": config.model_dump(mode="json"), "points": points})
    left = [number for number, point in enumerate(points) if _row(run_dir, number, point)["state"] != "done"]
    problems = _run(config, points, left, plan.at_once, run_dir, ray_address) if left else []
    rows = [_row(run_dir, number, point) for number, point in enumerate(points)]
    problems += [str(row["problem"]) for row in rows if row["problem"]]
    if problems and not any(row["state"] == "done" for row in rows):
        raise ReinetError(f"every trial of the sweep failed: {problems[0]}")
    return sorted(rows, key=lambda row: -math.inf if row["score"] is None else row["score"], reverse=True)


def folder_of(run_dir: Path, number: int) -> Path:
    """Returns the run folder of a trial."""
    return run_dir / "trials" / f"{number:03d}"


def _refuse_twice(points: list[dict[str, Any]], configs: list[TrainConfig]) -> None:
    """Raises ConfigError for two trials of one configuration: they would come to the same, bit for bit."""
    first: dict[str, int] = {}
    for number, config in enumerate(configs):
        if (other := first.setdefault(config.model_dump_json(), number)) != number:
            raise ConfigError(
                f"sweep: trials {other} and {number} are the same training, {points[number]}; take one of them out"
            )


def _run(
    config: TrainConfig,
    points: list[dict[str, Any]],
    left: list[int],
    at_once: int,
    run_dir: Path,
    ray_address: str | None,
) -> list[str]:
    """Runs the trials of these numbers; returns how each of those failed that did."""
    # Tune would move each trial into a folder of its own, from which the paths of recordings lead nowhere, and write
    # event files of its own beside ours.
    os.environ |= {"RAY_CHDIR_TO_TRIAL_DIR": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
    try:
        import ray
        from ray import tune
    except ImportError as error:
        raise ReinetError(f"sweeps need Ray Tune ({error}); run pip install 'reinet[sweep]'") from None

    workers = config.rollout.workers
    owns_ray = join_ray(ray, max(workers, 1) * at_once, ray_address)
    here = os.getcwd()

    def trial(given: dict[str, Any]) -> None:
        os.chdir(here)
        _run_trial(config, points[given["trial"]], given["trial"], run_dir)

    interrupt = signal.getsignal(signal.SIGINT)
    try:
        needs = tune.PlacementGroupFactory(bundles(workers))
        prepared = tune.with_resources(trial, needs)
        tuner = tune.Tuner(
            prepared,
            param_space={"trial": tune.grid_search(left)},
            tune_config=tune.TuneConfig(max_concurrent_trials=at_once),
            run_config=tune.RunConfig(
                name=TUNE_FOLDER, storage_path=str(run_dir), verbose=0,
                failure_config=tune.FailureConfig(max_failures=RETRIES),
            ),
        )  # fmt: skip
        with contextlib.redirect_stdout(sys.stderr):  # Tune tells of itself, also where it is to be silent
            errors = tuner.fit().errors
        return [str(error).strip().rpartition("\n")[2][:300] for error in errors]
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)  # Tune puts its own there, and leaves it
        if owns_ray:
            ray.shutdown()


def _run_trial(config: TrainConfig, point: Mapping[str, Any], number: int, run_dir: Path) -> None:
    """Trains one trial, or what is left of it, and writes what came of it beside its checkpoints."""
    from ray import tune

    folder = folder_of(run_dir, number)

    def told(step: Progress) -> None:
        if "eval/score" in step.scalars:
            tune.report({"score": step.scalars["eval/score"], "iteration": step.iteration})

    try:
        result = train(configured(config, point), folder, progress=told)
    except ReinetError as error:  # at once it would be the same again, and Tune would show a traceback of it
        durable.write(folder / TRIAL_FILE, json.dumps({"problem": str(error)}).encode(), READABLE)
        return
    # The figures are those of the checkpoint that the row names, which the last evaluation need not have been.
    best = Checkpoint(result.best).state.best if result.best else None
    evaluated = {f"eval/{key}": value for key, value in best.metrics.items()} if best else {}
    found = {"score": best.score if best else None, "best": str(result.best) if result.best else None,
             "iterations": result.iterations, "wall_s": result.wall_s, "metrics": evaluated}  # fmt: skip
    with SummaryWriter(str(folder)) as writer:
        hparams = {key: value if isinstance(value, bool | int | float | str) else str(value)
                   for key, value in point.items()}  # fmt: skip
        # Under names of their own: at step 0 of eval/... they would be a point of its curves before any learning.
        figures = {f"best/{key}": value for key, value in best.metrics.items()} if best else {}
        writer.add_hparams(hparams, figures, run_name=".")
    durable.write(folder / TRIAL_FILE, json.dumps(found).encode(), READABLE)


def _found(run_dir: Path, number: int) -> dict[str, Any]:
    """Returns what came of a trial; nothing where its file is not there or is damaged, so that it is made again."""
    try:
        found = json.loads((folder_of(run_dir, number) / TRIAL_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _row(run_dir: Path, number: int, point: Mapping[str, Any]) -> dict[str, Any]:
    folder, found = folder_of(run_dir, number), _found(run_dir, number)
    return {
        "trial": number,
        **point,
        "state": "failed" if found.get("problem") else "done" if found else "unfinished",
        "score": found.get("score"),
        "iterations": found.get("iterations", 0),
        "wall_s": found.get("wall_s"),
        # Where it lies now: the folder may have been moved, or copied, since the trial was done.
        "best": str(folder / "best") if found.get("best") else None,
        "problem": found.get("problem"),
        "run_dir": str(folder),
    }


def _keep_plan(run_dir: Path, plan: Mapping[str, Any]) -> None:
    """Writes down what the sweep is; raises ConfigError where the folder holds another one."""
    path, data = run_dir / PLAN_FILE, json.dumps(plan, sort_keys=True).encode()
    if path.exists():
        if path.read_bytes() != data:
            raise ConfigError(
                f"{run_dir}: holds another sweep; choose another --run-dir, or the files that it began with"
            )
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    durable.write(path, data, READABLE)
