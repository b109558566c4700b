"""``reinet serve``: the daemon that caps live flows."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reinet.cli.output import JsonOption, check_folder, console, write_json
from reinet.cli.serving import needs_serve_extra

if TYPE_CHECKING:
    from reinet.daemon.config import DaemonConfig


def serve(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file; see configs/daemon.toml.")],
    check: Annotated[bool, typer.Option("--check", help="Check configuration, host and model, then exit.")] = False,
    json_destination: JsonOption = None,
) -> None:
    """Cap the Cubic, Reno and BBR flows of chosen cgroups until SIGTERM or Ctrl-C; needs root.

    Caps carry leases: if the daemon dies or hangs they lapse within a second and flows go on uncapped. A
    normal end lifts them at once and leaves the host as it was. Model, target, mode and policies are taken up again
    on SIGHUP, and when the file changes; a file that makes no sense changes nothing. Logs go to standard error, as
    JSON unless on a terminal. Examples:

        sudo reinet serve configs/daemon.toml --check

        sudo reinet serve configs/daemon.toml
    """
    with needs_serve_extra():
        from reinet.daemon.config import load_config
        from reinet.daemon.processes.child import ask
        from reinet.daemon.processes.sandbox import confine_answers
        from reinet.daemon.serve import check as checked
        from reinet.daemon.serve import configure_logging
        from reinet.daemon.serve import serve as run_daemon

    configure_logging()
    settings = load_config(config)
    if check:
        # As who keeps curves and recordings will: root's right to other users' folders and files is given up there.
        ask("checking", partial(_check_places, settings), confine_answers)
        found = checked(settings)
        cgroups = ", ".join(map(str, settings.cgroups))
        console.print(f"{config}: ok, would serve {found.model}, target {settings.asked}, for {cgroups}")
        if found.model_sha256:
            pinned = "pinned" if settings.model_sha256 else "not pinned; to pin it"
            console.print(f'the model is {pinned}: model_sha256 = "{found.model_sha256}"', highlight=False)
        write_json(json_destination, {"ok": True, **found._asdict(), "target": str(settings.asked)})
        return
    status = run_daemon(settings, path=config)
    write_json(
        json_destination, {"decisions": status.decisions, "records": status.records, "uptime_s": status.uptime_s}
    )


def _check_places(settings: "DaemonConfig") -> None:
    """Raises ConfigError where curves or recorded flows could not be kept."""
    from reinet.daemon.processes.flow_recorder import site_key

    if settings.log_dir is not None:
        check_folder("daemon.log_dir =", settings.log_dir)
    if settings.record is not None:
        check_folder("daemon.record.folder =", settings.record.folder)
        site_key(settings.record.key_file)
