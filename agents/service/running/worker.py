"""One job's process: ``python -m reinet.agents.service.running.worker FOLDER``. Command line and files are fixed.

It holds the folder's lock, trains from the newest checkpoint on, writes down how far it is, and leaves a model and a
result. Whoever kills it loses what it did since that checkpoint, and nothing else.
"""

import fcntl
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from reinet.agents.service import files
from reinet.agents.service.running.progress import (
    DISK_FULL,
    LOCK_FILE,
    LOG_FILE,
    MODEL_FOLDER,
    MOST_LOG_BYTES,
    ORDER_FILE,
    RUN_FOLDER,
    STOP_FILE,
    Progress,
    Result,
)
from reinet.core import toml_file
from reinet.core.disk import durable
from reinet.core.errors import UNWRITABLE, ConfigError, ReinetError

if TYPE_CHECKING:
    from reinet.agents.learn.loop import Progress as Step

LOCK_WAIT_S = 10.0
"""So long a worker waits for the lock: the service looks at it for a moment now and then."""
BETWEEN_S = 0.3
"""Progress is written so often at most: each writing waits for the disk."""
BUSY = 75
"""The exit status of a worker whose job another one works at (sysexits' TEMPFAIL)."""


def main(folder: Path) -> int:
    """Does the job; returns 0 where it came to a result or was stopped, DISK_FULL where the disk takes no more."""
    try:
        return _work(folder)
    except (ReinetError, OSError) as error:
        unwritable = _is_unwritable(error)
        if not unwritable and isinstance(error, OSError):
            raise
        try:
            print(f"failed: {error}", flush=True)
        except OSError:  # the log lies on that disk; Python would write at its end what is left, and end with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
        return DISK_FULL if unwritable else 1


def _work(folder: Path) -> int:
    lock = _lock(folder)
    if lock is None:
        return BUSY
    _log_into(folder / LOG_FILE)
    os.chdir(folder)  # the paths of traces are relative, see jobs.py
    print(f"{time.strftime('%F %T')} process {os.getpid()} begins", flush=True)
    durable.clear_staged(folder)  # the run folder is the training's own (agents/learn/checkpoint.py)
    try:
        result = _train(folder)
    except ConfigError as error:  # it would be the same the next time
        result = Result(ok=False, problem=str(error))
    if result is None:
        print("stopped; it can go on from its newest checkpoint", flush=True)
        return 0
    print(f"ended: {result.problem or result.manifest_sha256}", flush=True)
    result.write(folder)
    return 0


def _train(folder: Path) -> Result | None:
    """Returns the result, None where it was stopped before the end."""
    from reinet.agents.learn import train as training
    from reinet.agents.learn.config import TrainConfig
    from reinet.agents.learn.export import export

    order = files.read_json(folder / ORDER_FILE)
    if order is None:
        raise ConfigError(f"{folder / ORDER_FILE} is not there; submit the job again")
    # An earlier version may have taken what this one refuses.
    refused = "this version refuses the job's configuration, so submit it again with another"
    config = toml_file.check(order["config"], refused, TrainConfig, "")
    told = _Told(folder)
    signal.signal(signal.SIGTERM, lambda _number, _frame: told.stop())
    done = training.train(config, folder / RUN_FOLDER, progress=told.step, ray_address=os.environ.get("RAY_ADDRESS"))
    if done.iterations < config.run.iterations:
        return None
    if done.best is None:
        return Result(ok=False, problem="no evaluation took place, so there is no model: raise run.iterations")
    sha256 = export(done.best, folder / MODEL_FOLDER)
    told.last()
    return Result(ok=True, manifest_sha256=sha256, wall_s=done.wall_s)


def _is_unwritable(error: BaseException | None) -> bool:
    """Returns whether an error is what a disk says that takes no more, or was raised in its place."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error is not None and error.errno in UNWRITABLE


class _Told:
    """Writes progress down and sees whether the job is to end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._scalars: dict[str, float] = {
            key: value for key, value in Progress.read(folder).scalars.items() if key.startswith("eval/")
        }
        self._progress: Progress | None = None
        self._written_s = 0.0
        self._first: tuple[int, int, float] | None = None
        self._stopped = False

    def step(self, step: "Step") -> None:
        now_s = time.monotonic()
        first = self._first or (step.iteration, step.env_steps, now_s)
        self._first = first
        took_s = max(now_s - first[2], 1e-6)
        iterations, env_steps = step.iteration - first[0], step.env_steps - first[1]
        evaluated = {k: v for k, v in step.scalars.items() if k.startswith("eval/") and math.isfinite(v)}
        self._scalars |= evaluated
        self._progress = Progress(
            iteration=step.iteration,
            iterations=step.iterations,
            env_steps=step.env_steps,
            env_steps_per_s=env_steps / took_s if iterations else 0.0,
            wall_s=step.wall_s,
            left_s=took_s / iterations * (step.iterations - step.iteration) if iterations else -1.0,
            scalars=self._scalars,
        )
        if evaluated:
            shown = ", ".join(f"{key.removeprefix('eval/')} {value:.4g}" for key, value in evaluated.items())
            print(f"iteration {step.iteration}/{step.iterations}: {shown}", flush=True)
        if now_s - self._written_s >= BETWEEN_S or step.iteration == step.iterations:
            self._progress.write(self._folder)
            self._written_s = now_s
        if (self._folder / STOP_FILE).exists():
            self.stop()

    def last(self) -> None:
        if self._progress is not None:
            self._progress.write(self._folder)

    def stop(self) -> None:
        """Ends training after its iteration, as one Ctrl-C does; a second one would end it at once."""
        if not self._stopped:
            self._stopped = True
            os.kill(os.getpid(), signal.SIGINT)


def _lock(folder: Path) -> int | None:
    fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    end_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                return None
            time.sleep(0.05)
        else:
            os.ftruncate(fd, 0)
            os.write(fd, str(os.getpid()).encode())
            return fd


def _log_into(path: Path) -> None:
    """Sends this process's output into the log, of which only the end is kept."""
    with path.open("ab+") as file:
        size = file.tell()
        if size > MOST_LOG_BYTES:
            file.seek(size - MOST_LOG_BYTES // 2)
            kept = file.read()
            durable.write(path, kept, 0o600)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
