"""``reinet bench cpu``: what sending costs under each congestion control, capped and not."""

from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.options import CcOption, listed
from reinet.cli.output import JsonOption, say, tell_table

COLUMNS = [
    "cc", "agent", "throughput_mbps", "sender_percent", "deciding_percent", "sender_ms_per_mb", "valid",
]  # fmt: skip
PAPERS_SECONDS = 480.0
"""DeepCC measures over about eight minutes (section IX-A)."""


def cpu(
    traces: Annotated[list[Path] | None, typer.Option(help="A trace; None = a generated one.")] = None,
    agents: Annotated[str, typer.Option(help="Model folders or agents' names, by commas.")] = (
        "none,rule,checkpoints/default"
    ),
    cc: CcOption = "cubic,bbr,reno,westwood,illinois,vegas",
    seconds: Annotated[float, typer.Option(min=2, help="Length of each flow.")] = PAPERS_SECONDS,
    json_destination: JsonOption = None,
) -> None:
    """CPU time of a sender under each of the kernel's congestion controls, over an emulated link; needs root.

    sender_percent is the share of one core that the sending process takes; deciding_percent is that of the loop that
    reads records and sets caps (with the agent none it only reads). ACKs are handled in interrupts, charged to no
    process. Congestion controls that the kernel lacks are not measured, nor are Copa, Sprout, Verus and PCC, which
    only the simulator has. Examples:

        sudo reinet bench cpu --json cpu.json

        sudo reinet bench cpu --cc cubic,bbr --agents none,checkpoints/default --seconds 30
    """
    from reinet.agents.decide.names import make_agents, split_names
    from reinet.agents.evaluation.cost import measure
    from reinet.agents.evaluation.scenario import Scenario
    from reinet.core.errors import ConfigError, LinkError
    from reinet.envs.trace import load_traces
    from reinet.envs.trace.model import generate
    from reinet.kshim.probe import why_not_capped

    given = load_traces(traces) if traces else [generate("lte-driving", 120.0, 1)]
    if len(given) > 1:
        raise ConfigError(f"--traces: {len(given)} traces are given, and one is measured over; name that one")
    (trace,) = given
    chosen = make_agents(split_names(agents), link="mahimahi")
    rows = []
    for control in listed("cc", cc, str):
        for agent in chosen:
            if agent.sets_caps and (reason := why_not_capped(control)):
                say(f"{control}, {agent.name}: not measured: {reason}")
                continue
            scenario = Scenario.of(trace, "mahimahi", seconds=seconds, cc=control)
            try:
                row = measure(agent, scenario).row()
            except LinkError as error:
                say(f"{control}, {agent.name}: not measured: {error}")
                continue
            rows.append({"cc": control, "agent": agent.name, **row, "valid": row["invalid_reason"] is None})
            say(f"{control}, {agent.name}: sender {row['sender_percent']:.2f} %, {row['deciding_percent']:.2f} %")
    if not rows:
        raise LinkError("nothing was measured; the lines above say why of each, and reinet doctor what the host lacks")
    found = {"trace": trace.name, "trace_sha256": trace.sha256, "seconds": seconds, "rows": rows}
    tell_table(json_destination, found, rows, COLUMNS)
