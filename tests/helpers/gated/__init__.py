"""Programs that run under the gate, and what starts them."""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.gated.server import MSS_BYTES
from helpers.places import HELPERS
from reinet.alcc.launch import Law, Settings
from reinet.core.target import Target

FOLDER = HELPERS / "gated"
CAP_PKTS = 8
TIMEOUT_S = 120.0
"""The longest that anything here may take: only a test that fails does."""


MOST_HELD_BYTES = 3 * CAP_PKTS * MSS_BYTES
"""What the cap and the peer's small buffer hold together; without a gate it is 80 KB and more."""


def settings(law: str = f"fixed:{CAP_PKTS}", **more: Any) -> Settings:
    return Settings(law=Law(law), target=Target.parse("+30ms"), **{"always": True, **more})


def environment(asked: Settings | None) -> dict[str, str]:
    return dict(os.environ) if asked is None else asked.environment()


def seen_in(case: str, asked: Settings | None, file: str = "edges.py") -> tuple[dict[str, Any], str]:
    """Return what a case of that file saw, and what was said on standard error."""
    command = [sys.executable, str(FOLDER / file), case]
    done = subprocess.run(
        command, env=environment(asked), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen, done.stderr


class Server:
    """A running ``server.py``."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.port = int(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def told(self) -> dict[str, Any]:
        line = self.line()
        assert line, self.process.stderr and self.process.stderr.read()
        told: dict[str, Any] = json.loads(line)
        return told

    def ended(self) -> None:
        assert self.process.wait(TIMEOUT_S) == 0, self.process.stderr and self.process.stderr.read()

    def connect(self, receive_buffer_bytes: int = 0) -> socket.socket:
        sock = socket.socket()
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.settimeout(TIMEOUT_S)
        sock.connect(("127.0.0.1", self.port))
        return sock


@contextlib.contextmanager
def serving(mode: str, size: int, clients: int, asked: Settings | None) -> Iterator[Server]:
    with subprocess.Popen(
        [sys.executable, str(FOLDER / "server.py"), mode, str(size), str(clients)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(asked),
    ) as process:  # fmt: skip
        try:
            yield Server(process)
        finally:
            process.kill()


def received(sock: socket.socket) -> tuple[int, str]:
    """Return number and digest of the bytes up to the end."""
    digest, size = hashlib.sha256(), 0
    while block := sock.recv(1 << 18):
        digest.update(block)
        size += len(block)
    sock.close()
    return size, digest.hexdigest()


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


def seen_alike(program: Path, case: str, asked: Settings | None = None) -> tuple[int, list[str], str]:
    """Return what is seen of a case under the gate, which is what is seen without it."""
    seen, plain = seen_of(program, case, asked or settings()), seen_of(program, case, None)
    assert seen == plain, f"{case}: {seen}, and without the gate {plain}"
    return seen


def held_bytes_of(lines: list[str]) -> int:
    (held,) = (int(line.split()[1]) for line in lines if line.startswith("held"))
    return held
