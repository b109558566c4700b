"""What the gate costs a server whose connections are short: nginx's CPU time for a fetch, plain and gated in turn."""

import contextlib
import os
import random
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reinet.alcc.launch import Law, Settings
from reinet.core.errors import LinkError
from reinet.core.target import Target
from reinet.envs.mahimahi.process import find_program
from reinet.envs.mahimahi.web import nginx_config

TARGET = Target.parse("+30ms")
KINDS = ((1_000, True), (1_000, False), (100_000, True))
"""Bytes of an object, and whether each has a connection of its own."""
FETCHES = 2000
START_S = 10.0
SEED = 1


def measure(law: Law, pairs: int, tell: Callable[[str], None] = lambda _: None) -> list[dict[str, Any]]:
    """Returns a row for each of KINDS: CPU time of a fetch, and gated over plain, of so many pairs in random order.

    Raises LinkError where nginx is missing or does not start.
    """
    ways = {"plain": dict(os.environ), "gated": Settings(law=law, target=TARGET).environment()}
    order, rows = random.Random(SEED), []
    for size_bytes, is_fresh in KINDS:
        took: dict[str, list[float]] = {"plain": [], "gated": []}
        for pair in range(pairs):
            for way in order.sample(list(ways), 2):
                with _nginx(size_bytes, ways[way]) as (pid, port):
                    took[way].append(_fetch_us(pid, port, size_bytes, is_fresh))
            tell(f"{size_bytes} bytes, pair {pair + 1} of {pairs}: {took['plain'][-1]:.0f}, {took['gated'][-1]:.0f} us")
        ratios = sorted(gated / plain for gated, plain in zip(took["gated"], took["plain"], strict=True))
        low, _, high = statistics.quantiles(ratios, n=4) if pairs > 1 else (ratios[0], 0.0, ratios[0])
        rows.append({
            "law": law.name, "bytes": size_bytes, "fresh": is_fresh, "pairs": pairs,
            "plain_us": statistics.median(took["plain"]), "gated_us": statistics.median(took["gated"]),
            "cpu_ratio": statistics.median(ratios), "cpu_ratio_q1": low, "cpu_ratio_q3": high,
        })  # fmt: skip
    return rows


@contextlib.contextmanager
def _nginx(size_bytes: int, environment: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Runs nginx, one process with one object; yields its process and port."""
    program = str(find_program("nginx", "run docker/packages.sh --bench as root"))
    with tempfile.TemporaryDirectory(prefix="reinet-fetches-") as folder:
        Path(folder, "object").write_bytes(bytes(size_bytes))
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        Path(folder, "conf").write_text(nginx_config(folder, folder, f"127.0.0.1:{port}"))
        command = [program, "-p", folder, "-e", f"{folder}/error.log", "-c", f"{folder}/conf"]
        words = Path(folder, "words")
        with words.open("wb") as stderr, subprocess.Popen(command, env=dict(environment), stderr=stderr) as process:
            try:
                _wait_up(process, port, words)
                yield process.pid, port
            finally:
                process.kill()


def _wait_up(process: subprocess.Popen[bytes], port: int, words: Path) -> None:
    ends_s = time.monotonic() + START_S
    while time.monotonic() < ends_s and process.poll() is None:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise LinkError(f"nginx did not start: {words.read_text(errors='replace').strip() or 'it said nothing'}")


def _fetch_us(pid: int, port: int, size_bytes: int, is_fresh: bool) -> float:
    """Returns the CPU time of the server's threads for one of FETCHES fetches."""
    request = f"GET /object HTTP/1.1\r\nHost: x\r\nConnection: {'close' if is_fresh else 'keep-alive'}\r\n\r\n".encode()
    before_ns, kept = _cpu_ns(pid), None
    for _ in range(FETCHES):
        sock = kept or socket.create_connection(("127.0.0.1", port))
        sock.sendall(request)
        _receive(sock, size_bytes)
        if is_fresh:
            sock.close()
        else:
            kept = sock
    if kept:
        kept.close()
    return (_cpu_ns(pid) - before_ns) / FETCHES / 1000


def _receive(sock: socket.socket, size_bytes: int) -> None:
    """Reads one answer. Raises LinkError for one that is cut short."""
    got = sock.recv(1 << 18)
    left = got.find(b"\r\n\r\n") + 4 + size_bytes - len(got)
    while left > 0:
        got = sock.recv(1 << 18)
        if not got:
            raise LinkError("nginx closed a connection before its answer was through")
        left -= len(got)


def _cpu_ns(pid: int) -> int:
    """Returns what a process' threads have had of the CPUs."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
