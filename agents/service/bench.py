"""What the service costs: clients that list and watch, a fleet that follows, uploads, a job beside a plain training.

``python -m reinet.agents.service.bench CONFIG`` is a service whose jobs are accepted and never get anywhere.
"""

import asyncio
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np

from reinet.agents.model.artifact import MANIFEST_FILE, load_artifact
from reinet.agents.service.blobs import CHUNK_BYTES, Blobs
from reinet.agents.service.client import Client
from reinet.agents.service.config import load_config
from reinet.agents.service.database import Database
from reinet.agents.service.identity import ALL_ROLES, LOCAL, Caller
from reinet.agents.service.jobs import Given, Jobs
from reinet.agents.service.registry import Registry
from reinet.agents.service.server import serve
from reinet.core.errors import ReinetError, ServiceError
from reinet.proto import trainer_pb2 as pb
from reinet.proto import trainer_pb2_grpc

JOBS = 100
"""So many are listed: half a year of a small team's."""
START_S = 60.0
MOST_WAIT_S = 120.0
NAME = "production"
PART_BYTES = 48 * 2**20
"""An upload is of traces of at most so much: a service takes 64 MB in one."""
CHANNEL = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 16 * 2**20)]
"""Each client has a connection of its own, as clients of several hosts have."""
TRAINING: dict[str, Any] = {
    "name": "bench",
    "traces": {"train_count": 4, "select_count": 1, "seconds": 10},
    "rollout": {"workers": 0, "links": 8, "periods": 100},
    "ddpg": {"hidden": [32], "batch": 128, "replay": 20_000, "cold_start_iterations": 1, "normaliser_iterations": 1},
    "run": {"iterations": 60, "updates": 20, "evaluate_every": 60, "evaluate_s": 5, "checkpoint_every": 20},
}
"""A training of some seconds: what a service adds to one does not grow with it."""

STUBS: Any = trainer_pb2_grpc  # generated code carries no types
Told = Callable[[str], None]


class Idle:
    """A runner whose workers never get anywhere."""

    def start(self, job: str, attempt: int, folder: Path) -> None:
        """Does nothing."""

    def state(self, job: str, attempt: int) -> Any:
        """Returns that it goes on."""
        return "running"

    def kill(self, job: str, attempt: int, folder: Path) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class Process:
    """A service in a process of its own, and what it took."""

    def __init__(self, folder: Path, runner: str = "process", idle: bool = True) -> None:
        self.socket = folder / "s"
        self.path = folder / "trainer.toml"
        self.state = folder / "state"
        self.path.write_text(
            f'[trainer]\nfolder = "{self.state}"\nsocket = "{self.socket}"\nrunner = "{runner}"\nmin_free_mb = 0\n'
            "[trainer.quota]\nstored_mb = 1000000\nwaiting_jobs = 1000\njob_hours = 1000\n"
        )
        self._log = folder / "service.log"
        self._command = [sys.executable, "-m", "reinet.agents.service.bench", str(self.path)]
        if not idle:
            self._command = [
                sys.executable,
                "-c",
                "from reinet.cli.main import main; main()",
                "trainer",
                str(self.path),
            ]
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
        cpu_s, start_s = self._cpu_s(), time.monotonic()
        yield
        took_s = time.monotonic() - start_s
        figures["service_cpu_s"] = self._cpu_s() - cpu_s
        figures["service_cores"] = figures["service_cpu_s"] / took_s
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{self._pid}/status").read_text().splitlines())
        figures["service_peak_mb"] = int(status["VmHWM"].split()[0]) / 1000

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    clients: int, followers: int, uploads: int, upload_mb: float, seconds: float, runner: str, models: list[Path],
    told: Told = lambda _what: None,
) -> dict[str, Any]:  # fmt: skip
    """Returns what was asked for, by name; a number of 0 leaves a part out. ``models`` are two folders."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="reinet-bench-") as name:
        if clients or followers or uploads:
            process = Process(Path(name))
            digests = _prepare(process, models)
            with process.running() as client:
                parts: list[tuple[str, int, Callable[[], Coroutine[Any, Any, dict[str, Any]]]]] = [
                    ("clients", clients, lambda: _clients(process.socket, clients, seconds)),
                    ("followers", followers, lambda: _follow(process.socket, client, followers, digests)),
                    ("uploads", uploads, lambda: _uploads(process.socket, uploads, upload_mb)),
                ]
                for part, wanted, run in parts:
                    if wanted:
                        told(f"{wanted} {part}")
                        figures: dict[str, Any] = {}
                        with process.watched(figures):
                            made = asyncio.run(run())
                        found[part] = {part: wanted, **made, **figures}
        if runner:
            told(f"a job under runner = {runner!r} beside a plain training")
            found["job"] = _job(Path(name), runner)
    return found


def _prepare(process: Process, models: list[Path]) -> list[str]:
    """Fills the service's folder before it starts: jobs, two models, and a name that pointed to one, then the other."""
    config = load_config(process.path)
    config.folder.mkdir(parents=True, mode=0o700)
    database = Database(config.folder)
    registry = Registry(config.folder, database)
    jobs = Jobs(config.folder, database, Blobs(config.folder, database), 0, 1, "bench")
    caller = Caller(LOCAL, ALL_ROLES, config.quota)
    made = [jobs.submit(caller, Given(f"request-{n}", json.dumps(TRAINING), note=f"week {n}")) for n in range(JOBS)]
    digests = [load_artifact(folder).manifest_sha256 for folder in models]
    for folder, digest in zip(models, digests, strict=True):
        registry.add_of_job(made[0], folder, digest)
        registry.promote(digest, NAME, LOCAL, "bench", True, "")
    database.close()
    return digests


