"""Clients' bytes are data: what is hostile ends in a clear error, never in a crash, nor in a file elsewhere."""

import asyncio
import fcntl
import hashlib
import json
import os
import random
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from helpers.kills import free_port
from helpers.trainer import TINY, Service
from helpers.waiting import wait_for
from reinet.agents.service.blobs import CHUNK_BYTES, SMALL_BYTES
from reinet.agents.service.client import Client
from reinet.agents.service.config import Tls, TrainerConfig, load_config
from reinet.agents.service.identity import ALL_ROLES, NEEDS, Callers
from reinet.agents.service.jobs_servicer import JobsServicer, without_stalls
from reinet.agents.service.models_servicer import ModelsServicer
from reinet.agents.service.server import serve
from reinet.core.errors import ConfigError, ServiceError
from reinet.envs.trace import Trace
from reinet.proto import trainer_pb2 as pb
from reinet.proto import trainer_pb2_grpc

QUOTA = "[trainer.quota]\ntrace_mb = 1\nstored_mb = 2\nwaiting_jobs = 3\n"
METHODS = [method for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods]
REFUSALS = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,  # a stream that is a valid request, and goes on
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("trust"), idle=True, more=QUOTA)
    made.start()
    yield made
    made.close()


@pytest.fixture
def channel(service: Service) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{service.socket}") as made:
        yield made


def stubs(channel: grpc.Channel) -> tuple[Any, Any]:
    made: Any = trainer_pb2_grpc
    return made.JobsStub(channel), made.ModelsStub(channel)


def is_refusal(error: Any) -> bool:
    """Whether a call was refused, and did not crash the service; gRPC itself refuses bytes that are no message."""
    return error.code() in REFUSALS or "Error parsing message" in error.details()


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=60)
    assert is_refusal(caught.value), caught.value
    return str(caught.value.details())


OWN = ("state", "s", "s.lock", "trainer.toml", "service.log")


def files_outside(service: Service) -> list[Path]:
    return [path for path in service.folder.parent.iterdir() if path.name not in OWN]


