"""Servers on asyncio that are gated by themselves, without the preload."""

import json
import subprocess
import sys
from typing import Any

import pytest

from helpers.gated import CAP_PKTS, FOLDER, MOST_HELD_BYTES, TIMEOUT_S, environment, settings
from helpers.gated.server import MSS_BYTES
from reinet.alcc import gated
from reinet.alcc.launch import Settings
from reinet.core.errors import ConfigError

LAW = f"fixed:{CAP_PKTS}"
MOST_POLLS = 1000
"""While nothing is read the loop has nothing to do but to accept 20 clients and to wake from their pauses; one that is
told of a socket that takes nothing wakes thousands of times."""
SERVERS = ("answer", "send_file", "by_calls")


def _seen(server: str, law: str = LAW, loop: str = "own", preload: Settings | None = None) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / "asyncio_server.py"), server, law, loop]
    done = subprocess.run(
        command, env=environment(preload), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert all(seen["same"]), seen
    return seen


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_is_gated_and_its_loop_sleeps_while_the_gate_is_closed(server: str) -> None:
    seen = _seen(server)
    assert seen["held_bytes"] <= MOST_HELD_BYTES
    assert seen["polls_while_closed"] <= MOST_POLLS
    assert seen["flows"] == 0, "what was closed is forgotten"
    assert seen["warnings"] == []


@pytest.mark.parametrize("server", SERVERS)
def test_under_the_preload_the_same_server_is_gated_by_that(server: str) -> None:
    seen = _seen(server, law="none", preload=settings())
    assert seen["held_bytes"] <= MOST_HELD_BYTES
    assert seen["polls_while_closed"] <= MOST_POLLS


def test_without_a_law_that_caps_nothing_is_held_back() -> None:
    assert _seen("answer", law="none")["held_bytes"] > MOST_HELD_BYTES


def test_another_event_loop_serves_without_a_gate_and_says_so() -> None:
    """It would ask a closed gate without end."""
    seen = _seen("answer", loop="other")
    assert seen["held_bytes"] > MOST_HELD_BYTES
    assert any("use EventLoop" in warning for warning in seen["warnings"])


def _started(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"from reinet.alcc import gated\nfrom reinet.core.errors import ConfigError\n{program}"],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_sent_by_sendall_passes_the_gate() -> None:
    told = _started(f"""
import fcntl, socket, struct, termios, time
gated.start("{LAW}", always=True)
listener = socket.socket()
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, {MSS_BYTES})
listener.bind(("127.0.0.1", 0))
listener.listen()
peer = socket.socket()
peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
peer.connect(listener.getsockname())
accepted, _ = listener.accept()
sender = gated.Socket(fileno=accepted.detach())
sender.setblocking(False)
for _ in range(50):
    try:
        sender.sendall(bytes(1 << 20))
    except BlockingIOError:
        time.sleep(0.01)
print(struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)))[0])
for sock in (sender, peer, listener):
    sock.close()
""")
    assert 0 < int(told) <= MOST_HELD_BYTES


def test_a_process_has_one_gate() -> None:
    told = _started("""
gated.start("rule:1.2", "+20ms", ports=[80])
gated.start("rule:1.2", "+20ms", ports=[80])
try:
    gated.start("rule:1.3", "+20ms", ports=[80])
except ConfigError as error:
    print(error)
""")
    assert "has a gate already" in told


def test_a_learned_policy_is_taken_and_the_environment_left_alone() -> None:
    told = _started("""
import os
from reinet.agents.decide.names import make_agent
law = make_agent("checkpoints/small", link="app").law_of_the_gate()
before = dict(os.environ)
gated.start(law)
print(os.environ == before)
""")
    assert told == "True\n"


@pytest.mark.parametrize("law", ["guess", "fixed:0", "policy"])
def test_what_is_no_law_is_named_with_those_that_there_are(law: str) -> None:
    with pytest.raises(ConfigError, match=rf"{law}.*rule:G, fixed:N"):
        gated.start(law)
    assert gated._library is None
