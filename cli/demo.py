"""``reinet demo``: the whole loop in minutes: train, export, cap real flows, show what it did."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TimeElapsedColumn

from reinet.cli.doctor import prerequisites
from reinet.cli.evaluate import COLUMNS, run_shown
from reinet.cli.output import JsonOption, TextColumn, Unwritten, console, note_column, print_table, say, write_json
from reinet.core.errors import ConfigError

if TYPE_CHECKING:
    from reinet.agents.evaluation.run import Run
    from reinet.agents.learn.loop import Progress as TrainingProgress

CONFIG = Path("configs/default.toml")
NAME = "demo"
"""The model's name: what comes of the default configuration in minutes is no default model."""
PRESET = "lte-walking"
TRACE_SEED = 2026
"""Far from the seeds of the training traces; the content is checked against them all the same."""
REAL_LINK_NEEDS = ("kernel.", "mahimahi.")


def demo(
    minutes: Annotated[float, typer.Option(min=0.1, help="Most time to train.")] = 3.0,
    seconds: Annotated[float, typer.Option(min=5, help="Length of each of the two transfers.")] = 60.0,
    run_dir: Annotated[Path, typer.Option(help="Where everything goes; training resumes from here.")] = Path(
        "runs/demo"
    ),
    json_destination: JsonOption = None,
) -> None:
    """Train a model, in a minute or two, then run plain and capped Cubic over the same generated LTE link.

    With root and Mahimahi the transfers are real kernel sockets; otherwise simulated, and it says so. Examples:

        reinet demo

        reinet demo --minutes 1 --seconds 30 --run-dir runs/quick
    """
    from reinet.agents.evaluation.plan import Plan
    from reinet.agents.evaluation.scenario import Scenario
    from reinet.envs.trace.model import generate

    missing = [
        f"{name}: {feature.why} ({feature.cure})"
        for name, feature in prerequisites().items()
        if name.startswith(REAL_LINK_NEEDS) and not feature.ok
    ]
    # The link comes first: what cannot be made is refused before the training, not after it.
    trace = generate(PRESET, seconds, TRACE_SEED)
    scenario = Scenario.of(trace, "sim" if missing else "mahimahi", seconds=seconds)
    console.rule("1 of 3: train")
    model = _train(minutes, run_dir)
    console.rule("2 of 3: plain and capped Cubic over one link")
    trace.save(run_dir / f"{PRESET}.trace", overwrite=True)
    if missing:
        say("No real link here, so both transfers are ", ("simulated", "bold"), ":")
        for line in missing:
            console.print(f"  {line}")
    else:
        console.print("Real kernel sockets through Mahimahi, in namespaces of their own.")
    done: list[tuple[Run, dict[str, object]]] = []
    run_shown(Plan(f"none,{model}", [scenario]), seconds, lambda run, row: done.append((run, row)))
    console.rule("3 of 3: what it did")
    rows = [row for _, row in done]
    write_json(json_destination, {"rows": rows})
    print_table(rows, [name for name in COLUMNS if name not in ("trace", "cc")])
    _report([run for run, _ in done], run_dir)


def _train(minutes: float, run_dir: Path) -> Path:
    """Trains (or goes on training) and exports; returns the model's folder."""
    from reinet.agents.learn.config import TrainConfig
    from reinet.agents.learn.export import export
    from reinet.agents.learn.train import train

    if not CONFIG.is_file():
        raise ConfigError(f"{CONFIG} is not here; run this in reinet's checkout")
    columns = (TextColumn("training"), BarColumn(bar_width=20), TimeElapsedColumn(), note_column())
    with Progress(*columns, console=console, expand=True) as progress:
        task = progress.add_task("training", total=60 * minutes, note="starting Ray")

        def show(now: TrainingProgress) -> None:
            note = f"iteration {now.iteration}, {now.env_steps / 1e6:.1f} M periods"
            progress.update(task, completed=now.wall_s, note=note)

        config = TrainConfig.load(CONFIG).model_copy(update={"name": NAME})
        result = train(config, run_dir / "train", minutes=minutes, progress=show).undisturbed()
        progress.update(task, completed=60 * minutes)
    model = run_dir / "model"
    export(result.best or result.checkpoint, model)
    return model


def _report(runs: list[Run], run_dir: Path) -> None:
    from reinet.agents.evaluation.compare.page import Content, write_page
    from reinet.agents.evaluation.picture import save_comparison

    plain, capped = runs[0].metrics, runs[1].metrics
    for run in runs:
        if run.invalid_reason:
            console.print(f"{run.agent}: do not quote this run: {run.invalid_reason}")
    console.print(
        f"Capped Cubic kept {capped.throughput_mbps / plain.throughput_mbps:.0%} of plain Cubic's throughput at "
        f"{capped.qdelay_mean_ms / plain.qdelay_mean_ms:.0%} of its mean queueing delay."
    )
    unwritten = Unwritten()
    with unwritten.at(run_dir / "demo.png"):
        save_comparison(runs, run_dir / "demo.png")
    with unwritten.at(run_dir / "flows"):
        write_page(Content(runs), run_dir / "flows")
    unwritten.tell()
    console.print(f"picture:     {run_dir / 'demo.png'}")
    console.print(f"model:       {run_dir / 'model'}")
    console.print(f"TensorBoard: .venv/bin/tensorboard --logdir {shlex.quote(str(run_dir))}")
