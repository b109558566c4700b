"""The daemons that follow names: who they are, what they run, when each was last heard of."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from reinet.agents.service import text
from reinet.agents.service.database import Database
from reinet.core.errors import ServiceError

MOST_DAEMONS = 10_000
"""A fleet of more would want its figures summed up, and one identity could fill the disk with made-up names."""
MOST_FIGURES = 32
FORGET_S = 30 * 86400.0
"""A daemon that was not heard of for a month is gone."""


@dataclass(frozen=True)
class Daemon:
    """A daemon as it said it is."""

    owner: str
    daemon: str
    name: str
    model: str
    version: str
    problem: str
    figures: dict[str, float]
    seen_s: float


class Fleet:
    """The daemons, in memory; ``flush`` writes them down."""

    def __init__(self, database: Database) -> None:
        self._database = database
        rows = database.rows("SELECT * FROM daemons WHERE seen_s > ?", time.time() - FORGET_S)
        known = [Daemon(**{**dict(row), "figures": json.loads(row["figures"])}) for row in rows]
        self._known = {(one.owner, one.daemon): one for one in known}
        self._fresh: set[tuple[str, str]] = set()
        self._flushed_s = time.monotonic()

    def seen(
        self, owner: str, daemon: str, name: str, model: str, version: str, problem: str, figures: Mapping[str, float]
    ) -> None:
        """Takes down what a daemon says; raises ServiceError for what makes no sense."""
        text.name("daemon", daemon)
        text.name("name", name)
        text.note("version", version)
        text.note("problem", problem)
        if model:
            text.sha256("model", model)
        if len(figures) > MOST_FIGURES or not all(map(math.isfinite, figures.values())):
            raise ServiceError(f"figures: {MOST_FIGURES} finite numbers at most")
        for key in figures:
            text.name("figure", key)
        if (owner, daemon) not in self._known and len(self._known) >= MOST_DAEMONS:
            self._forget()
            if len(self._known) >= MOST_DAEMONS:
                raise ServiceError(f"{MOST_DAEMONS} daemons are known already; no more are taken down")
        self._known[owner, daemon] = Daemon(owner, daemon, name, model, version, problem, dict(figures), time.time())
        self._fresh.add((owner, daemon))

    def all(self) -> list[Daemon]:
        """Returns the daemons, by name."""
        return sorted(self._known.values(), key=lambda one: (one.daemon, one.owner))

    def flush(self, after_s: float = 0.0) -> None:
        """Writes down what is new, where the last time is so long ago."""
        if time.monotonic() - self._flushed_s < after_s or not self._fresh:
            return
        rows = [
            (one.owner, one.daemon, one.name, one.model, one.version, one.problem, json.dumps(one.figures), one.seen_s)
            for one in (self._known[key] for key in self._fresh)
        ]
        with self._database.change() as run:
            for row in rows:
                run("INSERT OR REPLACE INTO daemons VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            run("DELETE FROM daemons WHERE seen_s < ?", (time.time() - FORGET_S,))
        self._fresh.clear()
        self._flushed_s = time.monotonic()

    def _forget(self) -> None:
        for key in [key for key, one in self._known.items() if time.time() - one.seen_s > FORGET_S]:
            del self._known[key]
            self._fresh.discard(key)
