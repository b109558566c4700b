"""A training service in a process of its own, to be killed, and a training that takes a second."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from reinet.agents.service.client import Client
from reinet.core.errors import ReinetError

TINY: dict[str, Any] = {
    "name": "tiny",
    "traces": {"train_count": 3, "select_count": 1, "seconds": 10},
    "rollout": {"workers": 0, "links": 3, "periods": 40},
    "ddpg": {"hidden": [16], "batch": 32, "replay": 1000, "cold_start_iterations": 1, "normaliser_iterations": 1},
    "run": {"iterations": 6, "updates": 5, "evaluate_every": 3, "evaluate_s": 5, "checkpoint_every": 2},
    "harm": {"repeat": 0},  # it takes seconds; test_trained_harm.py asks
}
SMALL_SUITE = """
title = "Small"
[[scenario]]
name = "walking"
agents = ["none", "rule"]
plain = ["reno"]
traces = ["lte-walking"]
trace_seconds = 10
seconds = 5
repeat = 1
"""
"""A promotion asks the whole gate over one short link, and has its answer in a second."""
START_S = 60.0
"""A service imports for a second or two; a busy host takes longer."""
NOBODY_WORKS = """
import sys
from pathlib import Path
from reinet.agents.service.config import load_config
from reinet.agents.service.server import serve
class Idle:
    def prepare(self): pass
    def start(self, job, attempt, folder): pass
    def state(self, job, attempt): return "running"
    def kill(self, job, attempt, folder): pass
    def close(self): pass
serve(load_config(Path(sys.argv[1])), Idle())
"""
"""A service whose jobs are started and never get anywhere: what it accepts is all that is looked at."""


class Service:
    """A service below a folder; ``kill`` is kill -9, ``start`` again goes on."""

    def __init__(
        self, folder: Path, runner: str = "process", more: str = "", idle: bool = False, min_free_mb: int = 0
    ) -> None:
        self.folder = folder / "state"
        self.socket = folder / "s"
        self.config = folder / "trainer.toml"
        self.config.write_text(
            f'[trainer]\nfolder = "{self.folder}"\nsocket = "{self.socket}"\nrunner = "{runner}"\n'
            f"min_free_mb = {min_free_mb}\n{more}"
        )
        self._log = folder / "service.log"
        self._idle = idle
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it answers."""
        command = ["-c", NOBODY_WORKS] if self._idle else ["-c", "from reinet.cli.main import main; main()", "trainer"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command, str(self.config)], stdout=log, stderr=log, start_new_session=True
            )
        end_s = time.monotonic() + START_S
        while True:
            assert self._process.poll() is None, self.log()
            with suppress(ReinetError), self.client() as client:
                client.jobs()
                return
            assert time.monotonic() < end_s, self.log()
            time.sleep(0.05)

    def client(self) -> Client:
        """A client of it."""
        return Client(f"unix:{self.socket}")

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Ends it as a power cut would; its workers go on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Ends it as an operator would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def log(self) -> str:
        """What it wrote."""
        return self._log.read_text()

    def close(self) -> None:
        """Ends it and what it may have left, workers of a service that was killed; prints its log, and Ray's, which
        pytest shows where a test failed."""
        from reinet.agents.service.running.runners import worker_pid

        if self._process is not None and self._process.poll() is None:
            self.end()
        for log in (self._log, *sorted(self.folder.glob("ray/*.log")), *sorted(self.folder.glob("jobs/*/log.txt"))):
            if log.is_file():
                print(f"--- {log.name}", log.read_text(errors="replace")[-4000:], sep="\n")
        for folder in (self.folder / "jobs").glob("*"):
            if (pid := worker_pid(folder)) is not None:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)


def small_gate(folder: Path, more: str = "", harm_repeat: int = 0) -> str:
    """The ``[trainer.gate]`` table of a service for which a gate in full, seconds of a core, would say no more."""
    suite = folder / "small-suite.toml"
    suite.write_text(SMALL_SUITE)
    # Policies that have learned for a second may cost short transfers anything: the limits are not what is looked at.
    harm = f"{{ repeat = {harm_repeat}, most_failed_share = 1.0, most_ratio = 1000.0 }}"
    return f'[trainer.gate]\nsuite = "{suite}"\nscenarios = ["walking"]\nno_harm = {harm}\n{more}'


def put_model(state: Path, folder: Path, name: str) -> str:
    """Puts a model into the registry of a service that does not run, points a name to it, and returns its sha256."""
    from reinet.agents.model.artifact import load_artifact
    from reinet.agents.service.database import Database
    from reinet.agents.service.jobs import Job
    from reinet.agents.service.registry import Registry

    job = Job(
        id="0" * 12, owner="local", name="x", note="", parent="", config_json="{}", sets_json="[]", state="done",
        attempt=1, failures=0, iteration=0, created_s=0.0, ended_s=0.0, wall_s=0.0, model="", problem="",
        code_version="1",
    )  # fmt: skip
    database = Database(state)
    registry = Registry(state, database)
    digest = registry.add_of_job(job, folder, load_artifact(folder).manifest_sha256)
    registry.promote(digest, name, "local", "shipped", False, "")
    database.close()
    return digest
