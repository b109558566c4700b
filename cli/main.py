"""The ``reinet`` command: mounts one thin file per subcommand and turns the project's errors into exit codes."""

import errno
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from reinet.cli import bench, compare, ctl, demo, doctor, evaluate, export, fidelity, run, send, serve, traces, train
from reinet.cli.output import console, flush_output, say
from reinet.cli.service import flows, jobs, models, trainer
from reinet.cli.sight import replay, top
from reinet.core.errors import ConfigError, ModelError, ReinetError, TraceError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a disk says that takes no more."""

app = typer.Typer(
    name="reinet",
    help="Learns how far TCP's congestion window may grow on cellular links, and caps it on a stock Linux kernel.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reinet {version('reinet')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Learns how far TCP's congestion window may grow on cellular links, and caps it on a stock Linux kernel."""


app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
traces.app.command("from-flows")(flows.from_flows)
traces.app.command("upload")(flows.upload)
app.add_typer(traces.app, name="traces")
app.command("train")(train.train)
app.command("trainer")(trainer.trainer)
app.add_typer(jobs.app, name="jobs")
app.add_typer(models.app, name="models")
app.command("export")(export.export)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("fidelity")(fidelity.fidelity)
app.command("replay")(replay.replay)
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("send")(send.send)
app.command("serve")(serve.serve)
app.command("top")(top.top)
app.add_typer(ctl.app, name="ctl")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Runs the command; exits 0 (ok), 1 (failed) or 2 (wrong usage or input), 130 where Ctrl-C ended it."""
    try:
        try:
            app()
        finally:
            flush_output()  # what did not fit may be in no pipe or file yet, whatever the command thinks
    except ReinetError as error:
        say(("error:", "bold red"), f" {error}")
        sys.exit(2 if isinstance(error, ConfigError | ModelError | TraceError) else 1)
    except BrokenPipeError:  # who reads has enough
        sys.exit(1)
    except OSError as error:
        if error.filename is not None:
            say(("error:", "bold red"), f" {error.filename}: {error.strerror}")
        elif error.errno in FULL:  # to write to a file that is open names none
            say(("error:", "bold red"), f" {error.strerror}: a file could not be written; make room, or name another")
        else:
            raise
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted")
        sys.exit(130)
