"""Log lines that never hold up whoever logs: a bounded queue, and a thread that alone waits for standard error.

A pipe whose reader stops reading fills up after 64 KiB, and the next write waits for ever. Here the queue fills up
instead; further lines are dropped and counted, and the count is logged once there is room again.
"""

import atexit
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from reinet.daemon.processes.shared_count import SharedCount

QUEUED_LINES = 4096
"""At some 300 bytes a line that is a megabyte, and more than the loop logs in an hour."""
DRAIN_S = 1.0
"""At the end of the process so much time is given to a reader that reads."""
PLACES = {"decision": 1, "answering": 2}
"""Where processes that run at the same time count what they lose; the one that forks them does at 0."""
_ELSEWHERE = len(PLACES) + 1
"""Where any other does: such are short, and one runs at a time."""


class LogLines:
    """A text stream for structlog: ``write`` never waits and never raises."""

    def __init__(self, stream: Callable[[], TextIO] = lambda: sys.stderr, most_lines: int = QUEUED_LINES) -> None:
        self._stream = stream
        self._queue: queue.Queue[str] = queue.Queue(most_lines)
        self._lock = threading.Lock()
        self._writer_pid = 0
        self._dropped = 0
        self._told = 0
        self._all_dropped = SharedCount(_ELSEWHERE + 1)
        self._place = 0
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._begin_anew)

    @property
    def dropped(self) -> int:
        """Returns how many lines were lost because nobody read the earlier ones, by this process and all its kin."""
        return self._all_dropped.total

    def called(self, name: str) -> None:
        """Has a process that was forked count in its own place, where the one of that name before it did."""
        self._place = PLACES.get(name, _ELSEWHERE)

    def write(self, text: str) -> None:
        """Takes a piece of text, usually a line with its end."""
        if self._writer_pid != os.getpid():
            self._start()
        try:
            self._queue.put_nowait(text)
        except queue.Full:
            with self._lock:
                self._dropped += 1
                self._all_dropped.add(self._place)

    def flush(self) -> None:
        """Does nothing: what waits for a flush would wait for the reader."""

    def drain(self, timeout_s: float = DRAIN_S) -> None:
        """Waits until all is written, or so long; for the end of the process."""
        end_s = time.monotonic() + timeout_s
        while self._queue.unfinished_tasks and self._writer_pid == os.getpid() and time.monotonic() < end_s:
            time.sleep(0.005)

    def _end(self) -> None:
        """Drains; what still waits for a reader keeps its stream, which the interpreter would flush at its end, and
        from Python 3.13 on wait for the writer for ever."""
        self.drain()
        blocked = self._queue.unfinished_tasks and self._writer_pid == os.getpid()
        if blocked and self._stream() is sys.stderr:
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the interpreter is gone

    def _begin_anew(self) -> None:
        """Forgets the parent's lines and locks in a child, where no thread would ever write or release them."""
        self._queue = queue.Queue(self._queue.maxsize)
        self._lock = threading.Lock()
        self._writer_pid = self._dropped = self._told = 0
        self._place = _ELSEWHERE

    def _start(self) -> None:
        """Starts the writer."""
        with self._lock:
            if self._writer_pid == os.getpid():
                return
            self._writer_pid = os.getpid()
            try:
                threading.Thread(target=self._run, name="log-lines", daemon=True).start()
            except RuntimeError:  # there is no room for a thread: the next line tries again, and then these are written
                self._writer_pid = 0

    def _run(self) -> None:
        while True:
            text = self._queue.get()
            self._put(text)
            with self._lock:
                lost, self._told = self._dropped - self._told, self._dropped
            if lost:
                self._put(json.dumps({"event": "log lines were lost", "lines": lost, "level": "warning"}) + "\n")
            self._queue.task_done()

    def _put(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the reader is gone: a log line must not cost a cap
            stream = self._stream()
            stream.write(text)
            stream.flush()


LINES = LogLines()
"""The one of this process."""
