"""Files that are whole or not there: written beside their place, brought to the disk, then moved into it."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def write(path: Path, data: bytes) -> None:
    """Writes a file in one step; it is on the disk when this returns."""
    fd, staged = tempfile.mkstemp(prefix=".staged-", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(staged)
        raise
    sync_folder(path.parent)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes JSON in one step."""
    write(path, json.dumps(data, allow_nan=False).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns what a file of ours says, None where there is none, or one that a power cut or a disk has damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # of which JSON's and UTF-8's errors are
        return None
    return found if isinstance(found, dict) else None


def write_folder(folder: Path, files: Mapping[str, bytes], staging: Path) -> None:
    """Writes a folder of files in one step. One that is there is left: its name says its content, and it is whole."""
    if folder.is_dir():
        return
    staged = Path(tempfile.mkdtemp(prefix=".staged-", dir=staging))
    try:
        staged.chmod(0o755)
        for name, data in files.items():
            write(staged / name, data)
        os.rename(staged, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Brings a folder's list of names to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def clear_staged(folder: Path) -> None:
    """Removes what a killed writer left half-made in a folder."""
    for left in folder.glob(".staged-*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
