"""The place where a daemon listens: claimed before anything is attached, so that two daemons never share one."""

import fcntl
import os
import signal
import socket as sockets
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from reinet.core.closing import Closing
from reinet.core.errors import DaemonError
from reinet.daemon.processes import locks


class Purpose(NamedTuple):
    """What listens at a path."""

    called: str
    key: str  # the configuration's, with which another path is set
    kind: sockets.SocketKind
    folder_mode: int


CONTROL = Purpose("control socket", "socket", sockets.SOCK_STREAM, 0o700)
PROGRAMS = Purpose("socket of programs", "processes", sockets.SOCK_SEQPACKET, 0o755)
METRICS = Purpose("socket of metrics", "metrics", sockets.SOCK_STREAM, 0o750)  # which its group may open, too

LOCK_SUFFIX = ".lock"


class SocketClaim(Closing):
    """The right to listen at a path, held until ``close``; raises DaemonError where it cannot be had.

    The folder is made where it is missing, for those who may connect. A lock beside the socket decides between two
    daemons that start at once; it goes with its process, so a killed daemon's socket is stale and is replaced.
    """

    def __init__(self, path: Path, purpose: Purpose = CONTROL) -> None:
        self.path = path
        self._purpose = purpose
        self._named = f"{purpose.called} {path}"
        self.replaced = False
        """True where the socket of a daemon that was killed was in the way."""
        self._lock_path = path.with_name(path.name + LOCK_SUFFIX)
        self._made_folder = False
        self._lock_fd = -1
        self.prepare_folder()
        try:
            self._lock_fd = self._take_lock()
            self._remove_stale()
        except BaseException:
            self._give_up()
            raise

    def close(self) -> None:
        """Removes the socket, the lock and, where it was made here and is empty, the folder."""
        if self._lock_fd >= 0:
            self.path.unlink(missing_ok=True)
        self._give_up()

    def _give_up(self) -> None:
        """Gives lock and folder back without touching what is at the socket's path, which may be another's."""
        if self._lock_fd >= 0:
            self._lock_path.unlink(missing_ok=True)
            locks.close(self._lock_fd)
            self._lock_fd = -1
        if self._made_folder:
            with suppress(OSError):
                self.path.parent.rmdir()
            self._made_folder = False

    def prepare_folder(self) -> None:
        """Makes the folder where it is missing, as at first, also where somebody has removed it since.

        Raises DaemonError where it cannot, and for one in which others may replace files.
        """
        folder = self.path.parent
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                self._made_folder = True
                folder.chmod(self._purpose.folder_mode)  # whatever the umask
            found = folder.stat()
        except (OSError, ValueError) as error:  # no path has a byte of 0
            why = error.strerror if isinstance(error, OSError) else error
            raise DaemonError(
                f"{self._named}: {folder}: {why}; set `{self._purpose.key}` to a path this user may write"
            ) from None
        others_may_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid not in (0, os.geteuid()) or (others_may_write and not found.st_mode & stat.S_ISVTX):
            raise DaemonError(f"{self._named}: other users may replace files in {folder}; use a folder of your own")

    def _take_lock(self) -> int:
        while True:
            try:
                fd = locks.opened(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            except OSError as error:
                raise DaemonError(
                    f"{self._named}: {self._lock_path}: {error.strerror}; set `{self._purpose.key}` to another path"
                ) from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                locks.close(fd)
                raise DaemonError(self._in_use()) from None
            # The former owner may have removed the file between our open and our lock.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self._lock_path), os.fstat(fd)):
                    return fd
            locks.close(fd)

    def _remove_stale(self) -> None:
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise DaemonError(f"{self._named}: something else is there; move it away or set `{self._purpose.key}`")
        with sockets.socket(sockets.AF_UNIX, self._purpose.kind) as probe:
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:
                pass  # whoever listened is gone
            except OSError as error:
                raise DaemonError(
                    f"{self._named}: {error.strerror}; set `{self._purpose.key}` to another path"
                ) from None
            else:
                if not _was_killed(probe):
                    raise DaemonError(self._in_use())
        self.path.unlink()
        self.replaced = True

    def _in_use(self) -> str:
        asks = f" (`reinet ctl health --socket {self.path}` asks it)" if self._purpose is CONTROL else ""
        return (
            f"{self._named}: another daemon is listening there; "
            f"stop it, or set `{self._purpose.key}` to another path{asks}"
        )


def _was_killed(connected: sockets.socket) -> bool:
    """Returns whether who listens was killed and only waits for a disk that hangs: it answers nobody any more."""
    pid, _, _ = struct.unpack(
        "3i", connected.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i"))
    )
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:  # it is in another pid namespace
        return False
    found = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    pending = int(found["SigPnd"], 16) | int(found["ShdPnd"], 16)
    return found["State"][0] in "ZX" or bool(pending >> (signal.SIGKILL - 1) & 1)


def stale_sockets(folder: Path) -> list[Path]:
    """Returns the sockets in a folder that killed daemons left: the lock of each lies beside it, and nobody listens."""
    beside = (lock.with_name(lock.name.removesuffix(LOCK_SUFFIX)) for lock in sorted(folder.glob(f"*{LOCK_SUFFIX}")))
    return [path for path in beside if path.is_socket() and _refuses(path)]


def _refuses(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:  # whoever listens is busy, or of another kind
            return False
    return False


def remove_stale_socket(path: Path) -> bool:
    """Removes the socket of a daemon that is gone; returns False when there is none or its daemon lives."""
    if not path.is_socket():
        return False
    try:
        with SocketClaim(path) as claim:
            return claim.replaced
    except DaemonError:
        return False
