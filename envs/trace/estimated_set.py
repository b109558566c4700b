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

    With ``overwrite`` the traces of earlier estimates that are not written anew are removed: whoever learns from the
    folder would take them too. Raises TraceError where there is nothing to write or the folder cannot be written.
    """
    if not found:
        raise TraceError(
            "the flows show no link's capacity: no stretch is long enough in which one was busy; record longer flows, "
            "or flows with more to send"
        )
    earlier = _traces_of_earlier(folder) if overwrite else set()
    rows = []
    for one, name in zip(found, distinct_names([one.trace for one in found]), strict=True):
        path = one.trace.save(folder / f"{name}.trace", overwrite=overwrite)
        rows.append({"path": path.name, **one.row()})
    write_set(folder / SET_FILE, [row["path"] for row in rows])
    # Before the figures are written: an attempt that breaks off leaves the names to the next one.
    for name in earlier - {row["path"] for row in rows}:
        _remove(folder / name)
    write_atomically(folder / FIGURES_FILE, (json.dumps({"rows": rows}, indent=1) + "\n").encode(), overwrite=True)
    return rows


def _traces_of_earlier(folder: Path) -> set[str]:
    """Returns which trace files of a folder its earlier estimates name. Raises TraceError for a file that names none.

    Anybody may have written that file, so a name counts only where it is a file's of this very folder.
    """
    path = folder / FIGURES_FILE
    try:
        names = [row["path"] for row in json.loads(path.read_bytes())["rows"]]
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; make it readable or choose another folder") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise TraceError(
            f"{path} does not name the traces of earlier estimates, so that nobody can say which to remove; delete it, "
            "or choose another folder"
        ) from error
    return {name for name in names if _is_trace_beside(folder, name)}


def _is_trace_beside(folder: Path, name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and name.endswith(".trace") and (folder / name).is_file()


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; delete this trace of an earlier estimate yourself") from error