async def _clients(socket: Path, count: int, seconds: float) -> dict[str, Any]:
    """Lets clients watch a job each and list all of them about once a second; returns how long a list takes."""
    latencies_ms: list[float] = []
    end_s = time.monotonic() + seconds

    async def one() -> None:
        await asyncio.sleep(random.uniform(0, 1))
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL) as channel:
            stub = STUBS.JobsStub(channel)
            watch = stub.Watch(pb.WatchRequest(job="latest"))
            await watch.read()
            while time.monotonic() < end_s:
                start_s = time.monotonic()
                listed = await stub.List(pb.ListRequest(), timeout=MOST_WAIT_S)
                latencies_ms.append(1000 * (time.monotonic() - start_s))
                if len(listed.jobs) < JOBS:
                    raise ServiceError(f"a list had {len(listed.jobs)} of {JOBS} jobs")
                await asyncio.sleep(random.uniform(0.5, 1.5))
            watch.cancel()

    await asyncio.gather(*(one() for _ in range(count)))
    return {"lists": len(latencies_ms), **_quantiles("list_ms", latencies_ms)}


async def _follow(socket: Path, client: Client, count: int, digests: list[str]) -> dict[str, Any]:
    """Lets daemons follow a name, then points it back; returns how long it takes until each has the other model."""
    heard = asyncio.Semaphore(0)
    times_s: list[float] = []
    moved_s = [0.0]
    before, after = digests[1], digests[0]

    async def one(number: int) -> None:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL) as channel:
            stub = STUBS.ModelsStub(channel)
            daemon = f"host-{number}"
            async for pointer in stub.Follow(pb.FollowRequest(name=NAME, daemon=daemon)):
                if pointer.model == before:
                    heard.release()
                    continue
                manifest, file = hashlib.sha256(), ""
                async for chunk in stub.Fetch(pb.ModelRequest(model=pointer.model)):
                    file = chunk.file or file
                    if file == MANIFEST_FILE:
                        manifest.update(chunk.data)
                await stub.Report(pb.ReportRequest(daemon=daemon, name=NAME, model=pointer.model))
                if manifest.hexdigest() != after:
                    raise ServiceError("a follower got another model than the name points to")
                times_s.append(time.monotonic() - moved_s[0])
                return

    tasks = [asyncio.ensure_future(one(number)) for number in range(count)]
    for _ in range(count):
        await asyncio.wait_for(heard.acquire(), MOST_WAIT_S)
    moved_s[0] = time.monotonic()
    await asyncio.to_thread(client.rollback, NAME, "bench")
    await asyncio.wait_for(asyncio.gather(*tasks), MOST_WAIT_S)
    reported = sum(daemon["model"] == after for daemon in await asyncio.to_thread(client.fleet))
    if reported != count:
        raise ServiceError(f"{reported} of {count} followers are in the fleet with the model")
    return {"all_have_it_s": max(times_s), **_quantiles("has_it_s", times_s)}


