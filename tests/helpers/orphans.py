"""A command that is killed, and what becomes of the process that it made."""

import subprocess
import sys
import time
from pathlib import Path

MOST_S = 30.0


def assert_ends_with_its_command(script: Path, *arguments: object) -> None:
    """Runs a script that prints its worker's process id, and kills it; the worker ends as well."""
    command = [sys.executable, str(script), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        worker = Path(f"/proc/{int(running.stdout.readline())}")
        assert worker.exists()
        running.kill()
    until_s = time.monotonic() + MOST_S
    while worker.exists():
        assert time.monotonic() < until_s
        time.sleep(0.05)
