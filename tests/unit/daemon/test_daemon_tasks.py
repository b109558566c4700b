"""A host, or a unit, without room for another process or thread, or memory: the daemon says so, and what to do."""

import errno
import io
import os
import signal
import socket as sockets
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from reinet.core.errors import DaemonError
from reinet.core.period import PeriodConfig
from reinet.daemon.config import DaemonConfig
from reinet.daemon.log_lines import LogLines
from reinet.daemon.processes import child as processes
from reinet.daemon.processes import plain
from reinet.daemon.processes.child import Child
from reinet.daemon.processes.claim import SocketClaim
from reinet.daemon.processes.supervisor import Loader, Supervisor
from reinet.daemon.serve import agent_for, open_shim
from reinet.kshim.mapped import DESCRIPTORS, LAYOUT


def no_room(*_: object) -> None:
    raise RuntimeError("can't start new thread")  # as Python says it


def test_no_room_for_a_process_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fork", fork)
        with pytest.raises(DaemonError, match=r"the decision process could not be started: .*TasksMax"):
            Child("decision", no_room)
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_room_for_a_thread_of_a_process_is_told_with_what_to_do() -> None:
    def work(_link: sockets.socket) -> None:
        no_room()

    child = Child("decision", work)
    try:
        with pytest.raises(DaemonError, match=r"no room for a thread; .*TasksMax"):
            child.receive()
    finally:
        child.kill()


@pytest.mark.parametrize(("kills", "is_told"), [(8, True), (7, False)])
def test_a_process_that_the_kernel_ended_for_lack_of_memory_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kills: int, is_told: bool
) -> None:
    counted = tmp_path / "vmstat"
    counted.write_text("nr_free_pages 5\noom_kill 7\n")
    monkeypatch.setattr(processes, "VMSTAT", counted)
    child = Child("decision", lambda _link: signal.pause())
    counted.write_text(f"nr_free_pages 5\noom_kill {kills}\n")
    os.kill(child.pid, signal.SIGKILL)
    try:
        how = child.end(30.0)
        assert how.startswith("was ended by SIGKILL")
        assert ("for lack of memory meanwhile: raise MemoryMax" in how) == is_told
    finally:
        child.kill()


def test_a_decision_process_that_is_ended_while_the_programs_are_loaded_is_told_by_how_it_ended() -> None:
    """That it could not be handed their memory any more ended the daemon without a word."""

    def asks_and_goes(link: sockets.socket) -> None:
        plain.send(link, {"load": {"min_period_ns": 10_000_000, "packet_timed": 1}})
        signal.pause()

    def load(_config: DaemonConfig, _period: PeriodConfig) -> Loader:
        os.kill(child.pid, signal.SIGKILL)
        assert child.end(30.0)
        descriptors = SimpleNamespace(**dict.fromkeys((*DESCRIPTORS, *LAYOUT), 0))
        return cast(Loader, SimpleNamespace(descriptors=descriptors))

    config, claim = DaemonConfig(model="rule", cgroups=(Path("/unused"),)), cast(SocketClaim, SimpleNamespace())
    supervisor = Supervisor(config, None, claim, agent_for, open_shim, load)
    child = Child("decision", asks_and_goes)
    try:
        with pytest.raises(DaemonError, match="the decision process was ended by SIGKILL"):
            supervisor._bring_up(child, None)
    finally:
        child.kill()


def test_the_kernel_counts_whom_it_ended_for_lack_of_memory() -> None:
    assert any(line.startswith("oom_kill ") for line in processes.VMSTAT.read_text().splitlines())


def test_a_log_without_room_for_its_thread_raises_nothing_and_writes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    lines = LogLines(lambda: stream)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_room)
        lines.write("one\n")
    lines.write("two\n")
    lines.drain(30.0)
    assert stream.getvalue() == "one\ntwo\n"
