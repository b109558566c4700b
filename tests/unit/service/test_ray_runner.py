"""What the runner under Ray does, with a Ray that only remembers what it was told."""

import fcntl
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from reinet.agents.service.running.progress import LOCK_FILE
from reinet.agents.service.running.ray_runner import RayRunner


class Cluster:
    """A cluster's job port, as its client shows it."""

    def __init__(self) -> None:
        self.running: dict[str, str] = {}

    def submit_job(self, submission_id: str, entrypoint: str, **_: object) -> None:
        assert submission_id not in self.running
        self.running[submission_id] = entrypoint

    def get_job_status(self, submission_id: str) -> SimpleNamespace:
        if submission_id not in self.running:
            raise RuntimeError(f"Job {submission_id} does not exist")
        return SimpleNamespace(value="RUNNING")

    def list_jobs(self) -> list[SimpleNamespace]:
        status = SimpleNamespace(value="RUNNING")
        return [SimpleNamespace(submission_id=i, entrypoint=e, status=status) for i, e in self.running.items()]

    def stop_job(self, submission_id: str) -> None:
        del self.running[submission_id]


def runner_on(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RayRunner:
    monkeypatch.setattr(RayRunner, "_connect", lambda _: cluster)
    return RayRunner(folder, "http://cluster:8265", 8265, at_once=1, workers=1)


def test_a_service_that_ends_ends_its_jobs_on_a_cluster_also_those_of_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    cluster.submit_job("of-another-1", "python -m reinet.agents.service.running.worker /elsewhere/jobs/of-another")
    job = tmp_path / "jobs" / "abc"
    job.mkdir(parents=True)
    first = runner_on(cluster, tmp_path, monkeypatch)
    first.start("abc", 1, job)
    first.start("abc", 1, job)
    assert set(cluster.running) == {"of-another-1", "abc-1"}
    second = runner_on(cluster, tmp_path, monkeypatch)  # the first was killed and never closed
    with (job / LOCK_FILE).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as its worker does
        ending = threading.Thread(target=second.close)
        ending.start()
        end_s = time.monotonic() + 10
        while "abc-1" in cluster.running and time.monotonic() < end_s:
            time.sleep(0.01)
    ending.join()
    assert set(cluster.running) == {"of-another-1"}
