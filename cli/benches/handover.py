"""``reinet bench handover``: what a restart of the daemon costs flows that are under way."""

from dataclasses import asdict
from typing import Annotated

import typer

from reinet.cli.options import CcOption, ModelOption, listed
from reinet.cli.output import JsonOption, tell_table
from reinet.core.errors import ConfigError
from reinet.kshim.shim import WRAPPED_CC

COLUMNS = [
    "cc", "how", "flows", "flows_lost", "flows_taken_over", "leaving_within_5_percent",
    "taking_over_within_5_percent", "plain_within_5_percent", "qdelay_p99_ms", "plain_qdelay_p99_ms", "late_ms",
]  # fmt: skip
HOW = ("stop", "kill")
MOST_FLOWS = 250
"""The receiver's limit is 256."""


def handover(
    flows: Annotated[int, typer.Option(min=1, max=MOST_FLOWS, help="Flows at once.")] = 200,
    cc: CcOption = "cubic,bbr",
    how: Annotated[str, typer.Option(help="How the old daemon ends, by commas: stop, kill.")] = "stop",
    model: ModelOption = "rule",
    # 200 of these are 100 Mbit/s, which Mahimahi's delay carries on less than one core.
    # The second name is that of earlier versions.
    rate_mbps: Annotated[
        float, typer.Option("--rate-mbps", "--rate-mbit", min=0.1, help="Each flow's own bottleneck, in Mbit/s.")
    ] = 0.5,
    mrtt_ms: Annotated[float, typer.Option(min=2.0, help="The path's round trip, of Mahimahi's delay.")] = 20.0,
    json_destination: JsonOption = None,
) -> None:
    """Restart a daemon under the load of many flows on real sockets; needs root and Mahimahi, half a minute a row.

    Each flow has a bottleneck of its own, so its throughput is the link's rate unless its queue runs dry. ratio: a
    flow's throughput in the second after the old daemon's end (leaving), and around the moment at which the new one
    has all flows (taking_over), over its own of the five seconds before; plain: the same of a run without a daemon,
    which is what the host's timing makes of it. qdelay_p99_ms: smoothed RTT less the path's, over all flows, from the
    old daemon's end on. Examples:

        sudo reinet bench handover --json -

        sudo reinet bench handover --flows 20 --cc bbr --how stop,kill
    """
    from reinet.daemon.benches.handover import measure

    ccs, ways = listed("cc", cc, str), listed("how", how, str)
    if unknown := [name for name in ccs if name not in WRAPPED_CC]:
        raise ConfigError(f"--cc {cc!r}: {', '.join(unknown)} is not wrapped; these are: {', '.join(WRAPPED_CC)}")
    if unknown := [name for name in ways if name not in HOW]:
        raise ConfigError(f"--how {how!r}: there is no {', '.join(unknown)}; use {', '.join(HOW)}")
    rows = [asdict(measure(name, flows, way, model, rate_mbps, mrtt_ms)) for name in ccs for way in ways]
    tell_table(
        json_destination, {"rows": rows, "model": model, "rate_mbps": rate_mbps, "mrtt_ms": mrtt_ms}, rows, COLUMNS
    )
