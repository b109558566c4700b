"""``reinet jobs``: training jobs of a service, submitted, watched, stopped."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress

from reinet.cli.output import JsonOption, TextColumn, console, note_column, put_out, say, tell_table, write_json
from reinet.cli.service.reach import ago, client, reach, span
from reinet.core.errors import ServiceError

app = typer.Typer(
    help="Submit and follow jobs of a training service: submit, list, watch, logs, stop, resume.", no_args_is_help=True
)
app.callback()(reach)

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or latest; see reinet jobs list.")]
COLUMNS = ["job", "name", "state", "done", "left", "score", "model", "owner", "created", "note"]


def _row(job: dict[str, Any]) -> dict[str, Any]:
    return {
        **job,
        "done": f"{job['iteration']}/{job['iterations']}",
        "left": span(job["left_s"]),
        "score": job["scalars"].get("eval/score"),
        "model": job["model"][:12],
        "created": ago(job["created_s"]),
    }


@app.command()
def submit(
    config: Annotated[Path, typer.Argument(help="Training configuration, such as configs/default.toml.")],
    traces: Annotated[list[Path] | None, typer.Option(help="Recordings to learn from: file, folder or set.")] = None,
    note: Annotated[str, typer.Option(help="A line about it, for people.")] = "",
    licence: Annotated[str, typer.Option(help="Who may use the recordings for what; goes into the lineage.")] = "",
    parent: Annotated[str, typer.Option(help="sha256 of the model that this one is to follow, for the record.")] = "",
    watch_it: Annotated[bool, typer.Option("--watch", help="Watch it until it has ended.")] = False,
    json_destination: JsonOption = None,
) -> None:
    """Send a configuration and traces; prints the job's id. With --traces, generated links are left out unless named.

    Examples:

        reinet jobs submit configs/small.toml

        reinet jobs submit configs/default.toml --traces my-traces --note "week 14" --watch
    """
    with client() as trainer:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("traces", total=None, visible=False)

            def told(what: str, done: int, of: int) -> None:
                bar.update(task, description=what, completed=done, total=of, visible=True)

            job = trainer.submit(config, traces or (), note, licence, parent, told)
        say("job ", (job["job"], "bold"), f" is accepted; reinet jobs watch {job['job']}")
        if watch_it:
            job = _watched(trainer.watch(job["job"]), job)
    write_json(json_destination, job)
    _exit_as(job)


@app.command("list")
def list_(json_destination: JsonOption = None) -> None:
    """List jobs, oldest first. Example: reinet jobs list --json -."""
    with client() as trainer:
        jobs = trainer.jobs()
    tell_table(json_destination, {"rows": jobs}, [_row(job) for job in jobs], COLUMNS)


@app.command()
def watch(job: JobArgument, json_destination: JsonOption = None) -> None:
    """Follow a job until it has ended; exits 1 where it failed. Example: reinet jobs watch 0123456789ab."""
    with client() as trainer:
        ended = _watched(trainer.watch(job), trainer.job(job))
    write_json(json_destination, ended)
    _exit_as(ended)


@app.command()
def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
) -> None:
    """Print the end of a job's log. Example: reinet jobs logs 0123456789ab --follow."""
    with client() as trainer:
        for _, lines in trainer.watch(job, log=True):
            put_out(lines)
            if not follow:
                return


@app.command()
def stop(job: JobArgument, json_destination: JsonOption = None) -> None:
    """End a job after its present iteration; it can be resumed. Example: reinet jobs stop 0123456789ab."""
    with client() as trainer:
        found = trainer.stop(job)
    say(f"job {job} is {found['state']}")
    write_json(json_destination, found)


@app.command()
def resume(job: JobArgument, json_destination: JsonOption = None) -> None:
    """Let a stopped or failed job go on from its newest checkpoint. Example: reinet jobs resume 0123456789ab."""
    with client() as trainer:
        found = trainer.resume(job)
    say(f"job {job} is {found['state']}")
    write_json(json_destination, found)


def _watched(seen: Iterator[tuple[dict[str, Any], str]], job: dict[str, Any]) -> dict[str, Any]:
    """Returns the job once it has ended, shown meanwhile."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=12), MofNCompleteColumn(), note_column())
    state = problem = ""
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as bar:
        task = bar.add_task(job["state"], total=job["iterations"], note="")
        for job, _ in seen:
            score = job["scalars"].get("eval/score")
            note = f"{job['env_steps_per_s']:.0f} periods/s" if job["env_steps_per_s"] else ""
            note += f"  {span(job['left_s'])} left" if job["left_s"] else ""
            note += f"  score {score:.3f}" if score is not None else ""
            bar.update(task, description=job["state"], completed=job["iteration"], total=job["iterations"], note=note)
            if job["state"] != state and not console.is_terminal:
                say(f"{job['job']}: {job['state']}, iteration {job['iteration']}/{job['iterations']}")
            if job["problem"] and job["problem"] != problem and job["state"] in ("waiting", "running", "stopping"):
                is_stopping = job["state"] == "stopping"
                say(f"{job['job']} {'is stopping' if is_stopping else 'does not get on'}: {job['problem']}")
            state, problem = job["state"], job["problem"]
    if job["state"] == "done":
        say(f"done after {span(job['wall_s'])} of training; model ", (job["model"], "bold"))
    elif job["problem"]:
        say(f"{job['state']}: {job['problem']}")
    else:
        say(f"{job['state']}; reinet jobs resume {job['job']}")
    return job


def _exit_as(job: dict[str, Any]) -> None:
    if job["state"] == "failed":
        raise ServiceError(f"job {job['job']} failed; reinet jobs logs {job['job']} shows why")
