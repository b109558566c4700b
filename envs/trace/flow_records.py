"""Recorded flows, read: files of ``kshim/recorded.py``, which a daemon wrote and anybody may have touched since."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from reinet.core.errors import TraceError
from reinet.envs.trace.files import read_limited
from reinet.envs.trace.trace import MAX_FILE_BYTES
from reinet.kshim.recorded import RECORD_DTYPE, SUFFIX, VERSION, RecordArray

T = TypeVar("T")

_MOST_HEADER_BYTES = 256


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
        except (ValueError, TypeError, KeyError, OverflowError):  # the last of 1e999, an infinite version
            raise TraceError(f"{path}: is no recorded flow; name files that a daemon wrote ([daemon.record])") from None
        if not newline or version != VERSION or not (flow.isalnum() and len(flow) <= 64):
            raise TraceError(f"{path}: is of version {version}, this is for {VERSION}; use reinet of the same version")
        data = raw[len(line) + 1 :]
        records = np.frombuffer(data[: len(data) // RECORD_DTYPE.itemsize * RECORD_DTYPE.itemsize], RECORD_DTYPE)
        if (np.diff(records["time_us"].astype(np.int64)) < 0).any():
            raise TraceError(f"{path}: its times fall; the file is damaged, leave it out")
        return cls(flow, records)


def flow_files(paths: Sequence[Path]) -> list[Path]:
    """Returns the recorded flows among files and in folders, sorted, each once; raises TraceError where none is."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not found:
        raise TraceError(f"{', '.join(map(str, paths))}: holds no recorded flow (*{SUFFIX}); see [daemon.record]")
    return list({os.path.realpath(path): path for path in found}.values())


def read_each(
    files: Sequence[Path], read: Callable[[Path], T], tell: Callable[[str], None]
) -> tuple[list[T], list[str]]:
    """Returns what is read of each recorded flow, and why some were left out, of which ``tell`` hears at once.

    Raises TraceError where none can be read.
    """
    done: list[T] = []
    damaged: list[str] = []
    for file in files:
        try:
            done.append(read(file))
        except TraceError as error:
            if len(files) == 1:
                raise
            damaged.append(str(error))
            tell(f"left out: {error}")
    if not done:
        raise TraceError(f"none of {len(files)} files is a recorded flow; the first one: {damaged[0]}")
    return done, damaged