async def _uploads(socket: Path, count: int, upload_mb: float) -> dict[str, Any]:
    """Sends traces from many clients at once; returns how long that takes, and a list's time meanwhile."""
    took_s: list[float] = []
    latencies_ms: list[float] = []
    over = threading.Event()

    async def one(number: int) -> None:
        start_s = time.monotonic()
        left, part = round(upload_mb * 1e6), 0
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL) as channel:
            stub = STUBS.JobsStub(channel)
            while left > 0:
                await stub.Upload(_sent(1_000_000 + 1_000 * (1000 * number + part), min(left, PART_BYTES)))
                left, part = left - PART_BYTES, part + 1
        took_s.append(time.monotonic() - start_s)

    async def lister() -> None:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL) as channel:
            stub = STUBS.JobsStub(channel)
            while not over.is_set():
                start_s = time.monotonic()
                await stub.List(pb.ListRequest(), timeout=MOST_WAIT_S)
                latencies_ms.append(1000 * (time.monotonic() - start_s))
                await asyncio.sleep(0.1)

    listing = asyncio.ensure_future(lister())
    start_s = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(count)))
    whole_s = time.monotonic() - start_s
    over.set()
    await listing
    return {"upload_mb": upload_mb, "all_there_s": whole_s, "mb_per_s": count * upload_mb / whole_s,
            **_quantiles("list_ms", latencies_ms)}  # fmt: skip


def _lines(first_ms: int, size_bytes: int) -> Iterator[bytes]:
    """Yields a trace of about so many bytes, twenty opportunities a millisecond, a piece at a time."""
    at_ms, done = first_ms, 0
    while done < size_bytes:
        piece = b"".join(b"%d\n" % (at_ms + i) * 20 for i in range(CHUNK_BYTES // 200))
        yield piece
        at_ms, done = at_ms + CHUNK_BYTES // 200, done + len(piece)


async def _sent(first_ms: int, size_bytes: int) -> AsyncIterator[pb.UploadRequest]:
    digest, size = hashlib.sha256(), 0
    for piece in _lines(first_ms, size_bytes):
        digest.update(piece)
        size += len(piece)
        await asyncio.sleep(0)
    yield pb.UploadRequest(header=pb.UploadHeader(sha256=digest.hexdigest(), size_bytes=size))
    for piece in _lines(first_ms, size_bytes):
        yield pb.UploadRequest(chunk=piece)


def _job(folder: Path, runner: str) -> dict[str, Any]:
    """Returns what a job takes from its submission to its model, and a plain training with its export.

    ``added_s`` is the difference of what either takes beside its training, which on a busy host never takes as long
    twice.
    """
    own = folder / "job"
    own.mkdir()
    config = own / "bench.toml"
    tables = {key: value for key, value in TRAINING.items() if isinstance(value, dict)}
    lines = [f'name = "{TRAINING["name"]}"']
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    config.write_text("\n".join(lines) + "\n")
    start_s = time.monotonic()
    reinet = [sys.executable, "-c", "from reinet.cli.main import main; main()"]
    trained = ["train", str(config), "--run-dir", str(own / "run"), "--json", str(own / "run.json")]
    for command in (trained, ["export", str(own / "run" / "best")]):
        done = subprocess.run([*reinet, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceError(f"reinet {command[0]} failed: {done.stderr.strip()[-500:]}")
    plain_s = time.monotonic() - start_s
    plain_training_s = json.loads((own / "run.json").read_text())["wall_s"]
    with Process(own, runner, idle=False).running() as client:
        start_s = time.monotonic()
        *_, (job, _) = client.watch(client.submit(TRAINING)["job"])
        through_s = time.monotonic() - start_s
        if job["state"] != "done":
            raise ServiceError(f"the job is {job['state']}: {job['problem']}")
    return {
        "runner": runner,
        "plain_s": plain_s,
        "plain_training_s": plain_training_s,
        "job_s": through_s,
        "training_s": job["wall_s"],
        "added_s": (through_s - job["wall_s"]) - (plain_s - plain_training_s),
    }


def _quantiles(name: str, values: list[float]) -> dict[str, float]:
    return {f"{name}_p50": float(np.percentile(values, 50)), f"{name}_p99": float(np.percentile(values, 99))}


if __name__ == "__main__":
    serve(load_config(Path(sys.argv[1])), Idle())
