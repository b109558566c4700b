"""``reinet replay``: what models would have answered to flows that a daemon recorded."""

from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.output import JsonOption, say, tell_table

COLUMNS = [
    "flow", "agent", "decisions", "capped_share", "cap_median_pkts", "cap_p5_pkts", "cap_p95_pkts", "same_share",
    "median_ratio",
]  # fmt: skip


def replay(
    flows: Annotated[list[Path], typer.Argument(help="Recorded flows (.flow), or folders of them.")],
    agents: Annotated[
        str, typer.Option(help="Model folders or agents' names, by commas; others are compared with the first.")
    ] = "checkpoints/default",
    target: Annotated[
        str,
        typer.Option(metavar="TEXT", help="RTT to stay below, as the daemon had it: 50ms, +30ms or 2.5x."),
    ] = "+30ms",  # the daemon's own default: an absolute one of 50 ms is out of reach on long paths, which it capped
    json_destination: JsonOption = None,
) -> None:
    """Show which caps models would have set in flows that daemons recorded (`daemon.record`).

    Every record is shown to each agent behind gate and guard, as in the daemon. The flow itself stays as it was
    recorded, under the caps of that time (agent "recorded"). So two models decide on the same input, but only a run
    over a link (reinet evaluate) tells how a flow would have fared under either. --json also has every record's caps.
    Examples:

        reinet replay /var/lib/reinet/flows

        reinet replay week14.flow --agents checkpoints/default,runs/mine/model --target 50ms --json caps.json
    """
    from reinet.agents.decide.names import make_agents, split_names
    from reinet.agents.evaluation import replayed
    from reinet.core.errors import ConfigError
    from reinet.core.target import Target
    from reinet.envs.trace.flow_records import FlowRecording, flow_files, read_each

    chosen = make_agents(split_names(agents))
    if needs := [agent.name for agent in chosen if agent.needs_future]:
        raise ConfigError(f"agents: {', '.join(needs)} needs a link's future, which no recording has")
    asked = Target.parse(target)
    recordings, damaged = read_each(flow_files(flows), FlowRecording.load, say)
    done = [replayed.replay(recording, agent, asked) for recording in recordings for agent in chosen]
    rows = replayed.rows_of(done)
    data = {"rows": rows, "damaged": damaged, "target": str(asked), "caps": [replayed.series_of(one) for one in done]}
    tell_table(json_destination, data, [{**row, "flow": str(row["flow"])[:12]} for row in rows], COLUMNS)
