"""Many clients at once: quotas hold, memory is bounded, and nobody who reads waits for one who writes."""

import asyncio
import hashlib
import inspect
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.trainer import TINY
from reinet.agents.service import fleet, jobs_servicer
from reinet.agents.service.blobs import CHUNK_BYTES, Blobs
from reinet.agents.service.config import Quota, TrainerConfig
from reinet.agents.service.database import Database
from reinet.agents.service.fleet import Flows
from reinet.agents.service.identity import ALL_ROLES, Caller, Callers
from reinet.agents.service.jobs import Given, Jobs
from reinet.agents.service.jobs_servicer import MOST_UPLOADS, MOST_WAITING, JobsServicer
from reinet.agents.service.places import Places
from reinet.agents.service.running.progress import Progress
from reinet.core.errors import ServiceError
from reinet.daemon.processes.flow_recorder import BLOCK_BYTES
from reinet.envs.trace import Trace
from reinet.kshim.recorded import header
from reinet.proto import trainer_pb2 as pb

TRACES = [Trace.constant(mbps, 70) for mbps in (11, 12, 13)]
"""0.4 MB each."""


@pytest.fixture
def servicer(tmp_path: Path) -> Iterator[JobsServicer]:
    database = Database(tmp_path)
    blobs = Blobs(tmp_path, database)
    jobs = Jobs(tmp_path, database, blobs, most_workers=0, code_version="test")
    yield JobsServicer(jobs, blobs, Flows(tmp_path), Callers(TrainerConfig()))
    database.close()


async def silent() -> AsyncIterator[pb.UploadRequest]:
    await asyncio.Event().wait()
    yield pb.UploadRequest()


async def chunks_of(trace: Trace) -> AsyncIterator[bytes]:
    text = trace.canonical_text
    for start in range(0, len(text), CHUNK_BYTES):
        yield text[start : start + CHUNK_BYTES]


def test_of_uploads_at_once_only_what_the_quota_has_room_for_stays(tmp_path: Path) -> None:
    database = Database(tmp_path)
    blobs = Blobs(tmp_path, database)
    caller = Caller("alice", ALL_ROLES, Quota(stored_mb=1))

    async def send() -> list[BaseException | None]:
        for trace in TRACES:
            blobs.check(caller, trace.sha256, len(trace.canonical_text))  # by itself each has room
        sent = [blobs.receive(caller, one.sha256, len(one.canonical_text), chunks_of(one)) for one in TRACES]
        return await asyncio.gather(*sent, return_exceptions=True)

    refused = [error for error in asyncio.run(send()) if error is not None]
    assert len(refused) == 1
    assert isinstance(refused[0], ServiceError)
    assert "are the quota" in str(refused[0])
    stored = sum(path.stat().st_size for path in tmp_path.glob("blobs/*/*"))
    assert stored == blobs.stored_bytes("alice") <= 1_000_000
    assert not list(tmp_path.glob("staged/*"))
    database.close()


def test_an_owners_recordings_are_so_many_at_most_and_each_takes_whole_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = Flows(tmp_path)

    def kept_of(caller: Caller, count: int) -> list[str]:
        async def data(name: str) -> AsyncIterator[bytes]:
            yield header(name)

        async def send() -> None:
            for name in names:
                digest, size = hashlib.sha256(header(name)).hexdigest(), len(header(name))
                await flows.receive(caller, f"host-{name[-1]}", name, digest, size, data(name))

        names = [f"f{number:03d}" for number in range(count)]
        asyncio.run(send())
        return sorted(path.stem for path in (tmp_path / "flows" / caller.name).rglob("*.flow"))

    megabyte = Quota(flows_mb=1)
    most = 1_000_000 // BLOCK_BYTES
    assert kept_of(Caller("alice", ALL_ROLES, megabyte), most + 9) == [f"f{n:03d}" for n in range(9, most + 9)]
    monkeypatch.setattr(fleet, "MOST_FILES", 20)
    assert kept_of(Caller("bob", ALL_ROLES, megabyte), 30) == [f"f{n:03d}" for n in range(10, 30)]
    assert len(list((tmp_path / "flows" / "alice").rglob("*.flow"))) == most, "another's are left alone"


