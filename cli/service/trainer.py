"""``reinet trainer``: training as a service."""

import os
from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.output import JsonOption, check_folder, say, write_json
from reinet.core.errors import ServiceError

_PACKAGES = ("grpc", "grpc_health", "grpc_reflection", "google", "ray", "torch", "onnx", "onnxruntime")


def trainer(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file; see configs/trainer.toml.")],
    check: Annotated[bool, typer.Option("--check", help="Check the configuration, then exit.")] = False,
    json_destination: JsonOption = None,
) -> None:
    """Run the training service until SIGTERM or Ctrl-C: it takes jobs and keeps their models.

    Jobs that run when it ends go on at its next start.

    Logs go to standard error, as JSON unless on a terminal. Examples:

        reinet trainer configs/trainer.toml

        reinet trainer configs/trainer.toml --check --json -
    """
    # gRPC writes a line for each handshake that fails, also of those who may not call, and waits for who reads it: with
    # a log that nobody reads the service would hang. It looks at this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from reinet.agents.service.config import load_config
        from reinet.agents.service.server import serve
        from reinet.daemon.serve import configure_logging
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in _PACKAGES:
            raise
        raise ServiceError(f"{error.name} is not installed: run pip install 'reinet[serve,train,trainer]'") from None

    settings = load_config(config)
    check_folder("trainer.folder =", settings.folder)
    if check:
        say(f"{config}: ok, would serve at {settings.socket}, jobs in {settings.folder} through {settings.runner}")
        write_json(json_destination, {"ok": True, "folder": str(settings.folder), "socket": str(settings.socket)})
        return
    configure_logging()
    serve(settings)
    write_json(json_destination, {"ok": True, "folder": str(settings.folder), "socket": str(settings.socket)})
