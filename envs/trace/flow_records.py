"""Recorded flows: what a daemon keeps of a flow, so that the capacity of its link can be estimated later.

A file is one flow: a line of JSON, then records of ``RECORD_DTYPE`` as they came, in little-endian bytes. A file that
breaks off, as when its writer was killed, is good up to its last whole record.

No payload, address, port or name of a host is in it, and no time of day: times count from the flow's first record, and
``flow`` is a keyed hash of the socket's cookie.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.core.errors import TraceError
from reinet.envs.trace.trace import MAX_FILE_BYTES, read_limited

SUFFIX = ".flow"
VERSION = 1
COLUMNS = (
    "delivered_bytes", "rtt_samples", "rtt_mean_us", "rtt_least_us", "min_rtt_us", "inflight_pkts", "cwnd_pkts",
    "cap_pkts", "mss_bytes", "flags",
)  # fmt: skip
"""Fields of FlowStats (``core/flow_stats.h``) that are kept as they are, 32 bits each."""
RECORD_DTYPE = np.dtype([("time_us", "<u8"), ("period_us", "<u4"), *((name, "<u4") for name in COLUMNS)])
"""``time_us`` is the period's end, counted from that of the flow's first record, ``period_us`` its length."""
RecordArray = NDArray[np.void]

_MOST_HEADER_BYTES = 256
_MOST_U32 = np.iinfo(np.uint32).max


@dataclass(frozen=True)
class FlowRecording:
    """A flow's records, the oldest first."""

    flow: str
    records: RecordArray
    """RECORD_DTYPE (N,)."""

    @classmethod
    def load(cls, path: Path) -> "FlowRecording":
        """Returns the flow in a file; raises TraceError for what is none."""
        raw = read_limited(path, MAX_FILE_BYTES, "recorded flow")
        line, newline, data = raw[: _MOST_HEADER_BYTES + 1].partition(b"\n")
        try:
            header = json.loads(line)
            version, flow = int(header["reinet_flow"]), str(header["flow"])
        except (ValueError, TypeError, KeyError):
            raise TraceError(f"{path}: is no recorded flow; name files that a daemon wrote ([daemon.record])") from None
        if not newline or version != VERSION or not (flow.isalnum() and len(flow) <= 64):
            raise TraceError(f"{path}: is of version {version}, this is for {VERSION}; use reinet of the same version")
        data = raw[len(line) + 1 :]
        records = np.frombuffer(data[: len(data) // RECORD_DTYPE.itemsize * RECORD_DTYPE.itemsize], RECORD_DTYPE)
        if (np.diff(records["time_us"].astype(np.int64)) < 0).any():
            raise TraceError(f"{path}: its times fall; the file is damaged, leave it out")
        return cls(flow, records)


def header(flow: str) -> bytes:
    """Returns the first line of a flow's file."""
    return json.dumps({"reinet_flow": VERSION, "flow": flow}).encode() + b"\n"


def kept(stats: NDArray[np.void], first_ns: int) -> RecordArray:
    """Returns what is kept of N records of FLOW_STATS_DTYPE of a flow whose first record ended at ``first_ns``."""
    found = np.zeros(len(stats), RECORD_DTYPE)
    found["time_us"] = (np.maximum(stats["time_ns"], first_ns) - np.uint64(first_ns)) // np.uint64(1000)
    found["period_us"] = np.minimum(stats["period_ns"] // np.uint64(1000), _MOST_U32)
    for name in COLUMNS:
        found[name] = np.minimum(stats[name], _MOST_U32)
    return found


def flow_files(paths: list[Path]) -> list[Path]:
    """Returns the recorded flows among files and in folders, sorted; raises TraceError where there is none."""
    found: list[Path] = []
    for path in paths:
        inside: list[Any] = sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
        found += inside
    if not found:
        raise TraceError(f"{', '.join(map(str, paths))}: holds no recorded flow (*{SUFFIX}); see [daemon.record]")
    return found
