"""``reinet bench daemon``: how fast the daemon's loop decides, and what a daemon costs the machine."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from reinet.cli.options import ModelOption, listed
from reinet.cli.output import JsonOption, print_table, say, without_nan, write_json
from reinet.core.errors import ConfigError, ReinetError

COLUMNS = [
    "flows", "period_ms", "records", "records_lost", "decision_latency_us_p50", "decision_latency_us_p99",
    "decisions_per_s",
]  # fmt: skip
MOST_FLOWS = 65_536
"""A daemon's room unless it is told otherwise (``max_flows``); these take a minute, and millions go on for hours."""
COST_COLUMNS = [
    "flows", "rate_mbps", "pairs_valid", "quiet", "cpu_ratio_vs_plain", "own_ratio", "own_ratio_low", "own_ratio_high",
    "own_plain_percent", "loader_percent", "decision_percent", "answering_percent", "bpf_percent",
]  # fmt: skip


def daemon(
    model: ModelOption = "checkpoints/per-rtt",  # decides in each round trip: flows of 20 ms are due every 20 ms
    flows: Annotated[str, typer.Option(help=f"Numbers of flows, by commas, up to {MOST_FLOWS}.")] = "1,100,1000",
    rtt_ms: Annotated[float, typer.Option(min=1.0, max=60_000.0, help="The flows' minimum RTT.")] = 20.0,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600.0, help="Time for each number of flows, and as much again.")
    ] = 5.0,
    pairs: Annotated[
        int,
        typer.Option(
            min=0, help="Pairs of runs for cpu_ratio_vs_plain, half a minute each for either crowd; 0 = none."
        ),
    ] = 10,
    pair_seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Length of either run of a pair.")] = 8.0,
    cpu_model: Annotated[
        str | None, typer.Option(help="What decides in those; the daemon's own default unless said.")
    ] = None,
    json_destination: JsonOption = None,
) -> None:
    """Speed of the daemon's decision loop on flows in memory, and what a daemon costs a machine that sends.

    The loop is fed records that are spread evenly over their period. decision_latency_us: from the stamp of a record to
    just after the cap that answers it was stored, in real time. decisions_per_s: the most that the loop decides in one
    thread, when all flows are due at every tick; the median of five. records_lost: records that a ring buffer as large
    as the kernel shim's would have dropped. At the top level stand the figures of the largest number of flows.

    cpu_ratio_vs_plain: the machine's busy time with a daemon over that without, idle's taken off both, for the same
    bytes, of 1 flow of 100 Mbit/s and of 100 of 1 Mbit/s over Mahimahi's delay; the larger of both medians. It needs
    root and Mahimahi; elsewhere it is left out, and cpu_why says why. quiet tells whether the machine had no other
    work, without which it says nothing; own_ratio is of the CPU time of the measurement's own processes, which other
    work hardly touches. Examples:

        reinet bench daemon --json -

        reinet bench daemon --model checkpoints/default --flows 1000 --seconds 2 --pairs 0
    """
    from reinet.agents.decide.names import make_agent
    from reinet.daemon.benches.loop import measure

    counts = listed("flows", flows, int)
    if not 1 <= min(counts) <= max(counts) <= MOST_FLOWS:
        raise ConfigError(f"--flows {flows!r}: give numbers from 1 to {MOST_FLOWS}, for which a daemon has room")
    agent = make_agent(model, "kernel")
    # NaN: of flows that have no record within the time
    rows = [without_nan(asdict(measure(agent, count, rtt_ms, seconds))) for count in counts]
    largest = max(rows, key=lambda row: int(row["flows"]))
    cost = _cost(pairs, pair_seconds, cpu_model or "checkpoints/default")
    told = {**largest, "model": agent.called, "rtt_ms": rtt_ms, "rows": rows, **cost}
    write_json(json_destination, told)
    if json_destination != "-":
        print_table(rows, COLUMNS)
        if cost["cpu_rows"]:
            print_table(cost["cpu_rows"], COST_COLUMNS)


def _cost(pairs: int, seconds: float, model: str) -> dict[str, Any]:
    """Returns the figures of real sockets, or why there are none."""
    from reinet.daemon.benches.cost import measure_all

    why, rows = "", []
    if pairs:
        try:
            rows = [without_nan(asdict(row)) for row in measure_all(pairs, seconds, model, say)]  # NaN: too few pairs
        except (ReinetError, OSError) as error:
            why = str(error)
            say(f"cpu_ratio_vs_plain was not measured: {why}")
    else:
        why = "--pairs 0"
    ratios = [row["cpu_ratio_vs_plain"] for row in rows]
    known = [ratio for ratio in ratios if ratio is not None]
    largest = max(known, default=None) if len(known) == len(rows) else None
    return {"cpu_ratio_vs_plain": largest, "cpu_why": why, "cpu_model": model, "cpu_rows": rows}
