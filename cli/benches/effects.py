"""``reinet bench effects``: what an option of the training brings, over several seeds."""

import os
from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.options import a_picture, listed, note_left_out
from reinet.cli.output import JsonOption, Unwritten, check_folder, say, tell_table

COLUMNS = [
    "variant", "beside", "path", "seeds", "frontier_mean", "frontier_mean_range", "frontier_p95", "frontier_p95_range",
    "throughput_ratio", "times_lower_mean", "times_lower_p95", "decisions_per_s",
]  # fmt: skip


def effects(
    traces: Annotated[list[Path], typer.Option(help="What all are judged on: a trace, a folder or a set file.")],
    options: Annotated[Path, typer.Option(help="The variants: what each training has otherwise.")] = Path(
        "configs/effects/deepcc.toml"
    ),
    config: Annotated[Path, typer.Option(help="The training that all differ from.")] = Path("configs/default.toml"),
    variants: Annotated[str | None, typer.Option(help="Only these, by commas.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the trainings, by commas.")] = "1",
    seconds: Annotated[float, typer.Option(min=5, help="Length of a run over each trace.")] = 60.0,
    iterations: Annotated[int | None, typer.Option(min=1, help="At most so many in each training.")] = None,
    run_dir: Annotated[Path, typer.Option(help="Where trainings go; complete ones are not made again.")] = Path(
        "runs/effects"
    ),
    png: Annotated[
        Path | None, typer.Option(callback=a_picture, help="Save the ratios of all seeds as a picture.")
    ] = None,
    json_destination: JsonOption = None,
) -> None:
    """Train the same policy with and without an option and judge each over the same simulated links.

    configs/effects/deepcc.toml has the parts of DeepCC: cadence, state, filter kernel, history, Clean-Slate;
    configs/effects/learner.toml the learner's options, configs/effects/gradients.toml evolution and policy gradients,
    configs/effects/hindsight.toml hindsight's numbers, configs/effects/prices.toml how dear it makes a packet too many,
    configs/effects/cadence.toml how often to decide, configs/effects/teachers.toml how many teachers,
    configs/effects/memory.toml a history, a GRU and a curriculum, configs/effects/targets.toml how much less delay a
    lower target brings, configs/effects/room.toml a later target on long paths,
    configs/effects/domain.toml what flows meet in training.
    A file of your own is as good. frontier_mean and frontier_p95: delay over that of the hand rule's setting of equal
    utilisation, median and range over the seeds; decisions_per_s: how often a flow asked. A run in which the flow
    stalled is left out, as a note says, and seeds is how many had any other; below_rule is the share of the others with
    less utilisation than every setting of the rule, whose ratios rank nothing, as a note says, too. Half a minute and
    more for each training on an idle core. Examples:

        reinet bench effects --traces traces/validation --seeds 1,2,3

        reinet bench effects --traces one.trace --variants deepcc-20ms,deepcc-no-filter --json -
    """
    from reinet.agents.learn.config import TrainConfig
    from reinet.agents.learn.effects import Plan, measure, over_seeds
    from reinet.envs.link.spec import check_choice
    from reinet.envs.trace import load_traces

    check_folder("--run-dir", run_dir)
    plan = Plan.load(options)
    if variants:
        names = listed("variants", variants, str)
        for name in names:
            check_choice("variants", "there is no variant", name, [one.name for one in plan.variant])
        plan = plan.model_copy(update={"variant": tuple(one for one in plan.variant if one.name in names)})
    numbers = listed("seeds", seeds, int)
    base, rows = TrainConfig.load(config), []
    for one in plan.variant:
        plan.config(one, base, numbers[0], iterations)  # a wrong key is said before the first training, not hours later
    for row in measure(
        base, plan, load_traces(traces), seconds, run_dir,
        seeds=numbers, iterations=iterations, threads=os.cpu_count() or 1,
    ):  # fmt: skip
        rows.append(row)
        stands = f"{row['frontier_mean']:.3f} / {row['frontier_p95']:.3f} at {row['throughput_ratio']:.3f}"
        say(f"{row['variant']}, seed {row['seed']}, {row['path']}: frontier {stands} of plain throughput")
    for row in rows:
        note_left_out(f"{row['variant']}, seed {row['seed']}, {row['path']}", row)
    summary = over_seeds(rows)
    said = {"about": plan.about, "seconds": seconds, "iterations": iterations}
    tell_table(json_destination, said | {"rows": rows, "summary": summary}, summary, COLUMNS)
    if png is not None:
        from reinet.agents.evaluation.picture import save_effects

        unwritten = Unwritten()
        with unwritten.at(png):
            save_effects(rows, png)
        unwritten.tell()
