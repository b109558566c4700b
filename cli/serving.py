"""What ``serve``, ``ctl`` and ``top`` share: the socket, and a clear word where packages for serving are missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reinet.core.errors import DaemonError

if TYPE_CHECKING:
    from reinet.daemon.client import ControlClient

_PACKAGES = (
    "grpc", "grpc_health", "grpc_reflection", "google", "onnx", "onnxruntime", "prometheus_client", "tensorboard",
)  # fmt: skip

SocketOption = Annotated[
    Path | None,
    typer.Option("--socket", help="The daemon's control socket; default: this user's daemon's."),
]


def control_client(path: Path | None) -> "ControlClient":
    """Returns a client of the daemon at a socket, None = this user's; raises DaemonError."""
    with needs_serve_extra():
        from reinet.daemon.client import ControlClient
        from reinet.daemon.config import default_socket
    return ControlClient(path or default_socket())


@contextmanager
def needs_serve_extra() -> Iterator[None]:
    """Turns the failed import of a package that only serving needs into a DaemonError with the cure."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in _PACKAGES:
            raise
        raise DaemonError(f"{error.name} is not installed: run pip install 'reinet[serve]'") from None
