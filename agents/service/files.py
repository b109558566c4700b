"""The service's files, each whole or not there (``core/disk/durable.py``): JSON, and whether there is room."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reinet.core.disk import durable
from reinet.core.errors import ServiceError


class NoRoomError(ServiceError):
    """The disk has less free than the service keeps free: whatever is sent now is refused, and later it may not be."""


def check_free(folder: Path, least_bytes: int, what: str) -> None:
    """Raises NoRoomError where less of a folder's disk is free, as what is said of ``what`` was to be accepted."""
    if shutil.disk_usage(folder).free < least_bytes:
        raise NoRoomError(f"less than {least_bytes // 10**6} MB of the service's disk are free; no {what} is accepted")


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes JSON in one step."""
    durable.write(path, json.dumps(data, allow_nan=False).encode() + b"\n", 0o600)


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns what a file of ours says, None where there is none, or one that a power cut or a disk has damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # of which JSON's and UTF-8's errors are
        return None
    return found if isinstance(found, dict) else None
