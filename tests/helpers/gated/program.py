"""A program under the gate as the daemon sees it, without one: it may write whatever it likes into its memory."""

import fcntl
import mmap
import os
import socket
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reinet.alcc import _alcc
from reinet.core.records import FLOW_STATS_DTYPE

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Program:
    """It connects at once; ``ring`` are its records, ``caps`` what it was told."""

    def __init__(
        self, path: Path, size: int = _alcc.LINK_BYTES, seals: int = SEALS, event_fd: int | None = None
    ) -> None:
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
        socket.send_fds(self.socket, [b"M"], [self.memory_fd, self.event_fd])

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
