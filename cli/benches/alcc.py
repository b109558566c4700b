"""``reinet bench alcc``: what the gate of ``reinet run`` costs."""

from typing import Annotated

import typer

from reinet.cli.output import JsonOption, print_table, write_json


def bench_alcc(
    connections: Annotated[
        int, typer.Option(min=1, help="Of the crowd whose gates are closed; ten times as many are idle.")
    ] = 1000,
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of each measurement.")] = 3.0,
    law: Annotated[
        str, typer.Option(metavar="LAW", help="What decides: fixed:N, rule[:G] or a small model's folder.")
    ] = "fixed:8",
    json_destination: JsonOption = None,
) -> None:
    """Measure what the gate of reinet run costs, over loopback: a write, closed gates, idle connections, memory.

    No privileges are needed. A closed gate is one whose peer reads nothing; the share is of one core. Examples:

        reinet bench alcc

        reinet bench alcc --connections 500 --seconds 10 --law checkpoints/small --json -
    """
    from reinet.agents.decide.names import make_agent
    from reinet.alcc.bench import measure

    rows = measure(connections, seconds, make_agent(law, link="app").law_of_the_gate())
    print_table(rows, ["what", "connections", "plain", "gated"])
    write_json(json_destination, {"rows": rows})
