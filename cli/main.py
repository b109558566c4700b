"""The ``reinet`` command: mounts one thin file per subcommand and turns the project's errors into exit codes."""

import os
import sys
from typing import Annotated

import typer

from reinet.cli.entry import INTERRUPTED, Ended, ended_in_order
from reinet.cli.lazy import group_of
from reinet.cli.output import console, flush_output, say
from reinet.core.errors import UNWRITABLE, ConfigError, ModelError, ReinetError, TraceError

COMMANDS = {
    "doctor": "reinet.cli.doctor:doctor",
    "demo": "reinet.cli.demo:demo",
    "train": "reinet.cli.train:train",
    "trainer": "reinet.cli.service.trainer:trainer",
    "export": "reinet.cli.export:export",
    "evaluate": "reinet.cli.evaluate:evaluate",
    "compare": "reinet.cli.compare:compare",
    "fidelity": "reinet.cli.fidelity:fidelity",
    "replay": "reinet.cli.inspection.replay:replay",
    "run": "reinet.cli.run:run",
    "send": "reinet.cli.send:send",
    "serve": "reinet.cli.serve:serve",
    "top": "reinet.cli.inspection.top:top",
    "traces": "reinet.cli.traces:app",
    "jobs": "reinet.cli.service.jobs:app",
    "models": "reinet.cli.service.models:app",
    "ctl": "reinet.cli.ctl:app",
    "bench": "reinet.cli.benches.bench:app",
}
"""Where each lies, in the order that help shows."""
OPTIONS = {"run": {"context_settings": {"allow_interspersed_args": False}}}
"""What follows the program is the program's."""

app = typer.Typer(
    name="reinet",
    cls=group_of(COMMANDS, OPTIONS),
    help="Learns how far TCP's congestion window may grow on cellular links, and caps it on a stock Linux kernel.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # here, for nobody else needs it

        typer.echo(f"reinet {version('reinet')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Learns how far TCP's congestion window may grow on cellular links, and caps it on a stock Linux kernel."""


def main() -> None:
    """Runs the command; exits 0 (ok), 1 (failed) or 2 (wrong usage or input), 130 where Ctrl-C ended it.

    After SIGTERM and SIGHUP it ends by the signal, as a program that has nothing to clear away.
    """
    try:
        try:
            with ended_in_order():
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
        elif error.errno in UNWRITABLE:  # to write to a file that is open names none
            say(("error:", "bold red"), f" {error.strerror}: a file could not be written; make room, or name another")
        else:
            raise
        sys.exit(1)
    except Ended as ended:
        os.kill(os.getpid(), ended.signum)
    except KeyboardInterrupt:
        console.print("interrupted")
        sys.exit(INTERRUPTED)
