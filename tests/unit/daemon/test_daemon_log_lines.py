"""Log lines that never hold up whoever logs, and the service manager's signs of life."""

import io
import json
import os
import resource
import socket as sockets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reinet.core.errors import DaemonError
from reinet.daemon import serve
from reinet.daemon.log_lines import LINES, PLACES, LogLines
from reinet.daemon.notify import Watchdog, notify
from reinet.daemon.processes import child
from reinet.kshim.fake import COUNTERS

DEADLINE_S = 60.0
"""Only a test that fails takes so long."""


class Stuck(io.StringIO):
    """A pipe that nobody reads until ``go_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.go_on.wait(DEADLINE_S)
        return super().write(text)


def test_lines_come_out_in_order() -> None:
    out = io.StringIO()
    lines = LogLines(lambda: out)
    for number in range(100):
        lines.write(f"{number}\n")
    lines.drain(DEADLINE_S)
    assert out.getvalue().splitlines() == [str(number) for number in range(100)]
    assert lines.dropped == 0


def test_a_reader_that_does_not_read_costs_lines_and_no_time() -> None:
    out = Stuck()
    lines = LogLines(lambda: out, most_lines=3)
    lines.write("0\n")
    assert out.entered.wait(DEADLINE_S)
    for number in range(1, 11):
        lines.write(f"{number}\n")  # hangs here, were it to wait
    assert lines.dropped == 7
    lines.drain(0.05)  # gives up
    out.go_on.set()
    lines.drain(DEADLINE_S)
    shown = out.getvalue().splitlines()
    told = [json.loads(line) for line in shown if line.startswith("{")]
    assert [line for line in shown if not line.startswith("{")] == ["0", "1", "2", "3"]
    assert told == [{"event": "log lines were lost", "lines": 7, "level": "warning"}]


def test_a_reader_that_went_away_costs_nothing() -> None:
    out = io.StringIO()
    out.close()
    lines = LogLines(lambda: out)
    lines.write("lost\n")
    lines.drain(DEADLINE_S)
    assert not lines._queue.unfinished_tasks


def test_lines_that_a_full_disk_does_not_take_are_told_and_the_next_one_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with path.open("a") as out:
        lines = LogLines(lambda: out)
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (15, hard)
        )  # as on a disk, a write that has room for a part writes it
        try:
            for number in range(4):
                lines.write(f"line {number}\n")
            lines.drain(DEADLINE_S)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert lines.dropped == 2
        lines.write("line 4\n")
        lines.drain(DEADLINE_S)
    *shown, told = path.read_text().splitlines()
    assert shown == ["line 0", "line 1", "l", "line 4"]
    assert json.loads(told) == {"event": "log lines were lost", "lines": 2, "level": "warning"}


def test_a_blocked_pipe_does_not_keep_a_process_from_logging_or_ending() -> None:
    script = (
        "import structlog\n"
        "from reinet.daemon.serve import configure_logging\n"
        "configure_logging()\n"
        "for number in range(20_000): structlog.get_logger().info('line', number=number, filler='x' * 100)\n"
        "print('done', flush=True)\n"
    )
    read_fd, write_fd = os.pipe()  # nobody reads it
    try:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=write_fd, timeout=DEADLINE_S, check=False
        )
    finally:
        os.close(read_fd)
        os.close(write_fd)
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_what_was_logged_last_is_written_at_the_end_of_a_process() -> None:
    script = (
        "import structlog\n"
        "from reinet.daemon.serve import configure_logging\n"
        "configure_logging()\n"
        "structlog.get_logger().info('last words')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE_S)
    assert json.loads(done.stderr)["event"] == "last words"


def test_a_child_that_was_forked_writes_its_own_lines_and_none_of_its_parents() -> None:
    script = (
        "import os, threading\n"
        "from reinet.daemon.log_lines import LogLines\n"
        "lines = LogLines()\n"
        "for number in range(1000): lines.write('parent\\n')\n"
        "if os.fork() == 0:\n"
        "    assert threading.active_count() == 1\n"
        "    lines.write('child\\n')\n"
        "    lines.drain()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=DEADLINE_S
    )
    shown = done.stderr.splitlines()
    assert (shown.count("parent"), shown.count("child"), len(shown)) == (1000, 1, 1001), done.stderr[:300]


def test_lines_that_any_process_lost_are_counted_in_all_and_for_good() -> None:
    out = Stuck()
    lines = LogLines(lambda: out, most_lines=3)

    def lose_seven() -> None:
        lines.write("0\n")
        assert out.entered.wait(DEADLINE_S)
        for _ in range(3 + 7):
            lines.write("line\n")

    for number, name in enumerate(("decision", "answering", "decision", "checking")):
        if not (pid := os.fork()):
            lines.called(name)
            lose_seven()
            os._exit(0)
        os.waitpid(pid, 0)
        assert lines.dropped == 7 * (number + 1)
    lose_seven()
    assert lines.dropped == 7 * 5
    out.go_on.set()
    lines.drain(DEADLINE_S)
    told = [json.loads(line)["lines"] for line in out.getvalue().splitlines() if line.startswith("{")]
    assert told == [7], "each process tells of its own"


def test_each_process_of_the_daemon_counts_in_a_place_of_its_own() -> None:
    places = [child.ask(name, lambda: LINES._place) for name in (*PLACES, "checking")]
    assert len({LINES._place, *places}) == 4


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sockets.socket]:
    """What the service manager listens at."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def test_the_service_manager_is_told(manager: sockets.socket) -> None:
    assert notify("READY=1", "STATUS=serving")
    assert manager.recv(100) == b"READY=1\nSTATUS=serving"


