"""Flows recorded for learning: a sample of a daemon's flows, one file each, bounded, and nothing that names anybody.

What a file holds is in ``reinet.kshim.recorded``: counts and times of a flow's periods. It never holds a payload, an
address, a port or a time of day, and a flow is called by a hash of its cookie that is keyed with the site's secret; so
files of one flow are known as such where the key is, and nowhere else. Whether a flow is in the sample hangs on that
hash alone.

The loop is never held up and a full disk costs recordings, not caps: all of them end, which is said once, and new ones
are begun a minute later. The folder's files together stay below ``most_bytes`` of the disk and are ``MOST_FILES`` at
most; where room is needed the oldest closed one goes. A flow too short to learn a link from leaves no file. A lock on
the folder keeps a second daemon from it, which would take for closed, and remove, what the first one writes.
"""

import errno
import fcntl
import hashlib
import hmac
import os
import secrets
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import structlog

from reinet.core.errors import UNWRITABLE, ConfigError
from reinet.core.records import Flag, FlowStatsArray
from reinet.kshim.recorded import SUFFIX, header, kept

MOST_FLOWS = 64
"""So many flows are recorded at one time: at 200 records/s each, of 52 bytes, 0.7 MB/s."""
MOST_FLOW_S = 600
"""A flow's recording ends after this; training draws starts at random, and ten minutes hold hundreds of them."""
SILENT_S = 60
"""A flow without a record for this long gives its place to another."""
MOST_NAMES = 65_536
"""So many flows' names are kept in mind, as many as a daemon's flows by default; a name costs 3 us to find again."""
RETRY_S = 60
"""So long nothing is tried after a disk that failed, as with the curves; a try leaves no more than a file behind."""
MOST_FILES = 4096
"""So many files are kept: at the default ``most_mb`` each then has 62 kB on average, six seconds at 5 ms a record. More
would be shorter ones, of little use, and slow to list for whoever sends them or takes up the folder at a start."""
BLOCK_BYTES = 4096
"""A file takes whole blocks of its file system, which are of this size on ext4 and XFS as they are made."""
AHEAD_NS = 60 * 1_000_000_000
"""The clock of a file server may be ahead of this host's by so much."""
LEAST_S = 5.0
"""A flow of less is not kept: ``reinet traces from-flows`` and training leave it out (``envs/trace/estimate.py``)."""
KEY_BYTES = 32
FILES_PER_BOUND = 8
"""No flow takes more than an eighth of all bytes."""

log = structlog.get_logger("reinet.flow_recorder")


def site_key(path: Path | None) -> bytes:
    """Returns the site's secret; without a file one of this start, so that no two starts' names can be linked.

    Raises ConfigError where the file cannot be read or holds too little.
    """
    if path is None:
        return secrets.token_bytes(KEY_BYTES)
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"daemon.record.key_file: {path}: {error.strerror}; name a readable file") from None
    if len(key) < KEY_BYTES:
        raise ConfigError(
            f"daemon.record.key_file: {path} holds {len(key)} bytes, {KEY_BYTES} are the least; make one with "
            f"`head -c {KEY_BYTES} /dev/urandom | base64`"
        )
    return key


@dataclass
class _Flow:
    file: BinaryIO
    path: Path
    began_ns: int
    """When its first record's period began."""
    first_ns: int
    last_ns: int
    taken_bytes: int
    """What is counted for it of the folder's bound."""


