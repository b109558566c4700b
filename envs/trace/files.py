"""Files as traces and their sets need them: read within a limit, written whole or not at all."""

import math
import os
from pathlib import Path

from reinet.core.disk import durable
from reinet.core.errors import TraceError


def read_limited(path: Path, limit_bytes: int, what: str) -> bytes:
    """Returns the content of a regular file of at most ``limit_bytes``; raises TraceError, which calls it ``what``.

    No pipe or device is opened, and nothing is read beyond the limit.
    """
    try:
        if path.is_dir():
            raise TraceError(f"{path}: is a folder, not a {what}; name a file in it")
        if not path.is_file():
            reason = "is not a regular file" if path.exists() else "no such file"
            raise TraceError(f"{path}: {reason}; name a {what}")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            raw = file.read(limit_bytes + 1) if size <= limit_bytes else b""
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise TraceError(f"{path}: cannot read the {what} ({reason}); check the path and its permissions") from error
    if (size := max(size, len(raw))) > limit_bytes:
        raise TraceError(
            f"{path}: {math.ceil(size / 2**20)} MiB is more than a {what} may have ({limit_bytes // 2**20} MiB); "
            "name a part of it: head -n LINES keeps a start"
        )
    return raw


def write_atomically(path: Path, content: bytes, *, overwrite: bool = False) -> None:
    """Writes a file whole or not at all, and the folders above it where they are missing; an existing file stays unless
    ``overwrite``, and a link always. Raises TraceError, also for a pipe or a device: it would be one no more."""
    try:
        if path.is_dir():
            raise TraceError(f"{path}: is a folder; name a file to write")
        if path.exists() and not path.is_file():
            raise TraceError(f"{path}: is no regular file; name another one to write")
        if path.exists() and not overwrite:
            raise TraceError(f"{path}: exists already; name another file, or overwrite it with --force")
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        durable.write(target, content)
    except OSError as error:
        raise TraceError(
            f"{path}: cannot write ({error.strerror}); check the folder, its permissions and its free space"
        ) from error
