"""Log lines that never hold up whoever logs: a bounded queue, and a thread that alone waits for standard error.

A pipe whose reader stops reading fills up after 64 KiB, and the next write waits for ever. Here the queue fills up
instead; further lines are dropped and counted, and the count is logged once there is room again. So are those that a
full disk did not take. Lines go past Python's own buffer, which would keep some of these and write a part of others.
"""

import atexit
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
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

    def __init__(
        self, stream: Callable[[], TextIO | None] = lambda: sys.stderr, most_lines: int = QUEUED_LINES
    ) -> None:
        self._stream = stream
        self._queue: queue.Queue[str] = queue.Queue(most_lines)
        self._lock = threading.Lock()
        self._writer_pid = 0
        self._dropped = 0
        self._told = 0
        self._is_torn = False  # the latest line was written in part
        self._all_dropped = SharedCount(_ELSEWHERE + 1)
        self._place = 0
        atexit.register(self.drain)
        os.register_at_fork(after_in_child=self._begin_anew)

    @property
    def dropped(self) -> int:
        """Returns how many lines were lost, by this process and all its kin."""
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
            self._lose()

    def flush(self) -> None:
        """Does nothing: what waits for a flush would wait for the reader."""

    def drain(self, timeout_s: float = DRAIN_S) -> None:
        """Waits until all is written, or so long; for the end of the process."""
        end_s = time.monotonic() + timeout_s
        while self._queue.unfinished_tasks and self._writer_pid == os.getpid() and time.monotonic() < end_s:
            time.sleep(0.005)

    def _begin_anew(self) -> None:
        """Forgets the parent's lines and locks in a child, where no thread would ever write or release them."""
        self._queue = queue.Queue(self._queue.maxsize)
        self._lock = threading.Lock()
        self._writer_pid = self._dropped = self._told = 0
        self._is_torn = False
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
            if self._put(text):
                self._tell()
            else:
                self._lose()
            self._queue.task_done()

    def _lose(self) -> None:
        with self._lock:
            self._dropped += 1
            self._all_dropped.add(self._place)

    def _tell(self) -> None:
        """Logs how many lines were lost since it was told last."""
        with self._lock:
            lost = self._dropped - self._told
        if lost and self._put(json.dumps({"event": "log lines were lost", "lines": lost, "level": "warning"}) + "\n"):
            self._told += lost

    def _put(self, text: str) -> bool:
        """Writes a line; returns False where it is lost, for the reader is gone, or the disk is full."""
        try:
            stream = self._stream()
            if stream is None:  # it was closed at the start
                return False
            try:
                fd = stream.fileno()
            except OSError:  # it is no file
                stream.write(text)
                return True
            self._write_whole(fd, text.encode("utf-8", "backslashreplace"))
        except (OSError, ValueError):  # a log line must not cost a cap
            return False
        return True

    def _write_whole(self, fd: int, line: bytes) -> None:
        """Writes a line, on one of its own also behind one that was written in part."""
        left = b"\n" + line if self._is_torn else line
        while left:
            left = left[os.write(fd, left) :]
            self._is_torn = 0 < len(left) < len(line)


LINES = LogLines()
"""The one of this process."""
