"""Many senders in one process, each with a bottleneck of its own: ``python senders.py '{"flows": 200, ...}'``.

It joins the plan's cgroup, waits for so many connections, gives each a class of its own on the way to it (htb, the
plan's rate, a droptail queue) and sends the link helpers' pattern until standard input ends. It needs root, runs in a
link's namespaces and imports the standard library alone, so that it starts at once. Standard output has one JSON line
for each event: ``listening`` (port), ``sending``, and at the end ``flows``, with samples of all flows.
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
GONE_AT_ONCE, IN_ORDER = (struct.pack("ii", on, 0) for on in (1, 0))
"""However this process ends, its sockets are not left to retransmit into a link that is gone: they would keep the
daemon's programs loaded for minutes. Only at the end of a measurement what was sent is delivered."""
PATTERN_BYTES = 65521
FIRST_CLASS = 16
_MSS_AT, _RTT_AT, _DELIVERED_AT = 16, 68, 192
"""Of ``struct tcp_info``: tcpi_snd_mss, tcpi_rtt (us), tcpi_delivered (packets, selectively acknowledged ones too: in
recovery bytes_acked stands still while the link works on)."""


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


def make_bottlenecks(ports: list[int], rate_mbps: float, buffer_bytes: int) -> None:
    """Makes a class for each flow, by its receiver's port, in the namespace between both shells.

    There a packet is a packet: at the sender's own device TCP would send bundles of segments, which htb lets through
    whole, and would keep all but a few of them out of the queue (TCP small queues), whatever the window.
    Raises RuntimeError.
    """
    enter, device = between_shells()
    lines = [f"qdisc add dev {device} root handle 1: htb default 1"]
    for number, port in enumerate(ports, FIRST_CLASS):
        shape = f"rate {rate_mbps}mbit burst 1600 cburst 1600 quantum 1600"
        lines.append(f"class add dev {device} parent 1: classid 1:{number:x} htb {shape}")
        lines.append(f"qdisc add dev {device} parent 1:{number:x} bfifo limit {buffer_bytes}")
        match = f"match ip dport {port} 0xffff flowid 1:{number:x}"
        lines.append(f"filter add dev {device} parent 1: protocol ip prio 1 u32 {match}")
    made = subprocess.run([*enter, "tc", "-batch", "-"], input="\n".join(lines) + "\n", text=True, capture_output=True)
    if made.returncode:
        raise RuntimeError(f"tc makes no bottlenecks; try modprobe -a sch_htb cls_u32: {made.stderr.strip()[:500]}")


def between_shells() -> tuple[list[str], str]:
    """Returns how to enter the outer shell's namespace, and the device that leads into the inner one from there.

    Each shell has a process in the namespace that it made; the innermost one leads nowhere. Raises RuntimeError.
    """
    own = os.stat("/proc/self/ns/net").st_ino
    for pid in pids_of("mm-delay"):
        if os.stat(f"/proc/{pid}/ns/net").st_ino == own:
            continue
        enter = ["nsenter", f"--net=/proc/{pid}/ns/net", "--"]
        shown = subprocess.run([*enter, "ip", "-o", "link", "show"], capture_output=True, text=True, check=True).stdout
        if devices := [line.split(": ")[1] for line in shown.splitlines() if ": delay-" in line]:
            return enter, devices[0]
    raise RuntimeError("no shell of Mahimahi's leads into another one")


def pids_of(program: str) -> list[int]:
    """Returns the processes that run a program, of those in this process's namespaces."""
    found = []
    for folder in os.listdir("/proc"):
        try:
            with open(f"/proc/{folder}/comm", encoding="ascii", errors="replace") as comm:
                if comm.read().rstrip("\n") == program:
                    found.append(int(folder))
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
            continue
    return found


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
    make_bottlenecks([flow.getpeername()[1] for flow in flows], plan["rate_mbps"], plan["buffer_bytes"])
    content, sent, lost = pattern(), [0] * len(flows), [False] * len(flows)
    poller = select.epoll()
    poller.register(sys.stdin, select.EPOLLIN | select.EPOLLHUP)
    place = {flow.fileno(): index for index, flow in enumerate(flows)}
    for flow in flows:
        flow.setblocking(False)
        flow.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOTSENT_BYTES)
        flow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, GONE_AT_ONCE)
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
                    flow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, IN_ORDER)
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
    """Returns what the kernel says of every flow: when it was asked, bytes delivered, RTT, who is wrapped."""
    times_ns, delivered, rtts_us, wrapped = [], [], [], 0
    for flow in flows:
        info = flow.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 200)
        times_ns.append(time.monotonic_ns())
        mss_bytes, rtt_us, packets = (struct.unpack_from("=I", info, at)[0] for at in (_MSS_AT, _RTT_AT, _DELIVERED_AT))
        delivered.append(packets * mss_bytes)
        rtts_us.append(rtt_us)
        wrapped += cc_of(flow).startswith("reinet_")
    return {"times_ns": times_ns, "delivered_bytes": delivered, "rtts_us": rtts_us, "wrapped": wrapped}


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        say(event="error", message=f"{type(error).__name__}: {error}")
        os._exit(1)
