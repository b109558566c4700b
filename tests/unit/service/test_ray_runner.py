"""What the runner under Ray does, with a Ray that only remembers what it was told."""

import fcntl
import http.server
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from reinet.agents.service.running import ray_runner
from reinet.agents.service.running.progress import LOCK_FILE
from reinet.agents.service.running.ray_runner import RayRunner
from reinet.core.errors import ServiceError


class Cluster:
    """A cluster's job port, as its client shows it."""

    def __init__(self) -> None:
        self.running: dict[str, str] = {}
        self.ended: dict[str, tuple[str, int | None]] = {}

    def submit_job(self, submission_id: str, entrypoint: str, **_: object) -> None:
        assert submission_id not in self.running
        self.running[submission_id] = entrypoint

    def get_job_info(self, submission_id: str) -> SimpleNamespace:
        if submission_id in self.ended:
            status, code = self.ended[submission_id]
            return SimpleNamespace(status=SimpleNamespace(value=status), driver_exit_code=code)
        if submission_id not in self.running:
            raise RuntimeError(f"Job {submission_id} does not exist")
        return SimpleNamespace(status=SimpleNamespace(value="RUNNING"), driver_exit_code=None)

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


@pytest.mark.parametrize(
    ("status", "code", "state"),
    [("SUCCEEDED", 0, "gone"), ("STOPPED", None, "gone"), ("FAILED", 1, "failed"), ("FAILED", 74, "full"),
     ("FAILED", -9, "killed"),
     ("FAILED", 137, "killed"), ("FAILED", None, "killed"), ("PENDING", None, "running")],
)  # fmt: skip
def test_a_worker_that_was_killed_is_no_worker_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, code: int | None, state: str
) -> None:
    """Who fails three times in one place is given up; who is killed may have been killed for a reason that passes."""
    cluster = Cluster()
    runner = runner_on(cluster, tmp_path, monkeypatch)
    assert runner.state("abc", 1) == "gone", "no Ray that is up has heard of it"
    cluster.ended["abc-1"] = (status, code)
    assert runner.state("abc", 1) == state


def test_what_ray_leaves_in_its_folder_of_temporary_files_goes_with_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of forks of its dashboard left a folder in /tmp for each head that was ended."""
    made: list[Path] = []

    def start(_command: list[str], env: dict[str, str], **_: object) -> SimpleNamespace:
        made.append(Path(tempfile.mkdtemp(prefix="pymp-", dir=env.get("TMPDIR"))))
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(RayRunner, "_connect", lambda _: None)
    monkeypatch.setattr(ray_runner.subprocess, "run", start)
    runner = RayRunner(tmp_path, None, ray_runner._free_port(), at_once=1, workers=1)
    with pytest.raises(ServiceError, match="Ray did not start"):
        runner.prepare()
    assert len(made) == 1
    assert not made[0].exists()


class AnotherRay(http.server.BaseHTTPRequestHandler):
    """The job port of a Ray of somebody else's, which asks for no token."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        version = json.dumps({"version": "4", "ray_version": "2", "ray_commit": "c", "session_name": "s"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(version)))
        self.end_headers()
        self.wfile.write(version)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def another_ray() -> Iterator[int]:
    """The port of one."""
    AnotherRay.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), AnotherRay) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_jobs_go_to_no_other_ray_that_has_the_port_of_the_services_own(tmp_path: Path, another_ray: int) -> None:
    runner = RayRunner(tmp_path, None, another_ray, at_once=1, workers=1)
    with pytest.raises(ServiceError, match=rf"listens at http://127\.0\.0\.1:{another_ray}, .*: set trainer\.ray_port"):
        runner.start("abc", 1, tmp_path)
    assert not AnotherRay.asked


def test_the_address_of_the_configuration_holds_whatever_the_environment_says(
    tmp_path: Path, another_ray: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ray_runner.ADDRESSES:
        monkeypatch.setenv(name, f"http://127.0.0.1:{ray_runner._free_port()}")
    RayRunner(tmp_path, f"http://127.0.0.1:{another_ray}", 8265, at_once=1, workers=1).prepare()
    assert AnotherRay.asked


def test_an_agent_of_a_head_that_was_killed_is_ended_though_its_name_lies_over_the_mark(tmp_path: Path) -> None:
    """Ray's agents have the mark in their environment no more, and one of them asked for its head on a whole core."""
    place = ray_runner._short_name(tmp_path / "ray")
    runner = RayRunner(tmp_path, None, 8265, at_once=1, workers=1)
    place.mkdir(mode=0o700)
    waits = "import sys, time; file = open(sys.argv[1], 'w'); print(flush=True); time.sleep(60)"

    def started(name: str, log: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [name, "-c", waits, str(log)], executable=sys.executable, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process

    with (
        started("ray::DashboardAgent", place / "agent.log") as agent,
        started("ray::DashboardAgent", tmp_path / "agent.log") as anothers,
        started("tail", place / "tail.log") as reader,
    ):
        try:
            runner.close()
            assert agent.wait(60) == -signal.SIGKILL
            assert anothers.poll() is None, "another Ray's"
            assert reader.poll() is None, "somebody reads a log"
            assert not place.exists()
        finally:
            for process in (agent, anothers, reader):
                process.kill()
