"""``reinet bench learners``: what trainings cost and reach, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.options import listed, note_left_out
from reinet.cli.output import JsonOption, check_folder, say, tell_table

COLUMNS = [
    "name", "minutes", "env_steps", "updates", "env_steps_per_s", "frontier_mean", "frontier_p95", "throughput_ratio",
    "qdelay_mean_ms", "qdelay_p95_ms",
]  # fmt: skip
CONFIGS = [Path(f"configs/{name}.toml") for name in ("default", "rllib-sac", "rllib-ppo")]


def learners(
    traces: Annotated[list[Path], typer.Option(help="What all are judged on: a trace, a folder or a set file.")],
    config: Annotated[list[Path] | None, typer.Option(help="A training; may be repeated (default: three).")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Train each with these seeds, by commas (default: its own).")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Of each training, at most.")] = None,
    seconds: Annotated[float, typer.Option(min=5, help="Length of a run over each trace.")] = 60.0,
    run_dir: Annotated[Path, typer.Option(help="Where runs and models go.")] = Path("runs/learners"),
    json_destination: JsonOption = None,
) -> None:
    """Train with reinet's learner and with RLlib's SAC and PPO, and judge the policies over the same simulated links.

    Minutes, records simulated and updates are what a training cost; frontier_mean and frontier_p95 its policy's delay
    over that of the hand rule's best setting at equal utilisation (below 1 no setting is as good). A note names traces
    that are left out, because the flow stalled or the ratio ranks nothing (see `reinet bench frontier`). With --seeds
    the JSON also has median, least and most over them, which `reinet export --spread FILE` puts on a card. Trainings
    that lie in --run-dir already go on from there. Examples:

        reinet bench learners --traces traces/validation

        reinet bench learners --traces traces/validation --config configs/small.toml --seeds 1,2,3,4,5 --json small.json

        reinet bench learners --traces one.trace --config configs/default.toml --minutes 1 --json -
    """
    import os

    from reinet.agents.evaluation.scenario import Scenario
    from reinet.agents.learn.learners import seeded, side_by_side, spread
    from reinet.agents.learn.rllib.config import load_config
    from reinet.envs.trace import load_traces

    check_folder("--run-dir", run_dir)
    scenarios = [
        Scenario.of(trace, "sim", seconds=min(seconds, trace.duration_ms / 1000)) for trace in load_traces(traces)
    ]
    given = [load_config(path) for path in config or CONFIGS]
    numbers = listed("seeds", seeds, int) if seeds else []
    several = [seeded(one, numbers) for one in given]
    rows = []
    for row in side_by_side(
        [one for some in several for one in some], scenarios, minutes, run_dir, os.cpu_count() or 1
    ):
        rows.append(row)
        judged = f"frontier {row['frontier_mean']:.3f} / {row['frontier_p95']:.3f}"
        say(f"{row['name']}: {row['minutes']:.1f} minutes, {judged}")
        note_left_out(row["name"], row)
        if row["went_on_from"]:  # its beginning may be an earlier version's of reinet
            say(f"{row['name']} was not trained anew: it went on from {row['went_on_from']}; or give another --run-dir")
    spreads = {}
    for one, some in zip(given, several, strict=True):
        names = [each.name for each in some]
        spreads[one.name] = {
            "seeds": [each.seed for each in some],
            "traces": len(scenarios),
            "seconds": seconds,
            "figures": spread([row for row in rows if row["name"] in names]),
        }
    tell_table(json_destination, {"rows": rows, "seconds": seconds, "spread": spreads}, rows, COLUMNS)
