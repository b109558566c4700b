"""The service's memory: one SQLite file with a write-ahead log, every change a transaction on the disk.

Folders hold bytes (traces, checkpoints, models), named by content or by a job's id; the file says which of them count.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reinet.core.errors import ServiceError

FILE = "trainer.sqlite"
VERSION = 1
"""A file of another number is refused: it belongs to another version of the service."""
BUSY_MS = 5000
"""Only this process writes; a person's sqlite3 may look meanwhile."""

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


class Database:
    """The file, opened once; one thread at a time uses it. Raises ServiceError where it cannot be opened or written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._lock = threading.RLock()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")  # what was said to be accepted survives a power cut
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            self._make()
        except (OSError, sqlite3.Error) as error:
            raise ServiceError(f"{self.path}: {error}; set trainer.folder to a folder of the service's own") from None

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
        """Yields what executes a statement; all of them hold together at the end, or none does."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except sqlite3.OperationalError as error:
                raise ServiceError(f"{self.path}: {error}; is the disk full?") from None
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def rows(self, query: str, *values: Any) -> list[Row]:
        """Returns what a query finds."""
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def row(self, query: str, *values: Any) -> Row | None:
        """Returns the first row that a query finds."""
        found = self.rows(query, *values)
        return found[0] if found else None

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()