def test_an_abstract_socket_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"reinet-test-{os.getpid()}"
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as listener:
        listener.bind("\0" + name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        assert notify("READY=1")
        assert listener.recv(100) == b"READY=1"


def test_without_a_service_manager_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    assert not notify("READY=1")


def test_a_service_manager_that_does_not_read_holds_nobody_up(manager: sockets.socket) -> None:
    for _ in range(10_000):
        if not notify("WATCHDOG=1"):
            return
    pytest.fail("the socket never filled up")


def test_the_watchdog_is_fed_by_completed_ticks_alone(manager: sockets.socket) -> None:
    ticks = 1
    watchdog = Watchdog(lambda: ticks)
    watchdog.feed()
    assert manager.recv(100) == b"WATCHDOG=1"
    manager.setblocking(False)
    watchdog.feed()
    with pytest.raises(BlockingIOError):
        manager.recv(100)
    ticks += 1
    watchdog.feed()
    assert manager.recv(100) == b"WATCHDOG=1"


def test_a_loop_that_does_not_answer_is_asked_once_in_a_round() -> None:
    """Each question waits for three seconds: with two in a row and that of the end, a stop took longer than systemd
    waits for it."""
    asked: list[str] = []

    def ticks() -> int:
        asked.append("ticks")
        raise TimeoutError

    told = iter([False, True])
    supervisor = SimpleNamespace(
        ended=str, adopt=lambda: False, loop=SimpleNamespace(ticks=ticks), look=lambda: asked.append("look")
    )
    followed = SimpleNamespace(here=list, changed=lambda: False, problem=str)
    wake = SimpleNamespace(wait=lambda _timeout_s: next(told), reload_wanted=False)
    serve._watch(cast(Any, supervisor), cast(Any, wake), cast(Any, followed), cast(Any, None), "")
    assert asked == ["ticks"]


def test_the_watchdog_is_fed_while_processes_are_started_anew(
    manager: sockets.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a starved host that took longer than WatchdogSec: all of the daemon was restarted, and a pause was over."""
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr("reinet.daemon.notify.time", SimpleNamespace(monotonic=lambda: clock.now_s))
    manager.setblocking(False)
    followed = SimpleNamespace(here=list, changed=lambda: False, problem=str)
    wake = SimpleNamespace(wait=lambda _timeout_s: False, reload_wanted=False)
    signs = []

    def restart(_why: str, pause: Callable[[float], bool]) -> bool:
        for _ in range(50):
            assert not pause(0.02)
            clock.now_s += 0.5
            with suppress(BlockingIOError):
                signs.append(manager.recv(100))
        return False  # ends the daemon

    supervisor = SimpleNamespace(ended=lambda: "the decision process ended", restart=restart)
    with pytest.raises(DaemonError, match="told to stop"):
        serve._watch(cast(Any, supervisor), cast(Any, wake), cast(Any, followed), cast(Any, None), "")
    assert signs == [b"WATCHDOG=1"] * 25


def test_what_the_kernel_side_left_out_is_told_when_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, object]] = []
    for level in ("warning", "info"):
        monkeypatch.setattr(serve.log, level, lambda _event, **more: told.append(more))
    first = dict.fromkeys(COUNTERS, 0) | {"records_lost": 3, "flows_chosen": 9}
    serve._log_counters(first, {})
    serve._log_counters(first, first)
    serve._log_counters(first | {"records_lost": 4, "leases_too_long": 1, "flows_adopted": 2}, first)
    assert told == [{"records_lost": 3}, {"leases_too_long": 1, "records_lost": 4}, {"flows": 2}]
    assert set(serve.LEFT_OUT) <= set(COUNTERS)
