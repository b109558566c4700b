"""A disk without room: nothing is accepted, a worker says by its status why it ended, and the runner hears it."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from helpers.trainer import TINY, Service
from helpers.waiting import wait_for
from reinet.agents.service import files
from reinet.agents.service.database import Database
from reinet.agents.service.running import runners
from reinet.agents.service.running.progress import DISK_FULL, LOG_FILE, ORDER_FILE
from reinet.agents.service.running.runners import ProcessRunner, worker_command
from reinet.core.errors import ServiceError
from reinet.daemon.processes.flow_sender import FlowSender
from reinet.daemon.registry import Address
from reinet.envs.trace import Trace
from reinet.kshim.recorded import RECORD_DTYPE, header

MORE_THAN_THERE_IS_MB = 10**12
LIMIT_BYTES = 20_000
"""No file may grow beyond it: the log's lines have room, a checkpoint has not."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("full"), idle=True, min_free_mb=MORE_THAN_THERE_IS_MB)
    made.start()
    yield made
    made.close()


def test_neither_trace_nor_job_is_accepted_while_less_than_the_least_is_free(service: Service) -> None:
    trace = Trace.constant(10, 5)
    with service.client() as client:
        with pytest.raises(ServiceError, match=r"MB of the service's disk are free; no trace is accepted"):
            client._upload({trace.sha256: trace}, lambda *_: None)
        with pytest.raises(ServiceError, match="no job is accepted"):
            client.submit(TINY)
    assert not list((service.folder / "blobs").iterdir())
    assert not list((service.folder / "staged").iterdir())


def test_recordings_wait_for_room_and_none_is_taken_for_one_that_the_service_refuses(
    service: Service, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.flow").write_bytes(header(name) + np.zeros(3, RECORD_DTYPE).tobytes())
    sender = FlowSender(Address(f"unix:{service.socket}"), "host-1", tmp_path)
    sender.round(0.0, 20)
    assert "no recorded flow is accepted" in sender.problem
    assert sender._refused == {}, "the next round tries them again"
    assert not list((service.folder / "flows").iterdir())


@pytest.mark.parametrize("log_bytes", [0, LIMIT_BYTES], ids=["room for a log", "no room for a log"])
def test_a_worker_whose_disk_takes_no_more_ends_with_a_status_of_its_own(tmp_path: Path, log_bytes: int) -> None:
    files.write_json(tmp_path / ORDER_FILE, {"config": TINY})
    (tmp_path / LOG_FILE).write_bytes(b"x" * log_bytes)
    limits = f"import resource; resource.setrlimit({resource.RLIMIT_FSIZE}, ({LIMIT_BYTES}, {LIMIT_BYTES}));"
    _, *module = worker_command(tmp_path)
    run = f"{limits} import os, sys; os.execv(sys.executable, [sys.executable, *{module!r}])"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == DISK_FULL, done.stderr
    log = (tmp_path / LOG_FILE).read_text()
    assert log_bytes or "cannot be written" in log
    assert "Traceback" not in log + done.stderr


@pytest.mark.parametrize(("status", "state"), [(0, "gone"), (1, "failed"), (DISK_FULL, "full")])
def test_the_runner_tells_a_full_disk_from_another_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, state: str
) -> None:
    monkeypatch.setattr(
        runners, "worker_command", lambda _folder: [sys.executable, "-c", f"raise SystemExit({status})"]
    )
    runner = ProcessRunner(tmp_path)
    runner.start("abc", 1, tmp_path)
    found = wait_for(lambda: (now := runner.state("abc", 1)) != "running" and now, 30)
    assert found == state


@pytest.mark.parametrize("pragma", ["max_page_count = 1", "query_only = ON"], ids=["full", "not to be written"])
def test_a_file_that_takes_nothing_is_told_with_both_of_what_may_be_wrong(tmp_path: Path, pragma: str) -> None:
    database = Database(tmp_path)
    database._connection.execute(f"PRAGMA {pragma}")
    match = "its disk has room and that the service may write the file"
    with pytest.raises(ServiceError, match=match), database.change() as run:
        run("CREATE TABLE further (x)")
    database.close()
