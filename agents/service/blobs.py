"""Traces by content: ``blobs/ab/abcdef...``, each the canonical text of a trace, checked before it got its name.

``python -m reinet.agents.service.blobs FILE`` checks one, for the service: parsing takes ten times a large trace's size
and holds the interpreter for seconds, in which nobody else would be answered.
"""

import asyncio
import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from reinet.agents.service import files, text
from reinet.agents.service.config import Quota
from reinet.agents.service.database import Database
from reinet.agents.service.identity import Caller
from reinet.core.disk import durable
from reinet.core.errors import ServiceError, TraceError
from reinet.envs.trace import Trace

CHUNK_BYTES = 256 * 1024
"""An upload's largest chunk: so much of each is in memory at a time."""
LEAST_RATE_BYTES_PER_S = 16 * 1024
"""Who sends more slowly, over a minute and more, is cut off: a stream without end holds its place for nothing."""
GRACE_S = 60.0
SMALL_BYTES = 500_000
"""What is smaller is checked here: some 10 ms, where a process takes half a second to start."""
CHECK_S = 600.0


class Blobs:
    """The store of traces."""

    def __init__(self, folder: Path, database: Database, min_free_bytes: int = 0) -> None:
        self._folder = folder / "blobs"
        self._staging = folder / "staged"
        self._database, self._min_free_bytes = database, min_free_bytes
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="parser")
        self._large = asyncio.Semaphore(1)  # one at a time: each takes up to some 600 MB
        for made in (self._folder, self._staging):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, sha256: str) -> Path:
        """Returns where a trace lies or would lie."""
        return self._folder / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Returns whether a trace is there."""
        return self.path(sha256).is_file()

    def stored_bytes(self, owner: str) -> int:
        """Returns how much of the store an identity brought."""
        row = self._database.row("SELECT coalesce(sum(size_bytes), 0) AS n FROM uploads WHERE owner = ?", owner)
        assert row is not None
        return int(row["n"])

    def check(self, caller: Caller, sha256: str, size_bytes: int) -> None:
        """Raises ServiceError where the caller may not bring a trace of this size, or the disk has no room for any."""
        text.sha256("trace", sha256)
        quota = caller.quota
        if not 0 < size_bytes <= quota.trace_mb * 1_000_000:
            raise ServiceError(f"trace {sha256[:12]}: {size_bytes} bytes; 1 to {quota.trace_mb} MB are taken")
        self._check_room(caller.name, quota, size_bytes)
        files.check_free(self._folder, self._min_free_bytes, "trace")

    def _check_room(self, owner: str, quota: Quota, size_bytes: int) -> None:
        stored = self.stored_bytes(owner)
        if stored + size_bytes > quota.stored_mb * 1_000_000:
            raise ServiceError(
                f"{owner} has {stored / 1e6:.0f} MB of traces stored, and {quota.stored_mb} MB are the quota; ask "
                "whoever runs the service for more"
            )

    def claim(self, caller: Caller, sha256: str, staged: Path | None = None) -> None:
        """Counts a trace that is there among those of the caller; raises ServiceError where the quota has no room.

        ``staged`` is one that is not there yet: it gets its name where there is room, and only then.
        """
        place = self.path(sha256)
        size = (staged or place).stat().st_size
        with self._database.change() as run:
            known = self._database.row("SELECT 1 FROM uploads WHERE owner = ? AND sha256 = ?", caller.name, sha256)
            if known is None:
                self._check_room(caller.name, caller.quota, size)
                run("INSERT INTO uploads VALUES (?, ?, ?)", (caller.name, sha256, size))
            if staged is not None:
                place.parent.mkdir(mode=0o700, exist_ok=True)
                os.replace(staged, place)
                durable.sync_folder(place.parent)

    async def receive(
        self,
        caller: Caller,
        sha256: str,
        size_bytes: int,
        chunks: AsyncIterator[bytes],
    ) -> None:
        """Takes a trace's bytes and stores them where they are what was announced; raises ServiceError otherwise."""
        async with staged_bytes(self._staging, f"trace {sha256[:12]}", sha256, size_bytes, chunks) as staged:
            if size_bytes <= SMALL_BYTES:
                problem = await asyncio.get_running_loop().run_in_executor(self._parser, problem_of, staged)
            else:
                async with self._large:
                    problem = await _problem_of_large(staged)
            if problem:
                raise ServiceError(f"trace {sha256[:12]}: {problem}")
            await self._database.apart(self.claim, caller, sha256, staged)


@asynccontextmanager
async def staged_bytes(
    staging: Path, what: str, sha256: str, size_bytes: int, chunks: AsyncIterator[bytes]
) -> AsyncIterator[Path]:
    """Yields a file of what came, which is what was announced; whoever wants it moves it to its place meanwhile.

    Raises ServiceError naming ``what`` it is where more came, too slowly, or something else.
    """
    fd, name = tempfile.mkstemp(prefix=".staged-", dir=staging)
    staged = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            digest, received, began_s = hashlib.sha256(), 0, time.monotonic()
            async for chunk in chunks:
                received += len(chunk)
                if len(chunk) > CHUNK_BYTES or received > size_bytes:
                    raise ServiceError(f"{what}: more bytes came than the {size_bytes} announced")
                took_s = time.monotonic() - began_s
                if took_s > GRACE_S and received < LEAST_RATE_BYTES_PER_S * took_s:
                    raise ServiceError(f"{what}: it came too slowly; send it again on a better path")
                # Outside the event loop: the disk may have anyone who writes wait, and everybody with them.
                await asyncio.to_thread(_take, file, digest, chunk)
            await asyncio.to_thread(_to_disk, file)
        if received != size_bytes or digest.hexdigest() != sha256:
            raise ServiceError(f"{what}: what came is not what was announced; send it again")
        yield staged
    finally:
        with suppress(FileNotFoundError):
            staged.unlink()


def _take(file: BinaryIO, digest: Any, chunk: bytes) -> None:
    digest.update(chunk)
    file.write(chunk)


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def problem_of(staged: Path) -> str:
    """Returns why a file is not to be stored; empty where it is the canonical text of a trace."""
    try:
        Trace.load(staged)
    except TraceError as error:
        return str(error).removeprefix(str(staged))
    return "" if is_canonical(staged.read_bytes()) else "not in its canonical form; `reinet jobs submit` sends it so"


async def _problem_of_large(staged: Path) -> str:
    """Returns the same, found by a process of its own, which ends with whoever waits for it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "reinet.agents.service.blobs", str(staged),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Linux shares processors out by session: what this takes is not the service's share
    )  # fmt: skip
    try:
        told, _ = await asyncio.wait_for(process.communicate(), CHECK_S)
    except asyncio.TimeoutError:
        return f"it was not checked within {CHECK_S:g} s; send it again later"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode != 0:
        return "it could not be checked: the service is short of memory or is ending; send it again later"
    return told.decode("utf-8", "replace").strip()


def is_canonical(data: bytes) -> bool:
    """Returns whether a trace that parses is written as ``Trace.canonical_text`` writes it, so that its digest is the
    trace's own; much cheaper than writing it again."""
    return data.endswith(b"\n") and b"\r" not in data and not re.search(rb"(?:^|\n)0[0-9]", data)


if __name__ == "__main__":
    os.nice(10)  # nobody's answer waits for it
    sys.stdout.write(problem_of(Path(sys.argv[1])))