def test_only_the_owner_may_open_socket_and_folder(service: Service) -> None:
    assert stat.S_IMODE(service.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(service.folder.stat().st_mode) == 0o700


def test_every_call_asks_for_a_role() -> None:
    assert {method.name for method in METHODS} == set(NEEDS)
    for servicer in (JobsServicer, ModelsServicer):
        for method in METHODS:
            if method.name in vars(servicer):
                assert hasattr(vars(servicer)[method.name], "__wrapped__"), f"{method.name} is not guarded"


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_random_bytes_end_in_an_error(channel: grpc.Channel, method: Any, service: Service) -> None:
    rng = random.Random(method.full_name)
    path = f"/{method.containing_service.full_name}/{method.name}"
    for size in (1, 7, 64, 1000):
        data = rng.randbytes(size)
        call: Any
        if method.client_streaming:
            call = channel.stream_unary(path)
            refused(call, iter([data, data]))
        elif method.server_streaming:
            call = channel.unary_stream(path)
            with pytest.raises(grpc.RpcError) as caught:
                list(call(data, timeout=0.5))
            assert is_refusal(caught.value), caught.value
        else:
            call = channel.unary_unary(path)
            outcome: Any = call.future(data, timeout=60)
            assert outcome.exception() is None or is_refusal(outcome), outcome.exception()
    with service.client() as client:
        client.jobs()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/b", "..", ".hidden", "", "a\0b", "a\nb", "\x1b[31m", "é", "x" * 65]
)
def test_a_name_is_no_path_and_nothing_that_a_terminal_obeys(
    channel: grpc.Channel, service: Service, name: str
) -> None:
    jobs, models = stubs(channel)
    trace = Trace.constant(1, 6)
    with service.client() as client:
        client._upload({trace.sha256: trace}, lambda *_: None)
    for one in (
        pb.TraceSet(name=name, files=[pb.TraceFile(name="a", sha256=trace.sha256)]),
        pb.TraceSet(name="a", files=[pb.TraceFile(name=name, sha256=trace.sha256)]),
    ):
        request = pb.SubmitRequest(request_id="r", config_json=json.dumps(TINY), traces=[one])
        message = refused(jobs.Submit, request)
        assert message.isprintable()
        assert "is no name" in message
    refused(jobs.Submit, pb.SubmitRequest(request_id=name, config_json=json.dumps(TINY)))
    refused(jobs.Get, pb.JobRequest(job=name))
    refused(models.Show, pb.ModelRequest(model=name))
    refused(models.Resolve, pb.ResolveRequest(name=name))
    refused(models.Report, pb.ReportRequest(daemon=name, name="production"))
    refused(models.Rollback, pb.RollbackRequest(name=name))
    assert not files_outside(service)


@pytest.mark.parametrize(
    "config",
    [
        "", "[]", "null", "{", "[" * 100_000, '{"name": "../x"}', '{"traces": {"sets": ["/etc/passwd"]}}',
        '{"traces": {"forbid": ["/etc"]}}', '{"traces": 5}', '{"traces": {"sets": 5}}', '{"run": {"iterations": NaN}}',
        '{"unknown": 1}', '{"rollout": {"workers": 250}}', "x" * 300_000,
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_a_configuration_is_checked_and_names_no_file(channel: grpc.Channel, config: str) -> None:
    jobs, _ = stubs(channel)
    assert refused(jobs.Submit, pb.SubmitRequest(request_id="r", config_json=config))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ('{"seeed": 1}', "unknown key 'seeed'; nearest is 'seed'"),
        ('{"hindsight": {"quantile": 9}}', "hindsight.quantile: Input should be less than 1, not 9"),
        ('{"rllib": {"algorithm": "SAC"}}', "it has [rllib], and jobs are of reinet's own learner; train it with"),
    ],
)
def test_a_refused_configuration_is_told_of_in_the_words_of_reinet_train(
    channel: grpc.Channel, config: str, why: str
) -> None:
    jobs, _ = stubs(channel)
    said = refused(jobs.Submit, pb.SubmitRequest(request_id="r", config_json=config))
    assert said.startswith(f"the configuration is refused: {why}")


def test_notes_are_short_and_print(channel: grpc.Channel) -> None:
    jobs, models = stubs(channel)
    for note in ("x" * 501, "two\nlines", "\x1b]0;title\x07", "\u202eright to left"):
        refused(jobs.Submit, pb.SubmitRequest(request_id="r", config_json=json.dumps(TINY), note=note))
        refused(models.Report, pb.ReportRequest(daemon="d", name="production", problem=note))
    figures = {str(number): 1.0 for number in range(33)}
    refused(models.Report, pb.ReportRequest(daemon="d", name="production", figures=figures))
    refused(models.Report, pb.ReportRequest(daemon="d", name="production", figures={"a": float("nan")}))


def header(data: bytes, sha256: str | None = None, size: int | None = None) -> pb.UploadRequest:
    digest = sha256 or hashlib.sha256(data).hexdigest()
    return pb.UploadRequest(header=pb.UploadHeader(sha256=digest, size_bytes=len(data) if size is None else size))


def chunk(data: bytes) -> pb.UploadRequest:
    return pb.UploadRequest(chunk=data)


GZIP_BOMB = b"\x1f\x8b\x08\x00" + b"\0" * 1000


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ([], "begins with a header"),
        ([chunk(b"1\n")], "begins with a header"),
        ([header(b"1\n"), header(b"1\n")], "only chunks follow"),
        ([header(b"1\n"), chunk(b"2\n")], "not what was announced"),
        ([header(b"1\n"), chunk(b"1\n1\n")], "more bytes came"),
        ([header(b"1\n", size=2**40)], "are taken"),
        ([header(b"1\n", size=0)], "are taken"),
        ([header(b"1\n", sha256="../../x")], "is no sha256"),
        ([header(GZIP_BOMB), chunk(GZIP_BOMB)], "looks compressed"),
        ([header(b"hello\n"), chunk(b"hello\n")], "not a whole number"),
        ([header(b"01\n"), chunk(b"01\n")], "canonical"),
        ([header(b"1\n02\n"), chunk(b"1\n02\n")], "canonical"),
        ([header(b"1\r\n"), chunk(b"1\r\n")], "canonical"),
        ([header(b"1"), chunk(b"1")], "canonical"),
        ([header(b"1\n" * 400_000), chunk(b"1\n" * 400_000)], "more bytes came"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_trace_is_not_stored(channel: grpc.Channel, service: Service, parts: list[Any], word: str) -> None:
    jobs, _ = stubs(channel)
    before = sorted(service.folder.rglob("blobs/*/*"))
    assert word in refused(jobs.Upload, iter(parts))
    assert sorted(service.folder.rglob("blobs/*/*")) == before
    assert not list((service.folder / "staged").iterdir())


def test_a_stream_without_end_is_cut_at_what_it_announced(channel: grpc.Channel) -> None:
    jobs, _ = stubs(channel)
    sent = 0

    def endless() -> Iterator[pb.UploadRequest]:
        nonlocal sent
        yield header(b"1\n", size=1_000_000)
        while True:
            sent += 1
            yield chunk(b"1\n" * 50_000)

    assert "more bytes came" in refused(jobs.Upload, endless())
    assert sent < 1000, "the stream ended soon after what it had announced"


def test_a_stream_that_falls_silent_is_ended() -> None:
    async def silent() -> AsyncIterator[pb.UploadRequest]:
        yield pb.UploadRequest(chunk=b"1")
        await asyncio.sleep(60)

    async def read() -> None:
        async for _ in without_stalls(silent(), 0.05):
            pass

    with pytest.raises(ServiceError, match="nothing came"):
        asyncio.run(read())


def test_quotas_hold_for_bytes_and_for_jobs(tmp_path: Path) -> None:
    service = Service(tmp_path, idle=True, more=QUOTA)
    service.start()
    try:
        with service.client() as client:
            traces = {}
            for mbps in range(20, 30):
                trace = Trace.constant(mbps, 70)
                traces[trace.sha256] = trace
            with pytest.raises(ServiceError, match="are the quota"):
                client._upload(traces, lambda *_: None)
            stored = sum(path.stat().st_size for path in service.folder.glob("blobs/*/*"))
            assert 1_000_000 < stored <= 2_000_000
            for _ in range(3):
                client.submit(TINY)
            with pytest.raises(ServiceError, match="3 jobs that have not ended"):
                client.submit(TINY)
    finally:
        service.close()


def test_a_caller_over_tls_is_who_the_certificate_says_and_nobody_else() -> None:
    config = TrainerConfig.model_validate(
        {
            "listen": "127.0.0.1:1",
            "tls": {"ca": "a", "cert": "b", "key": "c"},
            "identities": [{"name": "alice", "roles": ["read"]}],
        }
    )
    callers = Callers(config)
    alice = callers.of("ipv4:1.2.3.4:5", {"x509_common_name": [b"alice"]})
    assert alice is not None
    assert (alice.name, alice.roles) == ("tls:alice", {"read"})
    for certificate in ({}, {"x509_common_name": [b"mallory"]}, {"x509_common_name": [b"alice", b"mallory"]}):
        assert callers.of("ipv4:1.2.3.4:5", certificate) is None
    local = callers.of("unix:", {})
    assert local is not None
    assert local.roles == ALL_ROLES


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def certificates(folder: Path) -> None:
    openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    for name in ("service", "alice", "mallory"):
        openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        (folder / "names").write_text("subjectAltName = IP:127.0.0.1\n")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip


def over_tls(folder: Path, port: int) -> str:
    """Makes certificates and returns what has a service listen with them; skips the test where nothing makes them."""
    try:
        certificates(folder)
    except FileNotFoundError:
        pytest.skip("openssl is not installed: it makes this test's certificates")
    return f"""listen = "127.0.0.1:{port}"
[trainer.tls]
ca = "{folder}/ca.pem"
cert = "{folder}/service.pem"
key = "{folder}/service.key"
"""


def _listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def test_strangers_at_the_port_write_nothing_into_a_log_that_nobody_reads(tmp_path: Path) -> None:
    """gRPC wrote a line for each that knew no TLS, and waited for room in the pipe: the service came to no end."""
    port = free_port()
    service = Service(tmp_path, more=over_tls(tmp_path, port))
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(read, "rb"):
        with os.fdopen(write, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", "from reinet.cli.entry import main; main()", "trainer", str(service.config)],
                stderr=log, stdout=log,
                env={key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"},
            )  # fmt: skip
        try:
            wait_for(lambda: _listens(port))  # which it does after its socket is there
            for _ in range(100):
                with socket.create_connection(("127.0.0.1", port), 30) as stranger:
                    stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with service.client() as client:
                assert client.jobs() == []
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


def test_files_that_are_no_certificate_are_named_at_both_ends_and_not_told_as_a_service_that_is_away(
    tmp_path: Path,
) -> None:
    config = Service(tmp_path, more=over_tls(tmp_path, free_port())).config
    (tmp_path / "bad.pem").write_text("none\n")
    right = {"ca": "ca.pem", "cert": "service.pem", "key": "service.key"}
    for wrong, said in (
        ({"ca": "bad.pem"}, r"bad\.pem: holds no certificate"),
        ({"cert": "bad.pem"}, r"bad\.pem and .*service\.key: no certificate with its own key \(no PEM\)"),
        ({"key": "alice.key"}, r"service\.pem and .*alice\.key: no .* \(KEY_VALUES_MISMATCH\); name two PEM files"),
    ):
        files = {key: tmp_path / name for key, name in (right | wrong).items()}
        with pytest.raises(ServiceError, match=said):
            Client("127.0.0.1:1", **files)
        with pytest.raises(ConfigError, match=rf"trainer\.tls: .*{said}"):
            serve(load_config(config).model_copy(update={"tls": Tls(**files)}))


def test_over_tcp_a_certificate_decides_who_may_do_what(tmp_path: Path) -> None:
    port = free_port()
    target = f"127.0.0.1:{port}"
    alice = """[[trainer.identities]]
name = "alice"
roles = ["submit", "read"]
quota = { waiting_jobs = 1 }
"""
    service = Service(tmp_path, idle=True, more=over_tls(tmp_path, port) + alice)
    service.start()
    try:
        with Client(target, tmp_path / "ca.pem", tmp_path / "alice.pem", tmp_path / "alice.key") as alice:
            assert alice.submit(TINY)["owner"] == "tls:alice"
            with pytest.raises(ServiceError, match="1 jobs that have not ended"):
                alice.submit(TINY)
            with pytest.raises(ServiceError, match="needs the role promote"):
                alice.rollback("production")
            with service.client() as local:
                job = local.submit(TINY)["job"]
            with pytest.raises(ServiceError, match="only they"):
                alice.stop(job)
        with (
            Client(target, tmp_path / "ca.pem", tmp_path / "mallory.pem", tmp_path / "mallory.key") as mallory,
            pytest.raises(ServiceError, match="no identity"),
        ):
            mallory.jobs()
        with (
            grpc.secure_channel(target, grpc.ssl_channel_credentials((tmp_path / "ca.pem").read_bytes())) as bare,
            pytest.raises(grpc.RpcError),
        ):
            stubs(bare)[0].List(pb.ListRequest(), timeout=5)
        with pytest.raises(ServiceError, match="asks for a certificate"):
            Client(target)
    finally:
        service.close()


def test_health_and_reflection_answer(channel: grpc.Channel) -> None:
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    stub: Any = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
    reply = stub.Check(health_pb2.HealthCheckRequest(service="reinet.trainer.v1.Jobs"), timeout=60)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "reinet.trainer.v1.Models" in database.get_services()
    found = DescriptorPool(database).FindServiceByName("reinet.trainer.v1.Jobs")
    assert {method.name for method in found.methods} >= {"Submit", "Watch"}


def test_a_second_service_in_the_same_folder_is_refused(service: Service, tmp_path: Path) -> None:
    config = tmp_path / "trainer.toml"
    config.write_text(f'[trainer]\nfolder = "{service.folder}"\nsocket = "{tmp_path}/s"\nrunner = "process"\n')
    with pytest.raises(ServiceError, match=r"another service is listening there; .* set `trainer.folder` .* path$"):
        serve(load_config(config))


def in_parts(data: bytes) -> list[pb.UploadRequest]:
    return [header(data), *(chunk(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES))]


def test_a_large_trace_is_checked_outside_and_a_bad_one_refused_for_the_same_reasons(
    channel: grpc.Channel, service: Service
) -> None:
    jobs, _ = stubs(channel)
    good = b"1000\n" * (SMALL_BYTES // 5 + 1)
    assert jobs.Upload(iter(in_parts(good))).sha256 == hashlib.sha256(good).hexdigest()
    assert "canonical" in refused(jobs.Upload, iter(in_parts(good + b"01001\n")))
    assert "not a whole number" in refused(jobs.Upload, iter(in_parts(good + b"hello\n")))
    assert not list((service.folder / "staged").iterdir())
