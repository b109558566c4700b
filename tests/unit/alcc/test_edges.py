"""Signals, timeouts, resets, descriptors that change hands: what the kernel does to a write, the gate does too."""

import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from helpers.gated import CAP_PKTS, FOLDER, TIMEOUT_S, environment, settings
from helpers.gated.server import MSS_BYTES
from reinet.alcc.launch import Settings

GATED = settings()


def _seen(case: str, asked: Settings | None = GATED) -> tuple[dict[str, Any], str]:
    command = [sys.executable, str(FOLDER / "edges.py"), case]
    done = subprocess.run(
        command, env=environment(asked), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen, done.stderr


@pytest.mark.parametrize(
    "case", ["interrupted", "restarted", "reset_while_waiting", "shut_while_waiting", "closed_epoll"]
)
def test_a_waiting_write_ends_as_the_kernels_does(case: str) -> None:
    assert _seen(case)[0] == _seen(case, None)[0]


def test_a_send_timeout_ends_a_waiting_write() -> None:
    seen, plain = _seen("timed")[0], _seen("timed", None)[0]
    assert seen["result"] == plain["result"] == "EAGAIN"
    assert 0.25 < seen["seconds"] < 5


def test_a_descriptor_that_was_passed_on_is_the_same_flow() -> None:
    seen, _ = _seen("passed_on")
    assert seen["held"] <= CAP_PKTS * MSS_BYTES
    assert seen["same"]


def test_bytes_past_the_gate_lift_the_cap_and_are_told_of_once() -> None:
    seen, words = _seen("past_the_library")
    assert seen["same"]
    assert words.count("did not pass here") == 1


def test_messages_of_two_threads_are_not_torn() -> None:
    seen, _ = _seen("turns")
    assert seen == {"bytes": 1_200_000, "torn": 0}


def test_other_ports_are_left_alone_and_shadow_gates_nothing() -> None:
    for asked in (settings(ports=(1,)), settings(shadow=True), settings("none")):
        assert _seen("passed_on", asked)[0]["held"] > 10 * CAP_PKTS * MSS_BYTES, asked


def test_a_setting_that_makes_no_sense_leaves_the_program_alone() -> None:
    command = [sys.executable, "-c", "print('runs')"]
    told = {**environment(GATED), "REINET_ALCC": "law=guess"}
    done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout) == (0, "runs\n")
    assert "makes no sense: nothing is gated" in done.stderr


def test_nothing_is_said_to_a_client() -> None:
    """Servers that inetd starts, and vsftpd, have their client's connection as standard error."""
    told = {**environment(GATED), "REINET_ALCC": "law=guess"}
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.connect(listener.getsockname())
        with listener.accept()[0] as served:
            subprocess.run([sys.executable, "-c", ""], env=told, stderr=served, timeout=TIMEOUT_S, check=True)
        assert client.recv(100) == b""
