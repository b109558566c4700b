"""Models by the sha256 of their manifest, with where they come from; names that point to them; every change on record.

``models/<sha256>/`` is a model folder like any other. A name that moves is one transaction with its line of history.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from reinet.agents.model.artifact import MODEL_FILES, load_artifact, write_folder
from reinet.agents.service import text
from reinet.agents.service.database import Database, Row
from reinet.agents.service.gate import SUITE
from reinet.agents.service.jobs import LATEST, Job
from reinet.core.errors import ServiceError

PRODUCTION, PREVIOUS = "production", "previous"
"""``previous`` follows by itself: it is what ``production`` pointed to before."""
LEAST_DIGITS = 6
MOST_CACHED = 4
"""So many models are in memory: a fleet that follows a name fetches one and the same, within seconds."""
MOST_AGE_S = 100 * 365 * 86400.0
"""No model is older; who names such an age means something else."""

log = structlog.get_logger("reinet.trainer")


@dataclass(frozen=True)
class Model:
    """A model in the registry."""

    sha256: str
    name: str
    job: str
    owner: str
    parent: str
    created_s: float
    size_bytes: int
    lineage: dict[str, Any]
    """``config``, ``seed``, ``metrics`` (its training's, and the suite's once a gate measured it), ``traces``,
    ``code_version`` and ``schema_hash``."""
    pointers: tuple[str, ...]


@dataclass(frozen=True)
class Promotion:
    """One line of the history."""

    number: int
    kind: str
    name: str
    model: str
    before: str
    who: str
    when_s: float
    why: str
    forced: bool
    gate: str


@dataclass(frozen=True)
class Pointer:
    """What a name points to; model "" and number 0 = nothing."""

    name: str
    model: str = ""
    number: int = 0
    schema_hash: str = ""


class Registry:
    """The models and their names."""

    def __init__(self, folder: Path, database: Database) -> None:
        self._folder = folder / "models"
        self._staging = folder / "staged"
        self._database = database
        self.apart = database.apart
        self._content: dict[str, dict[str, bytes]] = {}
        for made in (self._folder, self._staging):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)

    def place(self, sha256: str) -> Path:
        """Returns a model's folder."""
        return self._folder / sha256

    def add_of_job(self, job: Job, folder: Path, sha256: str) -> str:
        """Takes a job's model in, with its lineage; the same again changes nothing. Returns its sha256.

        Raises ModelError for a folder that is no model.
        """
        if not self.place(sha256).is_dir():
            load_artifact(folder, sha256)
            content = {name: (folder / name).read_bytes() for name in MODEL_FILES}
            write_folder(self.place(sha256), content, self._staging, mode=0o600)
        artifact = load_artifact(self.place(sha256), sha256)
        manifest = artifact.manifest
        licences = {sha: one["licence"] for one in job.sets for _, sha in one["files"]}
        lineage = {
            "config": manifest.training.config,
            "seed": manifest.training.seed,
            "metrics": manifest.metrics,
            "traces": [
                {**use.model_dump(), "licence": licences.get(use.sha256, "")} for use in manifest.training.traces
            ],
            "code_version": f"{job.code_version} (reinet {manifest.versions.get('reinet', '?')})",
            "schema_hash": manifest.schema_.hash,
        }
        size = sum((self.place(sha256) / name).stat().st_size for name in MODEL_FILES)
        with self._database.change() as run:
            run(
                "INSERT OR IGNORE INTO models VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (sha256, manifest.name, job.id, job.owner, job.parent, time.time(), size, json.dumps(lineage)),
            )
        return sha256

    def measured(self, sha256: str, figures: Mapping[str, float]) -> None:
        """Writes down what the gate measured of a model, in the place of what it measured before; nothing where there
        is nothing, or no such model."""
        with self._database.change() as run:
            row = self._database.row("SELECT lineage FROM models WHERE sha256 = ?", sha256)
            if row is None or not figures:
                return
            lineage = json.loads(row["lineage"])
            kept = {key: value for key, value in lineage["metrics"].items() if not key.startswith(SUITE)}
            lineage["metrics"] = kept | dict(figures)
            run("UPDATE models SET lineage = ? WHERE sha256 = ?", (json.dumps(lineage), sha256))

    def all(self) -> list[Model]:
        """Returns the models, oldest first."""
        return [self._model(row) for row in self._database.rows("SELECT * FROM models ORDER BY rowid")]

    def find(self, wanted: str) -> Model:
        """Returns a model by name, sha256, its beginning or ``latest``; raises ServiceError for none, or several."""
        if wanted == LATEST:
            models = self.all()
            if not models:
                raise ServiceError("there is no model yet; the next job that is done makes one, see `reinet jobs list`")
            return models[-1]
        pointer = self.pointer(wanted) if _is_name(wanted) else Pointer("")
        beginning = pointer.model or wanted
        if not beginning or not set(beginning) <= set("0123456789abcdef"):
            raise ServiceError(f"there is no model {text.shown(wanted)}; see `reinet models list`")
        if len(beginning) < LEAST_DIGITS:
            raise ServiceError(f"there is no name {text.shown(wanted)}; of a sha256 give {LEAST_DIGITS} digits or more")
        rows = self._database.rows("SELECT * FROM models WHERE substr(sha256, 1, ?) = ?", len(beginning), beginning)
        if len(rows) != 1:
            several = f"{len(rows)} models begin so; give more digits" if rows else "see `reinet models list`"
            raise ServiceError(f"there is no model {text.shown(wanted)}: {several}")
        return self._model(rows[0])

    def _model(self, row: Row) -> Model:
        pointers = self._database.rows("SELECT name FROM pointers WHERE model = ? ORDER BY name", row["sha256"])
        values = {key: row[key] for key in row.keys() if key != "lineage"}  # noqa: SIM118
        return Model(**values, lineage=json.loads(row["lineage"]), pointers=tuple(one["name"] for one in pointers))

    def pointer(self, name: str) -> Pointer:
        """Returns what a name points to."""
        row = self._database.row(
            "SELECT p.name, p.model, p.number, m.lineage FROM pointers p JOIN models m ON m.sha256 = p.model "
            "WHERE p.name = ?", text.name("name", name),
        )  # fmt: skip
        if row is None:
            return Pointer(name)
        return Pointer(row["name"], row["model"], row["number"], json.loads(row["lineage"])["schema_hash"])

    def promote(self, sha256: str, name: str, who: str, why: str, forced: bool, gate: str) -> Promotion:
        """Points a name to a model."""
        check_pointer(name)
        text.note("why", why)
        return self._point("promote", name, sha256, who, why, forced, gate)

    def rollback(self, name: str, who: str, why: str) -> Promotion:
        """Points a name to what it pointed to before its latest promotion that is still in force; raises ServiceError
        where there is none."""
        check_pointer(name)
        text.note("why", why)
        stack: list[str] = []
        for line in self.history(name):
            if line.kind == "promote":
                stack.append(line.before)
            elif stack:
                stack.pop()
        if not stack or not stack[-1]:
            raise ServiceError(f"{name} has nothing to go back to; see `reinet models list`")
        if not self.place(stack[-1]).is_dir():
            raise ServiceError(f"{name} pointed to {stack[-1][:12]}, which is not here any more; promote another model")
        return self._point("rollback", name, stack[-1], who, why, False, "")

    def _point(self, kind: str, name: str, sha256: str, who: str, why: str, forced: bool, gate: str) -> Promotion:
        with self._database.change() as run:
            # The gate measured for minutes meanwhile: a name must never point to what was removed.
            if self._database.row("SELECT 1 FROM models WHERE sha256 = ?", sha256) is None:
                raise ServiceError(f"there is no model {sha256[:12]} any more; see `reinet models list`")
            before = self.pointer(name).model
            number = run(
                "INSERT INTO promotions (kind, name, model, before, who, when_s, why, forced, gate) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (kind, name, sha256, before, who, time.time(), why, forced, gate),
            ).lastrowid
            point = "INSERT INTO pointers VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET model = ?, number = ?"
            run(point, (name, sha256, number, sha256, number))
            if name == PRODUCTION and before:
                run(point, (PREVIOUS, before, number, before, number))
        return next(line for line in self.history(name) if line.number == number)

    def history(self, name: str = "") -> list[Promotion]:
        """Returns every promotion and roll-back, of one name or of all, oldest first."""
        rows = self._database.rows(
            "SELECT * FROM promotions WHERE ? IN ('', name) ORDER BY number", text.name("name", name) if name else ""
        )
        return [Promotion(**{**dict(row), "forced": bool(row["forced"])}) for row in rows]

    def gc(self, older_than_s: float, dry_run: bool, in_use: Sequence[str]) -> tuple[list[str], int]:
        """Removes models older than so much that no name points to, pointed to before, or daemon runs; returns which,
        and how many bytes that frees. Their lines in the history stay. Raises ServiceError for what is no age: below 0
        every model would be old enough, and what is no number would leave all of them without a word."""
        if not 0 <= older_than_s <= MOST_AGE_S:
            raise ServiceError(f"{older_than_s / 86400:g} days are no age; give 0 to {MOST_AGE_S / 86400:g}")
        history, models = self.history(), self.all()
        kept = {line.model for line in history} | {line.before for line in history} | set(in_use)
        kept |= {model.parent for model in models if model.pointers}
        gone = [
            model
            for model in models
            if not model.pointers and model.sha256 not in kept and time.time() - model.created_s >= older_than_s
        ]
        if not dry_run:
            for model in gone:
                with self._database.change() as run:
                    run("DELETE FROM models WHERE sha256 = ?", (model.sha256,))
                # Killed while it removes, the service clears away the rest of it at its next start.
                with suppress(FileNotFoundError):
                    self.place(model.sha256).rename(self._staging / f".staged-{model.sha256}")
                shutil.rmtree(self._staging / f".staged-{model.sha256}", ignore_errors=True)
        return [model.sha256 for model in gone], sum(model.size_bytes for model in gone)

    def tell_of_unknown(self) -> None:
        """Logs which folders no row tells of, and leaves them: where the database was lost, or an older one was put
        back, they are the only models there are. A job whose model was taken in but for its row takes it up again."""
        known = {model.sha256 for model in self.all()}
        if unknown := sorted(folder.name for folder in self._folder.iterdir() if folder.name not in known):
            log.warning(
                "folders of models that the database does not know are left as they are; put the database back that "
                "knows them, or remove them by hand",
                database=str(self._database.path), folder=str(self._folder), count=len(unknown), first=unknown[0],
            )  # fmt: skip

    def content(self, sha256: str) -> dict[str, bytes]:
        """Returns a model's files, the manifest first, each checked against what names it; raises ModelError."""
        if sha256 not in self._content:
            load_artifact(self.place(sha256), sha256)
            content = {name: (self.place(sha256) / name).read_bytes() for name in MODEL_FILES}
            while len(self._content) >= MOST_CACHED:
                self._content.pop(next(iter(self._content)))
            self._content[sha256] = content
        return self._content[sha256]


def check_pointer(name: str) -> str:
    """Returns a name that may be pointed; raises ServiceError for one that moves by itself or looks like a digest."""
    text.name("name", name)
    if name == PREVIOUS:
        raise ServiceError(f"{PREVIOUS} follows {PRODUCTION} by itself; promote to {PRODUCTION}, or to another name")
    if name == LATEST:
        raise ServiceError(f"{LATEST} is the newest model, whichever that is; use another name")
    if set(name) <= set("0123456789abcdef"):
        raise ServiceError(f"name {name!r} could be a digest; use one with other letters, such as {PRODUCTION}")
    return name


def _is_name(wanted: str) -> bool:
    try:
        text.name("model", wanted)
    except ServiceError:
        return False
    return True
