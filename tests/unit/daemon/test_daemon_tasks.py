"""A host, or a unit, that has no room for another process or thread: the daemon says so, and what to do."""

import errno
import io
import os
import socket as sockets
import threading

import pytest

from reinet.core.errors import DaemonError
from reinet.daemon.log_lines import LogLines
from reinet.daemon.processes.child import Child


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
            child.hear()
    finally:
        child.kill()


def test_a_log_without_room_for_its_thread_raises_nothing_and_writes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    lines = LogLines(lambda: stream)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_room)
        lines.write("one\n")
    lines.write("two\n")
    lines.drain(30.0)
    assert stream.getvalue() == "one\ntwo\n"
