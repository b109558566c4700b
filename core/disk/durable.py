"""Files that are whole or not there: written beside their place, brought to the disk, then moved into it; and files
that grow by whole lines.

What cannot be written is an OSError that names the file: a full disk by itself names none.
"""

import os
import secrets
import shutil
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


def write(path: Path, data: bytes, mode: int | None = None) -> None:
    """Writes a file in one step, or leaves the older one; it is on the disk when this returns.

    Without a ``mode`` the umask decides who may read it.
    """
    staged = path.with_name(f".staged-{path.name[:50]}-{secrets.token_hex(4)}")
    with _named(path):
        try:
            with staged.open("xb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                _to_disk(file, data)
            staged.replace(path)
        except BaseException:
            with suppress(OSError):
                staged.unlink()
            raise
        sync_folder(path.parent)


def append(path: Path, lines: str) -> None:
    """Adds whole lines to a file, which is made where it is missing, all of them or none; they are on the disk when
    this returns. A last line that is not whole, for who wrote it was killed, gives way."""
    with _named(path), path.open("ab+", buffering=0) as file:  # a buffer would be written when it is closed, too
        before, left = _end_of_lines(file), memoryview(lines.encode())
        file.truncate(before)
        try:
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:  # a full disk takes a part, which the next line would be added to
            with suppress(OSError):
                os.ftruncate(file.fileno(), before)
            raise


def lines_of(path: Path) -> list[bytes]:
    """Returns a file's whole lines: what follows them is of a writer that was killed, or that is at it just now."""
    with path.open("rb") as file:
        whole = _end_of_lines(file)
        file.seek(0)
        return file.read(whole).splitlines()


def _end_of_lines(file: BinaryIO) -> int:
    """Returns where the last whole line ends."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 1, 0))
    if file.read(1) == b"\n":
        return size
    file.seek(0)
    return file.read().rfind(b"\n") + 1


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
