"""``reinet evaluate``: agents side by side over the same links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reinet.cli.options import (
    MOST_REPEAT,
    AllowTrainingTraces,
    BufferOption,
    CcOption,
    LinkOptions,
    MrttOption,
    TargetMsOption,
    TargetOption,
    a_picture,
    note_targets,
    note_training,
    refuse_idle_buffer,
    refuse_said,
    was_said,
)
from reinet.cli.output import JsonOption, Unwritten, keep_json, progress_in_seconds, say, tell_table
from reinet.core.errors import ConfigError, ReinetError

if TYPE_CHECKING:
    from reinet.agents.evaluation.plan import Plan
    from reinet.agents.evaluation.run import Run
    from reinet.agents.evaluation.scenario import Scenario

COLUMNS = [
    "agent", "cc", "trace", "link", "throughput_mbps", "utilization", "qdelay_mean_ms", "qdelay_p95_ms",
    "delay_mean_ms", "valid",
]  # fmt: skip


OF_LINKS = (
    "cc", "target", "target_ms", "mrtt_ms", "buffer_bytes", "link_option", "seconds", "seed", "png", "actuator",
)  # fmt: skip
"""Options of which a suite has its own."""


class Actuator(str, Enum):
    """Where caps act on real sockets."""

    kernel = "kernel"
    app = "app"


class Link(str, Enum):
    """Where flows run."""

    sim = "sim"
    mahimahi = "mahimahi"


def run_shown(plan: Plan, seconds: float, take: Callable[[Run, dict[str, object]], None]) -> None:
    """Runs a plan whose runs last ``seconds`` each, behind a progress bar; ``take`` gets each run and its row."""
    with progress_in_seconds() as progress:
        task = progress.add_task(f"{len(plan)} transfers", total=round(len(plan) * seconds))
        through = 0
        plan.progress = lambda now_s: progress.update(task, completed=round(through * seconds + now_s))
        for run, row in plan:
            through += 1
            progress.update(task, completed=round(through * seconds))
            take(run, row)


def evaluate(
    context: typer.Context,
    agents: Annotated[
        str | None,
        typer.Option(help="none, fixed:N, rule[:G], clairvoyant:MS, random, roccet or model folders, by commas."),
    ] = None,
    traces: Annotated[list[Path] | None, typer.Option(help="A trace, a folder or a set file; may be repeated.")] = None,
    link: Annotated[Link, typer.Option(help="sim, or mahimahi: real kernel sockets.")] = Link.mahimahi,
    actuator: Annotated[
        Actuator, typer.Option(help="Where caps act: kernel, or app, the gate of reinet run (docs/alcc.md).")
    ] = Actuator.kernel,
    cc: CcOption = "cubic",
    target: TargetOption = None,
    target_ms: TargetMsOption = None,
    mrtt_ms: MrttOption = 20.0,
    buffer_bytes: BufferOption = 150_000,
    link_option: LinkOptions = None,
    seconds: Annotated[float, typer.Option(help="Length of each run.")] = 60.0,
    repeat: Annotated[int, typer.Option(min=1, max=MOST_REPEAT, help="Runs of every combination.")] = 1,
    allow_training_traces: AllowTrainingTraces = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the simulator's random numbers; each repetition uses the next one.")
    ] = 0,
    png: Annotated[
        Path | None,
        typer.Option(callback=a_picture, help="Save a picture of the first repetition of each trace here."),
    ] = None,
    suite: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Run a suite instead: quick, reinet, deepcc or a TOML file.")
    ] = None,
    scenarios: Annotated[str | None, typer.Option(help="Only these scenarios of a suite, by commas.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A suite's folder of runs and report (default: runs/suites/NAME).")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="REPORT", help="Say what changed since this report.json of a suite.")
    ] = None,
    json_destination: JsonOption = None,
) -> None:
    """Compare agents over the same traces, on real kernel sockets (Mahimahi) or in the simulator.

    A run in which the host lagged, or an agent failed on a real flow, is marked "valid: no": do not use its figures.
    Examples:

        reinet evaluate --agents none,checkpoints/default --traces my.trace --link sim

        sudo reinet evaluate --agents none,rule:1.25,checkpoints/default --traces traces/ --seconds 60 --json -

        reinet evaluate --agents none,rule --traces my.trace --link sim --link-option queue=pie --link-option loss=0.01

        reinet evaluate --agents none,checkpoints/default --traces my.trace --link sim --mrtt-ms 80 --target +30ms

    A target of +30ms or 2.5x is resolved from --mrtt-ms, on --link mahimahi from the minimum RTT that the flow itself
    measures; rows have it as text (target) and as resolved from --mrtt-ms (target_ms).
    Link options are the fields of a path (docs/simulator.md); --link mahimahi has those of the queue, and loss. The
    file of --json has the rows so far after each run.

    A suite (docs/evaluation.md) is many comparisons with one report. If it is killed, the same command continues it:

        reinet evaluate --suite quick

        reinet evaluate --suite quick --agents none,runs/mine/model --traces my-traces/ --out runs/suites/mine

        reinet evaluate --suite quick --repeat 20 --against runs/suites/old/report.json
    """
    if suite is not None:
        from reinet.cli.evaluate_suite import Request, evaluate_suite

        refuse_said(context, OF_LINKS, f"--suite {suite} says that itself, in its scenarios")
        said_link, said_repeat = was_said(context, "link"), was_said(context, "repeat")
        raise typer.Exit(
            evaluate_suite(
                Request(
                    suite=suite,
                    agents=agents,
                    traces=traces or (),
                    link=link.value if said_link else None,
                    scenarios=scenarios,
                    repeat=repeat if said_repeat else None,
                    out=out,
                    against=against,
                    allow_training_traces=allow_training_traces,
                    json_destination=json_destination,
                )
            )
        )
    refuse_said(context, ("scenarios", "out", "against"), "it belongs to --suite")
    if agents is None or not traces:
        raise ConfigError("evaluate: --agents and --traces are needed, or a --suite")
    if link is Link.mahimahi and was_said(context, "seed"):
        raise ConfigError("--seed: a real host's noise has none; add --link sim")
    from reinet.agents.evaluation.plan import Plan
    from reinet.agents.evaluation.scenario import link_options, scenarios_of
    from reinet.envs.trace import load_traces

    options = link_options(link_option or [])
    refuse_idle_buffer(context, options)
    compared = scenarios_of(
        load_traces(traces),
        cc.split(","),
        link.value,
        seconds=seconds,
        target=target,
        target_ms=target_ms,
        link_options=options,
        actuator=actuator.value,
        mrtt_ms=mrtt_ms,
        buffer_bytes=buffer_bytes,
        seed=seed,
    )
    plan = Plan(agents, compared, repeat, allow_training_traces)
    note_targets((agent, scenario.target, mrtt_ms) for agent in plan.agents for scenario in compared)
    rows: list[dict[str, object]] = []
    pictured: dict[Scenario, list[Run]] = {}

    def take(run: Run, row: dict[str, object]) -> None:
        rows.append(row)
        if len(rows) % max(1, len(rows) // 100) == 0:  # of thousands, each hundredth part: all of them are written anew
            keep_json(json_destination, {"rows": rows})
        if png is not None and row["repetition"] == 0:  # of other runs nothing stays but the row: each has its log
            pictured.setdefault(run.scenario, []).append(run)

    try:
        run_shown(plan, seconds, take)
    except ReinetError as error:
        is_kept = rows and json_destination not in (None, "-")
        where = f"; the rows before it are in {json_destination}" if is_kept else ""
        raise type(error)(f"run {len(rows) + 1} of {len(plan)}, {plan.name_of(len(rows))}: {error}{where}") from error
    finally:  # whatever ends the command, what was measured is told
        if rows:
            tell_table(json_destination, {"rows": rows}, rows, COLUMNS)
            say_reasons(rows)
    if png is not None:
        from reinet.agents.evaluation.picture import save_comparison

        unwritten = Unwritten()
        for path, runs in zip(_pictures(png, list(pictured)), pictured.values(), strict=True):
            with unwritten.at(path):
                save_comparison(runs, path)
                say(f"picture: {path}")
        unwritten.tell()


def say_reasons(rows: Sequence[Mapping[str, object]]) -> None:
    """Says why runs are not valid, why flows were uncapped, and which figures are of traces that shaped a model."""
    from reinet.agents.evaluation.plan import labelled

    for row in rows:
        for key in ("invalid_reason", "uncapped_reason"):
            if row[key]:
                say(f"{row['agent']} on {row['trace']}: {row[key]}")
    note_training(labelled(rows))


def _pictures(png: Path, scenarios: Sequence[Scenario]) -> list[Path]:
    """Returns a file for each scenario, no two the same: traces of one name are told apart by number."""
    if len(scenarios) == 1:
        return [png]
    found: list[Path] = []
    for scenario in scenarios:
        name = f"{png.stem}-{scenario.trace.name}-{scenario.path.cc}"
        paths = (png.with_name(f"{name}{again}{png.suffix}") for again in chain([""], (f"-{n}" for n in count(2))))
        found.append(next(path for path in paths if path not in found))
    return found
