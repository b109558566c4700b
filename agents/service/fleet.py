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
    """The table of daemons."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
        row = (owner, daemon, name, model, version, problem, json.dumps(dict(figures)), time.time())
        with self._database.change() as run:
            run("DELETE FROM daemons WHERE seen_s < ?", (time.time() - FORGET_S,))
            known = self._database.row("SELECT 1 FROM daemons WHERE owner = ? AND daemon = ?", owner, daemon)
            (count,) = run("SELECT count(*) FROM daemons").fetchone()
            if known is None and count >= MOST_DAEMONS:
                raise ServiceError(f"{MOST_DAEMONS} daemons are known already; no more are taken down")
            run("INSERT OR REPLACE INTO daemons VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def all(self) -> list[Daemon]:
        """Returns the daemons, by name."""
        return [
            Daemon(**{**dict(row), "figures": json.loads(row["figures"])})
            for row in self._database.rows("SELECT * FROM daemons ORDER BY daemon, owner")
        ]
