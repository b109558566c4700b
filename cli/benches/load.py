"""``reinet bench load``: a daemon beside thousands of sockets."""

from dataclasses import asdict
from typing import Annotated

import typer

from reinet.cli.options import ModelOption
from reinet.cli.output import JsonOption, print_table, write_json

COLUMNS = [
    "sockets_held", "connections", "connections_failed", "connections_per_s", "flows_missed", "flows_after",
    "caps_after", "left_loaded",
]  # fmt: skip


def load(
    sockets: Annotated[int, typer.Option(min=2, help="Sockets that stay open, half IPv4 and half IPv6.")] = 10_000,
    per_s: Annotated[int, typer.Option(min=1, help="Connections a second that come and go beside them.")] = 5_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long they do.")] = 60.0,
    model: ModelOption = "rule",
    json_destination: JsonOption = None,
) -> None:
    """Run a daemon beside a crowd of sockets on loopback, in a network namespace of their own; needs root.

    Both ends of every connection are the daemon's flows. flows_missed: sockets that were left alone although there was
    to be room. flows_after and caps_after: what the daemon still knows of when all are closed. left_loaded: BPF
    programs and maps that nobody holds any more and that were not there before. counters are the kernel side's, and
    resident_mb the memory of each of the daemon's processes at its start, with the held sockets, and at the end.
    Examples:

        sudo reinet bench load --json -

        sudo reinet bench load --sockets 1000 --per-s 500 --seconds 5
    """
    from reinet.daemon.benches.load import measure

    found = asdict(measure(sockets, per_s, seconds, model))
    write_json(json_destination, found)
    if json_destination != "-":
        print_table([found], COLUMNS)
        memory = ("resident_mb_start", "resident_mb_held", "resident_mb_end")
        print_table(
            [{"at": name.removeprefix("resident_mb_"), **found[name]} for name in memory], ["at", *found[memory[0]]]
        )
