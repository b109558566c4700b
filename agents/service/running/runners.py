"""Where a job's worker runs: as a child process, or through Ray's job submission (``ray_runner.py``)."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from reinet.agents.service.running.progress import DISK_FULL, LOCK_FILE

State = Literal["running", "gone", "failed", "full", "killed"]
"""gone: nobody knows how it ended; failed: by itself, with an error; full: by itself, as its disk takes no more;
killed: by a signal."""

END_GRACE_S = 15.0
"""A worker that is told to end has so long for its iteration and its checkpoint."""
NAPS_S = 0.1
"""Who ends a service by hand does not notice so long."""


class Runner(Protocol):
    """Starts workers and says what became of them. A worker's own lock says whether it works, see ``at_work``."""

    def prepare(self) -> None:
        """Makes ready what the first worker would have to wait for. Raises ServiceError."""

    def start(self, job: str, attempt: int, folder: Path) -> None:
        """Starts a worker; once for each attempt, however often it is called. Raises ServiceError."""

    def state(self, job: str, attempt: int) -> State:
        """Returns what became of an attempt. Raises ServiceError while that cannot be known."""

    def kill(self, job: str, attempt: int, folder: Path) -> None:
        """Ends a worker at once."""

    def close(self) -> None:
        """Tells all workers to end after their iteration, waits a moment, then ends them."""


def at_work(folder: Path) -> bool:
    """Returns whether a worker holds the lock of a job's folder, whoever started it."""
    try:
        fd = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def worker_pid(folder: Path) -> int | None:
    """Returns the process that works in a folder, None where there is none."""
    if not at_work(folder):
        return None
    text = (folder / LOCK_FILE).read_text()
    return int(text) if text.isdigit() else None


def worker_command(folder: Path) -> list[str]:
    """Returns the command line of a job's worker; nothing in it is a client's."""
    return [sys.executable, "-m", "reinet.agents.service.running.worker", str(folder)]


class ProcessRunner:
    """Workers are children, each in a session of its own, so that they outlive a service that is killed."""

    def __init__(self, folder: Path) -> None:
        self._places = folder / "jobs"
        self._started: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def prepare(self) -> None:
        """Does nothing: a child waits for nobody."""

    def start(self, job: str, attempt: int, folder: Path) -> None:
        """Starts a worker."""
        if (job, attempt) in self._started:
            return
        self._started[job, attempt] = subprocess.Popen(
            worker_command(folder),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
        )  # fmt: skip

    def state(self, job: str, attempt: int) -> State:
        """Returns what became of an attempt; one that an earlier service started is gone, unless it is at work."""
        process = self._started.get((job, attempt))
        if process is None:
            return "gone"
        code = process.poll()
        if code is None:
            return "running"
        if code == DISK_FULL:
            return "full"
        return "gone" if code == 0 else "killed" if code < 0 else "failed"

    def kill(self, job: str, attempt: int, folder: Path) -> None:
        """Ends a worker and what it started."""
        self._signal(folder, signal.SIGKILL)
        if (process := self._started.get((job, attempt))) is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """Ends all workers, gently first, also those of an earlier service that was killed."""
        places = list(self._places.glob("*"))
        for folder in places:
            self._signal(folder, signal.SIGTERM)
        end_s = time.monotonic() + END_GRACE_S
        while time.monotonic() < end_s and any(map(at_work, places)):
            time.sleep(NAPS_S)
        for folder in places:
            self._signal(folder, signal.SIGKILL)
        for process in self._started.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(end_s - time.monotonic(), 0.0))
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _signal(self, folder: Path, number: signal.Signals) -> None:
        if (pid := worker_pid(folder)) is not None:
            with suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(pid, number)
                else:
                    os.kill(pid, number)
