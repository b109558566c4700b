"""The store of a suite: a folder whose file of runs only grows, a JSON object a line, so that a killed run resumes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reinet.agents.model import folder_lock
from reinet.core.disk import durable
from reinet.core.errors import ConfigError

RUNS_FILE = "runs.jsonl"


@dataclass(frozen=True)
class Stored:
    """One finished run, as it is written down."""

    key: str
    """The hash of all that shaped it."""
    invalid_reason: str | None
    """Why it must not be believed, None = it is valid."""
    figures: Mapping[str, Any]
    """Empty where the run gave none."""
    series: Mapping[str, Any] | None
    """Its course, of first repetitions."""
    made: Mapping[str, Any]
    """Versions that the key does not tell: reinet's, the commit, the kernel."""


class Store:
    """Finished runs by key. Every addition is on the disk before it returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / RUNS_FILE
        self._found: dict[str, list[Stored]] = {}
        if self._path.exists():
            self._read()

    @classmethod
    @contextmanager
    def locked(cls, folder: Path) -> Iterator["Store"]:
        """Opens a folder's store and keeps a second process out of it. Raises ConfigError where one is there.

        It is read when it is locked: what another process is writing just now looks like what a killed one left.
        """
        refusal = "another process is running a suite into it; wait for it, or name another --out"
        with folder_lock.locked(folder, refusal):
            yield cls(folder)

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def has(self, key: str) -> bool:
        """Returns whether a run of this key was made, valid or not."""
        return key in self._found

    def valid(self, key: str) -> Stored | None:
        """Returns the valid run of a key, None while there is none."""
        return next((run for run in self._found.get(key, ()) if run.invalid_reason is None), None)

    def invalid(self, key: str) -> list[Stored]:
        """Returns a key's runs that do not count."""
        return [run for run in self._found.get(key, ()) if run.invalid_reason is not None]

    def others(self, keys: set[str]) -> int:
        """Returns how many runs have none of these keys."""
        return sum(len(runs) for key, runs in self._found.items() if key not in keys)

    def add(self, runs: Sequence[Stored]) -> None:
        """Writes runs down, together."""
        self.folder.mkdir(parents=True, exist_ok=True)
        durable.append(self._path, "".join(json.dumps(asdict(run), allow_nan=False) + "\n" for run in runs))
        for run in runs:
            self._found.setdefault(run.key, []).append(run)

    def _read(self) -> None:
        for number, line in enumerate(durable.lines_of(self._path), 1):
            try:
                run = Stored(**json.loads(line))
            except (ValueError, TypeError, RecursionError) as error:
                raise ConfigError(
                    f"{self._path}:{number}: not a run of a suite ({error}); remove that line, or name another --out"
                ) from None
            self._found.setdefault(run.key, []).append(run)
