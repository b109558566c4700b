"""Files that are whole or not there: written beside their place, brought to the disk, then moved into it.

What cannot be written is an OSError that names the file: a full disk by itself names none.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def put(path: Path, data: bytes, mode: int | None = None) -> None:
    """Writes a file in its place, which nobody reads yet; its content is on the disk when this returns.

    Without a ``mode`` the umask decides who may read it.
    """
    with _named(path), path.open("wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        _to_disk(file, data)


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Writes a file in one step; it is on the disk when this returns."""
    with _named(path):
        fd, staged = tempfile.mkstemp(prefix=".staged-", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                os.fchmod(fd, mode)
                _to_disk(file, data)
            os.replace(staged, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(staged)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Brings a folder's list of names to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _to_disk(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def clear_staged(folder: Path) -> None:
    """Removes what a killed writer of files or folders (``artifact.write_folder``) left half-made in a folder."""
    for left in folder.glob(".staged-*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
