"""What the service costs: clients that list and watch, a fleet that follows, uploads, a job beside a plain training."""

import asyncio
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from reinet.agents.model.artifact import load_artifact
from reinet.agents.service.bench_load import JOBS, NAME, clients, follow, uploads
from reinet.agents.service.blobs import Blobs
from reinet.agents.service.client import Client
from reinet.agents.service.config import load_config
from reinet.agents.service.database import Database
from reinet.agents.service.identity import ALL_ROLES, LOCAL, Caller
from reinet.agents.service.jobs import Given, Jobs
from reinet.agents.service.registry import Registry
from reinet.agents.service.running.progress import LOCK_FILE, Progress, Result
from reinet.agents.service.running.worker import BETWEEN_S
from reinet.agents.service.server import serve
from reinet.core.errors import ReinetError, ServiceError
from reinet.daemon.benches.served import SERVE, TIED

START_S = 60.0
SAMPLE_S = 0.1
"""Processes that the service starts are looked at so often."""
TRAINING: dict[str, Any] = {
    "name": "bench",
    "traces": {"train_count": 4, "select_count": 1, "seconds": 10},
    "rollout": {"workers": 0, "links": 8, "periods": 100},
    "ddpg": {"hidden": [32], "batch": 128, "replay": 20_000, "cold_start_iterations": 1, "normaliser_iterations": 1},
    "run": {"iterations": 60, "updates": 20, "evaluate_every": 60, "evaluate_s": 5, "checkpoint_every": 20},
}
"""A training of some seconds: what a service adds to one does not grow with it."""
IDLE = "import runpy; runpy.run_module('reinet.agents.service.bench', run_name='__main__')"
"""A service whose jobs are accepted and never get anywhere."""

Told = Callable[[str], None]


class Idle:
    """A runner whose workers count iterations as fast as a worker writes them down, and do nothing else."""

    def prepare(self) -> None:
        """Does nothing."""

    def start(self, job: str, attempt: int, folder: Path) -> None:
        """Starts to count."""
        threading.Thread(target=_count, args=(folder,), daemon=True).start()

    def state(self, job: str, attempt: int) -> Any:
        """Returns that it goes on."""
        return "running"

    def kill(self, job: str, attempt: int, folder: Path) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def _count(folder: Path) -> None:
    for iteration in range(10**6):
        Progress(iteration=iteration, iterations=10**6, wall_s=iteration * BETWEEN_S).write(folder)
        time.sleep(BETWEEN_S)


