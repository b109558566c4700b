"""Compares ``operations.py`` with the gate and without it.

``python fuzz.py FIRST_SEED SEEDS OPERATIONS``, with ``tests`` on PYTHONPATH.
"""

import subprocess
import sys

from helpers.gated import FOLDER, environment, settings
from reinet.alcc.launch import Settings
from reinet.alcc.sums import Sums


def log_of(seed: int, operations: int, asked: Settings | None, timeout_s: float) -> list[str]:
    """Returns what the operations came to; everything that they say on standard error is an error but our own words."""
    command = [sys.executable, str(FOLDER / "operations.py"), str(seed), str(operations)]
    # An arena of a thread's own reads a file of /proc when glibc trims it: the numbers of descriptors are compared.
    env = {**environment(asked), "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
    words = [line for line in done.stderr.splitlines() if not line.startswith("reinet: a connection is not gated")]
    return [*done.stdout.splitlines(), *words, f"status {done.returncode}"]


def differences(seed: int, operations: int, report: Sums | None = None, timeout_s: float = 600.0) -> list[str]:
    """Returns the first lines that differ, of both sides; none = all went as without the gate."""
    plain = log_of(seed, operations, None, timeout_s)
    gated = log_of(seed, operations, settings(report=report and report.path), timeout_s)
    if plain == gated:
        return []
    at = next((i for i, (a, b) in enumerate(zip(plain, gated, strict=False)) if a != b), min(len(plain), len(gated)))
    return [f"seed {seed}: plain {plain[at : at + 3]}", f"seed {seed}: gated {gated[at : at + 3]}"]


def main() -> int:
    first, seeds, operations = map(int, sys.argv[1:])
    different = 0
    for seed in range(first, first + seeds):
        found = differences(seed, operations)
        different += bool(found)
        print(*(found or [f"seed {seed}: {operations} operations, the same"]), sep="\n", flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
