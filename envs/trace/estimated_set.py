"""A folder of estimated traces: what a training takes, and beside each trace what is uncertain of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reinet.core.errors import TraceError
from reinet.envs.trace.estimate import LEAST_S, Estimate, estimates
from reinet.envs.trace.files import write_atomically
from reinet.envs.trace.flow_records import FlowRecording, flow_files
from reinet.envs.trace.set_file import distinct_names, set_file

SET_FILE = "estimated.toml"
FIGURES_FILE = "estimates.json"
LEAST_MEASURED = 0.5
"""Of less measured time an estimate says more of its neighbours than of the link. Under the shipped model flows over
the generated drive, the worst of the presets, have 0.6 (docs/service.md)."""


def estimated(
    paths: Sequence[Path], least_s: float = LEAST_S, least_measured: float = LEAST_MEASURED
) -> tuple[list[Estimate], int]:
    """Returns what recorded flows show of their links, and how many estimates were left out as too uncertain.

    ``paths`` are files of a daemon's and folders of them. Raises TraceError.
    """
    found: list[Estimate] = []
    for file in flow_files(paths):
        recording = FlowRecording.load(file)
        found += estimates(recording.records, f"flow-{file.stem}", least_s)
    sure = [one for one in found if one.measured_share >= least_measured]
    return sure, len(found) - len(sure)


def write_set(path: Path, names: Sequence[str]) -> Path:
    """Writes a set file that names files beside it; returns its path."""
    write_atomically(path, set_file(path.stem, names), overwrite=True)
    return path


def save(found: Sequence[Estimate], folder: Path, overwrite: bool = False) -> list[dict[str, Any]]:
    """Writes a trace for each estimate, a set file that names them and their figures; returns the figures.

    Raises TraceError where there is nothing to write or the folder cannot be written.
    """
    if not found:
        raise TraceError(
            "the flows show no link's capacity: no stretch is long enough in which one was busy; record longer flows, "
            "or flows with more to send"
        )
    rows = []
    for one, name in zip(found, distinct_names([one.trace for one in found]), strict=True):
        path = one.trace.save(folder / f"{name}.trace", overwrite=overwrite)
        rows.append({"path": path.name, **one.row()})
    write_set(folder / SET_FILE, [row["path"] for row in rows])
    write_atomically(folder / FIGURES_FILE, (json.dumps({"rows": rows}, indent=1) + "\n").encode(), overwrite=True)
    return rows
