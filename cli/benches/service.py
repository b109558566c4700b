"""``reinet bench service``: what the training service takes under many clients, and what it adds to a job."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.output import JsonOption, print_table, say, write_json


class Runner(str, Enum):
    """Where the job of the comparison runs; none leaves it out."""

    PROCESS = "process"
    RAY = "ray"
    NONE = "none"


def service(
    clients: Annotated[int, typer.Option(min=0, help="Clients that watch a job and list all; 0 = none.")] = 200,
    followers: Annotated[int, typer.Option(min=0, help="Daemons that follow one name; 0 = none.")] = 1000,
    uploads: Annotated[int, typer.Option(min=0, max=900, help="Clients that submit traces at once; 0 = none.")] = 20,
    upload_mb: Annotated[float, typer.Option(min=0.1, help="What each of them sends.")] = 100.0,
    seconds: Annotated[float, typer.Option(min=1, help="How long clients list.")] = 10.0,
    runner: Annotated[Runner, typer.Option(help="Who runs a job beside a plain training.")] = Runner.PROCESS,
    repeat: Annotated[int, typer.Option(min=1, help="So many such pairs.")] = 3,
    models: Annotated[list[Path] | None, typer.Option(help="Two model folders that a name points to in turn.")] = None,
    json_destination: JsonOption = None,
) -> None:
    """Load a training service of its own from this machine, over a Unix socket, and measure it.

    clients: list_ms, as a client sees it, of 100 jobs. followers: the time from a roll-back until each has fetched the
    other model and reported it. uploads: the time until all are there, each with a job, while those clients list and
    watch; then one more client must be refused by the quotas. watch: what one who watches a job takes of a core, of
    the service and of the client. job: over_train_s, what submission and export take beside what a plain training takes
    beside its training, the median of some pairs, until_worker_s of it until the worker is there. service_cpu_s,
    service_cores and service_peak_mb are the service's own, checks_peak_mb is of the processes that check its uploads.
    Examples:

        reinet bench service

        reinet bench service --clients 0 --uploads 0 --runner none --json -
    """
    from reinet.agents.service.bench import measure

    chosen = models or [Path("checkpoints/default"), Path("checkpoints/small")]
    if len(chosen) != 2:
        raise typer.BadParameter("give two model folders, or none")
    found = measure(
        listing=clients, followers=followers, sending=uploads, upload_mb=upload_mb, seconds=seconds,
        runner="" if runner is Runner.NONE else runner.value, models=chosen, told=say, repeat=repeat,
    )  # fmt: skip
    write_json(json_destination, found)
    if json_destination != "-":
        rows = [{"part": part, "figure": key, "value": value}
                for part, figures in found.items() for key, value in figures.items()]  # fmt: skip
        print_table(rows, ["part", "figure", "value"])
