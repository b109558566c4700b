"""One TCP transfer over loopback, as a process of its own: ``python transfer.py '{"seconds": 1, ...}'``.

Prints a JSON line when connected (cookie, cc) and one at the end: intact, cc, and after each block sent a sample of
(monotonic ns, cwnd, whether plain BBR is in STARTUP). What the plan may say:

- ``idle``: when all that was sent is acknowledged, print another line (idle), and keep the connection open until
  standard input ends.
- ``keepalive``: probe the connection each second while it is idle.
- ``burst``: (bytes, seconds): send so much, wait until all of it is acknowledged and then so long, and again.
- ``until_told``: the end of standard input also ends the sending.
- ``rate_mbit``: make loopback a bottleneck with a droptail queue of 150 KB, which asks for a network namespace of its
  own (``unshare -n``).
- ``keeps_windows``: idle flows of the own network namespace do not begin anew (tcp_slow_start_after_idle).
- ``lossy``: what comes within 10 ms of SIGUSR1 is lost at the receiver's door.
- ``leave_network``: go back to the parent's network namespace, so that only sockets hold the own one.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)
SO_COOKIE = 57
TCP_INFO_CWND_OFFSET = 80
TCP_CC_INFO = 26
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
BBR_STARTUP_GAIN = 739  # of 256: 2 / ln 2, bbr_high_gain
BLOCK = bytes(range(256)) * 64


def shape(verb: str, rate: str) -> None:
    command = f"tc qdisc {verb} dev lo root tbf rate {rate} burst 3000 limit 150000"
    subprocess.run(command.split(), check=True)


def make_bottleneck(rate_mbit: float) -> None:
    subprocess.run(["ip", "link", "set", "lo", "mtu", "1500", "up"], check=True)
    shape("add", f"{rate_mbit}mbit")


def outage(after_s: float, length_s: float, rate_mbit: float) -> None:
    time.sleep(after_s)
    shape("change", "8kbit")  # a packet in 1.5 s, which is also how long tbf takes to notice that the rate is back
    time.sleep(length_s)
    shape("change", f"{rate_mbit}mbit")


def join(cgroup: "str | None") -> None:
    if cgroup:
        with open(f"{cgroup}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write(str(os.getpid()))


def connect(cc: str, passive: bool, cgroup: "str | None") -> tuple[socket.socket, socket.socket]:
    """Return sender and receiver. A socket stays in the cgroup it was made in: only the sender's is the given one."""
    if passive:
        dialler = socket.socket()
        join(cgroup)
        sender = listener = socket.create_server(("127.0.0.1", 0))
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        join(cgroup)
        sender = dialler = socket.socket()
    sender.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, cc.encode())
    dialler.connect(listener.getsockname())
    answered = listener.accept()[0]
    listener.close()
    return (answered, dialler) if passive else (dialler, answered)


def leave_network() -> None:
    with open(f"/proc/{os.getppid()}/ns/net", "rb") as parents:
        if ctypes.CDLL(None, use_errno=True).setns(parents.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")


def told_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def wait_acknowledged(sock: socket.socket) -> None:
    while struct.unpack("=i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]:
        time.sleep(0.01)


def cc_of(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16).rstrip(b"\0").decode()


def in_startup(sock: socket.socket) -> bool:
    """Return what the kernel's own BBR says of itself; a wrapper, and any other algorithm, says nothing."""
    info = sock.getsockopt(socket.IPPROTO_TCP, TCP_CC_INFO, 20)  # struct tcp_bbr_info
    return len(info) == 20 and struct.unpack_from("=I", info, 12)[0] == BBR_STARTUP_GAIN


def receive(sock: socket.socket, digest: "hashlib._Hash") -> None:
    while block := sock.recv(1 << 16):
        digest.update(block)


def lose_a_few(receiver: socket.socket) -> None:
    """Drop packets for 10 ms. A filter in front of the socket begins and ends at once; one of tc takes tens of ms."""
    nothing = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))  # classic BPF: return, none of its bytes
    program = struct.pack("HP", 1, ctypes.addressof(nothing))
    receiver.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    time.sleep(0.01)
    receiver.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def main() -> None:
    plan = {
        "seconds": 1.0,
        "cc": "cubic",
        "passive": False,
        "idle": False,
        "until_told": False,
        **json.loads(sys.argv[1]),
    }
    if "rate_mbit" in plan:
        make_bottleneck(plan["rate_mbit"])
    if plan.get("keeps_windows"):
        with open("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "w", encoding="ascii") as sysctl:
            sysctl.write("0")
    sender, receiver = connect(plan["cc"], plan["passive"], plan.get("cgroup"))
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    if plan.get("keepalive"):
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            sender.setsockopt(socket.IPPROTO_TCP, option, 1)
    if plan.get("lossy"):
        signal.signal(signal.SIGUSR1, lambda *_: lose_a_few(receiver))
    cookie = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]
    print(json.dumps({"cookie": cookie, "cc": cc_of(sender)}), flush=True)

    if plan.get("leave_network"):
        leave_network()
    received, sent, samples = hashlib.sha256(), hashlib.sha256(), []
    in_burst = 0
    reading = threading.Thread(target=receive, args=(receiver, received))
    reading.start()
    if "outage" in plan:
        threading.Thread(target=outage, args=(*plan["outage"], plan["rate_mbit"])).start()
    end = time.monotonic() + plan["seconds"]
    sender.settimeout(30)
    while (left := end - time.monotonic()) > 0 and not (plan["until_told"] and told_to_end()):
        if "later_cc" in plan and left < plan["seconds"] / 2:
            sender.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, plan.pop("later_cc").encode())
        sender.sendall(BLOCK)
        sent.update(BLOCK)
        if "burst" in plan:
            in_burst += len(BLOCK)
            if in_burst >= plan["burst"][0]:
                in_burst = 0
                wait_acknowledged(sender)
                time.sleep(plan["burst"][1])
        info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        cwnd = struct.unpack_from("=I", info, TCP_INFO_CWND_OFFSET)[0]
        samples.append((time.monotonic_ns(), cwnd, in_startup(sender)))
    if plan["idle"]:
        wait_acknowledged(sender)
        print(json.dumps({"idle": True}), flush=True)
        sys.stdin.read()
    cc = cc_of(sender)
    sender.close()
    reading.join(30)
    print(json.dumps({"intact": sent.digest() == received.digest(), "cc": cc, "samples": samples}), flush=True)


main()
