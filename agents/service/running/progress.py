"""What the service and a job's worker tell each other: files in the job's folder, each whole or not there."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from pydantic import TypeAdapter, ValidationError

from reinet.agents.service import files

MODEL_FOLDER = "model"
RUN_FOLDER = "run"
ORDER_FILE = "job.json"
"""What the worker is to do: the training's ``config``."""
LOG_FILE = "log.txt"
LOCK_FILE = "lock"
STOP_FILE = "stop"
"""While it is there the worker ends after its iteration, and none begins."""
DISK_FULL = 74
"""The exit status of a worker whose disk takes no more (sysexits' IOERR)."""
MOST_LOG_BYTES = 4 * 1024 * 1024
"""A log of more is cut to its end at the next start."""


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    FILE: ClassVar[str] = "progress.json"

    iteration: int = 0
    iterations: int = 0
    env_steps: int = 0
    env_steps_per_s: float = 0.0
    wall_s: float = 0.0
    left_s: float = -1.0
    scalars: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Progress":
        """Returns what a job's folder says; nothing done where it says nothing, or nothing that makes sense."""
        try:
            return _PROGRESS.validate_python(files.read_json(folder / cls.FILE) or {})
        except ValidationError:
            return cls()

    def write(self, folder: Path) -> None:
        """Writes it into a job's folder."""
        files.write_json(folder / self.FILE, asdict(self))


@dataclass(frozen=True)
class Result:
    """How a job ended: with a model, or with a problem that would meet it again."""

    FILE: ClassVar[str] = "result.json"

    ok: bool
    problem: str = ""
    manifest_sha256: str = ""
    wall_s: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> "Result | None":
        """Returns a job's result, None while there is none that makes sense: the worker then comes to it again."""
        try:
            return _RESULT.validate_python(files.read_json(folder / cls.FILE))
        except ValidationError:
            return None

    def write(self, folder: Path) -> None:
        """Writes it into a job's folder."""
        files.write_json(folder / self.FILE, asdict(self))


_PROGRESS, _RESULT = TypeAdapter(Progress), TypeAdapter(Result)
"""What checks the files: one job's is not to fail a list of all."""


def log_since(folder: Path, offset: int, most_bytes: int) -> tuple[str, int]:
    """Returns whole lines of a job's log from an offset on, and the offset after them; it skips what is too much."""
    try:
        with (folder / LOG_FILE).open("rb") as file:
            size = file.seek(0, 2)
            start = offset if 0 <= offset <= size else 0
            start = max(start, size - most_bytes)
            file.seek(start)
            data = file.read(most_bytes)
    except FileNotFoundError:
        return "", 0
    whole = data.rfind(b"\n") + 1
    return data[:whole].decode("utf-8", "replace"), start + whole
