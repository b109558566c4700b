"""What ``serve`` and ``ctl`` share: a clear word where the packages for serving are not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

from reinet.core.errors import DaemonError

_PACKAGES = ("grpc", "google", "onnx", "onnxruntime", "tensorboard")


@contextmanager
def needs_serve_extra() -> Iterator[None]:
    """Turns the failed import of a package that only serving needs into a DaemonError with the cure."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in _PACKAGES:
            raise
        raise DaemonError(f"{error.name} is not installed: run pip install 'reinet[serve]'") from None
