"""Somebody's sqlite3 keeps the service's file locked: who changes something hears so, and nobody else waits."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from helpers.places import ROOT
from helpers.trainer import TINY, Service, put_model
from reinet.agents.service import database as database_module
from reinet.agents.service.database import FILE, Database
from reinet.core.errors import ServiceError

LOCKED = "another program has it locked"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path, idle=True)
    put_model(made.folder, ROOT / "checkpoints" / "default", "production")
    put_model(made.folder, ROOT / "checkpoints" / "small", "production")
    made.start()
    yield made
    made.close()


def test_a_locked_file_costs_nobody_who_changes_nothing(service: Service) -> None:
    with service.client() as client, service.client() as other:
        job = client.submit(TINY)["job"]
        changes: list[Callable[[], object]] = [
            lambda: client.rollback("production"), lambda: client.stop(job), lambda: client.submit(TINY),
        ]  # fmt: skip
        told: list[str] = []

        def change(one: Callable[[], object]) -> None:
            with pytest.raises(ServiceError) as error:
                one()
            told.append(str(error.value))

        with closing(sqlite3.connect(service.folder / FILE, isolation_level=None)) as somebody:
            somebody.execute("BEGIN EXCLUSIVE")
            callers = [threading.Thread(target=change, args=(one,)) for one in changes]
            for caller in callers:
                caller.start()
            time.sleep(0.5)  # all of them are with the service by now, and wait for some seconds
            for _ in range(3):
                assert other.jobs()
                assert other.model("production")
                assert other.history()
            assert not told, "who only looks waited for those who change something"
            for caller in callers:
                caller.join()
        assert len(told) == len(changes)
        assert all(LOCKED in words and "fuser" in words for words in told), told
        assert client.rollback("production"), "the file is free again"
    assert "Traceback" not in service.log()


def test_who_comes_after_one_that_waited_in_vain_hardly_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_MS", 1000)
    database = Database(tmp_path)

    def change() -> float:
        began_s = time.monotonic()
        with database.change() as run:
            run("DELETE FROM uploads")
        return time.monotonic() - began_s

    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None, check_same_thread=False)) as somebody:
        somebody.execute("BEGIN IMMEDIATE")
        waited_s = []
        for _ in range(2):
            began_s = time.monotonic()
            with pytest.raises(ServiceError, match=LOCKED):
                change()
            waited_s.append(time.monotonic() - began_s)
        assert waited_s[0] >= 1.0 > waited_s[1], "the second one waited as the first one did"
        somebody.execute("ROLLBACK")
        change()
        somebody.execute("BEGIN IMMEDIATE")
        letting_go = threading.Timer(0.3, somebody.execute, ("ROLLBACK",))
        letting_go.start()
        assert change() >= 0.2, "a lock of a moment is waited for again"
        letting_go.join()
    database.close()


def test_a_start_on_a_locked_file_says_that_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_MS", 50)
    Database(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as somebody:
        somebody.execute("PRAGMA locking_mode = EXCLUSIVE")
        somebody.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ServiceError, match=LOCKED):
            Database(tmp_path)
