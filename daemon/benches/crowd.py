"""Thousands of connections in one process, over loopback: ``python crowd.py '{"held": 5000, ...}'``.

It joins the plan's cgroup, so both ends of every connection count, and wants a network namespace of its own
(``unshare -n``). It opens ``held`` connections, half of them over IPv6, and keeps them; then it opens, uses and closes
``per_s`` more a second for so many ``seconds``. Every other one is reset in place of closed. Standard output has one
JSON line for each event: ``held``, ``churned``, and ``closed`` when standard input has said so; it ends with its input.
"""

import json
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from typing import Any

REQUEST, ANSWER = bytes(100), bytes(4096)
RESET = struct.pack("ii", 1, 0)
V4_ADDRESSES = [f"127.0.0.{last}" for last in range(1, 33)]
"""Ports of closed connections rest for a minute, 28 000 for each address: these have room for a minute of 5 000/s."""
TOUCHED = 20
"""So many of the held connections say something in each hundredth of a second; 10 000 all do in five seconds."""
SLICE_S = 0.01

Pair = tuple[socket.socket, socket.socket]


def say(**event: Any) -> None:
    """Prints an event."""
    print(json.dumps(event), flush=True)


class Crowd:
    """Listeners of both families, and connections to them."""

    def __init__(self) -> None:
        self._v4 = socket.create_server(("0.0.0.0", 0), backlog=4096)
        self._v6 = socket.create_server(("::1", 0), family=socket.AF_INET6, backlog=4096)
        self._ports = self._v4.getsockname()[1], self._v6.getsockname()[1]
        self._opened = 0

    def open(self) -> Pair:
        """Returns both ends of another connection; the families take turns."""
        self._opened += 1
        if self._opened % 2:
            client, listener = socket.socket(socket.AF_INET6), self._v6
            client.connect(("::1", self._ports[1]))
        else:
            client, listener = socket.socket(), self._v4
            client.connect((V4_ADDRESSES[self._opened // 2 % len(V4_ADDRESSES)], self._ports[0]))
        return client, listener.accept()[0]


def use(pair: Pair) -> None:
    """Asks and answers."""
    client, server = pair
    client.send(REQUEST)
    server.recv(len(REQUEST))
    server.send(ANSWER)
    client.recv(len(ANSWER), socket.MSG_WAITALL)


def churn(crowd: Crowd, held: list[Pair], per_s: int, seconds: float) -> tuple[int, int, float]:
    """Returns how many connections came and went, how many failed, and in how long."""
    start_s = time.monotonic()
    done = failed = at = 0
    while (past_s := time.monotonic() - start_s) < seconds:
        while done < per_s * min(past_s + SLICE_S, seconds):
            done += 1
            try:
                client, server = crowd.open()
                use((client, server))
            except OSError:
                failed += 1
                continue
            if done % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
            server.close()
            if done % 256 == 0:
                break
        for _ in range(min(TOUCHED, len(held))):
            use(held[at])
            at = (at + 1) % len(held)
        time.sleep(max(0.0, SLICE_S - (time.monotonic() - start_s - past_s)))
    return done, failed, time.monotonic() - start_s


def main() -> None:
    """Does what the plan says."""
    plan = json.loads(sys.argv[1])
    with open(f"{plan['cgroup']}/cgroup.procs", "w", encoding="ascii") as procs:
        procs.write("0")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    most = 2 * plan["held"] + 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    crowd = Crowd()
    held = [crowd.open() for _ in range(plan["held"])]
    for pair in held:
        use(pair)
    say(event="held", sockets=2 * len(held))
    sys.stdin.readline()
    connections, failed, took_s = churn(crowd, held, plan["per_s"], plan["seconds"])
    say(event="churned", connections=connections, failed=failed, took_s=took_s)
    sys.stdin.readline()
    for pair in held:
        use(pair)
    for pair in held:
        for one in pair:
            one.close()
    say(event="closed")
    sys.stdin.read()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        say(event="error", message=f"{type(error).__name__}: {error}")
        os._exit(1)
