"""The service's memory: one SQLite file with a write-ahead log, every change a transaction on the disk.

Folders hold bytes (traces, checkpoints, models), named by content or by a job's id; the file says which of them count.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from reinet.core.errors import ServiceError

FILE = "trainer.sqlite"
VERSION = 1
"""A file of another number is refused: it belongs to another version of the service."""
BUSY_MS = 5000
"""Only this process writes; a person's sqlite3 may look meanwhile, or change something in a moment."""
STILL_BUSY_MS = 50
"""Whoever has kept the file locked for longer may do so for hours: what follows waits no longer than this."""

# Rows are told of as they were written (their rowid), not by their time: a clock that was set back would put a new job
# or model before others, and ``latest`` would be one of those.
SCHEMA = """
CREATE TABLE jobs (
  id TEXT PRIMARY KEY, request TEXT NOT NULL, owner TEXT NOT NULL, name TEXT NOT NULL, note TEXT NOT NULL,
  parent TEXT NOT NULL, config TEXT NOT NULL, traces TEXT NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL,
  failures INTEGER NOT NULL, iteration INTEGER NOT NULL, created_s REAL NOT NULL, ended_s REAL NOT NULL,
  wall_s REAL NOT NULL, model TEXT NOT NULL, problem TEXT NOT NULL, code_version TEXT NOT NULL,
  UNIQUE (owner, request));
CREATE TABLE uploads (
  owner TEXT NOT NULL, sha256 TEXT NOT NULL, size_bytes INTEGER NOT NULL, PRIMARY KEY (owner, sha256));
CREATE TABLE models (
  sha256 TEXT PRIMARY KEY, name TEXT NOT NULL, job TEXT NOT NULL, owner TEXT NOT NULL, parent TEXT NOT NULL,
  created_s REAL NOT NULL, size_bytes INTEGER NOT NULL, lineage TEXT NOT NULL);
CREATE TABLE promotions (
  number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, name TEXT NOT NULL, model TEXT NOT NULL,
  before TEXT NOT NULL, who TEXT NOT NULL, when_s REAL NOT NULL, why TEXT NOT NULL, forced INTEGER NOT NULL,
  gate TEXT NOT NULL);
CREATE TABLE pointers (name TEXT PRIMARY KEY, model TEXT NOT NULL, number INTEGER NOT NULL);
CREATE TABLE daemons (
  owner TEXT NOT NULL, daemon TEXT NOT NULL, name TEXT NOT NULL, model TEXT NOT NULL, version TEXT NOT NULL,
  problem TEXT NOT NULL, figures TEXT NOT NULL, seen_s REAL NOT NULL, PRIMARY KEY (owner, daemon));
"""

Row = sqlite3.Row
Answer = TypeVar("Answer")


class Database:
    """The file, opened to write and to read; one thread at a time does either, and who reads waits for no disk.

    Raises ServiceError where it cannot be opened or written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._lock, self._reading = threading.RLock(), threading.Lock()
        self._changing: int | None = None
        """The thread that is in a change: it alone sees what does not hold yet."""
        self._hurried = False
        """Whether the last change found the file locked, and waited in vain."""
        self._all: list[sqlite3.Connection] = []
        self._apart = ThreadPoolExecutor(1, thread_name_prefix="changes")
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._connection = self._opened()
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")  # what was said to be accepted survives a power cut
            self._make()
            self._reader = self._opened()
            self._reader.execute("PRAGMA query_only = ON")
        except (ServiceError, OSError, sqlite3.Error) as error:
            for opened in self._all:
                opened.close()
            if isinstance(error, ServiceError):
                raise
            if _is_locked(error):
                raise self._told(error) from None
            raise ServiceError(f"{self.path}: {error}; set trainer.folder to a folder of the service's own") from None

    def _opened(self) -> sqlite3.Connection:
        opened = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._all.append(opened)
        opened.row_factory = sqlite3.Row
        opened.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        return opened

    def _make(self) -> None:
        with self.change() as run:
            (version,) = run("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in SCHEMA.split(";\n"):
                    run(statement)
                run(f"PRAGMA user_version = {VERSION}")
            elif version != VERSION:
                raise ServiceError(
                    f"{self.path}: of version {version}, this is {VERSION}; use the release that made it"
                )

    @contextmanager
    def change(self) -> Iterator[Any]:
        """Yields what executes a statement; all of them hold together at the end, or none does.

        Raises ServiceError where the file takes no more.
        """
        with self._lock:
            try:
                self._begin()
                self._changing = threading.get_ident()
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                raise self._told(error) from None
            finally:
                self._changing = None
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _begin(self) -> None:
        """Begins a change; who comes after one that waited for the file in vain hardly waits for it."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:  # it is locked
            self._connection.execute(f"PRAGMA busy_timeout = {STILL_BUSY_MS}")
            self._hurried = True
            raise
        if self._hurried:
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            self._hurried = False

    async def apart(self, change: Callable[..., Answer], *arguments: Any) -> Answer:
        """Returns what a function that changes the file returns. It has a thread of its own: where somebody else has
        the file locked, those alone wait who change something, and neither the event loop nor other threads do."""
        return await asyncio.get_running_loop().run_in_executor(self._apart, change, *arguments)

    def rows(self, query: str, *values: Any) -> list[Row]:
        """Returns what a query finds, within a change what holds in it."""
        try:
            if self._changing == threading.get_ident():
                return self._connection.execute(query, values).fetchall()
            with self._reading:
                return self._reader.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._told(error) from None

    def _told(self, error: Exception) -> Exception:
        """Returns what is told of SQLite's error; a mistake of ours, such as a query that is none, stays what it is."""
        if _is_locked(error):
            return ServiceError(
                f"{self.path}: another program has it locked, so nothing can be changed; end that program, such as a "
                f"sqlite3 in a transaction (`fuser {self.path}` names it), then try again"
            )
        if isinstance(error, sqlite3.OperationalError):
            return ServiceError(
                f"{self.path}: {error}; see that its disk has room and that the service may write the file and "
                "its folder"
            )
        if type(error) is sqlite3.DatabaseError:  # the file itself
            return ServiceError(
                f"{self.path}: {error}; end the service, then put back a copy of the file, or move it away: traces and "
                "models keep their folders, and what the file said of them, jobs and names is lost"
            )
        return error

    def row(self, query: str, *values: Any) -> Row | None:
        """Returns the first row that a query finds."""
        found = self.rows(query, *values)
        return found[0] if found else None

    def close(self) -> None:
        """Closes the file."""
        self._apart.shutdown()
        with self._lock, self._reading:
            for opened in self._all:
                opened.close()


def _is_locked(error: Exception) -> bool:
    """Returns whether another program keeps the file; Python 3.10 does not say SQLite's number of an error."""
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
