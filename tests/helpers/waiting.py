"""Waiting for what comes about by itself."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def wait_for(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Returns what a function returns once that is true; fails after so long."""
    end_s = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.02)
    return found


def assert_ends_with_its_command(script: Path, *arguments: object) -> None:
    """Runs a script that prints its worker's process id, and kills it; the worker ends as well."""
    command = [sys.executable, str(script), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        worker = Path(f"/proc/{int(running.stdout.readline())}")
        assert worker.exists()
        running.kill()
    wait_for(lambda: not worker.exists(), 30)
