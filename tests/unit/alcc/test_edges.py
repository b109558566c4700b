"""Signals, timeouts, resets, descriptors that change hands: what the kernel does to a write, the gate does too."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.gated import CAP_PKTS, TIMEOUT_S, environment, seen_in, settings
from helpers.gated.fuzz import differences
from helpers.gated.server import MSS_BYTES
from reinet.alcc.launch import Law, Settings
from reinet.alcc.sums import Sums
from reinet.core.target import Target

GATED = settings()
LEAST_CLOSINGS = 10
"""Of a gate, in 700 random system calls. Without a cap there is none, on a quiet host there are 400; how many depends
on when the gate's thread runs, and with five workers on two cores there were 49 once."""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_system_calls_come_to_the_same(seed: int) -> None:
    """The same bytes, the same errno, the same end."""
    report = Sums()
    assert differences(seed, 700, report) == []
    assert report.total()["closings"] >= LEAST_CLOSINGS, (
        f"the gate hardly closed, so little was tested: {report.total()}"
    )


@pytest.mark.parametrize(
    "case",
    ["interrupted", "interrupted_select", "restarted", "reset_while_waiting", "shut_while_waiting", "closed_epoll"],
)
def test_a_wait_ends_as_the_kernels_does(case: str) -> None:
    assert seen_in(case, GATED)[0] == seen_in(case, None)[0]


def test_a_signal_ends_a_write_that_has_sent_something_whatever_its_handler_asks_for() -> None:
    """Whoever has a handler for his end, and a peer that reads nothing, would never look whether it was called."""
    assert seen_in("cut_by_a_signal", GATED)[0] == seen_in("cut_by_a_signal", None)[0] == {"cut": True}


def test_what_poll_and_select_call_writable_takes_bytes() -> None:
    """Stunnel sleeps for a second where it does not."""
    assert seen_in("writable", GATED)[0] == {"refused": 0}


def test_a_message_that_was_cut_short_is_the_last_of_its_call() -> None:
    seen, plain = (seen_in("messages_of_which_one_is_cut", asked)[0] for asked in (GATED, None))
    assert seen == plain == {"taken": 1, "cut": True, "second": 0}


def test_a_file_is_sent_to_its_end_and_no_further() -> None:
    """Whoever sends it asks until the kernel says 0."""
    seen, plain = (seen_in("whole_file", asked)[0] for asked in (GATED, None))
    assert seen == plain == {"sent": 100_000, "same": True, "spliced": 0}


def test_what_is_wrong_with_a_file_is_told_at_a_closed_gate_too() -> None:
    seen, plain = (seen_in("no_file", asked)[0] for asked in (GATED, None))
    assert seen == plain == {"told": ["EBADF", "EBADF"]}


def test_an_io_uring_is_refused_where_that_was_asked_for_and_nowhere_else() -> None:
    """Node.js and uvloop do without one then, and their sockets are seen in epoll."""
    seen, words = seen_in("ring", settings(no_io_uring=True))
    assert seen == {"result": "ENOSYS"}
    assert words.count("io_uring is refused") == 1
    assert seen_in("ring", GATED) == seen_in("ring", None)


def test_who_is_refused_without_end_beside_an_io_uring_is_let_go_and_told_of() -> None:
    """Its sockets are in epoll unseen: a closed gate looks writable to it, and it would never sleep."""
    if seen_in("ring", None)[0] != {"result": "made"}:
        pytest.skip("this host makes no io_uring: sysctl kernel.io_uring_disabled=0 allows it")
    seen, words = seen_in("asking_beside_a_ring", GATED)
    assert seen["taken"] > 0
    assert "--no-io-uring" in words
    seen, words = seen_in("asking", GATED)
    assert seen["taken"] == 0, "without one it may ask as often as it likes"
    assert not words


def test_a_send_timeout_ends_a_waiting_write() -> None:
    seen, plain = seen_in("timed", GATED)[0], seen_in("timed", None)[0]
    assert seen["result"] == plain["result"] == "EAGAIN"
    assert 0.25 < seen["seconds"] < 5


def test_a_send_timeout_is_of_the_call_and_not_of_the_pieces_it_is_cut_into(tmp_path: Path) -> None:
    """Without a cap a call hands over 256 KB at a time; this law never decides one."""
    asked = Settings(Law("daemon", daemon=tmp_path / "socket"), Target.parse("+30ms"), always=True)
    seen, plain = seen_in("timed_in_pieces", asked)[0], seen_in("timed_in_pieces", None)[0]
    assert seen["cut"] is plain["cut"] is True
    assert 0.9 < seen["seconds"] < 3


def test_a_send_timeout_is_of_each_piece_of_a_file() -> None:
    assert seen_in("timed_file", GATED)[0] == seen_in("timed_file", None)[0] == {"sent": 2_000_000}


def test_a_descriptor_that_was_passed_on_is_the_same_flow() -> None:
    seen, _ = seen_in("passed_on", GATED)
    assert seen["held"] <= CAP_PKTS * MSS_BYTES
    assert seen["same"]


def test_where_no_memory_can_be_handed_to_the_daemon_no_descriptor_is_lost(tmp_path: Path) -> None:
    asked = Settings(Law("daemon", daemon=tmp_path / "socket"), Target.parse("+30ms"))
    assert seen_in("no_memory_for_the_daemon", asked)[0] == {"taken": 0}


def test_bytes_past_the_gate_lift_the_cap_and_are_told_of_once() -> None:
    seen, words = seen_in("past_the_library", GATED)
    assert seen["same"]
    assert words.count("did not pass here") == 1


def test_a_little_past_the_gate_is_counted_and_lifts_no_cap() -> None:
    """Git's upload-pack tells its refs by stdio before it sends."""
    seen, words = seen_in("little_past_the_library", GATED)
    assert seen["same"]
    assert seen["held"] <= CAP_PKTS * MSS_BYTES
    assert not words


def test_a_connection_over_several_paths_is_let_alone_and_that_is_said() -> None:
    plain, words = seen_in("several_paths", None)[0], seen_in("several_paths", GATED)[1]
    if plain != {"got": "hello"}:
        pytest.skip("this kernel has no MPTCP: sysctl net.mptcp.enabled=1 allows it")
    assert words.count("MPTCP") == 1


def test_messages_of_two_threads_are_not_torn() -> None:
    seen, _ = seen_in("turns", GATED)
    assert seen == {"bytes": 1_200_000, "torn": 0}


def test_other_ports_are_left_alone_and_shadow_gates_nothing() -> None:
    for asked in (settings(ports=(1,)), settings(shadow=True), settings("none")):
        assert seen_in("passed_on", asked)[0]["held"] > 10 * CAP_PKTS * MSS_BYTES, asked


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
