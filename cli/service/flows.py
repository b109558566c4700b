"""``reinet traces from-flows`` and ``reinet traces upload``: from a daemon's recordings to a service's traces."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress

from reinet.cli.output import JsonOption, TextColumn, console, print_table, say, write_json
from reinet.cli.service.reach import AddressOption, CaOption, CertOption, KeyOption, client, reach

COLUMNS = ["trace", "duration_s", "mean_mbps", "least_mbps", "most_mbps", "measured_share", "resolution_ms"]


def from_flows(
    flows: Annotated[list[Path], typer.Argument(help="Recorded flows (.flow), or folders of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the traces, their set file and figures.")],
    least_seconds: Annotated[
        float, typer.Option(min=1, help="Leave out shorter stretches; no flow under 5 s is recorded.")
    ] = 5.0,
    least_measured: Annotated[
        float, typer.Option(min=0, max=1, help="Leave out traces of which a smaller share was measured.")
    ] = 0.5,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite existing files; remove traces that earlier estimates there name.")
    ] = False,
    json_destination: JsonOption = None,
) -> None:
    """Estimate links' capacity from flows that daemons recorded (`daemon.record`); writes traces to learn from.

    Where a link had a packet waiting all the time, what it delivered is its capacity: measured_share is the share of
    such time. Over pauses of up to a second the rate beside them is taken; least_mbps and most_mbps say what the mean
    rate would be if the link could do no more than it did there, or as much as it ever did within a second. Examples:

        reinet traces from-flows /var/lib/reinet/flows --out estimated

        reinet traces from-flows week14.flow --out estimated --least-measured 0.8 --force
    """
    from reinet.envs.trace.estimated_set import estimated, save
    from reinet.envs.trace.flow_records import flow_files, read_each

    read, damaged = read_each(flow_files(flows), lambda file: estimated([file], least_seconds, least_measured), say)
    found = [one for sure, _ in read for one in sure]
    left_out = sum(uncertain for _, uncertain in read)
    rows = save(found, out, overwrite=force)
    seconds = sum(one.trace.duration_ms for one in found) / 1000
    write_json(json_destination, {"rows": rows, "left_out": left_out, "damaged": damaged, "seconds": seconds})
    if json_destination != "-":
        print_table(rows, COLUMNS)
        broken = f", {len(damaged)} files were no recorded flows" if damaged else ""
        say(f"{len(rows)} traces, {seconds:.0f} s, are in {out}; {left_out} were too uncertain{broken}")


def upload(
    traces: Annotated[list[Path], typer.Argument(help="Trace files, folders or set files (.toml).")],
    trainer: AddressOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    json_destination: JsonOption = None,
) -> None:
    """Send traces to a training service, by content; what it has already is not sent. Jobs name them as any others.

    Example: reinet traces upload estimated
    """
    reach(trainer, ca, cert, key)
    with client() as service:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("traces", total=None)
            sent = service.upload(
                traces, lambda what, done, of: bar.update(task, description=what, completed=done, total=of)
            )
    write_json(json_destination, {"sent": sent})
    say(f"{len(sent)} traces were sent; the service has them all")
