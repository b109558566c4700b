"""Processes of the daemon's own: forked, tied to their parent's life, and heard of over one socket each.

A child is forked from a parent with a single thread and goes on with what was imported; it never returns into its
parent's code. The first thing it does is to give up what it does not need (``sandbox``).
"""

import errno
import os
import select
import signal
import socket as sockets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from reinet.core import errors
from reinet.daemon.log_lines import LINES
from reinet.daemon.processes import locks, plain, sandbox

STARTING_S = 60.0
"""The slowest start seen, a model of 4 MB on a busy machine, took some five seconds."""
GOING_S = 1.0
"""A process whose sockets are closed is gone within it."""
KILLED_S = 3.0
"""A process that was killed frees its memory first; one that waits for a disk that hangs ends when that answers."""
HEARD_S = 0.02
"""Who waits for a child's word and for a signal looks so often: a start has three words, and takes a second or more."""
MAX_WORD_BYTES = 64 * 1024
"""What a child says to its parent is short."""

MORE_TASKS = "give it more tasks and memory (TasksMax and MemoryMax of its unit, pids.max of its cgroup, ulimit -u)"
MORE_MEMORY = "raise MemoryMax of its unit or the limit of its cgroup, or set `max_flows` or `records_mb` lower"
VMSTAT = Path("/proc/vmstat")
"""Where the kernel counts whom it ended for lack of memory, a cgroup's or the host's."""
NO_THREAD = "can't start new thread"
"""What Python says where there is no room for one; it has no error of its own for that."""

Pause = Callable[[float], bool]
"""Waits for so many seconds; returns True where that was cut short, for the daemon is told to end."""

log = structlog.get_logger("reinet.serve")


class StoppedError(Exception):
    """The daemon was told to end while it waited for a child."""


class Child:
    """A process and this end of its socket."""

    def __init__(
        self,
        name: str,
        work: Callable[[sockets.socket], None],
        theirs: Sequence[sockets.socket] = (),
        ours: Sequence[sockets.socket] = (),
    ) -> None:
        """Forks; ``work`` runs in the child, with its end of the socket.

        Of further sockets, ``theirs`` are closed here and ``ours`` in the child, and so is whatever the parent holds of
        BPF and of locks. An error of reinet's that ``work`` raises is raised again by ``receive``, and so is that there
        is no room for a thread, or that a file is closed; any other is logged by the child. Raises DaemonError where
        there is no room for a process.
        """
        self.name = name
        self.link, far = sockets.socketpair()
        self._status: int | None = None
        self._ended_for_memory = _ended_for_memory()
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError as error:
            self.link.close()
            far.close()
            raise errors.DaemonError(
                f"the {name} process could not be started: {error.strerror}; {MORE_TASKS}"
            ) from None
        if not self.pid:
            for socket in (self.link, *ours):
                socket.close()
            LINES.called(name)
            _be_child(parent, work, far)
        for socket in (far, *theirs):
            socket.close()
        self.link.settimeout(STARTING_S)

    def receive(self, pause: Pause | None = None) -> Any:
        """Returns the next thing that the child says; raises the error that ended it, or DaemonError.

        ``pause`` waits and returns True where that was cut short: then this raises StoppedError, for a model that is
        fetched may take most of a minute.
        """
        end_s = time.monotonic() + STARTING_S
        while pause is not None and not _readable(self.link.fileno(), 0.0):
            if pause(HEARD_S):
                raise StoppedError
            if time.monotonic() > end_s:
                raise errors.DaemonError(f"the {self.name} process says nothing for {STARTING_S:g} s")
        try:
            word = plain.receive(self.link, most_bytes=MAX_WORD_BYTES)
        except plain.BrokenError as error:
            raise errors.DaemonError(
                f"the {self.name} process {self.end(GOING_S) or f'says nothing: {error}'}"
            ) from None
        if isinstance(word, dict) and "failed" in word:
            kind = getattr(errors, str(word["failed"]), errors.DaemonError)
            raise kind(str(word.get("why")))
        return word

    def send(self, word: Any) -> None:
        """Says something to the child; one that is gone does not hear it."""
        try:
            plain.send(self.link, word)
        except (plain.BrokenError, TimeoutError):
            return

    def end(self, timeout_s: float = 0.0) -> str:
        """Returns how the child has ended, empty while it runs; waits so long for it."""
        if self._status is None:
            pid_fd = os.pidfd_open(self.pid)
            try:
                ended = _readable(pid_fd, timeout_s)
            finally:
                os.close(pid_fd)
            if not ended:
                return ""
            self._status = os.waitpid(self.pid, 0)[1]
        code = os.waitstatus_to_exitcode(self._status)
        if code >= 0:
            return f"ended with status {code}"
        named = -code in set(signal.Signals)  # most real-time signals have no name
        how = f"was ended by {signal.Signals(-code).name if named else f'signal {-code}'}"
        if code == -signal.SIGKILL and _ended_for_memory() > self._ended_for_memory:
            how += f" (the kernel ended a process for lack of memory meanwhile: {MORE_MEMORY})"
        return how

    def kill(self) -> None:
        """Ends the child at once and for certain; nobody waits for one that waits for a disk that hangs."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            if not self.end(KILLED_S):
                why = "it waits for a disk that hangs, and ends when that answers"
                log.error(
                    "a process of the daemon was killed and is still there", process=self.name, pid=self.pid, why=why
                )
        self.link.close()


def ask(
    name: str,
    work: Callable[[], Any],
    confine: Callable[[], None] = sandbox.confine_decisions,
    pause: Pause | None = None,
) -> Any:
    """Returns the plain data that ``work`` returns in a confined process, which ends with it; raises as ``receive``."""

    def answer(link: sockets.socket) -> None:
        confine()
        plain.send(link, {"result": work()})

    child = Child(name, answer)
    try:
        return child.receive(pause)["result"]
    finally:
        child.kill()


def _be_child(parent: int, work: Callable[[sockets.socket], None], link: sockets.socket) -> None:
    """Works and ends; the parent alone obeys signals that ask to stop, and says so over the link."""
    status = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        sandbox.end_with(parent)
        locks.let_go()
        _close_loaded()
        work(link)
        status = 0
    except errors.ReinetError as error:
        plain.send(link, {"failed": type(error).__name__, "why": str(error)})
    except BaseException as error:
        if NO_THREAD in str(error):
            why = f"a process of the daemon has no room for a thread; {MORE_TASKS}"
            plain.send(link, {"failed": "DaemonError", "why": why})
        if isinstance(error, PermissionError) and error.errno == errno.EACCES:  # a module, where a home is closed
            plain.send(link, {"failed": "DaemonError", "why": f"{error.filename}: {errors.unread(error)}"})
        log.error("a process of the daemon failed", exc_info=error)
    finally:
        LINES.drain()
        os._exit(status)


def _close_loaded() -> None:
    """Closes what a loader holds of BPF: maps can be written through their descriptors, by whoever has them.

    A process that is started anew inherits them all. Other descriptors stay, which libraries that were forked use.
    """
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own is gone
            if os.readlink(f"/proc/self/fd/{name}").startswith(("anon_inode:bpf", "anon_inode:btf")):
                os.close(int(name))


def _ended_for_memory() -> int:
    """Returns how many processes the host's kernel has ended for lack of memory; 0 where it does not say."""
    with suppress(OSError):
        for line in VMSTAT.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _readable(fd: int, timeout_s: float) -> bool:
    waiting = select.poll()  # select() itself knows no number above 1023
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(1000 * timeout_s))
