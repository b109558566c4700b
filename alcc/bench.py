"""What the gate costs: a write's time, a closed gate's and a crowd's share of a core, memory per connection.

And whether it loses a wake-up, of as many openings as ``OPENINGS`` says.
"""

import contextlib
import json
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from reinet.alcc.launch import Law, Settings
from reinet.core.errors import ConfigError
from reinet.core.target import Target

MSS_BYTES = 536
"""Loopback's own packets of 64 KB would put half a megabyte under a cap of 8."""
CAP_PKTS = 8
WRITES = 20_000
BLOCK = bytes(1 << 16)
SPARE_FDS = 100
IDLE_PER_CLOSED = 10
OPENINGS = 10_000
OPENED_CONNECTIONS = 10
OPENINGS_TAKE_AT_MOST = 5.0
"""Times the length of a measurement: a thousand or more a second come of the gate, and of the kernel far fewer."""
LOST_AFTER_S = 5.0
"""A gate opens within a round trip of loopback: who waited so long would have waited for ever."""
READ_BYTES = 4096
READ_EVERY_S = 0.1
"""How an active connection's peer reads: ten thousand reads a second are what one thread of Python can do."""
PACER = "reinet-alcc"
"""The name of the process's one thread (alcc/gate/pacer.cpp)."""

Row = dict[str, object]


def measure(connections: int = 1000, seconds: float = 3.0, law: Law | None = None) -> list[Row]:
    """Returns rows of ``what, plain, gated`` with the unit in ``what``; each comes from processes of its own.

    ``law``: None = a fixed cap. Idle connections are ten times as many: nothing is due of them. Raises ConfigError for
    more of them than this process may have.
    """
    _check_room(IDLE_PER_CLOSED * connections)
    law = law or Law(f"fixed:{CAP_PKTS}")
    gate = Settings(law=law, target=Target.parse("+30ms"), always=True).environment()
    rows: list[Row] = []
    kinds = (
        ("write", 1),
        ("openings", OPENED_CONNECTIONS),
        ("closed", 1),
        ("closed", connections),
        ("active", connections),
        ("idle", IDLE_PER_CLOSED * connections),
    )
    for kind, count in kinds:
        plain, gated = (_worker(kind, count, seconds, environment) for environment in (os.environ, gate))
        rows += [{"what": name, "connections": count, "plain": plain[name], "gated": gated[name]} for name in plain]
    return rows


def _worker(kind: str, count: int, seconds: float, environment: Mapping[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "reinet.alcc.bench", kind, str(count), str(seconds)]
    # Ctrl-C is this process's to tell of, which kills the other: in its session it would show a traceback of its own.
    done = subprocess.run(
        command, env=dict(environment), stdout=subprocess.PIPE, text=True, check=True, start_new_session=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _check_room(count: int) -> None:
    """Raises ConfigError for more connections than a process may have descriptors, or an address of loopback ports."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    most = {"descriptors (ulimit -n)": hard, "ports (net.ipv4.ip_local_port_range)": last - first + 1}
    for what, there_are in most.items():
        if count + SPARE_FDS > there_are:
            raise ConfigError(
                f"--connections: {count} idle ones, {IDLE_PER_CLOSED} times as many as asked for, are more than "
                f"{there_are} {what} allow; allow more, or ask for fewer"
            )


def _senders(count: int, read_bytes: int = 0, every_s: float = 0.0) -> list[socket.socket]:
    """Returns connections over loopback to a process that reads so much of each at a time, and ends with this one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + SPARE_FDS), hard))
    with socket.socket() as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        alive, ours = os.pipe()
        if os.fork() == 0:
            os.close(ours)
            peers = [_peer(listener.getsockname()) for _ in range(count)]
            while not select.select([alive], [], [], every_s if read_bytes else None)[0]:
                for peer in peers:
                    with contextlib.suppress(OSError):
                        peer.recv(read_bytes, socket.MSG_DONTWAIT)
            os._exit(0)
        return [listener.accept()[0] for _ in range(count)]


def _peer(address: tuple[str, int]) -> socket.socket:
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(address)
    return peer


def _watched(senders: list[socket.socket]) -> tuple[select.epoll, dict[int, socket.socket]]:
    """Returns an epoll that tells which of them may be written, and them by their descriptors."""
    waiter = select.epoll()
    for sender in senders:
        sender.setblocking(False)
        waiter.register(sender, select.EPOLLOUT)
    return waiter, {sender.fileno(): sender for sender in senders}


def _fill(sender: socket.socket) -> int:
    """Sends until the kernel or the gate takes no more; returns the bytes."""
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += sender.send(BLOCK)
    return sent


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


def _openings(count: int, seconds: float) -> dict[str, float]:
    """Peers that read all: each refusal is a gate that closed, and each wait must end."""
    waiter, by_fd = _watched(_senders(count, 1 << 16))
    waits = lost = 0
    until_s = time.monotonic() + OPENINGS_TAKE_AT_MOST * seconds
    while waits < OPENINGS and not lost and time.monotonic() < until_s:
        ready = waiter.poll(LOST_AFTER_S)
        lost = 0 if ready else 1
        for fd, _events in ready:
            waits += _fill(by_fd[fd]) > 0
    return {"openings": waits, "lost_wake_ups": lost}


def _active(count: int, seconds: float) -> dict[str, float]:
    """Peers that read a little now and then: every sender has data outstanding, and is woken again and again."""
    before_kb = _rss_kb()
    waiter, by_fd = _watched(_senders(count, READ_BYTES, READ_EVERY_S))

    def serve(for_s: float) -> int:
        sent, until_s = 0, time.monotonic() + for_s
        while (left_s := until_s - time.monotonic()) > 0:
            sent += sum(_fill(by_fd[fd]) for fd, _events in waiter.poll(left_s))
        return sent

    serve(1.0)  # the kernel's buffers fill
    pacer_s, started_s = _pacer_cpu_s(), time.monotonic()
    sent = serve(seconds)
    took_s = time.monotonic() - started_s
    return {
        "active_cpu_share_of_the_gates_thread": (_pacer_cpu_s() - pacer_s) / took_s,
        "active_mbps": sent * 8 / took_s / 1e6,
        "active_memory_kb_per_connection": (_rss_kb() - before_kb) / count,
    }


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


def _pacer_cpu_s() -> float:
    """Returns the CPU time of the gate's thread, 0 where there is none."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == PACER:
            # The clock of a thread by its number: MAKE_THREAD_CPUCLOCK of the kernel's posix-timers.h, CPUCLOCK_SCHED.
            return time.clock_gettime(~int(task.name) << 3 | 6)
    return 0.0


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
    kinds = {"write": _write, "openings": _openings, "closed": _closed, "active": _active, "idle": _idle}
    print(json.dumps(kinds[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3]))))
