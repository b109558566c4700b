"""A connection that goes to another process or program, by cases as in ``edges.py``; each sends at both ends of it."""

import array
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from edges import Seen, drain, fill, pair  # beside this file
from server import BLOCK, held_bytes

BEFORE = BLOCK[::-1][:1000]
"""What the first owner sends."""


def ungated() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "REINET_ALCC")}


def rest(sock_fd: str, peer_fd: str) -> Seen:
    """What a program that inherited both ends makes of them."""
    sock, peer = socket.socket(fileno=int(sock_fd)), socket.socket(fileno=int(peer_fd))
    sent = fill(sock)
    held = held_bytes(sock)
    got = drain(peer, len(BEFORE) + sent)
    return {"held": held, "same": got == BEFORE + (BLOCK * (sent // len(BLOCK) + 1))[:sent]}


def become(environment: dict[str, str]) -> Seen:
    sock, peer = pair(4096)
    sock.sendall(BEFORE)
    for end in (sock, peer):
        end.set_inheritable(True)
    command = [sys.executable, __file__, "rest", str(sock.fileno()), str(peer.fileno())]
    os.execve(sys.executable, command, environment)


def kept_by_exec() -> Seen:
    """The process becomes another program, which sends on the connection that was open."""
    return become(dict(os.environ))


def kept_by_exec_without_the_gate() -> Seen:
    """The same, and nothing is preloaded into that program."""
    return become(ungated())


def receive(unix_fd: str) -> Seen:
    """What a process that got the connection over a Unix socket does with it."""
    with socket.socket(fileno=int(unix_fd)) as unix:
        _, ancillary, _, _ = unix.recvmsg(1, socket.CMSG_LEN(4))
        came = array.array("i")
        came.frombytes(ancillary[0][2][:4])
        sock = socket.socket(fileno=came[0])
        sent = fill(sock)
        return {"held": held_bytes(sock), "sent": sent}


def hand_over(environment: dict[str, str]) -> Seen:
    """Send, hand the connection to another process that fills it, and send again, as its owner still."""
    sock, peer = pair(4096)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)  # for more than the gate lets pass by in silence
    sock.sendall(BEFORE)
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    command = [sys.executable, __file__, "receive", str(theirs.fileno())]
    with subprocess.Popen(
        command, env=environment, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True
    ) as other:
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))])
        told, _ = other.communicate(timeout=60)
    seen = json.loads(told)
    theirs_sent = (BLOCK * (seen["sent"] // len(BLOCK) + 1))[: seen["sent"]]
    got = drain(peer, len(BEFORE) + seen["sent"])
    sock.setblocking(True)
    sock.sendall(BEFORE)
    got += drain(peer, len(BEFORE))
    time.sleep(0.2)  # a look at the connection is due within 10 ms
    return {"held": seen["held"], "same": got == BEFORE + theirs_sent + BEFORE}


def handed_to_a_gated_process() -> Seen:
    return hand_over(dict(os.environ))


def handed_to_a_process_without_the_gate() -> Seen:
    return hand_over(ungated())


CASES: dict[str, Callable[..., Seen]] = {
    f.__name__: f
    for f in (rest, receive, kept_by_exec, kept_by_exec_without_the_gate, handed_to_a_gated_process,
              handed_to_a_process_without_the_gate)
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](*sys.argv[2:])), flush=True)
