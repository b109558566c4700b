"""``reinet bench``: how fast things are, and what caps cost."""

from typing import Annotated

import typer

from reinet.cli.benches.alcc import bench_alcc
from reinet.cli.benches.cpu import cpu
from reinet.cli.benches.daemon import daemon
from reinet.cli.benches.effects import effects
from reinet.cli.benches.flywheel import flywheel
from reinet.cli.benches.frontier import frontier
from reinet.cli.benches.handover import handover
from reinet.cli.benches.harm import harm
from reinet.cli.benches.learners import learners
from reinet.cli.benches.load import load
from reinet.cli.benches.service import service
from reinet.cli.benches.targets import targets
from reinet.cli.output import JsonOption, tell_table
from reinet.core.errors import ConfigError

app = typer.Typer(
    help="Measure what reinet gains and costs: caps against others, short transfers, speed, CPU time, the service.",
    no_args_is_help=True,
)

MOST_LINKS = 100_000
"""Each link takes memory (bytes_per_link); a number typed with a digit too many is not to fill the host's."""

COLUMNS = [
    "links", "threads", "env_steps_per_s", "packets_per_s", "realtime_factor", "bytes_per_link", "linearity",
    "two_cores",
]  # fmt: skip

app.command("alcc")(bench_alcc)
app.command("cpu")(cpu)
app.command("daemon")(daemon)
app.command("effects")(effects)
app.command("flywheel")(flywheel)
app.command("frontier")(frontier)
app.command("handover")(handover)
app.command("harm")(harm)
app.command("learners")(learners)
app.command("load")(load)
app.command("service")(service)
app.command("targets")(targets)


@app.command("sim")
def sim(
    links: Annotated[int, typer.Option(min=1, max=MOST_LINKS, help="Independent links, one flow each.")] = 256,
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the links.")] = 1,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time for each of the measurements.")] = 5.0,
    cc: Annotated[str, typer.Option(help="The flows' congestion control.")] = "cubic",
    json_destination: JsonOption = None,
) -> None:
    """Speed of the simulator: capped flows on a 12 Mbit/s link, one step per period, state and reward included.

    realtime_factor is of one flow that has the simulator to itself. scaling holds the steps per second of 256, 1024 and
    4096 links on one thread, linearity the last over the first, and two_cores the links' speed on two threads over that
    on one: medians of rounds that take turns. Examples:

        reinet bench sim

        reinet bench sim --links 4096 --threads 2 --json -
    """
    from reinet.envs.sim import SIM_CONGESTION_CONTROLS
    from reinet.envs.sim.bench import measure, measure_scaling

    if cc not in SIM_CONGESTION_CONTROLS:
        raise ConfigError(
            f"cc: the simulator has no congestion control {cc!r}; it has {', '.join(SIM_CONGESTION_CONTROLS)}"
        )
    batch = measure(links, threads, seconds, cc=cc)
    alone = measure(1, 1, seconds, cc=cc)
    scaling = measure_scaling(links, min(3 * seconds, 10.0), cc=cc)
    result = {**batch.as_dict(), "realtime_factor": alone.realtime_factor, "cc": cc, **scaling.as_dict()}
    tell_table(json_destination, result, [result], COLUMNS)
