"""The daemons that follow names: who they are, what they run, when each was last heard of, the flows they send."""

import asyncio
import json
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reinet.agents.service import files, places, text
from reinet.agents.service.blobs import staged_bytes
from reinet.agents.service.database import Database
from reinet.agents.service.identity import Caller
from reinet.core.disk import durable
from reinet.core.errors import ServiceError, TraceError
from reinet.daemon.processes.flow_recorder import BLOCK_BYTES, MOST_FILES, age_key, on_disk_bytes
from reinet.envs.trace.flow_records import FlowRecording
from reinet.envs.trace.trace import MAX_FILE_BYTES
from reinet.kshim.recorded import SUFFIX

MOST_DAEMONS = 10_000
"""A fleet of more would want its figures summed up."""
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
        if (owner, daemon) not in self._known and len(self._known) >= places.SHARE * MOST_DAEMONS:
            self._forget()
            own = sum(one.owner == owner for one in self._known.values())
            places.check(
                owner, own, len(self._known), MOST_DAEMONS, "daemons are known already; no more are taken down"
            )
        self._known[owner, daemon] = Daemon(owner, daemon, name, model, version, problem, dict(figures), time.time())
        self._fresh.add((owner, daemon))

    def all(self) -> list[Daemon]:
        """Returns the daemons that are not gone, by name."""
        self._forget()
        return sorted(self._known.values(), key=lambda one: (one.daemon, one.owner))

    async def flush(self, after_s: float = 0.0) -> None:
        """Writes down what is new, where the last time is so long ago."""
        if time.monotonic() - self._flushed_s < after_s or not self._fresh:
            return
        fresh, self._fresh = self._fresh, set()
        rows = [
            (one.owner, one.daemon, one.name, one.model, one.version, one.problem, json.dumps(one.figures), one.seen_s)
            for one in (self._known[key] for key in fresh if key in self._known)
        ]
        try:
            await self._database.apart(self._write, rows)
        except BaseException:
            self._fresh |= fresh  # tried again
            raise
        self._flushed_s = time.monotonic()

    def _write(self, rows: Sequence[tuple[str | float, ...]]) -> None:
        with self._database.change() as run:
            for row in rows:
                run("INSERT OR REPLACE INTO daemons VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            run("DELETE FROM daemons WHERE seen_s < ?", (time.time() - FORGET_S,))

    def _forget(self) -> None:
        for key in [key for key, one in self._known.items() if time.time() - one.seen_s > FORGET_S]:
            del self._known[key]
            self._fresh.discard(key)


class Flows:
    """What daemons recorded and sent: ``flows/OWNER/DAEMON/FLOW.flow``, of each owner the newest.

    They take so many bytes of the disk at most, and are as many as a daemon keeps of its own at most.
    """

    def __init__(self, folder: Path, min_free_bytes: int = 0) -> None:
        self._folder, self._staging, self._min_free_bytes = folder / "flows", folder / "staged", min_free_bytes
        self._changing = threading.Lock()
        for made in (self._folder, self._staging):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)

    async def receive(
        self, caller: Caller, daemon: str, flow: str, sha256: str, size_bytes: int, chunks: AsyncIterator[bytes]
    ) -> None:
        """Takes a recording's bytes; raises ServiceError for what is none, or is not what was announced."""
        text.name("daemon", daemon)
        text.name("flow", flow)
        text.sha256("flow", sha256)
        files.check_free(self._folder, self._min_free_bytes, "recorded flow")
        most_bytes = caller.quota.flows_mb * 1_000_000 // BLOCK_BYTES * BLOCK_BYTES
        if not 0 < size_bytes <= min(MAX_FILE_BYTES, most_bytes):
            raise ServiceError(f"flow {flow}: {size_bytes} bytes; up to {min(MAX_FILE_BYTES, most_bytes)} are taken")
        async with staged_bytes(self._staging, f"flow {flow}", sha256, size_bytes, chunks) as staged:
            await asyncio.to_thread(self._keep, caller, daemon, flow, staged, most_bytes)

    def _keep(self, caller: Caller, daemon: str, flow: str, staged: Path, most_bytes: int) -> None:
        try:
            FlowRecording.load(staged)
        except TraceError as error:
            raise ServiceError(f"flow {flow}: {str(error).removeprefix(str(staged)).lstrip(': ')}") from None
        owner = self._folder / caller.name.replace(":", "-")
        place = owner / daemon / f"{flow}{SUFFIX}"
        with self._changing:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            others = ((path.stat(), path) for path in owner.glob(f"*/*{SUFFIX}") if path != place)
            kept = sorted((age_key(state.st_mtime_ns), path, on_disk_bytes(state.st_size)) for state, path in others)
            room_bytes = most_bytes - on_disk_bytes(staged.stat().st_size) - sum(taken for *_, taken in kept)
            room_files = MOST_FILES - 1 - len(kept)
            for _, oldest, taken_bytes in kept:
                if room_bytes >= 0 and room_files >= 0:
                    break
                room_bytes += taken_bytes
                room_files += 1
                oldest.unlink()
            os.replace(staged, place)
            durable.sync_folder(place.parent)