def on_disk_bytes(size_bytes: int) -> int:
    """Returns what a file of so many bytes takes of a disk."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def age_key(modified_ns: int) -> tuple[bool, int]:
    """Returns what sorts files by when they were written, the oldest first.

    One of a much later time than now is from before the clock was set back: as the newest it would be kept for as long,
    and what is written now would go in its place.
    """
    return modified_ns <= time.time_ns() + AHEAD_NS, modified_ns


class FlowRecorder:
    """Takes what the loop saw and writes the sample's share; belongs to one thread."""

    def __init__(self, folder: Path, share: float, most_bytes: int, key: bytes) -> None:
        """Makes the folder; raises OSError where it cannot be written, but for a disk that is full or read-only."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
        is_closed = folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK)
        if is_closed and not os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise PermissionError(13, "no permission to write", str(folder))
        self._folder, self._share, self._key = folder, share, key
        self._most_bytes = most_bytes
        self._lock_fd = -1
        self._closed: OrderedDict[Path, int] = OrderedDict()  # of many it finds the oldest one at once
        self._open: dict[int, _Flow] = {}
        self._over: set[int] = set()  # flows whose recording ended before they did
        self._names: dict[int, str] = {}  # of flows in the sample; empty for others
        self._bytes = 0
        self._failed_ns: int | None = None
        self._told_of_room = False
        self.left_out = 0
        """Records of the sample's flows that were not written: too many flows at once, or a disk that failed."""
        with suppress(OSError):  # the first flow tells
            self._take_up()

    def has_folder(self) -> bool:
        """Tells whether the folder is this recorder's, and no other daemon records there."""
        return self._lock_fd >= 0

    def take(self, records: FlowStatsArray) -> None:
        """Takes N records, of several of a flow the oldest first; never raises for what a disk does."""
        for cookie in dict.fromkeys(records["cookie"].tolist()):
            if not (name := self._sampled(cookie)):
                continue
            own = records[records["cookie"] == cookie]
            now_ns = int(own["time_ns"].max())
            if self._failed_ns is not None and now_ns - self._failed_ns < RETRY_S * 10**9:
                self.left_out += len(own)
                continue
            try:
                self._write(cookie, name, own)
            except OSError as error:
                self.left_out += len(own)
                self.end_all()
                if self._failed_ns is None:
                    log.warning("flows are not recorded for now", folder=str(self._folder), error=str(error))
                self._failed_ns = now_ns

    def end_all(self) -> None:
        """Ends every recording."""
        for cookie in list(self._open):
            self._end(cookie)

    def close(self) -> None:
        """Ends every recording, and leaves the folder to whoever records next."""
        self.end_all()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _take_up(self) -> None:
        """Locks the folder and takes up what earlier starts left there; raises OSError where another daemon records."""
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if not isinstance(error, BlockingIOError):
                raise
            raise OSError(errno.EBUSY, "another daemon records there; give each a folder of its own") from None
        self._lock_fd = fd
        self._closed = OrderedDict(_recorded(self._folder))
        self._bytes = sum(self._closed.values())
        self._make_room(0)  # an earlier start may have been allowed more

    def _sampled(self, cookie: int) -> str:
        """Returns what the flow is called; empty where it is not in the sample."""
        name = self._names.get(cookie)
        if name is None:
            name = hmac.new(self._key, cookie.to_bytes(8, "little"), hashlib.sha256).hexdigest()[:32]
            name = name if int(name[:8], 16) < self._share * 2**32 else ""
            if len(self._names) >= MOST_NAMES:
                self._names.clear()
                self._over.clear()
            self._names[cookie] = name
        return name

    def _write(self, cookie: int, name: str, records: FlowStatsArray) -> None:
        closed = bool((records["flags"] & Flag.CLOSED).any())
        live = records[(records["flags"] & Flag.CLOSED) == 0]
        if len(live) and cookie not in self._over:
            flow = self._open.get(cookie) or self._begin(cookie, name, live[0])
            if flow is None:
                self.left_out += len(live)
            else:
                self._append(cookie, flow, live)
        if closed:
            self._over.discard(cookie)
            self._end(cookie)

    def _append(self, cookie: int, flow: _Flow, live: FlowStatsArray) -> None:
        data = kept(live, flow.first_ns).tobytes()
        taken_bytes = on_disk_bytes(flow.file.tell() + len(data))
        flow.last_ns = int(live["time_ns"][-1])
        too_long = flow.last_ns - flow.first_ns > MOST_FLOW_S * 10**9
        if too_long or taken_bytes > self._most_bytes // FILES_PER_BOUND:
            self._over.add(cookie)
            self._end(cookie)
            return
        if not self._make_room(taken_bytes - flow.taken_bytes):
            self.left_out += len(live)
            self._end(cookie)
            return
        flow.file.write(data)
        self._bytes += taken_bytes - flow.taken_bytes
        flow.taken_bytes = taken_bytes

    def _begin(self, cookie: int, name: str, first: np.void) -> _Flow | None:
        """Returns a new file for a flow with its first record; None where too many flows are recorded, or too much."""
        first_ns = int(first["time_ns"])
        if len(self._open) >= MOST_FLOWS:
            for other in [c for c, flow in self._open.items() if first_ns - flow.last_ns > SILENT_S * 10**9]:
                self._end(other)
            if len(self._open) >= MOST_FLOWS:
                return None
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # whoever makes room on a disk may remove it whole
        if not self.has_folder():
            self._take_up()
        if not self._make_room(BLOCK_BYTES, files=1):
            return None
        path = self._folder / f"{name}-{secrets.token_hex(4)}{SUFFIX}"
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
        began_ns = first_ns - int(first["period_ns"])
        self._open[cookie] = _Flow(file, path, began_ns, first_ns, first_ns, BLOCK_BYTES)
        self._bytes += BLOCK_BYTES
        file.write(header(name))
        file.flush()  # so that a full disk shows here
        if self._failed_ns is not None:
            self._failed_ns = None
            log.info("flows are recorded again", folder=str(self._folder))
        return self._open[cookie]

    def _end(self, cookie: int) -> None:
        flow = self._open.pop(cookie, None)
        if flow is None:
            return
        self._bytes -= flow.taken_bytes
        with suppress(OSError):  # a full disk: what is lost is the tail
            flow.file.close()
        with suppress(OSError):
            taken_bytes = on_disk_bytes(flow.path.stat().st_size)
            if taken_bytes and flow.last_ns - flow.began_ns >= LEAST_S * 10**9:
                self._closed[flow.path] = taken_bytes
                self._bytes += taken_bytes
            else:
                flow.path.unlink()

    def _make_room(self, size_bytes: int, files: int = 0) -> bool:
        """Lets the oldest go; returns False where those that are written now take everything."""
        while self._bytes + size_bytes > self._most_bytes or len(self._closed) + len(self._open) + files > MOST_FILES:
            if not self._closed:
                if not self._told_of_room:
                    self._told_of_room = True
                    log.warning("most_mb leaves no room for all flows of the sample", folder=str(self._folder))
                return False
            oldest, taken_bytes = self._closed.popitem(last=False)
            self._bytes -= taken_bytes
            with suppress(OSError):
                oldest.unlink()
        return True


def _recorded(folder: Path) -> list[tuple[Path, int]]:
    """Returns what earlier starts left and what each takes of the disk, oldest first; follows no link."""
    found = []
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
            state = entry.stat(follow_symlinks=False)
            found.append((age_key(state.st_mtime_ns), Path(entry.path), on_disk_bytes(state.st_size)))
    return [(path, taken_bytes) for _, path, taken_bytes in sorted(found)]
