"""The service's client by itself: what it reads of a configuration, and how long it waits for a service."""

import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from helpers.trainer import TINY, Service
from helpers.waiting import wait_for
from reinet.agents.service import client as client_module
from reinet.agents.service.client import RETRY_S, Client
from reinet.agents.service.server import _listen_unix
from reinet.cli.main import app, main
from reinet.core.errors import ConfigError, ServiceError, TraceError
from reinet.daemon.registry import Address, service_error
from reinet.proto import trainer_pb2 as pb


class Failed(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.code, self.details = lambda: code, lambda: details


AWAY = Failed(grpc.StatusCode.UNAVAILABLE, "away")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The client's time, which passes where it sleeps."""

    def sleep(seconds: float) -> None:
        now.now_s += seconds

    now = SimpleNamespace(now_s=0.0, monotonic=lambda: now.now_s, sleep=sleep)
    monkeypatch.setattr(client_module, "time", now)
    return now


def test_a_watch_outlives_a_restart_however_long_the_job_was_quiet(clock: SimpleNamespace) -> None:
    calls = 0

    def watch(_request: Any) -> Iterator[pb.WatchReply]:
        nonlocal calls
        calls += 1
        if calls in (1, 5):
            yield pb.WatchReply(job=pb.Job(state="running", progress=pb.Progress(iteration=calls)))
            clock.now_s += 10 * RETRY_S
        if calls == 8:
            yield pb.WatchReply(job=pb.Job(state="done"))
            return
        raise AWAY

    with Client("unix:/nowhere") as client:
        client._jobs = SimpleNamespace(Watch=watch)
        assert [job["state"] for job, _ in client.watch("latest")] == ["running", "running", "done"]


def test_a_watch_goes_on_with_the_job_that_was_the_latest_when_it_began(clock: SimpleNamespace) -> None:
    asked: list[str] = []

    def watch(request: pb.WatchRequest) -> Iterator[pb.WatchReply]:
        asked.append(request.job)
        yield pb.WatchReply(job=pb.Job(job="0123456789ab", state="running" if len(asked) == 1 else "done"))
        if len(asked) == 1:
            raise AWAY

    with Client("unix:/nowhere") as client:
        client._jobs = SimpleNamespace(Watch=watch)
        assert [job["state"] for job, _ in client.watch("latest")] == ["running", "done"]
    assert asked == ["latest", "0123456789ab"], "who submits one meanwhile has the latest"


def test_a_log_that_is_followed_goes_on_after_a_restart_with_the_lines_that_are_new(tmp_path: Path) -> None:
    """It began again with all that fits into a message."""
    service = Service(tmp_path, idle=True)
    service.start()
    try:
        with service.client() as client:
            job = client.submit(TINY)["job"]
            log = service.folder / "jobs" / job / "log.txt"
            wait_for(log.parent.is_dir)  # the service makes it when it starts the job
            log.write_text("one\ntwo\n")
            seen = (lines for _, lines in client.watch(job, log=True) if lines)
            assert next(seen) == "one\ntwo\n"
            service.kill()
            with log.open("a") as file:
                file.write("three\nfo")
            service.start()
            assert next(seen) == "three\n"
    finally:
        service.close()


def test_a_watch_gives_a_service_up_that_stays_away(clock: SimpleNamespace) -> None:
    def watch(_request: Any) -> Iterator[pb.WatchReply]:
        if clock.now_s == 0:
            yield pb.WatchReply(job=pb.Job(state="running"))
            clock.now_s = 1000.0
        raise AWAY

    with Client("unix:/nowhere") as client:
        client._jobs = SimpleNamespace(Watch=watch)
        with pytest.raises(ServiceError, match="no training service answers"):
            list(client.watch("latest"))
    assert RETRY_S < clock.now_s - 1000 < RETRY_S + 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("traces = 3", "traces: Input should be a valid dictionary"),
        ("[traces]\nforbid = 5", "traces.forbid: Input should be a valid list, not 5"),
        ("[traces]\nforbid = [5]", "traces.forbid.0: Input should be a valid string, not 5"),
        ("[traces]\nsets = 'a'", "traces.sets: Input should be a valid list, not 'a'"),
        ("[traces]\nsets = [3]", "traces.sets.0: Input should be a valid dictionary"),
        ("[traces]\nsets = [{weight = 2}]", "traces.sets.0.path is missing: a trace file"),
        ("[traces]\nsets = [{path = 'a', weight = 'heavy'}]", "traces.sets.0.weight: Input should be a valid number"),
        ("[traces]\nsets = [{path = 'a', weight = 0}]", "traces.sets.0.weight: Input should be greater than 0"),
        ("[traces]\nsets = [{path = 'a', role = 5}]", "traces.sets.0.role: Input should be a valid string, not 5"),
        ("[traces]\nsets = [{path = 'a', wait = 5}]", "unknown key 'wait' in [traces.sets.0]; nearest is 'weight'"),
        ("name = 1979-05-27", "holds what no training configuration does"),
    ],
)
def test_a_configuration_of_wrong_types_is_refused_as_a_training_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["reinet", "jobs", "--trainer", "unix:/nowhere", "submit", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith(f"error: {path}: ")
    assert message in said


@pytest.mark.parametrize("text", ['sets = ["a\\u0000b"]', 'sets = [{path = "a\\u0000b"}]', 'forbid = ["a\\u0000b"]'])
def test_a_path_with_a_nul_is_refused_before_anything_is_sent(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f"[traces]\n{text}")
    with Client("unix:/nowhere") as client, pytest.raises(TraceError, match="a NUL is in no file's name"):
        client.submit(path)


def test_what_the_service_refuses_of_a_configuration_is_an_error_of_the_configuration_too() -> None:
    def submit(_request: Any, timeout: float) -> None:
        raise Failed(grpc.StatusCode.INVALID_ARGUMENT, "the configuration is refused: seed")

    with Client("unix:/nowhere") as client:
        client._jobs = SimpleNamespace(Submit=submit)
        with pytest.raises(ConfigError, match="is refused: seed"):
            client.submit({"seed": "x"})


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["jobs", "submit", "own.toml", "--note", "\udcff"], "note"),
        (["jobs", "submit", "own.toml", "--licence", "\udcff", "--traces", "one.trace"], "licence"),
        (["jobs", "watch", "\udcff"], "job"),
        (["jobs", "stop", "\udcff"], "job"),
        (["models", "show", "\udcff"], "model"),
        (["models", "promote", "latest", "--to", "production", "--why", "\udcff"], "why"),
        (["models", "rollback", "production", "--why", "\udcff"], "why"),
        (["models", "history", "\udcff"], "name"),
    ],
)
def test_an_argument_that_is_no_utf_8_is_refused_with_its_name_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text("seed = 1")
    Path("one.trace").write_text("1\n20000\n")
    asked = [words[0], "--trainer", "unix:/nowhere", *words[1:]]
    error = CliRunner().invoke(app, asked).exception
    assert isinstance(error, ConfigError), error
    assert str(error).startswith(rf"{what} '\udcff': has bytes that are no UTF-8; write")


