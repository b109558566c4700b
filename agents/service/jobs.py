"""Jobs: what was accepted, in which state, and the folder that a job works in.

    waiting -> running -> done | failed
       |          |
       +----> stopping -> stopped -> (resume) waiting

A job's folder: ``job.json`` (what the worker reads), ``traces/`` (links to the store), ``run/`` (checkpoints and
TensorBoard's files), ``progress.json``, ``log.txt``, ``model/`` and ``result.json`` when it is through.
"""

import json
import os
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reinet.agents.service import files, text
from reinet.agents.service.blobs import Blobs
from reinet.agents.service.config import Quota
from reinet.agents.service.database import Database, Row
from reinet.agents.service.identity import Caller
from reinet.agents.service.running.progress import MODEL_FOLDER, ORDER_FILE, Result
from reinet.core import toml_file
from reinet.core.disk import durable
from reinet.core.errors import ConfigError, ServiceError
from reinet.envs.trace.set_file import folder_name

OPEN = ("waiting", "running", "stopping")
RESUMABLE = ("stopped", "failed")
ENDED = (*RESUMABLE, "done")
MOST_CONFIG_BYTES = 256 * 1024
MOST_SETS = 64
MOST_FILES = 4096
"""So many traces in one job: a few thousand recordings of a minute each are two days of driving."""
ROLES = ("", "train", "validation", "test", "forbid")
LISTED = (
    "id", "owner", "name", "note", "parent", "config", "state", "attempt", "failures", "iteration", "created_s",
    "ended_s", "wall_s", "model", "problem", "code_version",
)  # fmt: skip
LATEST = "latest"
"""It names the newest job, or model, in place of an id."""
WEEK_S = 7 * 86400.0


@dataclass(frozen=True)
class GivenSet:
    """A set of traces, as a client names it."""

    name: str
    files: tuple[tuple[str, str], ...]
    """(name, sha256) of each."""
    weight: float = 1.0
    role: str = ""
    licence: str = ""


@dataclass(frozen=True)
class Given:
    """What a client submits."""

    request: str
    config_json: str
    sets: tuple[GivenSet, ...] = ()
    note: str = ""
    parent: str = ""


@dataclass(frozen=True)
class Job:
    """A job as it is stored."""

    id: str
    owner: str
    name: str
    note: str
    parent: str
    config_json: str = field(repr=False, compare=False)
    sets_json: str = field(repr=False, compare=False)
    """Neither changes once the job is accepted."""
    state: str
    attempt: int
    failures: int
    """How often it ended without a result and without having come further."""
    iteration: int
    """How far it was when it was last started."""
    created_s: float
    ended_s: float
    wall_s: float
    model: str
    problem: str
    code_version: str

    @classmethod
    def of(cls, row: Row) -> "Job":
        """Returns the job in a row of the table."""
        values = {key: row[key] for key in row.keys() if key not in ("config", "traces", "request")}  # noqa: SIM118
        return cls(**values, config_json=row["config"], sets_json=row["traces"])

    @property
    def config(self) -> dict[str, Any]:
        """Returns the training configuration; its traces lie in the job's folder."""
        found: dict[str, Any] = json.loads(self.config_json)
        return found

    @property
    def sets(self) -> list[dict[str, Any]]:
        """Returns the sets of traces: ``name``, ``files`` as (name, sha256), ``weight``, ``role`` and ``licence``."""
        found: list[dict[str, Any]] = json.loads(self.sets_json)
        return found


