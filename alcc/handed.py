"""What programs hand over to the daemon: which descriptors may be touched at all, and how the others are closed.

A file may be of a file system that is the program's own (FUSE). Whoever asks that file anything, or closes it, waits
for as long as the program likes, and is told any error that it likes; and who closes a connection may wait for its peer
(SO_LINGER). What is asked here is answered by the kernel alone.
"""

import fcntl
import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

MOST_FDS = 253
"""The kernel lets a message carry so many. Those for which there is no room are closed while it is read."""
MOST_CLOSING = 64
MOST_OF_A_USER = 8
"""Closings that may be under way at the same time; while there are so many, no program is let in and nothing more is
read of any, or nothing of that user's."""
_EVENT = "anon_inode:[eventfd]"  # no file has such a name: theirs begin with a slash


def is_memory(fd: int) -> bool:
    """Tells whether a descriptor is memory that can be sealed, a memfd or a file of tmpfs."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return True


def is_event(fd: int) -> bool:
    """Tells whether a descriptor is an eventfd."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == _EVENT
    except OSError:
        return False


class Handed:
    """Closes what was handed over, without waiting for it."""

    def __init__(self) -> None:
        """Knows of nothing yet."""
        self._lock = threading.Lock()
        self._closing: Counter[int] = Counter()  # by user

    def may_come(self) -> bool:
        """Returns whether there is room for one more closing, which is what becomes of a program that is refused."""
        with self._lock:
            return self._closing.total() < MOST_CLOSING

    def may_hand_over(self, uid: int) -> bool:
        """Returns whether what this user's programs and others' handed over before is closed, but for a little."""
        with self._lock:
            of_user = self._closing[uid]
        return of_user < MOST_OF_A_USER and self.may_come()

    def close(self, fds: Sequence[int], uid: int) -> None:
        """Closes descriptors of a user's programs, in a thread of their own where that may wait."""
        foreign = [fd for fd in fds if not is_memory(fd) and not is_event(fd)]
        for fd in set(fds) - set(foreign):
            os.close(fd)
        if not foreign:
            return
        with self._lock:
            self._closing[uid] += 1
        with suppress(RuntimeError):  # no thread can be made: they stay open, and count
            threading.Thread(target=self._close, args=(foreign, uid), name="closing", daemon=True).start()

    def _close(self, fds: Sequence[int], uid: int) -> None:
        for fd in fds:
            with suppress(OSError):  # closed it is in any case
                os.close(fd)
        with self._lock:
            self._closing[uid] -= 1