def test_a_service_is_reached_at_a_path_that_is_no_utf_8() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    with TemporaryDirectory(prefix="reinet-test-") as folder:
        socket = Path(folder) / os.fsdecode(b"Z\xfcrich")
        _listen_unix(server, socket)
        server.start()
        with Client(f"unix:{socket}") as client, pytest.raises(ServiceError, match="UNIMPLEMENTED"):
            client.jobs()
        server.stop(None).wait()


def test_of_traces_that_go_along_no_path_stays_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "one.trace").write_text("1\n20000\n")
    sent: list[pb.SubmitRequest] = []

    def submit(request: pb.SubmitRequest, timeout: float) -> pb.SubmitReply:
        sent.append(request)
        return pb.SubmitReply()

    with Client("unix:/nowhere") as client:
        client._jobs = SimpleNamespace(Submit=submit, Missing=lambda _request, timeout: pb.MissingReply())
        client.submit({"traces": {"sets": [str(tmp_path / "one.trace")], "forbid": [str(tmp_path)]}})
        client.submit({"seed": 2}, [tmp_path])
    assert [json.loads(request.config_json) for request in sent] == [
        {"traces": {}},
        {"seed": 2, "traces": {"presets": []}},
    ]
    assert [[one.role for one in request.traces] for request in sent] == [["", "forbid"], [""]]


def test_a_service_that_stands_still_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "TIMEOUT_S", 0.3)
    with socket.socket(socket.AF_UNIX) as stopped, Client(f"unix:{tmp_path}/s") as client:
        stopped.bind(f"{tmp_path}/s")
        stopped.listen()
        with pytest.raises(ServiceError, match=rf"service at unix:{tmp_path}/s: no answer in time.*restart it"):
            client.jobs()


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7443: Tls handshake failed "
            "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
            "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate",
            r"host:7443 is refused \(CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate\): name it by",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:7443: Socket closed",
            r"host:7443 hung up: it is ending, or refuses this certificate",
        ),
    ],
)
def test_a_certificate_that_either_end_refuses_is_not_told_as_a_service_that_is_away(details: str, said: str) -> None:
    """In gRPC's words, as it says them of a service whose certificate, or to one whose `ca`, is another's."""
    error = Failed(grpc.StatusCode.UNAVAILABLE, details)
    some = Path("some.pem")
    assert re.search(said, str(service_error(Address("host:7443", some, some, some), error)))


def test_a_service_that_is_not_there_is_told_in_the_systems_words_and_not_in_grpcs(tmp_path: Path) -> None:
    told = r"or name its address \(No such file or directory\)$"
    with Client(f"unix:{tmp_path}/none.sock") as client, pytest.raises(ServiceError, match=told):
        client.jobs()
