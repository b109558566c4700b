"""The service's files, each whole or not there (``agents/model/durable.py``): JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reinet.agents.model import durable


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes JSON in one step."""
    durable.write(path, json.dumps(data, allow_nan=False).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Returns what a file of ours says, None where there is none, or one that a power cut or a disk has damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # of which JSON's and UTF-8's errors are
        return None
    return found if isinstance(found, dict) else None
