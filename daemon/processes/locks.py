"""Locks on files that are this process's alone: its children let go of them first.

``flock`` locks a file for everyone who has the descriptor, and who is forked has it too. A child that outlives its
parent, for it waits for a disk that hangs, would hold the place of a daemon that is gone; and while both live, what the
parent gives back and takes again would be refused to it by its own child.
"""

import os
from pathlib import Path

_held: set[int] = set()


def opened(path: Path, flags: int) -> int:
    """Returns the descriptor of a file that is to be locked, made where ``flags`` say so for the owner alone; raises
    OSError."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    _held.add(fd)
    return fd


def close(fd: int) -> None:
    """Closes it, which ends the lock."""
    _held.discard(fd)
    os.close(fd)


def let_go() -> None:
    """Closes all that the parent holds, in a process that was forked from it; the parent's locks stay."""
    while _held:
        os.close(_held.pop())