class Jobs:
    """The table of jobs and their folders."""

    def __init__(
        self, folder: Path, database: Database, blobs: Blobs,
        *, min_free_bytes: int = 0, most_workers: int, code_version: str,
    ) -> None:  # fmt: skip
        self.folder = folder / "jobs"
        self._database, self._blobs = database, blobs
        self.apart = database.apart
        self._min_free_bytes, self._most_workers, self._code_version = min_free_bytes, most_workers, code_version
        self._accepting = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def place(self, job: str) -> Path:
        """Returns a job's folder."""
        return self.folder / job

    def get(self, job: str) -> Job:
        """Returns a job, by its id or ``latest``; raises ServiceError where there is none."""
        if job == LATEST:
            newest = self.latest(1)
            if not newest:
                raise ServiceError("there is no job yet; `reinet jobs submit` makes one")
            job = newest[0].id
        row = self._database.row("SELECT * FROM jobs WHERE id = ?", text.job_id(job))
        if row is None:
            raise ServiceError(f"there is no job {job}; see `reinet jobs list`")
        return Job.of(row)

    def all(self, states: Sequence[str] = (*OPEN, *ENDED)) -> list[Job]:
        """Returns the jobs in these states, oldest first."""
        marks = ", ".join("?" * len(states))
        rows = self._database.rows(f"SELECT * FROM jobs WHERE state IN ({marks}) ORDER BY rowid", *states)
        return [Job.of(row) for row in rows]

    def latest(self, count: int) -> list[Job]:
        """Returns the newest so many jobs, oldest first, without their sets: those of one may name 4096 traces."""
        rows = self._database.rows(
            f"SELECT {', '.join(LISTED)}, '[]' AS traces FROM jobs ORDER BY rowid DESC LIMIT ?", count
        )
        return [Job.of(row) for row in reversed(rows)]

    def submit(self, caller: Caller, given: Given) -> Job:
        """Accepts a job, once for each request; raises ServiceError or ConfigError with what is wrong of it."""
        with self._accepting:  # what is checked still holds when it is written
            return self._accepted(caller, given)

    def _accepted(self, caller: Caller, given: Given) -> Job:
        request = text.name("request", given.request)
        if found := self._database.row("SELECT * FROM jobs WHERE owner = ? AND request = ?", caller.name, request):
            return Job.of(found)
        config = self._checked(given)
        self._check_quota(caller)
        job = secrets.token_hex(6)
        sets = [
            {"name": one.name, "files": [list(file) for file in one.files], "weight": one.weight, "role": one.role,
             "licence": one.licence}
            for one in given.sets
        ]  # fmt: skip
        for sha256 in {sha256 for one in given.sets for _, sha256 in one.files}:
            self._blobs.claim(caller, sha256)
        with self._database.change() as run:
            run(
                "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'waiting', 0, 0, 0, ?, 0, 0, '', '', ?)",
                (job, request, caller.name, config["name"], given.note, given.parent, json.dumps(config),
                 json.dumps(sets), time.time(), self._code_version),
            )  # fmt: skip
        return self.get(job)

    def _checked(self, given: Given) -> dict[str, Any]:
        """Returns the configuration of what is sound as a whole."""
        text.note("note", given.note)
        if given.parent:
            text.sha256("parent", given.parent)
        if len(given.config_json) > MOST_CONFIG_BYTES:
            raise ServiceError(f"configuration: {len(given.config_json)} characters, {MOST_CONFIG_BYTES} at most")
        if len(given.sets) > MOST_SETS or sum(len(one.files) for one in given.sets) > MOST_FILES:
            raise ServiceError(f"more traces than a job may have: {MOST_SETS} sets, {MOST_FILES} files; split them")
        names = [text.name("trace set", one.name) for one in given.sets]
        for one in given.sets:
            text.note("licence", one.licence)
            if one.role not in ROLES:
                raise ServiceError(f"trace set {one.name}: a role is one of {', '.join(ROLES[1:])}, or none")
            if not 0 < one.weight <= 1e6:
                raise ServiceError(f"trace set {one.name}: weight = {one.weight} is not above 0 and up to 1e6")
            files_ = [text.name(f"trace of {one.name}", name) for name, _ in one.files]
            if not files_ or len(set(files_)) < len(files_) or len(set(names)) < len(names):
                raise ServiceError(f"trace set {one.name}: it is empty, or a name is there twice; name each once")
            for name, sha256 in one.files:
                if not self._blobs.has(text.sha256("trace", sha256)):
                    raise ServiceError(
                        f"trace {one.name}/{name} ({sha256[:12]}) was not uploaded; upload it, then submit"
                    )
        config = _with_traces(given.config_json, given.sets)
        if config["rollout"]["workers"] > self._most_workers:
            raise ConfigError(
                f"rollout.workers = {config['rollout']['workers']}: this service has room for {self._most_workers}"
            )
        return config

    def _check_quota(self, caller: Caller) -> None:
        quota = caller.quota
        if len([job for job in self.all(OPEN) if job.owner == caller.name]) >= quota.waiting_jobs:
            raise ServiceError(f"{caller.name} has {quota.waiting_jobs} jobs that have not ended; wait, or stop one")
        if problem := self.over_time(caller.name, quota):
            raise ServiceError(problem)
        self.check_room()

    def check_room(self) -> None:
        """Raises NoRoomError where the disk has less free than is kept free."""
        files.check_free(self.folder, self._min_free_bytes, "job")

    def over_time(self, owner: str, quota: Quota) -> str:
        """Returns what is to be said where an identity's jobs have trained for longer than its quota; else nothing.

        It counts all that jobs took which ended within seven days, or have not ended. A job that ends in more than that
        is from before the clock was set back, and would count until then.
        """
        used = self._database.row(
            "SELECT coalesce(sum(wall_s), 0) AS n FROM jobs WHERE owner = ? AND (ended_s = 0 OR abs(ended_s - ?) < ?)",
            owner, time.time(), WEEK_S,
        )  # fmt: skip
        assert used is not None
        if used["n"] <= quota.job_hours * 3600:
            return ""
        return (
            f"{owner} has trained {used['n'] / 3600:.1f} h in seven days, and {quota.job_hours:g} h are the quota; ask "
            "whoever runs the service for more"
        )

    def prepare(self, job: Job) -> Path:
        """Returns the job's folder with all that its worker needs; doing it again changes nothing."""
        folder = self.place(job.id)
        (folder / "traces").mkdir(parents=True, exist_ok=True, mode=0o700)
        durable.clear_staged(folder)
        for one in job.sets:
            (folder / "traces" / one["name"]).mkdir(exist_ok=True, mode=0o700)
            for name, sha256 in one["files"]:
                link = folder / "traces" / one["name"] / folder_name(name)
                if link.exists():
                    continue
                try:
                    os.link(self._blobs.path(sha256), link)
                except FileNotFoundError:
                    raise ServiceError(
                        f"trace {one['name']}/{name} ({sha256[:12]}) is not in the service's store any more; upload it "
                        "again (`reinet traces upload`), and the job goes on"
                    ) from None
        files.write_json(folder / ORDER_FILE, {"config": job.config})
        return folder

    def set(self, job: str, **values: Any) -> None:
        """Changes fields of a job."""
        columns = ", ".join(f"{key} = ?" for key in values)
        with self._database.change() as run:
            run(f"UPDATE jobs SET {columns} WHERE id = ?", (*values.values(), job))

    def move(self, job: str, before: Sequence[str], after: str, **values: Any) -> bool:
        """Moves a job from one of some states to another; returns False where it was in none of them."""
        columns = "".join(f", {key} = ?" for key in values)
        marks = ", ".join("?" * len(before))
        with self._database.change() as run:
            done = run(f"UPDATE jobs SET state = ?{columns} WHERE id = ? AND state IN ({marks})",
                       (after, *values.values(), job, *before))  # fmt: skip
            return bool(done.rowcount)

    def stop(self, job: Job, why: str = "") -> None:
        """Asks a job to end after its iteration; raises ServiceError where it has ended."""
        if job.state == "stopping":
            return
        if not self.move(job.id, ("waiting", "running"), "stopping", problem=why):
            raise ServiceError(f"job {job.id} is {self.get(job.id).state}; only one that waits or runs can be stopped")

    def resume(self, caller: Caller, job: Job) -> None:
        """Lets a stopped or failed job go on; raises ServiceError where it has not ended so, or the quota is used."""
        self._check_quota(caller)
        if job.state in RESUMABLE:  # else the end of the attempt before would be this one's, if it is stopped at once
            (self.place(job.id) / Result.FILE).unlink(missing_ok=True)
        if not self.move(job.id, RESUMABLE, "waiting", problem="", ended_s=0.0, failures=0):
            raise ServiceError(f"job {job.id} is {self.get(job.id).state}; only a stopped or failed one can go on")

    def model_folder(self, job: str) -> Path:
        """Returns where the worker leaves its model."""
        return self.place(job) / MODEL_FOLDER


