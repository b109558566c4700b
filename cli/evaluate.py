"""``reinet evaluate``: agents side by side over the same links."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from reinet.cli.output import JsonOption, TextColumn, console, print_table, say, write_json

if TYPE_CHECKING:
    from reinet.agents.evaluation.plan import Plan
    from reinet.agents.evaluation.run import Run
    from reinet.agents.evaluation.scenario import Scenario

COLUMNS = [
    "agent", "cc", "trace", "link", "throughput_mbps", "utilization", "qdelay_mean_ms", "qdelay_p95_ms",
    "delay_mean_ms", "valid",
]  # fmt: skip


class Link(str, Enum):
    """Where flows run."""

    sim = "sim"
    mahimahi = "mahimahi"


def run_shown(plan: Plan, seconds: float) -> list[tuple[Run, dict[str, object]]]:
    """Runs a plan whose runs last ``seconds`` each, behind a progress bar; returns the runs and their rows."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("s"),
        TimeElapsedColumn(),
    )
    done: list[tuple[Run, dict[str, object]]] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{len(plan)} transfers", total=round(len(plan) * seconds))
        plan.progress = lambda now_s: progress.update(task, completed=round(len(done) * seconds + now_s))
        for run, row in plan:
            done.append((run, row))
            progress.update(task, completed=round(len(done) * seconds))
    return done


def evaluate(
    agents: Annotated[
        str, typer.Option(help="none, fixed:N, rule[:G], clairvoyant:MS, random or model folders, by commas.")
    ],
    traces: Annotated[list[Path], typer.Option(help="A trace, a folder or a set file; may be repeated.")],
    link: Annotated[Link, typer.Option(help="sim, or mahimahi: real kernel sockets.")] = Link.mahimahi,
    cc: Annotated[str, typer.Option(help="Congestion controls by their kernel names, by commas.")] = "cubic",
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="RTT to stay below: 50ms, or +30ms or 2.5x of the path's minimum RTT."),
    ] = None,
    target_ms: Annotated[
        float | None, typer.Option(help="The same in ms, for every path; without either 50, as DeepCC's.")
    ] = None,
    mrtt_ms: Annotated[float, typer.Option(help="The path's fixed round trip (DeepCC: 20).")] = 20.0,
    buffer_bytes: Annotated[int, typer.Option(help="Buffer of the bottleneck (DeepCC: 150 KB).")] = 150_000,
    link_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="More of the link, such as queue=codel or loss=0.01; may be repeated."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Length of each run.")] = 60.0,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of every combination.")] = 1,
    allow_training_traces: Annotated[
        bool, typer.Option(help="Evaluate a model even on traces it was trained on; such rows are labelled.")
    ] = False,
    png: Annotated[Path | None, typer.Option(help="Save a picture of the first repetition of each trace here.")] = None,
    json_destination: JsonOption = None,
) -> None:
    """Compare agents over the same traces, on real kernel sockets (Mahimahi) or in the simulator.

    A run in which the host lagged, or an agent failed on a real flow, says valid: no; do not quote it. Examples:

        reinet evaluate --agents none,checkpoints/default --traces my.trace --link sim

        sudo reinet evaluate --agents none,rule:1.25,checkpoints/default --traces traces/ --seconds 60 --json -

        reinet evaluate --agents none,rule --traces my.trace --link sim --link-option queue=pie --link-option loss=0.01

        reinet evaluate --agents none,checkpoints/default --traces my.trace --link sim --mrtt-ms 80 --target +30ms

    A target of +30ms or 2.5x is resolved from --mrtt-ms, on --link mahimahi from the minimum RTT that the flow itself
    measures; rows have it as text (target) and as resolved from --mrtt-ms (target_ms).
    Link options are the fields of a path (docs/simulator.md); --link mahimahi has those of the queue.
    """
    from reinet.agents.evaluation.plan import Plan
    from reinet.agents.evaluation.scenario import Scenario, link_options
    from reinet.envs.trace import load_traces

    options = link_options(link_option or [])
    scenarios = [
        Scenario.of(
            trace,
            link.value,
            seconds=seconds,
            target=target,
            target_ms=target_ms,
            link_options=options,
            cc=control.strip(),
            mrtt_ms=mrtt_ms,
            buffer_bytes=buffer_bytes,
        )
        for trace in load_traces(traces)
        for control in cc.split(",")
    ]
    plan = Plan(agents, scenarios, repeat, allow_training_traces)
    done = run_shown(plan, seconds)
    rows = [row for _, row in done]
    write_json(json_destination, {"rows": rows})
    if json_destination != "-":
        print_table(rows, COLUMNS)
    for row in rows:
        for key in ("invalid_reason", "uncapped_reason"):
            if row[key]:
                say(f"{row['agent']} on {row['trace']}: {row[key]}")
    if png is not None:
        from reinet.agents.evaluation.picture import save_comparison

        pictures: dict[Scenario, list[Run]] = {}
        for run, row in done:
            if row["repetition"] == 0:
                pictures.setdefault(run.scenario, []).append(run)
        for scenario, runs in pictures.items():
            suffix = f"-{scenario.trace.name}-{scenario.path.cc}" if len(pictures) > 1 else ""
            path = png.with_name(f"{png.stem}{suffix}{png.suffix}")
            save_comparison(runs, path)
            say(f"picture: {path}")
