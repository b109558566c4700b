"""The programs in C++ of this folder: how they are built and run, and what they print."""

import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.gated import CAP_PKTS, FOLDER, TIMEOUT_S, environment
from helpers.gated.server import MSS_BYTES
from reinet.alcc.launch import Settings

MOST_HELD_BYTES = 3 * CAP_PKTS * MSS_BYTES
"""What the cap and the peer's small buffer hold together; without a gate it is 80 KB and more."""


def built(sources: list[str], program: Path, *options: str) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [compiler, "-std=c++20", "-O1", "-pthread", *options, *[str(FOLDER / source) for source in sources]]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def seen_of(program: Path, case: str, asked: Settings | None, preload: str = "{gate}") -> tuple[int, list[str], str]:
    """Return the exit status, what was printed, and what was said on standard error."""
    told = environment(asked)
    told["LD_PRELOAD"] = preload.format(gate=told.get("LD_PRELOAD", ""))
    done = subprocess.run(
        [str(program), case], env=told, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def held_bytes_of(lines: list[str]) -> int:
    (held,) = (int(line.split()[1]) for line in lines if line.startswith("held"))
    return held
