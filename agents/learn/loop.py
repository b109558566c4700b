"""The loop that every training run goes through, whoever learns: iterations, their scalars, checkpoints."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from reinet.agents.learn.checkpoint import Best
from reinet.agents.learn.config import RunSection
from reinet.core.errors import UNWRITABLE, ReinetError
from reinet.core.tensorboard.event_file import PREFIX, EventFile, scalar

LAST_S = 20.0
"""So long the iteration at hand may take after SIGTERM, seconds as a rule: who says that kills after 30 s at the
earliest, but for Docker, which waits 10."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands; given to the caller after every iteration."""

    iteration: int
    iterations: int
    env_steps: int
    wall_s: float
    scalars: dict[str, float]


@dataclass(frozen=True)
class Result:
    """What a run left behind."""

    checkpoint: Path
    """The newest checkpoint, to resume from."""
    best: Path | None
    """The checkpoint with the highest score, to export; None before the first evaluation."""
    iterations: int
    env_steps: int
    updates: int
    wall_s: float
    interrupted: bool
    harms: str = ""
    """What ``best`` was found to do to short transfers, beyond what ``[harm]`` allows; empty = nothing."""

    def undisturbed(self) -> "Result":
        """Returns this; raises KeyboardInterrupt where the run was told to end, for whoever goes on with what it made.

        A policy that was cut short would be taken for what its configuration makes.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        return self


class Learning(Protocol):
    """A run as the loop sees it."""

    iteration: int
    """So many iterations are done."""
    env_steps: int
    updates: int
    best: Best | None

    def iterate(self) -> dict[str, float]:
        """Learns once, and evaluates when it is time. Returns the scalars."""

    def wall_s(self) -> float:
        """Returns the seconds of training, all sittings together."""

    def save(self) -> Path:
        """Writes a checkpoint; returns its folder."""

    def finish(self) -> Path:
        """Returns the newest checkpoint, written now if the last iteration left none."""


def learn(
    run: Learning,
    section: RunSection,
    run_dir: Path,
    minutes: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Iterates until all is done, ``minutes`` have passed or it is told to end; returns what it left behind.

    Scalars go to the folder's event files. Those that an interrupted sitting wrote after its last checkpoint are
    purged, because their iterations are done again. Raises ReinetError where the disk takes no more.
    """
    deadline_s = np.inf if minutes is None else time.monotonic() + 60 * minutes
    with _written(run_dir), _event_file(run_dir, run.iteration) as events, told_to_end() as stopped:
        while run.iteration < section.iterations and not stopped.is_set() and time.monotonic() < deadline_s:
            scalars = run.iterate()
            events.add([scalar(tag, value) for tag, value in scalars.items()], run.iteration, time.time())
            events.flush()
            if run.iteration % section.checkpoint_every == 0:
                run.save()
            if progress:
                progress(Progress(run.iteration, section.iterations, run.env_steps, run.wall_s(), scalars))
        newest = run.finish()
    return Result(
        checkpoint=newest,
        best=run_dir / "best" if run.best else None,
        iterations=run.iteration,
        env_steps=run.env_steps,
        updates=run.updates,
        wall_s=run.wall_s(),
        interrupted=stopped.is_set(),
        harms=run.best.harms if run.best else "",
    )


def _event_file(run_dir: Path, iteration: int) -> EventFile:
    """Returns the event file of a sitting that begins after so many iterations."""
    wall_s = time.time()
    earlier = any(run_dir.glob(f"{PREFIX}*"))  # also of a run that was killed before it left a checkpoint
    events = EventFile(run_dir, wall_s, f"{iteration:08d}")  # sittings within one second stay apart, in their order
    if earlier:
        events.begin_again(iteration + 1, wall_s)
    return events


@contextmanager
def _written(run_dir: Path) -> Iterator[None]:
    """Raises ReinetError in place of what a disk says that takes no more."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise ReinetError(
            f"{error.filename or run_dir}: cannot be written ({error.strerror}); what was learned since the newest "
            f"checkpoint below {run_dir} is lost, and no checkpoint is damaged: make room, then go on from there with "
            "the same command"
        ) from None


@contextmanager
def told_to_end() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C and SIGTERM set, to end the run after the iteration; a second Ctrl-C ends it at once.

    SIGTERM is how batch systems, containers and service managers end a program. Ray, which is up by now, has a handler
    of its own that would leave at once, without a checkpoint. Who ends a whole service tells Ray's processes as well:
    the iteration has nobody left to gather for it then, so it has ``LAST_S`` and no more.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped  # signals are the main thread's
        return
    interrupts = 0

    def handle(signum: int, frame: object) -> None:
        nonlocal interrupts
        interrupts += signum == signal.SIGINT
        if interrupts > 1 or signum == signal.SIGALRM:
            raise KeyboardInterrupt
        stopped.set()
        if signum == signal.SIGTERM and not signal.getitimer(signal.ITIMER_REAL)[0]:  # it may be said again
            signal.setitimer(signal.ITIMER_REAL, LAST_S)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    try:
        yield stopped
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
