"""``reinet bench targets``: one policy under several targets, judged by the clairvoyant cap."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.options import (
    AllowTrainingTraces,
    BufferOption,
    note_refusals,
    note_stalls,
    note_targets,
    note_training,
    once,
)
from reinet.cli.output import JsonOption, print_table, write_json

COLUMNS = [
    "agent", "target_ms", "trace", "can_be_kept", "ok", "delay_mean_ms", "delay_ratio", "qdelay_p95_ms",
    "throughput_ratio", "throughput_kept",
]  # fmt: skip


def targets(
    traces: Annotated[list[Path], typer.Option(help="Trace file, folder or set file; may be repeated.")],
    agents: Annotated[str, typer.Option(help="Model folders or agents' names, by commas.")] = "checkpoints/default",
    target: Annotated[
        str, typer.Option(metavar="TEXTS", help="RTTs to stay below, by commas: 50ms, +30ms or 2.5x.")
    ] = "25,30,40,50,60,80,100",  # the paper's sweep
    seconds: Annotated[float, typer.Option(min=1, help="Length of a run; a shorter trace is run once.")] = 300.0,
    cc: Annotated[str, typer.Option(help="The flows' congestion control.")] = "cubic",
    mrtt_ms: Annotated[float, typer.Option(help="Fixed round trip of the path (DeepCC: 20).")] = 20.0,
    buffer_bytes: BufferOption = 150_000,
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the simulated links.")] = 2,
    allow_training_traces: AllowTrainingTraces = False,
    json_destination: JsonOption = None,
) -> None:
    """Judge a policy under several targets in the simulator: does a lower target give less delay?

    delay_mean_ms is the mean queueing delay plus the path's fixed RTT. can_be_kept says whether some clairvoyant:MS (MS
    = 0 to 60, at its own cadence or the agent's) keeps the target at 98 % of plain utilisation; if so, ok means that
    the policy keeps it, too. Otherwise ok means that delay_ratio, the policy's delay divided by the least clairvoyant
    one at the policy's utilisation, is at most 1.3. Both judge delay alone; throughput_kept says whether
    throughput_ratio, the utilisation divided by plain's, is at least 98 %, too. refused_share is the share of decisions
    in which the guard refused a cap, so that the flow ran uncapped, and capped_share the share of decisions that led to
    a cap; if there are none, a note says so. A row is not valid if the flow stalled under the agent, plain control or
    every clairvoyant cap; a note says so, and it enters no mean. The last row of a target has the means over traces,
    and shares in place of yes and no. Examples:

        reinet bench targets --traces traces/validation

        reinet bench targets --traces one.trace --seconds 20 --target 30,50,100 --agents rule --json -
    """
    from reinet.agents.decide.names import make_agents, split_names
    from reinet.agents.evaluation.plan import trained_on
    from reinet.agents.evaluation.scenario import Scenario
    from reinet.agents.evaluation.within_target import within_targets
    from reinet.core.target import Target
    from reinet.envs.trace import load_traces

    asked = [Target.parse(text) for text in target.split(",")]
    targets_ms = once("target", [one.resolve_ms(mrtt_ms) for one in asked])
    scenarios = [
        Scenario.of(
            trace, "sim", seconds=min(seconds, trace.duration_ms / 1000), target_ms=targets_ms[0], cc=cc,
            mrtt_ms=mrtt_ms, buffer_bytes=buffer_bytes,
        )
        for trace in load_traces(traces)
    ]  # fmt: skip
    chosen = make_agents(split_names(agents))
    seen = trained_on(chosen, [scenario.trace for scenario in scenarios], allow_training_traces)
    note_targets((agent, one, mrtt_ms) for agent in chosen for one in asked)
    rows = within_targets(chosen, scenarios, targets_ms, threads)
    write_json(json_destination, {"rows": rows, "trained_on": seen})
    note_refusals(rows)
    note_stalls(rows)
    note_training(seen)
    if json_destination != "-":
        print_table(rows, COLUMNS)
