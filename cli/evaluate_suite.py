"""``reinet evaluate --suite``: a suite run into its store, and the store's report."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TimeElapsedColumn

from reinet.cli.options import listed, note_targets, note_training
from reinet.cli.output import TextColumn, Unwritten, check_folder, console, print_table, say, write_json
from reinet.core.disk import durable
from reinet.core.visible import utf8

if TYPE_CHECKING:
    from reinet.agents.evaluation.suites.plan import SuitePlan
    from reinet.agents.evaluation.suites.runner import Outcome
    from reinet.agents.evaluation.suites.store import Store

OUT = Path("runs/suites")
"""A store has the suite's name in this folder unless another one is named."""
COLUMNS = [
    "scenario", "agent", "cc", "cell", "throughput_mbps", "utilization", "qdelay_mean_ms", "qdelay_p95_ms",
    "throughput_kept", "delay_left", "runs",
]  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What the command line says of a suite."""

    suite: str
    agents: str | None
    traces: Sequence[Path]
    link: str | None
    scenarios: str | None
    repeat: int | None
    out: Path | None
    against: Path | None
    allow_training_traces: bool
    json_destination: str | None


def evaluate_suite(request: Request) -> int:
    """Runs what the store lacks, writes the report beside it, prints it; returns the exit status."""
    from reinet.agents.decide.names import split_names
    from reinet.agents.evaluation.plan import labelled
    from reinet.agents.evaluation.suites import against, markdown, pictures, report
    from reinet.agents.evaluation.suites.definition import load
    from reinet.agents.evaluation.suites.plan import plan
    from reinet.agents.evaluation.suites.store import Store
    from reinet.envs.trace import load_traces

    earlier = against.read(request.against) if request.against is not None else None
    suite = load(request.suite)
    made = plan(
        suite,
        given=load_traces(request.traces) if request.traces else (),
        agents=split_names(request.agents) if request.agents is not None else None,
        repeat=request.repeat,
        allow_training_traces=request.allow_training_traces,
        link=request.link,
        only=listed("scenarios", request.scenarios, str) if request.scenarios is not None else (),
    )
    if made.generated:
        say("note: no --traces were given, so links are generated from presets, not recorded")
    note_targets((job.agent, job.scenario.target, job.scenario.path.mrtt_ms) for job in made.jobs)
    folder = request.out or OUT / suite.name
    check_folder("--out", folder)
    with Store.locked(folder) as store:
        outcome = _run_shown(made, store)
        found = report.build(made, store, _command(), outcome.failed)
        found["against"] = against.compare(earlier, found) if earlier is not None else None
        unwritten, saved = Unwritten(), []
        try:
            with unwritten.at(folder / "*.png"):
                saved = pictures.save(report.groups(made, store), folder)
        except ModuleNotFoundError as error:
            if error.name != "matplotlib":
                raise
            say("no pictures: they need matplotlib; pip install matplotlib, and run this again")
        page = utf8(markdown.page(found, saved, found["against"]))  # traces and the command line name files
        for name, text in (("report.json", json.dumps(found, allow_nan=False) + "\n"), ("report.md", page)):
            with unwritten.at(folder / name):
                durable.write(folder / name, text.encode())
    write_json(request.json_destination, found)
    if request.json_destination != "-":
        print_table(list(map(_shown, found["cells"])), COLUMNS)
    note_training(labelled(found["rows"]))
    unwritten.tell()
    say(f"report: {folder / 'report.md'} ({found['runs']['valid']} of {found['runs']['planned']} runs)")
    for reason in found["runs"]["not_made_because"]:
        say(("not made: ", "bold"), reason)
    if not found["runs"]["valid"]:
        say(("no run is valid", "bold"), f"; {folder / 'runs.jsonl'} says why")
    return 1 if outcome.failed or not found["runs"]["valid"] else 0


def _run_shown(plan: SuitePlan, store: Store) -> Outcome:
    from reinet.agents.evaluation.suites.runner import make, missing_s

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("runs", total=missing_s(plan, store) or 1)

        def told(through_s: float, what: str) -> None:
            progress.update(task, completed=through_s, description=what)

        cores = os.cpu_count() or 1
        return make(plan, store, cores, told, at_once=cores)


def _shown(cell: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: value["mean"] for name, value in cell["numbers"].items()}
    place = {**cell["point"], **{key: cell[key] for key in ("flows", "beside") if cell[key] not in (1, None)}}
    where = ", ".join(f"{key} {value}" for key, value in place.items())
    return {**cell, **numbers, "cell": where if cell["role"] == "run" else f"{cell['role']} {where}".strip()}


def _command() -> str:
    """Returns the command line that was given, as a page shows it."""
    return shlex.join(["reinet", *sys.argv[1:]])
