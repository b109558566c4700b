"""``reinet bench daemon``: how fast the daemon's loop decides."""

from dataclasses import asdict
from typing import Annotated

import typer

from reinet.cli.output import JsonOption, print_table, write_json
from reinet.core.errors import ConfigError

COLUMNS = [
    "flows", "period_ms", "records", "records_lost", "decision_latency_us_p50", "decision_latency_us_p99",
    "decisions_per_s",
]  # fmt: skip


def daemon(
    model: Annotated[str, typer.Option(help="A model folder, or an agent's name: none, fixed:N, rule[:G].")] = (
        "checkpoints/per-rtt"  # a decision in each round trip, so that flows of 20 ms are due every 20 ms
    ),
    flows: Annotated[str, typer.Option(help="Numbers of flows, by commas.")] = "1,100,1000",
    rtt_ms: Annotated[float, typer.Option(min=1.0, help="The flows' minimum RTT.")] = 20.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time for each number of flows, and as much again.")] = 5.0,
    json_destination: JsonOption = None,
) -> None:
    """Speed of the daemon's decision loop on flows in memory, whose records are spread evenly over their period.

    decision_latency_us: from the stamp of a record to just after the cap that answers it was stored, in real time.
    decisions_per_s: the most that the loop decides in one thread, when all flows are due at every tick; the median of
    five. records_lost: records that a ring buffer as large as the kernel shim's would have dropped. At the top level
    stand the figures of the largest number of flows. Examples:

        reinet bench daemon --json -

        reinet bench daemon --model checkpoints/default --flows 1000 --seconds 2
    """
    from reinet.agents.decide.names import make_agent
    from reinet.daemon.benches.loop import measure

    try:
        counts = [int(part) for part in flows.split(",")]
    except ValueError:
        raise ConfigError(f"--flows {flows!r}: whole numbers are needed, by commas") from None
    if min(counts) < 1:
        raise ConfigError(f"--flows {flows!r}: there is at least 1 flow")
    agent = make_agent(model, "kernel")
    rows = [asdict(measure(agent, count, rtt_ms, seconds)) for count in counts]
    largest = max(rows, key=lambda row: int(row["flows"]))
    write_json(json_destination, {**largest, "model": agent.called, "rtt_ms": rtt_ms, "rows": rows})
    if json_destination != "-":
        print_table(rows, COLUMNS)
