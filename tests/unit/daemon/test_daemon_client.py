"""What a caller of the control socket is told where the daemon stands still: what holds, and what to do."""

import socket as sockets
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from helpers.loops import started
from reinet.agents.decide.baselines import Rule
from reinet.agents.service.client import Client
from reinet.core.errors import ConfigError, DaemonError, ServiceError
from reinet.daemon import client
from reinet.daemon.client import ControlClient
from reinet.daemon.control import ControlServer
from reinet.daemon.processes.claim import SocketClaim


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="reinet-test-") as name:
        yield Path(name)


def test_a_target_that_a_loop_will_go_by_when_it_goes_on_is_told_as_such(folder: Path) -> None:
    def hangs(*_: object) -> str:
        raise TimeoutError("the decision process did not answer within 3 s")

    loop: Any = SimpleNamespace(set_target=hangs)
    told = "did not answer within 3 s; it goes by that target as soon as it"
    with (
        SocketClaim(folder / "control.sock") as claim,
        closing(ControlServer(claim, loop, "rule")),
        ControlClient(claim.path) as caller,
        pytest.raises(DaemonError, match=told),
    ):
        caller.set_target(0, "+20ms")


def test_a_problem_with_a_cgroup_whose_name_is_no_utf8_is_told(folder: Path) -> None:
    """Whoever may make a cgroup under a pattern chooses its name; `reinet ctl health` and `reinet top` failed."""
    _, loop = started(Rule(1.5))
    loop.report("cgroup docker-\udcff.scope: another daemon (pid 7) serves it")
    with (
        SocketClaim(folder / "control.sock") as claim,
        closing(ControlServer(claim, loop, "rule")),
        ControlClient(claim.path) as caller,
    ):
        assert caller.health().problem == r"cgroup docker-\udcff.scope: another daemon (pid 7) serves it"


def test_a_daemon_that_does_not_answer_at_all_is_told_with_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 0.5)
    with sockets.socket(sockets.AF_UNIX) as listening:
        listening.bind(str(folder / "control.sock"))
        listening.listen()
        told = r"no answer within 0\.5 s.*If this lasts, restart the daemon"
        with ControlClient(folder / "control.sock") as caller, pytest.raises(DaemonError, match=told):
            caller.health()


class Foreign(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers Health with what is no reply, and knows no other call."""

    def service(self, details: Any) -> Any:
        if details.method.endswith("/Health"):
            return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"\xff\xff")
        return None


def test_another_programs_socket_is_told_as_one_with_what_to_do(folder: Path) -> None:
    """Such as a daemon's of another version, or the training service's: 'Method not found!' was all."""
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Foreign()])
    server.add_insecure_port(f"unix:{folder}/s")
    server.start()
    with ControlClient(folder / "s") as caller:
        for call in (caller.health, caller.pause):
            with pytest.raises(DaemonError, match=rf"{folder}/s: what listens there .* with --socket, or call with"):
                call()
    with Client(f"unix:{folder}/s") as trainer, pytest.raises(ServiceError, match="it is no training service, or"):
        trainer.jobs()
    server.stop(0).wait()
    with sockets.socket(sockets.AF_UNIX) as web:
        web.bind(f"{folder}/web")
        web.listen()

        def answer() -> None:
            web.accept()[0].close()  # the client's look whether anybody is there
            with web.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        program = threading.Thread(target=answer)
        program.start()
        with (
            ControlClient(folder / "web") as caller,
            pytest.raises(DaemonError, match=r"what listens there .*--socket"),
        ):
            caller.health()
        program.join()


def test_a_model_whose_name_is_no_utf_8_is_refused_before_anything_is_sent(folder: Path) -> None:
    with (
        SocketClaim(folder / "control.sock") as claim,
        closing(ControlServer(claim, SimpleNamespace(), "rule")),  # type: ignore[arg-type]
        ControlClient(claim.path) as caller,
        pytest.raises(ConfigError, match=r"model '\\udcff': has bytes that are no UTF-8"),
    ):
        caller.swap("\udcff", "")


def test_no_daemon(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match=r"no daemon is listening at .*control\.sock: start one"):
        ControlClient(tmp_path / "control.sock")
