"""What the gate costs: a write's time, a closed gate's and a crowd's share of a core, memory per connection."""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from reinet.alcc.launch import Law, Settings
from reinet.core.target import Target

MSS_BYTES = 536
"""Loopback's own packets of 64 KB would put half a megabyte under a cap of 8."""
CAP_PKTS = 8
WRITES = 20_000
BLOCK = bytes(1 << 16)
SPARE_FDS = 100
IDLE_PER_CLOSED = 10

Row = dict[str, object]


def measure(connections: int = 1000, seconds: float = 3.0, law: Law | None = None) -> list[Row]:
    """Returns rows of ``what, plain, gated`` with the unit in ``what``; each comes from processes of its own.

    ``law``: None = a fixed cap. Idle connections are ten times as many: nothing is due of them.
    """
    law = law or Law(f"fixed:{CAP_PKTS}")
    gate = Settings(law=law, target=Target.parse("+30ms"), always=True).environment()
    rows: list[Row] = []
    kinds = (("write", 1), ("closed", 1), ("closed", connections), ("idle", IDLE_PER_CLOSED * connections))
    for kind, count in kinds:
        plain, gated = (_worker(kind, count, seconds, environment) for environment in (os.environ, gate))
        rows += [
            {"what": name, "connections": count, "plain": plain[name], "gated": gated[name]} for name in plain
        ]  # fmt: skip
    return rows


def _worker(kind: str, count: int, seconds: float, environment: Mapping[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "reinet.alcc.bench", kind, str(count), str(seconds)]
    done = subprocess.run(command, env=dict(environment), stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _senders(count: int) -> list[socket.socket]:
    """Returns connections over loopback to a process that reads nothing and ends with this one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count + SPARE_FDS > hard:
        sys.exit(f"{count} connections are more than {hard} descriptors allow: ulimit -n, or ask for fewer")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + SPARE_FDS), hard))
    with socket.socket() as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        alive, ours = os.pipe()
        if os.fork() == 0:
            os.close(ours)
            peers = [_peer(listener.getsockname()) for _ in range(count)]
            os.read(alive, 1)
            os._exit(len(peers) == 0)
        return [listener.accept()[0] for _ in range(count)]


def _peer(address: tuple[str, int]) -> socket.socket:
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(address)
    return peer


def _write(_: int, __: float) -> dict[str, float]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = _peer(listener.getsockname())
        sender = listener.accept()[0]

    def read() -> None:
        while peer.recv(1 << 16):
            pass

    threading.Thread(target=read, daemon=True).start()
    started_s = time.perf_counter()
    for _ in range(WRITES):
        sender.send(b"x")
    return {"write_us": (time.perf_counter() - started_s) / WRITES * 1e6}


def _closed(count: int, seconds: float) -> dict[str, float]:
    """Peers that read nothing: every sender is full, and waits."""
    before_kb = _rss_kb()
    senders = _senders(count)
    for sender in senders:
        sender.setblocking(False)
    until_s = time.monotonic() + 1.0
    while time.monotonic() < until_s:
        for sender in senders:
            with contextlib.suppress(BlockingIOError):
                sender.send(BLOCK)
        time.sleep(0.1)
    grown_kb = _rss_kb() - before_kb
    share = _cpu_share(seconds)
    threads = len(list(Path("/proc/self/task").iterdir()))
    return {"cpu_share": share, "memory_kb_per_connection": grown_kb / count, "threads": threads}


def _idle(count: int, seconds: float) -> dict[str, float]:
    for sender in (senders := _senders(count)):
        sender.send(b"x")
    time.sleep(0.5)
    before = _switches()
    time.sleep(seconds)
    woken = _switches() - before - 1  # one is the sleep's own
    del senders
    return {"wake_ups_per_s": woken / seconds}


def _cpu_share(seconds: float) -> float:
    before_s, started_s = time.process_time(), time.monotonic()
    time.sleep(seconds)
    return (time.process_time() - before_s) / (time.monotonic() - started_s)


def _rss_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


def _switches() -> int:
    return sum(
        int(line.split()[1])
        for task in Path("/proc/self/task").iterdir()
        for line in (task / "status").read_text().splitlines()
        if line.startswith("voluntary_ctxt")
    )


if __name__ == "__main__":
    kinds = {"write": _write, "closed": _closed, "idle": _idle}
    print(json.dumps(kinds[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3]))))
