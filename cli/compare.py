"""``reinet compare``: models on one page of TensorBoard."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reinet.cli.evaluate import COLUMNS, say_reasons
from reinet.cli.options import (
    AllowTrainingTraces,
    BufferOption,
    CcOption,
    LinkOptions,
    MrttOption,
    TargetMsOption,
    TargetOption,
    TracesOption,
    note_targets,
    refuse_idle_buffer,
)
from reinet.cli.output import JsonOption, Unwritten, check_folder, progress_in_seconds, say, tell_table
from reinet.core.errors import ConfigError

if TYPE_CHECKING:
    from reinet.agents.evaluation.compare.models import Comparison
    from reinet.agents.evaluation.scenario import Scenario


def compare(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Model folders, or agents by the names of reinet evaluate."),
    ],
    traces: TracesOption,
    beside: Annotated[
        str | None,
        typer.Option(help="Agents to show beside them, by commas (default: none,rule,clairvoyant:(target - mrtt))."),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER", help="A training's folder, for its evaluation curves; folders of one name are seeds."
        ),
    ] = None,
    cc: CcOption = "cubic",
    target: TargetOption = None,
    target_ms: TargetMsOption = None,
    mrtt_ms: MrttOption = 20.0,
    buffer_bytes: BufferOption = 150_000,
    link_option: LinkOptions = None,
    seconds: Annotated[float, typer.Option(help="Length of each run.")] = 60.0,
    allow_training_traces: AllowTrainingTraces = False,
    out: Annotated[Path, typer.Option(help="The folder for TensorBoard; an earlier comparison in it is replaced.")] = (
        Path("runs/compare")
    ),
    json_destination: JsonOption = None,
) -> None:
    """Compare models on one page of TensorBoard: caps, windows, delays and rates over each other, link by link.

    The links are simulated. docs/compare.md shows the page. Examples:

        reinet compare checkpoints/default checkpoints/small --traces my.trace

        reinet compare runs/a/model runs/b/model --traces traces/ --run a=runs/a --run b=runs/b --out runs/a-b

        reinet compare checkpoints/default rule:1.2 --beside none --traces my.trace --cc cubic,bbr --seconds 30
    """
    from reinet.agents.decide.names import split_names
    from reinet.agents.evaluation.compare.learning import learning_curves, run_folders
    from reinet.agents.evaluation.compare.models import Comparison
    from reinet.agents.evaluation.compare.page import URL_FRAGMENT, write_page
    from reinet.agents.evaluation.scenario import link_options, scenarios_of
    from reinet.agents.model import folder_lock
    from reinet.envs.trace import load_traces

    check_folder("--out", out)
    options = link_options(link_option or [])
    refuse_idle_buffer(context, options)
    trainings = run_folders(run or [])
    scenarios = scenarios_of(
        load_traces(traces),
        cc.split(","),
        "sim",
        seconds=seconds,
        target=target,
        target_ms=target_ms,
        link_options=options,
        mrtt_ms=mrtt_ms,
        buffer_bytes=buffer_bytes,
    )
    if beside is None:
        others = ["none", "rule", f"clairvoyant:{max(1, round(scenarios[0].target_ms - mrtt_ms))}"]
    else:
        others = split_names(beside)
    comparison = Comparison(models, others, scenarios, allow_training_traces)
    note_targets((agent, scenario.target, mrtt_ms) for agent in comparison.agents for scenario in scenarios)
    learning = {name: learning_curves(folders) for name, folders in trainings.items()}
    for name, curves in learning.items():
        if not curves:
            raise ConfigError(
                f"run {name}: no evaluation in {trainings[name][0]}; a run evaluates every few iterations"
            )
    with folder_lock.locked(out, "another comparison is made in it; wait for its end, or name another --out"):
        rows = _run(comparison, scenarios, seconds)
        tell_table(json_destination, {"rows": rows}, rows, COLUMNS)
        say_reasons(rows)
        unwritten = Unwritten()
        with unwritten.at(out):
            write_page(comparison.content(learning), out)
        unwritten.tell()
    say(f"page: tensorboard --logdir {shlex.quote(str(out))}, then http://localhost:6006/#{URL_FRAGMENT}")


def _run(comparison: Comparison, scenarios: Sequence[Scenario], seconds: float) -> list[dict[str, object]]:
    """Returns the rows of every agent over every link, and shows how far they are."""
    rows: list[dict[str, object]] = []
    with progress_in_seconds() as progress:
        links = f"{len(scenarios)} link{'s' if len(scenarios) > 1 else ''}"
        task = progress.add_task(links, total=round(seconds * len(comparison.agents)))

        def show(done_s: float, now_s: float) -> None:
            progress.update(task, completed=round(done_s + now_s))

        for place, agent in enumerate(comparison.agents):
            progress.update(task, description=f"{agent.name} on {links}")
            rows += comparison.run(agent, partial(show, place * seconds))
            progress.update(task, completed=round((place + 1) * seconds))
    return rows
