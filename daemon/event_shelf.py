"""The event files of all daemons that ever wrote to a folder, held below a number of bytes and of files.

    LOG_DIR/serve-<start>-<pid>/flow-<cookie>/events.out.tfevents...    a flow's curves
    LOG_DIR/serve-<start>-<pid>/events.out.tfevents...                  the page's layout

Nothing else is ever touched. Where room is needed the oldest file goes that nobody writes: a daemon holds a lock on its
own folder, so that a second one at work on the same host keeps its files.
"""

import fcntl
import os
import re
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from reinet.core.errors import UNWRITABLE
from reinet.core.tensorboard.event_file import PREFIX
from reinet.daemon.processes.flow_recorder import age_key

_START = re.compile(r"serve-\d{8}-\d{6}-\d+")
_FLOW = re.compile(r"flow-\d+")


class EventShelf:
    """Knows every closed event file of the folder, oldest first, and makes room by removing them."""

    def __init__(self, folder: Path, name: str, max_bytes: int, max_files: int) -> None:
        """Makes the folder ``name`` in ``folder``, for this daemon; raises OSError where it cannot.

        On a disk that is full or read-only it is left to ``make_folder``, which may be called again.
        """
        self.own = folder / name
        self._lock_fd = -1
        try:
            self.make_folder()
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
        self._max_bytes, self._max_files = max_bytes, max_files
        self._open_bytes: dict[Path, int] = {}
        self._closed_bytes: OrderedDict[Path, int] = OrderedDict(_files_of_others(folder, self.own))
        self._bytes = sum(self._closed_bytes.values())

    def make_folder(self) -> None:
        """Makes this daemon's folder where it is not there, and locks it; raises OSError where it cannot."""
        self.own.mkdir(parents=True, exist_ok=True)
        self.close()
        self._lock_fd = os.open(self.own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock_fd, fcntl.LOCK_SH)

    def opened(self, path: Path) -> None:
        """Takes note of a file that is written from now on; makes room for one more first, where there can be."""
        while len(self._closed_bytes) + len(self._open_bytes) >= self._max_files and self._closed_bytes:
            self._remove_oldest()
        self._open_bytes[path] = self._closed_bytes.pop(path, 0)

    def closed(self, path: Path) -> None:
        """Takes note of a file that is written no more, and so may be removed."""
        if path in self._open_bytes:
            self._closed_bytes[path] = self._open_bytes.pop(path)

    def spend(self, path: Path, size_bytes: int) -> bool:
        """Makes room for so many bytes more in an open file; False where only closing a file could make it."""
        while self._bytes + size_bytes > self._max_bytes:
            if not self._closed_bytes:
                return False
            self._remove_oldest()
        self._open_bytes[path] += size_bytes
        self._bytes += size_bytes
        return True

    def size_bytes(self, path: Path) -> int:
        """Returns how many bytes of an open file were spent."""
        return self._open_bytes.get(path, 0)

    def close(self) -> None:
        """Gives the lock back: from now on others may remove what this daemon wrote."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _remove_oldest(self) -> None:
        path, size_bytes = self._closed_bytes.popitem(last=False)
        self._bytes -= size_bytes
        with suppress(OSError):
            path.unlink()
        for folder in (path.parent, path.parent.parent):  # those that are empty now
            if folder != self.own and self.own.parent in folder.parents:
                with suppress(OSError):
                    folder.rmdir()


def _files_of_others(folder: Path, own: Path) -> list[tuple[Path, int]]:
    """Returns the event files of daemons that are gone, with their sizes, oldest first; follows no link."""
    found: list[tuple[tuple[bool, int], Path, int]] = []
    for start in _folders(folder, _START):
        if start == own or not _is_free(start):
            continue
        for place in (start, *_folders(start, _FLOW)):
            with suppress(OSError), os.scandir(place) as entries:
                for entry in entries:
                    if entry.name.startswith(PREFIX) and entry.is_file(follow_symlinks=False):
                        stat = entry.stat(follow_symlinks=False)
                        found.append((age_key(stat.st_mtime_ns), Path(entry.path), stat.st_size))
    return [(path, size_bytes) for _, path, size_bytes in sorted(found)]


def _folders(folder: Path, name: re.Pattern[str]) -> list[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [Path(e.path) for e in entries if name.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
    return []


def _is_free(start: Path) -> bool:
    """Returns whether no daemon writes into this folder."""
    try:
        fd = os.open(start, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
