"""``reinet bench effects``: what history, filter kernel, cadence and a window of one's own bring."""

import os
from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.output import JsonOption, print_table, say, write_json

COLUMNS = [
    "variant", "beside", "seed", "frontier_mean", "frontier_p95", "throughput_ratio", "qdelay_mean_ms", "qdelay_p95_ms",
    "times_lower_mean",
]  # fmt: skip


def effects(
    traces: Annotated[list[Path], typer.Option(help="What all are judged on: a trace, a folder or a set file.")],
    config: Annotated[Path, typer.Option(help="The training that all differ from in one thing.")] = Path(
        "configs/default.toml"
    ),
    variants: Annotated[str | None, typer.Option(help="Only these, by commas.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the trainings, by commas.")] = "1",
    seconds: Annotated[float, typer.Option(min=5, help="Length of a run over each trace.")] = 60.0,
    iterations: Annotated[int, typer.Option(min=1, help="Of each training, beside those of statistics.")] = 40,
    run_dir: Annotated[Path, typer.Option(help="Where trainings go; complete ones are not made again.")] = Path(
        "runs/effects"
    ),
    json_destination: JsonOption = None,
) -> None:
    """Train the same policy with and without a part of DeepCC and judge each over the same simulated links.

    Variants: cadences of 5 to 40 ms, the paper's state, that without its filter kernel, that without its history, and
    Clean-Slate, where the action is the window and no congestion control stands below. Hindsight teaches all of them
    over Cubic. frontier_mean and frontier_p95: delay over that of the hand rule's setting of equal utilisation. Half a
    minute each on two idle cores. Examples:

        reinet bench effects --traces traces/validation

        reinet bench effects --traces one.trace --variants deepcc-20ms,deepcc-no-filter --seeds 1,2,3 --json -
    """
    from reinet.agents.evaluation.scenario import Scenario
    from reinet.agents.learn.config import TrainConfig
    from reinet.agents.learn.effects import VARIANTS, measure
    from reinet.core.errors import ConfigError
    from reinet.envs.link.spec import check_choice
    from reinet.envs.trace import load_traces

    names = [name.strip() for name in variants.split(",")] if variants else [one.name for one in VARIANTS]
    for name in names:
        check_choice("variants", "there is no variant", name, [one.name for one in VARIANTS])
    try:
        numbers = [int(part) for part in seeds.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {seeds!r}: whole numbers are needed, by commas") from None
    links = [Scenario.of(trace, "sim", seconds=seconds).path for trace in load_traces(traces)]
    rows = []
    for row in measure(
        TrainConfig.load(config), [one for one in VARIANTS if one.name in names], links, seconds, run_dir,
        seeds=numbers, iterations=iterations, threads=os.cpu_count() or 1,
    ):  # fmt: skip
        rows.append(row)
        say(f"{row['variant']}, seed {row['seed']}: frontier {row['frontier_mean']:.3f} / {row['frontier_p95']:.3f}")
    write_json(json_destination, {"rows": rows, "seconds": seconds, "iterations": iterations})
    if json_destination != "-":
        print_table(rows, COLUMNS)
