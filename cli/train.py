"""``reinet train``: learn a policy from a configuration file."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from reinet.cli.entry import INTERRUPTED
from reinet.cli.options import refuse_said
from reinet.cli.output import JsonOption, check_folder, console, note_column, say, tell_table, write_json
from reinet.core.errors import ConfigError, ReinetError

if TYPE_CHECKING:
    from reinet.agents.learn.config import TrainConfig
    from reinet.agents.learn.loop import Progress as Step


def train(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="TOML file, such as configs/default.toml.")],
    run_dir: Annotated[
        Path | None, typer.Option(help="Where checkpoints and TensorBoard files go (default: runs/NAME).")
    ] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Train this many, whatever the file says.")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop after this time, even if iterations are left.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Refuse a run folder that holds a run already.")] = False,
    ray_address: Annotated[
        str | None, typer.Option("--ray", "--ray-address", help="A Ray cluster to use instead of this machine.")
    ] = None,
    sweep_file: Annotated[
        Path | None, typer.Option("--sweep", metavar="SWEEP", help="TOML file: options to vary, a training for each.")
    ] = None,
    json_destination: JsonOption = None,
) -> None:
    """Train a policy, from the run folder's newest checkpoint on. Ctrl-C and SIGTERM leave a checkpoint to resume from.

    Examples:

        reinet train configs/default.toml

        reinet train configs/default.toml --run-dir runs/mine --minutes 10 --json -

        reinet train configs/own-traces.toml

        reinet train configs/default.toml --ray 10.0.0.1:6379

        reinet train configs/default.toml --sweep sweep.toml --run-dir runs/seeds

        reinet train configs/rllib-sac.toml --minutes 5

        tensorboard --logdir runs
    """
    # Here, for torch takes seconds to import and --help needs none of it.
    from reinet.agents.learn.learners import train_any as run
    from reinet.agents.learn.links import domain_of, selection_links, training_traces
    from reinet.agents.learn.rllib.config import PeerConfig, load_config
    from reinet.agents.learn.sweep import configured

    if sweep_file is not None:
        refuse_said(context, ("minutes",), "the trainings of a --sweep run to their ends; --iterations shortens them")
        refuse_said(context, ("fresh",), "a --sweep goes on where it was; name a new folder with --run-dir")
    if run_dir is not None:
        check_folder("--run-dir", run_dir)
    settings = load_config(config)
    folder = run_dir or Path("runs") / (settings.name if sweep_file is None else f"{settings.name}-sweep")
    check_folder("--run-dir", folder)
    if iterations is not None:
        settings = configured(settings, {"run.iterations": iterations}, "--iterations")
    # Whatever of this cannot be is refused now, in a second, and not by a worker once Ray is up.
    learn, select = training_traces(settings), selection_links(settings)
    domain_of(settings.links, learn)
    say(f"{len(learn)} traces to learn from, {len(select)} links on others to choose among checkpoints by")
    if sweep_file is not None and isinstance(settings, PeerConfig):
        raise ConfigError(f"{config}: has [rllib], and sweeps are of reinet's own learner; train each seed by itself")
    if sweep_file is not None:
        _sweep(settings, sweep_file, folder, ray_address, json_destination)
        return
    columns = (
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        note_column(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as bar:
        task = bar.add_task("training", total=settings.run.iterations, note="")
        since = cast("Step | None", None)

        def show(step: "Step") -> None:
            nonlocal since
            if "eval/score" in step.scalars:
                console.print(
                    f"iteration {step.iteration}/{step.iterations}: "
                    f"{100 * step.scalars['eval/throughput_ratio']:.0f} % of plain's rate at "
                    f"{100 * step.scalars['eval/qdelay_ratio']:.0f} % of its delay  {pace(step, since)}"
                )
            since = since or step  # what was done before this sitting is not this sitting's pace
            bar.update(task, completed=step.iteration, note=pace(step, since))

        result = run(settings, folder, resume=not fresh, minutes=minutes, progress=show, ray_address=ray_address)
    say(
        f"{'interrupted' if result.interrupted else 'done'} after {result.iterations} iterations, "
        f"{result.env_steps} periods, {result.wall_s:.0f} s; checkpoint {result.checkpoint}"
    )
    if result.harms:
        say(f"warning: the best so far does harm, and its export needs --force: {result.harms}")
    if result.best:
        say(f"best so far: {result.best}; make a model of it: reinet export {shlex.quote(str(result.best))}")
    write_json(
        json_destination,
        {
            "env_steps": result.env_steps,
            "wall_s": round(result.wall_s, 3),
            "checkpoint": str(result.checkpoint),
            "best": str(result.best) if result.best else None,
            "iterations": result.iterations,
            "updates": result.updates,
            "interrupted": result.interrupted,
            "harms": result.harms,
        },
    )
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


def pace(step: "Step", since: "Step | None") -> str:
    """Returns how fast periods are simulated, since an iteration that is over, and what they return on the mean."""
    words = []
    if since is not None and step.wall_s > since.wall_s:
        words.append(f"{(step.env_steps - since.env_steps) / (step.wall_s - since.wall_s):,.0f} steps/s")
    if "charts/reward_per_period" in step.scalars:  # no evolution's iteration has one
        words.append(f"return {step.scalars['charts/reward_per_period']:.3f} a period")
    return "  ".join([*words, f"{step.env_steps / 1e6:.2f} M periods"])


def _sweep(
    settings: "TrainConfig", sweep_file: Path, run_dir: Path, ray_address: str | None, json_destination: str | None
) -> None:
    from reinet.agents.learn.sweep import SweepConfig
    from reinet.agents.learn.sweep import sweep as run

    plan = SweepConfig.load(sweep_file)
    with console.status(f"{len(plan.points())} trainings"):
        rows = run(settings, plan, run_dir, ray_address)
    columns = ["trial", *plan.grid, *plan.random, "state", "score", "wall_s", "run_dir"]
    tell_table(json_destination, {"rows": rows, "run_dir": str(run_dir)}, rows, columns)
    say(f"TensorBoard shows them side by side: tensorboard --logdir {shlex.quote(str(run_dir / 'trials'))}")
    if lost := [row for row in rows if row["state"] != "done"]:
        first = lost[0]
        raise ReinetError(
            f"{len(lost)} of {len(rows)} trials are not done, and the same command tries them again; trial "
            f"{first['trial']}: {first['problem'] or 'its process ended, see above'}"
        )