def _with_traces(config_json: str, sets: Sequence[GivenSet]) -> dict[str, Any]:
    """Returns a client's configuration, checked, with the sets' places in the job's folder; raises ConfigError.

    The paths are relative, and so the same in every job of the same traces: a model's manifest holds them, and with it
    its identity.
    """
    from reinet.agents.learn.config import TrainConfig  # a second, which clients of this module do not need

    try:
        content = json.loads(config_json)
        traces = content.get("traces", {}) if isinstance(content, dict) else None
        if not isinstance(traces, dict):
            raise ValueError("it is no table of tables")
        if "rllib" in content:
            raise ValueError("it has [rllib], and jobs are of reinet's own learner; train it with `reinet train`")
        if traces.get("sets") or traces.get("forbid"):
            raise ValueError("traces.sets and traces.forbid hold paths; send the traces with the job")
        own = [
            {"path": f"traces/{one.name}", "weight": one.weight, "role": one.role or None}
            for one in sets
            if one.role != "forbid"
        ]
        forbidden = [f"traces/{one.name}" for one in sets if one.role == "forbid"]
        document = {**content, "traces": {**traces, "sets": own, "forbid": forbidden}}
        config = toml_file.check(document, "the configuration is refused", TrainConfig, "give a training configuration")
    except ConfigError as error:
        raise ConfigError(str(error)[:500]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the configuration is refused: {str(error)[:500]}") from None
    return config.model_dump(mode="json")
