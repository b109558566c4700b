"""A program under the gate as the daemon sees it, without one: it may write whatever it likes into its memory.

And what it may hand over in place of that: a file of a file system of its own (FUSE), mounted over another one.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from reinet.alcc import _alcc
from reinet.core.records import FLOW_STATS_DTYPE

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
GETATTR, OPEN, RELEASE, FLUSH, INIT, POLL = 3, 14, 18, 25, 26, 40
"""What the kernel asks: ``linux/fuse.h``."""
_DETACH = 2  # MNT_DETACH
_libc = ctypes.CDLL(None, use_errno=True)


class Program:
    """It connects at once; ``ring`` are its records, ``caps`` what it was told."""

    def __init__(
        self,
        path: Path,
        size: int = _alcc.LINK_BYTES,
        seals: int = SEALS,
        event_fd: int | None = None,
        memory_fd: int | None = None,
    ) -> None:
        """The descriptors are handed over in place of its own."""
        self.memory_fd = os.memfd_create("program", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.memory_fd, size)
        fcntl.fcntl(self.memory_fd, fcntl.F_ADD_SEALS, seals)
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if event_fd is None else event_fd
        self.memory = mmap.mmap(self.memory_fd, size)
        if size == _alcc.LINK_BYTES:
            self.magic = np.ndarray(1, np.uint64, self.memory, 0)
            self.written = np.ndarray(1, np.uint64, self.memory, _alcc.WRITTEN_AT)
            self.ring = np.ndarray(_alcc.LINK_RECORDS, FLOW_STATS_DTYPE, self.memory, _alcc.RECORDS_AT)
            cap = np.dtype({"names": ["cookie", "lease", "target_us", "sequence"],
                            "formats": ["<u8", "<u8", "<u4", "<u4"], "itemsize": 64})  # fmt: skip
            self.caps = np.ndarray(_alcc.LINK_SLOTS, cap, self.memory, _alcc.CAPS_AT)
            self.magic[0] = _alcc.LINK_MAGIC
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(path))
        socket.send_fds(self.socket, [b"M"], [self.memory_fd if memory_fd is None else memory_fd, self.event_fd])

    def tell(self, records: npt.NDArray[np.void]) -> None:
        for record in records:
            self.ring[int(self.written[0]) % len(self.ring)] = record
            self.written += np.uint64(1)
        os.eventfd_write(self.event_fd, 1)

    def close(self) -> None:
        self.socket.close()
        os.close(self.memory_fd)
        os.close(self.event_fd)


def record(cookie: int, slot: int = 0, **fields: int) -> npt.NDArray[np.void]:
    """One that makes sense: a flow of 10 Mbit/s behind 20 ms with a queue of 20 ms."""
    made = np.zeros(1, FLOW_STATS_DTYPE)
    usual = {
        "cookie": cookie, "slot": slot, "time_ns": time.monotonic_ns(), "period_ns": 10_000_000,
        "delivery_rate_bytes_per_s": 1_250_000, "delivered_bytes": 12_500, "rtt_mean_us": 40_000, "rtt_samples": 8,
        "rtt_last_us": 40_000, "rtt_least_us": 39_000, "srtt_us": 40_000, "min_rtt_us": 20_000, "cwnd_pkts": 40,
        "ssthresh_pkts": 100, "inflight_pkts": 35, "mss_bytes": 1448,
    }  # fmt: skip
    for name, value in (usual | fields).items():
        made[name] = value
    return made


@contextlib.contextmanager
def own_file(path: Path, silent: Collection[int] = (), flush_error: int = 0) -> Iterator[int]:
    """Yield a descriptor of the file; what is asked of ``silent`` has no answer until the end, closing has an error."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("the kernel has no FUSE")
    path.touch()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=100000,user_id=0,group_id=0"
    try:
        if _libc.mount(b"own", bytes(path), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "mount")
        threading.Thread(target=_answer, args=(device, silent, flush_error), daemon=True).start()
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        yield fd
    finally:
        _libc.umount2(bytes(path), _DETACH | 1)  # and MNT_FORCE: whoever waits for an answer is told of the end
        os.close(device)
    with contextlib.suppress(OSError):  # of what is gone
        os.close(fd)


def _answer(device: int, silent: Collection[int], flush_error: int) -> None:
    answers = {
        INIT: struct.pack("<4I2H2I2H8I", 7, 31, 1 << 16, 0, 16, 12, 1 << 16, 1, 0, 0, *[0] * 8),
        GETATTR: struct.pack("<QII6Q10I", 0, 0, 0, 1, 4096, 8, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0),
        OPEN: struct.pack("<QII", 1, 0, 0),
        POLL: struct.pack("<II", 0, 0),
        FLUSH: b"",
        RELEASE: b"",
    }
    with contextlib.suppress(OSError):  # the mount is gone
        while True:
            _, asked, unique = struct.unpack_from("<IIQ", os.read(device, 1 << 17))
            error = flush_error if asked == FLUSH else 0 if asked in answers else errno.ENOSYS
            body = b"" if error else answers[asked]
            if asked not in silent:
                os.write(device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
