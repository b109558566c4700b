"""Workers that are processes: a service that ends leaves none at work, whoever started it; what a worker refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.trainer import TINY
from helpers.waiting import wait_for
from reinet.agents.service import files
from reinet.agents.service.running import runners
from reinet.agents.service.running.progress import LOCK_FILE, LOG_FILE, ORDER_FILE, Result
from reinet.agents.service.running.runners import ProcessRunner, at_work, worker_command

WORKER = """
import fcntl, os, signal, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock.write(str(os.getpid()))
lock.flush()
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["obedient", "deaf"])
def test_a_service_that_ends_ends_the_workers_of_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(runners, "END_GRACE_S", 1.0 if kind == "deaf" else 30.0)
    place = tmp_path / "jobs" / "abc"
    place.mkdir(parents=True)
    command = [sys.executable, "-c", WORKER, str(place / LOCK_FILE), kind]
    with subprocess.Popen(command, start_new_session=True) as worker:
        try:
            wait_for(lambda: (place / LOCK_FILE).is_file() and (place / LOCK_FILE).read_text(), 60)
            ProcessRunner(tmp_path).close()
            assert worker.wait(60) != 0
            assert not at_work(place)
        finally:
            worker.kill()


def test_a_job_whose_configuration_an_older_version_took_ends_with_the_reason_and_is_not_tried_again(
    tmp_path: Path,
) -> None:
    files.write_json(tmp_path / ORDER_FILE, {"config": {**TINY, "ddpg": {**TINY["ddpg"], "gamma": 0}}})
    done = subprocess.run(worker_command(tmp_path), check=False, timeout=120)
    assert done.returncode == 0, "which is: it came to a result"
    found = Result.read(tmp_path)
    assert found is not None
    assert found.problem == (
        "this version refuses the job's configuration, so submit it again with another: "
        "ddpg.gamma: Input should be greater than 0, not 0"
    )
    assert "Traceback" not in (tmp_path / LOG_FILE).read_text()