def test_recordings_from_before_the_clock_was_set_back_make_room_for_those_that_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows, alice = Flows(tmp_path), Caller("alice", ALL_ROLES, Quota())
    monkeypatch.setattr(fleet, "MOST_FILES", 3)
    for number in range(6):
        data = header(name := f"f{number}")

        async def chunks(data: bytes = data) -> AsyncIterator[bytes]:
            yield data

        digest = hashlib.sha256(data).hexdigest()
        asyncio.run(flows.receive(alice, "host", name, digest, len(data), chunks()))
        if number < 3:
            os.utime(tmp_path / f"flows/alice/host/{name}.flow", (time.time() + 1e7,) * 2)
    assert sorted(path.stem for path in tmp_path.rglob("*.flow")) == ["f3", "f4", "f5"]


def test_a_daemon_may_be_named_as_recordings_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder counted as a recording; when that was the oldest, it could not be removed, and none was taken more."""
    flows = Flows(tmp_path)
    monkeypatch.setattr(fleet, "MOST_FILES", 2)
    alice = Caller("alice", ALL_ROLES, Quota())

    async def send() -> None:
        for daemon, name in [("host.flow", "f0"), *(("other", f"f{number}") for number in range(1, 6))]:
            data = header(name)

            async def chunks(data: bytes = data) -> AsyncIterator[bytes]:
                yield data

            await flows.receive(alice, daemon, name, hashlib.sha256(data).hexdigest(), len(data), chunks())

    asyncio.run(send())
    assert sorted(path.stem for path in (tmp_path / "flows").glob("*/*/*.flow")) == ["f4", "f5"]


def test_who_reads_waits_for_no_change_and_sees_it_when_it_holds(tmp_path: Path) -> None:
    database = Database(tmp_path)
    insert, count = "INSERT INTO uploads VALUES ('alice', 'ab', 1)", "SELECT count(*) AS n FROM uploads"
    seen: list[int] = []

    def read() -> None:
        row = database.row(count)
        assert row is not None
        seen.append(row["n"])

    with database.change() as run:
        run(insert)
        own = database.row(count)
        reader = threading.Thread(target=read)
        reader.start()
        reader.join(10)
        assert seen == [0], "it was held up, or saw what does not hold yet"
    assert own is not None
    assert own["n"] == 1
    read()
    assert seen == [0, 1]
    database.close()


def test_no_more_uploads_wait_than_there_is_memory_for(servicer: JobsServicer) -> None:
    caller = Caller("alice", ALL_ROLES, Quota())
    upload: Any = inspect.unwrap(JobsServicer.Upload)

    async def crowd() -> None:
        both = (caller, Caller("bob", ALL_ROLES, Quota()))
        tasks = [
            asyncio.ensure_future(upload(servicer, silent(), one))
            for one in both
            for _ in range((MOST_UPLOADS + MOST_WAITING) // 2)
        ]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks)
        for one in (*both, Caller("carol", ALL_ROLES, Quota())):
            with pytest.raises(ServiceError, match="waiting already"):
                await upload(servicer, silent(), one)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        late = asyncio.ensure_future(upload(servicer, silent(), caller))
        await asyncio.sleep(0.05)
        assert not late.done(), "who ended made room"
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)

    asyncio.run(crowd())


def test_one_who_sends_nothing_keeps_nobody_else_from_uploading(servicer: JobsServicer) -> None:
    upload: Any = inspect.unwrap(JobsServicer.Upload)
    trace = TRACES[0]

    async def sound() -> AsyncIterator[pb.UploadRequest]:
        size = len(trace.canonical_text)
        yield pb.UploadRequest(header=pb.UploadHeader(sha256=trace.sha256, size_bytes=size))
        async for chunk in chunks_of(trace):
            yield pb.UploadRequest(chunk=chunk)

    async def crowd() -> None:
        greedy = Caller("alice", ALL_ROLES, Quota())
        tasks = [asyncio.ensure_future(upload(servicer, silent(), greedy)) for _ in range(MOST_UPLOADS + MOST_WAITING)]
        await asyncio.sleep(0.05)
        await asyncio.wait_for(upload(servicer, sound(), Caller("bob", ALL_ROLES, Quota())), 10)
        assert servicer._blobs.has(trace.sha256)
        for task in tasks:
            task.cancel()
        refused = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(error, ServiceError) for error in refused) == len(tasks) // 2

    asyncio.run(crowd())


def test_who_watches_hears_of_progress_now_and_then_and_of_the_end_at_once(
    servicer: JobsServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    often_s, seldom_s = 0.01, 0.25
    monkeypatch.setattr(jobs_servicer, "LOOK_S", often_s)
    monkeypatch.setattr(jobs_servicer, "SHARED_S", 0.0)
    monkeypatch.setattr(jobs_servicer, "PROGRESS_S", seldom_s)
    jobs, caller = servicer._jobs, Caller("alice", ALL_ROLES, Quota())
    job = jobs.submit(caller, Given("request", json.dumps(TINY)))
    jobs.move(job.id, ("waiting",), "running")
    watch: Any = inspect.unwrap(JobsServicer.Watch)
    heard: list[pb.Job] = []

    async def work() -> None:
        folder = jobs.prepare(job)
        for iteration in range(100):
            Progress(iteration=iteration, iterations=100).write(folder)
            await asyncio.sleep(often_s)
        jobs.move(job.id, ("running",), "stopped")

    async def both() -> float:
        working = asyncio.ensure_future(work())
        start_s = time.monotonic()
        async for reply in watch(servicer, pb.WatchRequest(job=job.id), caller):
            heard.append(reply.job)
        await working
        return time.monotonic() - start_s

    took_s = asyncio.run(both())
    assert 3 <= len(heard) <= took_s / seldom_s + 2
    assert (heard[-1].state, heard[-1].progress.iteration) == ("stopped", 99)


def test_one_who_watches_often_keeps_nobody_else_from_watching(
    servicer: JobsServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "_watchers", Places(20, "clients are watching already"))
    greedy, other = (Caller(name, ALL_ROLES, Quota()) for name in ("alice", "bob"))
    job = servicer._jobs.submit(greedy, Given("request", json.dumps(TINY)))
    watch: Any = inspect.unwrap(JobsServicer.Watch)

    async def crowd() -> None:
        streams = [watch(servicer, pb.WatchRequest(job=job.id), greedy) for _ in range(18)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(ServiceError, match="18 of alice, of 20 that may be, clients are watching already"):
            await anext(watch(servicer, pb.WatchRequest(job=job.id), greedy))
        streams += [watch(servicer, pb.WatchRequest(job=job.id), other) for _ in range(2)]
        for stream in streams[-2:]:
            await anext(stream)
        with pytest.raises(ServiceError, match="20 clients are watching already"):
            await anext(watch(servicer, pb.WatchRequest(job=job.id), other))
        for stream in streams:
            await stream.aclose()
        late = watch(servicer, pb.WatchRequest(job=job.id), greedy)
        await anext(late)  # who ended made room
        await late.aclose()

    asyncio.run(crowd())


def test_made_up_daemons_of_one_identity_keep_no_others_out_of_the_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MOST_DAEMONS", 20)
    database = Database(tmp_path)
    known = fleet.Fleet(database)

    def seen(owner: str, daemon: str) -> None:
        known.seen(owner, daemon, "production", "", "", "", {})

    for number in range(18):
        seen("alice", f"made-up-{number}")
    with pytest.raises(ServiceError, match="18 of alice, of 20 that may be, daemons are known already"):
        seen("alice", "one-more")
    seen("alice", "made-up-0")  # known already
    seen("bob", "host-1")
    seen("bob", "host-2")
    with pytest.raises(ServiceError, match="20 daemons are known already"):
        seen("bob", "host-3")
    assert len(known.all()) == 20
    database.close()


def test_a_daemon_that_was_not_heard_of_for_a_month_is_gone_also_while_the_service_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood in the fleet's list, and `reinet models gc` kept its model, until the service was started anew."""
    database = Database(tmp_path)
    known = fleet.Fleet(database)
    began_s = time.time()
    known.seen("alice", "host-1", "production", "ab" * 32, "", "", {})
    monkeypatch.setattr(fleet, "time", SimpleNamespace(time=lambda: began_s + 20 * 86400, monotonic=time.monotonic))
    known.seen("alice", "host-2", "production", "", "", "", {})
    assert [one.daemon for one in known.all()] == ["host-1", "host-2"]
    monkeypatch.setattr(fleet, "time", SimpleNamespace(time=lambda: began_s + 31 * 86400, monotonic=time.monotonic))
    assert [one.daemon for one in known.all()] == ["host-2"]
    database.close()
