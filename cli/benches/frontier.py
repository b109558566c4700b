"""``reinet bench frontier``: policies against the hand rule with its knob swept in hindsight."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.options import (
    MOST_REPEAT,
    AllowTrainingTraces,
    BufferOption,
    note_refusals,
    note_stalls,
    note_targets,
    note_training,
    uncapped_paths,
)
from reinet.cli.output import JsonOption, print_table, say, write_json

COLUMNS = [
    "agent", "trace", "frontier_mean", "frontier_p95", "frontier_fixed_mean", "throughput_ratio", "qdelay_mean_ms",
    "qdelay_p95_ms", "times_lower_mean", "times_lower_p95",
]  # fmt: skip


def frontier(
    traces: Annotated[list[Path], typer.Option(help="Trace file, folder or set file; may be repeated.")],
    agents: Annotated[str, typer.Option(help="Model folders or agents' names, by commas.")] = "checkpoints/default",
    seconds: Annotated[float, typer.Option(min=1, help="Length of a run; a shorter trace is run once.")] = 300.0,
    cc: Annotated[str, typer.Option(help="The flows' congestion control.")] = "cubic",
    mrtt_ms: Annotated[float, typer.Option(help="Fixed round trip of the path (DeepCC: 20).")] = 20.0,
    buffer_bytes: BufferOption = 150_000,
    buffer_peak_ms: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=10_000,
            help="In place of --buffer-bytes: a buffer of so many ms at the rate of the trace's best 100 ms.",
        ),
    ] = None,
    target: Annotated[str, typer.Option(metavar="TEXT", help="RTT to stay below: 50ms, +30ms or 2.5x.")] = "50ms",
    fixed: Annotated[bool, typer.Option("--fixed", help="Compare with fixed caps too.")] = False,
    repeat: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_REPEAT, help="Runs of each trace, with seeds of their own; a trace's row has their medians."
        ),
    ] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the simulated links.")] = 2,
    allow_training_traces: AllowTrainingTraces = False,
    json_destination: JsonOption = None,
) -> None:
    """Compare agents with the best setting of the hand rule, at equal utilisation, in the simulator.

    frontier_mean and frontier_p95 are the agent's mean and 95th percentile of queueing delay divided by those of the
    hand rule at the same utilisation, with its best gain (1.0 to 2.5, at its own cadence or the agent's): below 1 no
    setting of the rule is as good. throughput_ratio and times_lower_* compare with plain congestion control.
    refused_share is the share of decisions in which the guard refused a cap, so that the flow ran uncapped, and
    capped_share the share of decisions that led to a cap. below_rule is 1 if the agent's utilisation is below that of
    every setting of the rule; the ratios then rank nothing, as a note says, and enter no mean. A run in which the flow
    stalled is left out (runs counts the others); a row without any other run is not valid, as a note says, and enters
    no mean. The last row of an agent has the means over traces, or those of what there is where nothing else is left.
    On long paths a single run of a trace depends much on chance: --repeat shows how far several runs lie apart.
    Examples:

        reinet bench frontier --traces traces/validation

        reinet bench frontier --traces traces/validation --mrtt-ms 60 --target 2.5x --buffer-peak-ms 60

        reinet bench frontier --traces one.trace --seconds 20 --agents rule:1.3,fixed:20 --json -
    """
    from reinet.agents.decide.names import make_agents, split_names
    from reinet.agents.evaluation.frontier import against_frontier
    from reinet.agents.evaluation.plan import trained_on
    from reinet.agents.evaluation.scenario import Scenario
    from reinet.agents.evaluation.suites.links import peak_buffer_bytes
    from reinet.core.target import Target
    from reinet.envs.trace import load_traces

    asked = Target.parse(target)
    target_ms = asked.resolve_ms(mrtt_ms)
    scenarios = [
        Scenario.of(
            trace, "sim", seconds=min(seconds, trace.duration_ms / 1000), target_ms=target_ms, cc=cc, mrtt_ms=mrtt_ms,
            buffer_bytes=peak_buffer_bytes(trace, buffer_peak_ms) if buffer_peak_ms else buffer_bytes,
        )
        for trace in load_traces(traces)
    ]  # fmt: skip
    chosen = make_agents(split_names(agents))
    seen = trained_on(chosen, [scenario.trace for scenario in scenarios], allow_training_traces)
    note_targets((agent, asked, mrtt_ms) for agent in chosen)
    uncapped_ms = uncapped_paths(asked, [mrtt_ms])
    rows = against_frontier(chosen, scenarios, fixed=fixed, threads=threads, runs=repeat)
    write_json(json_destination, {"rows": rows, "uncapped_mrtts_ms": uncapped_ms, "trained_on": seen})
    note_refusals(rows)
    for row in rows:
        # Means leave such ratios out, unless there are no others.
        if row["below_rule"] == 1 or (row["below_rule"] and row["trace"] != "mean"):
            say(f"note: {row['agent']} on {row['trace']}: less utilisation than every setting of the rule, so no rank")
    note_stalls(rows)
    note_training(seen)
    if json_destination != "-":
        print_table(rows, COLUMNS if fixed else [column for column in COLUMNS if column != "frontier_fixed_mean"])
