"""Two reports of the same scenarios: what changed from one to the other, and whether it is more than noise."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from reinet.agents.evaluation.suites.report import FORMAT, Report
from reinet.agents.evaluation.suites.statistics import LEVEL, change
from reinet.core import toml_file
from reinet.core.errors import ConfigError

CHANGING = ("throughput_mbps", "qdelay_mean_ms", "qdelay_p95_ms", "jain", "share")
"""What is compared of each cell."""
NAME_KEYS = ("scenario", "agent", "cc", "point", "flows", "beside", "role")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Row(_Part):
    trace_sha256: str
    seed: int
    start_offset_ms: float
    throughput_mbps: float | None = None
    qdelay_mean_ms: float | None = None
    qdelay_p95_ms: float | None = None
    jain: float | None = None
    share: float | None = None


class _Hashed(_Part):
    sha256: str


class _Agent(_Part):
    name: str
    identity: str


class _Read(_Part):
    """What a comparison reads of a report; the rest may be of another version."""

    suite: _Hashed
    made_by: dict[str, Any]
    agents: list[_Agent]
    traces: list[_Hashed]
    rows: list[_Row]


_Runs = dict[tuple[str, ...], dict[str, float]]


def read(path: Path) -> Report:
    """Returns an earlier report; raises ConfigError for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name the report.json of an earlier run") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error}); name the report.json of an earlier run") from None
    if not isinstance(found, dict) or "made_by" not in found:
        raise ConfigError(f"{path}: not the report of a suite; name the report.json of an earlier run")
    if found.get("format") != FORMAT:
        raise ConfigError(f"{path}: a report of format {found.get('format')}, not {FORMAT}; make it anew")
    try:
        _Read.model_validate(found)
    except ValidationError as error:  # before hours of runs, not when they are compared
        raise ConfigError(f"{path}: {toml_file.first_fault(error)}; name the report.json of an earlier run") from None
    return found


def compare(before: Report, after: Report) -> dict[str, Any]:
    """Returns what shaped the two differently, and for each cell and figure that both have how it changed."""
    old, new = _by_cell(before), _by_cell(after)
    changes = []
    for name, runs in new.items():
        for metric in CHANGING:
            sides = [
                {run: figures[metric] for run, figures in side.items() if figures.get(metric) is not None}
                for side in (old.get(name, {}), runs)
            ]
            found = change(*sides)
            if found is not None:
                changes.append({
                    **json.loads(name), "metric": metric, "before": found.before, "after": found.after,
                    "difference": found.difference.as_json(), "paired": found.paired, "verdict": found.verdict,
                })  # fmt: skip
    tested = [one for one in changes if one["verdict"] in ("changed", "within noise")]
    return {
        "shaped_by": _differences(before, after),
        "changes": changes,
        "cells_only_before": len(old.keys() - new.keys()),
        "cells_only_after": len(new.keys() - old.keys()),
        "tested": len(tested),
        "changed": sum(one["verdict"] == "changed" for one in tested),
        "expected_by_chance": round((1 - LEVEL) * len(tested), 1),
    }


def _by_cell(report: Report) -> dict[str, _Runs]:
    found: dict[str, _Runs] = {}
    for row in report["rows"]:
        name = json.dumps({key: row.get(key) for key in NAME_KEYS}, sort_keys=True)
        run = (str(row["trace_sha256"]), str(row["seed"]), str(row["start_offset_ms"]))
        found.setdefault(name, {})[run] = row
    return found


def _differences(before: Report, after: Report) -> list[str]:
    """Returns, a sentence each, what shaped the reports differently."""
    found = [
        f"{name}: {old} before, {new} now"
        for name, old, new in ((name, before["made_by"].get(name), value) for name, value in after["made_by"].items())
        if old != new
    ]
    if before["suite"]["sha256"] != after["suite"]["sha256"]:
        found.append("the suite's file is another")
    sides: list[Mapping[str, str]] = [
        {agent["name"]: agent["identity"] for agent in report["agents"]} for report in (before, after)
    ]
    found += [f"agent {name} is another" for name in sides[1] if sides[0].get(name, sides[1][name]) != sides[1][name]]
    contents = [{trace["sha256"] for trace in report["traces"]} for report in (before, after)]
    if contents[0] != contents[1]:
        found.append(f"{len(contents[0] ^ contents[1])} traces are in one report only")
    return found
