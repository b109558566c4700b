"""``reinet bench harm``: completion times of short and long objects, capped against plain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn, TimeRemainingColumn

from reinet.cli.evaluate import Actuator, Link
from reinet.cli.options import (
    MOST_REPEAT,
    BufferOption,
    CcOption,
    ModelOption,
    listed,
    note_targets,
    note_training,
    uncapped_paths,
)
from reinet.cli.output import JsonOption, TextColumn, console, keep_json, print_table, say, write_json
from reinet.core.errors import ConfigError

if TYPE_CHECKING:
    from reinet.agents.evaluation.harm import Cell

GROUP_COLUMNS = [
    "group", "cells", "failures", "worst_p50", "limit_p50", "worst_p95", "limit_p95", "worst_p99", "limit_p99",
]  # fmt: skip
ROW_COLUMNS = [
    "cc", "trace", "mrtt_ms", "bytes", "fresh", "pause_ms", "plain_ms", "capped_ms", "ratio_p50", "ratio_p95",
    "ratio_p99",
]  # fmt: skip
WORST_SHOWN = 12
"""A screen holds so many rows below the groups; all of them are in the JSON."""


def harm(
    model: ModelOption = "checkpoints/default",
    link: Annotated[Link, typer.Option(help="sim, or mahimahi: nginx and curl on real kernel sockets.")] = Link.sim,
    actuator: Annotated[
        Actuator, typer.Option(help="With --link mahimahi: the kernel's cap, or app, nginx under reinet run's gate.")
    ] = Actuator.kernel,
    cc: CcOption = "cubic,bbr",
    mrtt_ms: Annotated[
        str | None,
        typer.Option(help="Fixed round trips, by commas (sim: 4,20,60,150,300; mahimahi: 20,60,150)."),
    ] = None,
    rate_mbps: Annotated[
        str | None,
        typer.Option(help="Constant rates, by commas (sim: 6,24,100; mahimahi: 24); an empty text = none."),
    ] = None,
    size: Annotated[
        str, typer.Option("--bytes", help="Sizes of the objects, by commas.")
    ] = "10000,100000,300000,1000000,10000000",
    pause_ms: Annotated[
        str | None,
        typer.Option(help="Pauses of connections kept alive, by commas (sim: 100,1000; mahimahi: 1000); empty = none."),
    ] = None,
    traces: Annotated[
        list[Path] | None, typer.Option(help="Recordings, beside the rates; may be repeated. None = two drawn ones.")
    ] = None,
    target: Annotated[
        str, typer.Option(metavar="TEXT", help="RTT to stay below: 50ms, or +30ms or 2.5x of the path's minimum RTT.")
    ] = "+30ms",  # the daemon's default
    buffer_bytes: BufferOption = 150_000,
    repeat: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_REPEAT, help="Pairs of runs a cell (sim: 20, on recordings thrice as many; mahimahi: 3)."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the simulated links.")] = 2,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a cell is above its limit or not valid.")] = False,
    json_destination: JsonOption = None,
) -> None:
    """Compare how long short and long transfers take with and without a cap, with the limits of "no harm".

    Every cell of congestion control, path, size, and fresh or kept alive is run plain and capped over the same links,
    seeds and start offsets. plain_ms, capped_ms: medians, from the first byte written to the last byte received.
    ratio_p50, ratio_p95: median over median, 95th percentile over 95th percentile. plain_builds_queue: the 95th
    percentile of plain's queueing delay is at HyStart's threshold, mRTT / 8 within 4 to 16 ms, or above. Examples:

        reinet bench harm --json harm.json

        reinet bench harm --model rule --cc cubic --mrtt-ms 20 --rate-mbps 24 --bytes 10000,300000 --repeat 5

        sudo reinet bench harm --link mahimahi --mrtt-ms 20,60 --rate-mbps 24 --check

    With --link mahimahi nginx and curl fetch, caps come from the daemon's own loop, and times are curl's, handshake
    included; the whole matrix takes an hour a path, and the file of --json has the rows so far after each cell. A
    server's flows over loopback must get no cap: they are counted. With --actuator app nginx decides itself, under the
    gate of reinet run (docs/alcc.md):

        sudo reinet bench harm --link mahimahi --actuator app --model checkpoints/small --cc cubic --mrtt-ms 20,60
    """
    from reinet.agents.decide.names import make_agent
    from reinet.agents.evaluation import harm as matrix
    from reinet.agents.evaluation import harm_live as live
    from reinet.agents.evaluation.plan import labelled
    from reinet.core.target import Target
    from reinet.envs.trace import load_traces

    if actuator is Actuator.app and link is Link.sim:
        raise ConfigError("--actuator app works on real sockets alone: add --link mahimahi")
    kind = matrix if link is Link.sim else live
    agent = make_agent(model, link.value)
    controls = listed("cc", cc, str)
    cells = matrix.cells(
        controls,
        _numbers("mrtt-ms", mrtt_ms, kind.MRTTS_MS),
        _numbers("rate-mbps", rate_mbps, kind.RATES_MBPS),
        matrix.recordings(load_traces(traces) if traces else []),
        listed("bytes", size, int),
        _numbers("pause-ms", pause_ms, kind.PAUSES_MS),
    )
    asked: dict[str, Any] = {"target": Target.parse(target), "buffer_bytes": buffer_bytes}
    loopback: list[dict[str, Any]] = []
    note_targets((agent, asked["target"], cell.mrtt_ms) for cell in cells)
    uncapped_ms = uncapped_paths(asked["target"], (cell.mrtt_ms for cell in cells))
    if link is Link.sim:
        asked |= {"repeat": repeat or matrix.REPEAT, "threads": threads}
        rows = _shown(cells, lambda tell: matrix.measure(cells, agent, progress=tell, **asked))
    else:
        if actuator is Actuator.kernel:
            loopback = [live.loopback(agent, control, **asked) for control in controls]
        asked |= {"repeat": repeat or live.REPEAT, "actuator": actuator.value}
        asked["keep"] = lambda rows: keep_json(json_destination, _report(agent.called, rows, loopback, uncapped_ms))
        rows = _shown(cells, lambda tell: live.measure(cells, agent, progress=tell, **asked))
    report = _report(agent.called, rows, loopback, uncapped_ms)
    failures = report["failures"]
    write_json(json_destination, report)
    note_training(labelled({"agent": agent.name, **row} for row in rows))
    if json_destination != "-":
        worst = sorted((row for row in rows if not row["ok"]), key=lambda row: -(row["ratio_p50"] or 0.0))
        print_table(report["groups"], GROUP_COLUMNS)
        if worst:
            print_table(worst[:WORST_SHOWN], ROW_COLUMNS, title="the worst")
        for row in loopback:
            say(f"loopback, {row['cc']}: {row['capped']} of {row['records']} records with a cap; none is right")
        invalid = sum(not row["valid"] for row in rows)
        say(f"of {len(rows) + len(loopback)} cells {failures - invalid} are above a limit and {invalid} are not valid")
    if check and failures:
        raise typer.Exit(1)


def _report(
    model: str, rows: list[dict[str, Any]], loopback: list[dict[str, Any]], uncapped_ms: list[float]
) -> dict[str, Any]:
    from reinet.agents.evaluation.harm import summary

    failures = sum(not (row["ok"] and row["valid"]) for row in rows) + sum(row["capped"] > 0 for row in loopback)
    return {
        "model": model,
        "cells": len(rows),
        "failures": failures,
        "groups": summary(rows),
        "loopback": loopback,
        "uncapped_mrtts_ms": uncapped_ms,
        "rows": rows,
    }


def _shown(
    cells: Sequence[Cell], run: Callable[[Callable[[float], None]], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Runs behind a progress bar, which is told the share that is done."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{len(cells)} cells", total=1.0)
        return run(lambda share: progress.update(task, completed=share))


def _numbers(option: str, text: str | None, default: Sequence[float]) -> Sequence[float]:
    """Returns the numbers that were given, none for an empty text."""
    if text is None:
        return default
    return listed(option, text, float) if text.strip() else []