class Process:
    """A service in a process of its own, and what it took."""

    def __init__(
        self, folder: Path, runner: str = "process", idle: bool = True, stored_mb: int = 1, waiting_jobs: int = 1
    ) -> None:
        self.socket = folder / "s"
        self.path = folder / "trainer.toml"
        self.state = folder / "state"
        self.path.write_text(
            f'[trainer]\nfolder = "{self.state}"\nsocket = "{self.socket}"\nrunner = "{runner}"\nmin_free_mb = 0\n'
            f"[trainer.quota]\nstored_mb = {stored_mb}\nwaiting_jobs = {waiting_jobs}\njob_hours = 1000\n"
        )
        self._log = folder / "service.log"
        words = [str(self.path)] if idle else ["trainer", str(self.path)]
        script = TIED.format(parent=os.getpid()) + (IDLE if idle else SERVE)
        self._command = [sys.executable, "-c", script, *words]
        self._pid = 0

    @contextmanager
    def running(self) -> Iterator[Client]:
        """Starts it, yields a client, and ends it as an operator would."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        self._pid = process.pid
        client = Client(f"unix:{self.socket}")
        try:
            end_s = time.monotonic() + START_S
            while True:
                with suppress(ReinetError):
                    client.jobs()
                    break
                if process.poll() is not None or time.monotonic() > end_s:
                    raise ServiceError(f"the service did not start: {self._log.read_text()[-500:]}")
                time.sleep(0.05)
            yield client
        finally:
            client.close()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(START_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @contextmanager
    def watched(self, figures: dict[str, Any]) -> Iterator[None]:
        """Adds what the process takes meanwhile: its processor time, its share of a core, the most memory."""
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")  # the peak of memory counts from here
        over, others_kb = threading.Event(), [0]
        sampler = threading.Thread(target=self._sample, args=(over, others_kb))
        sampler.start()
        cpu_s, start_s = self.cpu_s(), time.monotonic()
        try:
            yield
        finally:
            over.set()
            sampler.join()
        took_s = time.monotonic() - start_s
        figures["service_cpu_s"] = self.cpu_s() - cpu_s
        figures["service_cores"] = figures["service_cpu_s"] / took_s
        figures["service_peak_mb"] = status_kb(self._pid, "VmHWM") / 1000
        figures["checks_peak_mb"] = others_kb[0] / 1000

    def _sample(self, over: threading.Event, most_kb: list[int]) -> None:
        """Keeps the most memory that processes of the service's own take at a time, as an upload's check does."""
        while not over.wait(SAMPLE_S):
            children: set[str] = set()
            for task in Path(f"/proc/{self._pid}/task").glob("*/children"):
                with suppress(OSError):
                    children |= set(task.read_text().split())
            most_kb[0] = max(most_kb[0], sum(status_kb(int(pid), "VmRSS") for pid in children))

    def cpu_s(self) -> float:
        """Returns the processor time that it has taken."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status_kb(pid: int, key: str) -> int:
    """Returns a line of a process's status; 0 where it is gone."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return 0
    return int(status.get(key, "0").split()[0])


def measure(
    listing: int, followers: int, sending: int, upload_mb: float, seconds: float, runner: str, models: list[Path],
    told: Told = lambda _what: None, repeat: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Returns what was asked for, by name; a number of 0 leaves a part out. ``models`` are two folders, ``repeat`` how
    often a job is compared with a plain training."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="reinet-bench-") as name:
        if listing or followers or sending:
            # Room for what is to be sent and for nothing beside it, so that one more of either kind is too many.
            process = Process(Path(name), stored_mb=max(math.ceil(sending * upload_mb), 1), waiting_jobs=JOBS + sending)
            digests, watched = _prepare(process, models)
            with process.running() as client:

                def listed() -> Coroutine[Any, Any, dict[str, Any]]:
                    end_s = time.monotonic() + seconds
                    return clients(process.socket, listing, watched, lambda: time.monotonic() < end_s)

                def sent() -> Coroutine[Any, Any, dict[str, Any]]:
                    return uploads(process.socket, sending, upload_mb, max(listing, 1), watched, TRAINING)

                parts: list[tuple[str, int, Callable[[], Coroutine[Any, Any, dict[str, Any]]]]] = [
                    ("clients", listing, listed),
                    ("followers", followers, lambda: follow(process.socket, client, followers, digests)),
                    ("uploads", sending, sent),
                ]
                if listing:
                    told(f"one who watches, {2 * seconds:g} s")
                    found["watch"] = {"core_share": _watch_share(process, client, watched, seconds)}
                for part, wanted, run in parts:
                    if wanted:
                        told(f"{wanted} {part}")
                        figures: dict[str, Any] = {}
                        with process.watched(figures):
                            made = asyncio.run(run())
                        found[part] = {part: wanted, **made, **figures}
        if runner:
            told(f"a job under runner = {runner!r} beside a plain training, {repeat} times")
            found["job"] = _job(Path(name), runner, repeat)
    return found


def _prepare(process: Process, models: list[Path]) -> tuple[list[str], str]:
    """Fills the service's folder before it starts: jobs, two models, and a name that pointed to one, then the other.

    Returns the models' digests and the job that will be at work.
    """
    config = load_config(process.path)
    config.folder.mkdir(parents=True, mode=0o700)
    database = Database(config.folder)
    registry = Registry(config.folder, database)
    jobs = Jobs(config.folder, database, Blobs(config.folder, database), most_workers=1, code_version="bench")
    caller = Caller(LOCAL, ALL_ROLES, config.quota)
    made = [jobs.submit(caller, Given(f"request-{n}", json.dumps(TRAINING), note=f"week {n}")) for n in range(JOBS)]
    digests = [load_artifact(folder).manifest_sha256 for folder in models]
    for folder, digest in zip(models, digests, strict=True):
        registry.add_of_job(made[0], folder, digest)
        registry.promote(digest, NAME, LOCAL, "bench", forced=True, gate="")
    database.close()
    return digests, made[0].id


def _watch_share(process: Process, client: Client, job: str, seconds: float) -> float:
    """Returns what one who watches a job takes of a core, of the service and of the client, as processor time.

    Walls of trainings, which may take a core, differ by more than that.
    """
    taken_s = []
    for watching in (False, True):
        cpu_s, end_s = process.cpu_s() + time.process_time(), time.monotonic() + seconds
        for _ in client.watch(job) if watching else ():
            if time.monotonic() > end_s:
                break
        time.sleep(max(end_s - time.monotonic(), 0.0))
        taken_s.append(process.cpu_s() + time.process_time() - cpu_s)
    return (taken_s[1] - taken_s[0]) / seconds


def _job(folder: Path, runner: str, repeat: int) -> dict[str, Any]:
    """Returns what a job takes from its submission to its model, and a plain training, in turn, so many pairs of them.

    ``over_train_s`` is the difference of what either takes beside its training, which on a busy host never takes as
    long twice: the median of the pairs, and its ends. A job of a service that has just started goes before them, which
    under Ray waits for the head. The job's part has the export, a command of its own without a service.
    ``until_worker_s`` of it pass until the worker's process is there, ``after_s`` from its end until whoever watches
    hears of it; in between are the worker's imports, as a plain training has them, and the export.
    """
    own = folder / "job"
    own.mkdir()
    config = own / "bench.toml"
    tables = {key: value for key, value in TRAINING.items() if isinstance(value, dict)}
    lines = [f'name = "{TRAINING["name"]}"']
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    config.write_text("\n".join(lines) + "\n")
    process = Process(own, runner, idle=False)
    with process.running() as client:
        first = _through(client, process)
        pairs = [(_plain(config, own / f"run-{number}"), _through(client, process)) for number in range(repeat)]
    over_s = [job["job_s"] - job["training_s"] - plain["beside_s"] for plain, job in pairs]
    medians = {key: float(np.median([job[key] for _, job in pairs])) for key in pairs[0][1]}
    return {
        "runner": runner,
        "pairs": repeat,
        "over_train_s": float(np.median(over_s)),
        "over_train_least_s": min(over_s),
        "over_train_most_s": max(over_s),
        "first_until_worker_s": first["until_worker_s"],
        "plain_s": float(np.median([plain["plain_s"] for plain, _ in pairs])),
        **medians,
    }


def _plain(config: Path, run_dir: Path) -> dict[str, float]:
    """Returns how long ``reinet train`` takes, and how much of it beside the training."""
    start_s, told = time.monotonic(), run_dir.with_suffix(".json")
    command = ["train", str(config), "--run-dir", str(run_dir), "--json", str(told)]
    reinet = [sys.executable, "-c", "from reinet.cli.main import main; main()"]
    done = subprocess.run([*reinet, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServiceError(f"reinet train failed: {done.stderr.strip()[-500:]}")
    plain_s = time.monotonic() - start_s
    return {"plain_s": plain_s, "beside_s": plain_s - json.loads(told.read_text())["wall_s"]}


def _through(client: Client, process: Process) -> dict[str, float]:
    """Returns how long a job takes, which is watched all the while, and when its worker began and ended."""
    start_s, submitted_s = time.monotonic(), time.time()
    *_, (job, _) = client.watch(client.submit(TRAINING)["job"])
    if job["state"] != "done":
        raise ServiceError(f"the job is {job['state']}: {job['problem']}")
    place = process.state / "jobs" / job["job"]
    return {
        "job_s": time.monotonic() - start_s,
        "training_s": job["wall_s"],
        "until_worker_s": (place / LOCK_FILE).stat().st_mtime - submitted_s,
        "after_s": time.time() - (place / Result.FILE).stat().st_mtime,
    }


if __name__ == "__main__":
    serve(load_config(Path(sys.argv[1])), Idle())
