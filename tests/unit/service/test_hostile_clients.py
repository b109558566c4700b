"""Clients that send what almost makes sense, and clients that never read: the service says no, and does not grow."""

import random
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from helpers.trainer import TINY, Service
from helpers.waiting import wait_for
from reinet.agents.service.bench import status_kb
from reinet.proto import trainer_pb2 as pb
from reinet.proto import trainer_pb2_grpc

METHODS = [method for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods]
SHA256 = "0" * 63 + "1"
SOUND: dict[str, Any] = {
    "MissingRequest": pb.MissingRequest(sha256=[SHA256, SHA256]),
    "UploadRequest": pb.UploadRequest(header=pb.UploadHeader(sha256=SHA256, size_bytes=100)),
    "FlowRequest": pb.FlowRequest(header=pb.FlowHeader(daemon="host-1", flow="f", sha256=SHA256, size_bytes=100)),
    "SubmitRequest": pb.SubmitRequest(
        request_id="r", config_json='{"name": "x", "run": {"iterations": 5}}', note="week 14", parent=SHA256,
        traces=[pb.TraceSet(name="a", weight=2.0, role="train", files=[pb.TraceFile(name="1", sha256=SHA256)])],
    ),
    "JobRequest": pb.JobRequest(job="latest"),
    "ListRequest": pb.ListRequest(),
    "WatchRequest": pb.WatchRequest(job="latest", log=True),
    "ListModelsRequest": pb.ListModelsRequest(),
    "ModelRequest": pb.ModelRequest(model="production"),
    "PromoteRequest": pb.PromoteRequest(model="production", name="canary", why="because", force=True),
    "RollbackRequest": pb.RollbackRequest(name="production", why="because"),
    "HistoryRequest": pb.HistoryRequest(name="production"),
    "GcRequest": pb.GcRequest(older_than_s=1.5, dry_run=True),
    "ResolveRequest": pb.ResolveRequest(name="production"),
    "FollowRequest": pb.FollowRequest(name="production", daemon="host-1"),
    "ReportRequest": pb.ReportRequest(daemon="host-1", name="production", version="1", figures={"delay": 0.5}),
    "FleetRequest": pb.FleetRequest(),
}  # fmt: skip
"""A message of each kind that a call takes, with every field set."""
OURS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,  # a stream that is a valid request, and goes on
}
MUTANTS, STREAM_S = 30, 0.2
READERS, SILENT_S = 100, 4.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("hostile"), idle=True, more="[trainer.quota]\nwaiting_jobs = 1000\n")
    made.start()
    with made.client() as client:
        client.submit(TINY)
    yield made
    made.close()


def mutant(data: bytes, rng: random.Random) -> bytes:
    """The bytes with some changed, taken out, put in twice, or cut off."""
    made = bytearray(data or b"\x0a\x01x")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(made) + 1)
        change = rng.randrange(4)
        if change == 0 and at < len(made):
            made[at] = rng.choice((0, 0x7F, 0x80, 0xFF, made[at] ^ (1 << rng.randrange(8))))
        elif change == 1:
            made[at : at + rng.randint(1, 8)] = b""
        elif change == 2:
            made[at:at] = made[at : at + rng.randint(1, 32)] * rng.randint(1, 50)
        else:
            made[at:at] = rng.randbytes(rng.randint(1, 8))
    return bytes(made)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_messages_that_are_almost_sound_end_in_a_reply_or_a_clear_error(service: Service, method: Any) -> None:
    rng = random.Random(method.full_name)
    sound = SOUND[method.input_type.name].SerializeToString()
    path = f"/{method.containing_service.full_name}/{method.name}"
    with grpc.insecure_channel(f"unix:{service.socket}") as channel:
        for _ in range(MUTANTS // 5 if method.server_streaming else MUTANTS):
            data: Any = mutant(sound, rng)
            kind = {(False, False): channel.unary_unary, (False, True): channel.unary_stream,
                    (True, False): channel.stream_unary}[method.client_streaming, method.server_streaming]  # fmt: skip
            if method.server_streaming:
                call: Any = kind(path)(data, timeout=STREAM_S)
            else:
                call = kind(path).future(iter([data, data]) if method.client_streaming else data, timeout=60)
            code = call.code()
            assert code in OURS or "Error parsing message" in call.details(), (data, code, call.details())
    assert "Traceback" not in service.log()
    assert sorted(one.name for one in service.folder.parent.iterdir()) == sorted(
        ["state", "s", "s.lock", "trainer.toml", "service.log"]
    )
    with service.client() as client:
        assert client.jobs()


def test_who_never_reads_fills_no_queue(service: Service) -> None:
    """A hundred watch a job that writes much, and take nothing: what they are owed is not kept for them."""
    jobs: Any = trainer_pb2_grpc
    with service.client() as client:
        job = client.jobs()[0]["job"]
    log, over = Path(service.folder / "jobs" / job / "log.txt"), threading.Event()
    wait_for(log.parent.is_dir)  # the service makes it when it starts the job
    line = b"\x01" * 8000 + b"\n"  # each byte is shown as four

    def write() -> None:
        with log.open("ab", buffering=0) as file:
            while not over.wait(0.05):
                file.write(line * 4)

    writer = threading.Thread(target=write)
    before_kb = status_kb(service.pid, "VmRSS")
    channels = [grpc.insecure_channel(f"unix:{service.socket}", [("grpc.use_local_subchannel_pool", 1)])
                for _ in range(READERS)]  # fmt: skip
    try:
        writer.start()
        calls = [jobs.JobsStub(one).Watch(pb.WatchRequest(job=job, log=True)) for one in channels]
        time.sleep(SILENT_S)
        grown_mb = (status_kb(service.pid, "VmRSS") - before_kb) / 1000
        with service.client() as client:
            assert client.jobs()
        owed_mb = READERS * SILENT_S / 0.3 * 4 * 32 * 1024 / 1e6
        assert owed_mb > 150
        assert grown_mb < owed_mb / 2, f"{grown_mb:.0f} MB of the {owed_mb:.0f} that they might have read"
        assert next(calls[0]).job.job == job, "who reads at last is served"
    finally:
        over.set()
        writer.join()
        for one in channels:
            one.close()


def test_a_fleets_connections_are_more_than_the_usual_limit_of_open_files(tmp_path: Path) -> None:
    """A service had no more than 1024 connections, half of them idle or not, and answered nobody who came after."""
    few, (soft, hard) = 128, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4 * few:
        pytest.skip(f"{hard} descriptors are allowed here")
    service = Service(tmp_path, idle=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        service.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * few), hard))
    with ExitStack() as stack:
        stack.callback(service.close)
        for _ in range(2 * few):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(service.socket))
        with service.client() as client:
            assert client.jobs() == []
