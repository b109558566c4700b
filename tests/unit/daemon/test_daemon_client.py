"""What a caller of the control socket is told where the daemon stands still: what holds, and what to do."""

import socket as sockets
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reinet.core.errors import ConfigError, DaemonError
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


def test_a_model_whose_name_is_no_utf_8_is_refused_before_anything_is_sent(folder: Path) -> None:
    with (
        SocketClaim(folder / "control.sock") as claim,
        closing(ControlServer(claim, SimpleNamespace(), "rule")),  # type: ignore[arg-type]
        ControlClient(claim.path) as caller,
        pytest.raises(ConfigError, match=r"model '\\udcff': has bytes that are no UTF-8"),
    ):
        caller.swap("\udcff", "")
