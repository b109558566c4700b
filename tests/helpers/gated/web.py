"""nginx under the gate, and clients of it: whole, slow and leaving ones, and a player."""

import contextlib
import hashlib
import http.client
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from helpers.gated import TIMEOUT_S, settings
from helpers.gated.server import MSS_BYTES
from reinet.alcc.sums import Sums

CONFIG = """
{user}
worker_processes 2;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; use epoll; }}
http {{
  access_log off;
  sendfile {sendfile};
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port} backlog=512; root {folder}/www; }}
}}
"""
PLAYER_RATES = (1, 2, 4, 8)
SEGMENTS = 12
SEGMENT_BYTES_PER_RATE = 40_000
ENOUGH = 3
"""Segments ahead of what is shown; then the player pauses for as long as one is shown."""
SHOWN_S = 0.05


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def needed(program: str, option: str) -> str:
    """Returns where a program is. Where it is missing the test is skipped, with the option of packages.sh that installs
    it; in CI it fails."""
    found = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end(f"{program} is not installed: run docker/packages.sh {option} as root")
    return found


@contextlib.contextmanager
def nginx(
    folder: Path, files: Mapping[str, bytes], report: Sums, sendfile: str = "on"
) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Runs nginx with two workers under a cap of 4 packets; yields it and its port."""
    program = needed("nginx", "--bench")
    (folder / "www").mkdir()
    for name, data in files.items():
        (folder / "www" / name).write_bytes(data)
    port = free_port()
    user = "user root;" if os.geteuid() == 0 else ""  # workers of another user cannot read pytest's folders
    (folder / "conf").write_text(CONFIG.format(folder=folder, port=port, sendfile=sendfile, user=user))
    command = [program, "-p", str(folder), "-c", str(folder / "conf")]
    with subprocess.Popen(command, env=settings("fixed:4", report=report.path).environment()) as process:
        try:
            _wait_up(port, next(iter(files)))
            yield process, port
        finally:
            process.kill()


def fetched(port: int, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=TIMEOUT_S) as answer:
        return digest(answer.read())


def raw_fetch(port: int, name: str, kind: str) -> str:
    """Returns the digest of a file that a client takes ``whole``, ``slow``, or in part because it is ``leaving``."""
    with _small_segments() as sock:
        if kind != "whole":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(TIMEOUT_S)
        sock.connect(("127.0.0.1", port))
        sock.sendall(f"GET /{name} HTTP/1.0\r\n\r\n".encode())
        data = b""
        while block := sock.recv(1500 if kind != "whole" else 1 << 16):
            data += block
            if kind == "slow":
                time.sleep(0.002)
            if kind == "leaving" and len(data) > 5000:
                break  # with bytes unread: a reset
    return digest(data.partition(b"\r\n\r\n")[2])


def play(port: int) -> dict[str, str]:
    """Fetches a film of ``SEGMENTS`` over one connection; returns each segment's name and digest.

    The rate goes up a step with each segment that came in time, and down with each that did not; a player that has
    enough ahead pauses. The film's middle is asked for late on purpose, so that the rate goes down once.
    """
    played: dict[str, str] = {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    connection.sock = _small_segments()
    connection.sock.settimeout(TIMEOUT_S)
    connection.sock.connect(("127.0.0.1", port))
    level = ahead = 0
    for number in range(SEGMENTS):
        name = f"{PLAYER_RATES[level]}-{number}"
        began_s = time.monotonic()
        connection.request("GET", f"/{name}")
        played[name] = digest(connection.getresponse().read())
        late = time.monotonic() - began_s > SHOWN_S or number == SEGMENTS // 2
        level = max(level - 1, 0) if late else min(level + 1, len(PLAYER_RATES) - 1)
        ahead = max(ahead - 1, 0) if late else ahead + 1
        if ahead >= ENOUGH:
            time.sleep(SHOWN_S)
            ahead -= 1
    connection.close()
    return played


def _small_segments() -> socket.socket:
    """Returns a socket whose peer sends packets of a usual size: loopback's own would put 256 KB under a cap of 4."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS_BYTES)
    return sock


def _wait_up(port: int, name: str) -> None:
    for _ in range(200):
        try:
            fetched(port, name)
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    pytest.fail("nginx did not come up")
