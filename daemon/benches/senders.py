"""Many senders in one process, each with a bottleneck of its own: ``python senders.py '{"flows": 200, ...}'``.

It joins the plan's cgroup, waits for so many connections, gives each a class of its own behind the device that leads to
them (htb, the plan's rate, a droptail queue) and sends the link helpers' pattern until standard input ends. It needs
root, runs in a link's namespaces and imports the standard library alone, so that it starts at once. Standard output has
one JSON line for each event: ``listening`` (port), ``sending``, and at the end ``flows``, with samples of all flows.
"""

import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from typing import Any

TCP_CONGESTION = 13
TCP_NOTSENT_LOWAT = 25
NOTSENT_BYTES = 128 << 10
"""Unsent data waits in the socket; a second of a flow's rate, so that a late process starves none."""
PATTERN_BYTES = 65521
FIRST_CLASS = 16
_RTT_AT, _ACKED_AT = 68, 120
"""Of ``struct tcp_info``: tcpi_rtt (us), tcpi_bytes_acked."""


def say(**event: Any) -> None:
    """Prints an event."""
    print(json.dumps(event), flush=True)


def pattern() -> bytes:
    """Returns two blocks of ``pattern.h``."""
    x, block = 2463534242, bytearray()
    for _ in range(PATTERN_BYTES):
        x ^= x << 13 & 0xFFFFFFFF
        x ^= x >> 17
        x ^= x << 5 & 0xFFFFFFFF
        block.append(x & 0xFF | 1)
    return bytes(block * 2)


def make_bottlenecks(device: str, flows: int, rate_mbit: float, buffer_bytes: int) -> None:
    """Makes a class for each flow; a socket names its own by its priority.

    Segments come one by one (``gso_max_segs``): htb lets a bundle of them through whole and pauses for as long, where a
    link sends packet after packet. The flush of cached routes tells sockets that are open already.
    """
    lines = [f"qdisc add dev {device} root handle 1: htb default 1"]
    for number in range(FIRST_CLASS, FIRST_CLASS + flows):
        shape = f"rate {rate_mbit}mbit burst 1600 cburst 1600 quantum 1600"
        lines.append(f"class add dev {device} parent 1: classid 1:{number:x} htb {shape}")
        lines.append(f"qdisc add dev {device} parent 1:{number:x} bfifo limit {buffer_bytes}")
    subprocess.run(["tc", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)
    subprocess.run(["ip", "link", "set", "dev", device, "gso_max_segs", "1"], check=True)
    subprocess.run(["ip", "route", "flush", "cache"], check=True)


def device() -> str:
    """Returns the device that leads into Mahimahi's delay."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("delay-"))


def cc_of(sock: socket.socket) -> str:
    """Returns a socket's congestion control."""
    return sock.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16).rstrip(b"\0").decode()


def main() -> None:
    """Sends until standard input ends."""
    plan = json.loads(sys.argv[1])
    with open(f"{plan['cgroup']}/cgroup.procs", "w", encoding="ascii") as procs:
        procs.write("0")
    listener = socket.create_server(("0.0.0.0", 0), backlog=1024)
    listener.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, plan["cc"].encode())
    say(event="listening", port=listener.getsockname()[1])
    flows = [listener.accept()[0] for _ in range(plan["flows"])]
    make_bottlenecks(device(), len(flows), plan["rate_mbit"], plan["buffer_bytes"])
    content, sent, lost = pattern(), [0] * len(flows), [False] * len(flows)
    poller = select.epoll()
    poller.register(sys.stdin, select.EPOLLIN | select.EPOLLHUP)
    place = {flow.fileno(): index for index, flow in enumerate(flows)}
    for index, flow in enumerate(flows):
        flow.setblocking(False)
        flow.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 1 << 16 | FIRST_CLASS + index)
        flow.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOTSENT_BYTES)
        poller.register(flow, select.EPOLLOUT)
    say(event="sending", time_ns=time.monotonic_ns())

    samples: list[dict[str, Any]] = []
    late_s = 0.0
    next_s = time.monotonic()
    while True:
        for fd, _ in poller.poll(max(next_s - time.monotonic(), 0)):
            if fd == sys.stdin.fileno():
                say(event="flows", samples=samples, lost=sum(lost), late_s=late_s)
                for flow in flows:
                    flow.shutdown(socket.SHUT_WR)
                return
            index = place[fd]
            start = sent[index] % PATTERN_BYTES
            try:
                sent[index] += flows[index].send(memoryview(content)[start : start + PATTERN_BYTES])
            except BlockingIOError:
                continue
            except OSError:
                lost[index] = True
                poller.unregister(fd)
        if time.monotonic() >= next_s:
            late_s = max(late_s, time.monotonic() - next_s)
            next_s += plan["sample_s"]
            samples.append(sample(flows))


def sample(flows: list[socket.socket]) -> dict[str, Any]:
    """Returns what the kernel says of every flow: when it was asked, bytes acknowledged, RTT, who is wrapped."""
    times_ns, acked, rtts_us, wrapped = [], [], [], 0
    for flow in flows:
        info = flow.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
        times_ns.append(time.monotonic_ns())
        acked.append(struct.unpack_from("=Q", info, _ACKED_AT)[0])
        rtts_us.append(struct.unpack_from("=I", info, _RTT_AT)[0])
        wrapped += cc_of(flow).startswith("reinet_")
    return {"times_ns": times_ns, "acked_bytes": acked, "rtts_us": rtts_us, "wrapped": wrapped}


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        say(event="error", message=f"{type(error).__name__}: {error}")
        os._exit(1)
