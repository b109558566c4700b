"""Descriptors that come and go under the gate, by cases as in ``edges.py``: what the gate must not hold on to."""

import ctypes
import json
import os
import select
import sys
import tempfile
import time
from collections.abc import Callable

from edges import Seen, drain, pair  # beside this file

SYS_CLOSE = {"x86_64": 3, "aarch64": 57}
ROUNDS = 50

gate = ctypes.CDLL(None, use_errno=True)
"""The C library behind the gate, and what the gate tells tests of itself."""
library = ctypes.CDLL("libc.so.6", use_errno=True)
"""The C library itself, past the gate."""


def count_flows() -> int:
    return int(gate.reinet_alcc_flows())


def connection() -> int:
    """A connection's descriptor that the gate knows, nobody else holds and no look at is due any more."""
    sock, peer = pair()
    sock.sendall(b"x")
    drain(peer, 1)
    time.sleep(0.02)
    return sock.detach()


def closed_by_number() -> Seen:
    """Connections are closed as libuv does, by the C library's syscall()."""
    for _ in range(ROUNDS):
        gate.syscall(SYS_CLOSE[os.uname().machine], connection())
    return {"flows": count_flows()}


def closed_past_the_library() -> Seen:
    """They are closed unseen, and the next one gets the number."""
    for _ in range(ROUNDS):
        library.close(connection())
    return {"flows": count_flows()}


def closed_and_a_file_since() -> Seen:
    """They are closed unseen, and a file that is written into gets the number."""
    with tempfile.TemporaryFile() as file:
        for _ in range(ROUNDS):
            number = connection()
            library.dup2(file.fileno(), number)
            os.write(number, b"x")  # and keeps it: the next connection gets another one
        return {"flows": count_flows(), "bytes": os.fstat(file.fileno()).st_size}


def closed_epolls() -> Seen:
    """A connection that lives long is watched by one epoll after the other."""
    sock, _peer = pair()
    sock.sendall(b"x")
    for _ in range(ROUNDS):
        with select.epoll() as waiter:
            waiter.register(sock, select.EPOLLOUT)
    return {"registrations": int(gate.reinet_alcc_registrations(sock.fileno()))}


CASES: dict[str, Callable[[], Seen]] = {
    f.__name__: f for f in (closed_by_number, closed_past_the_library, closed_and_a_file_since, closed_epolls)
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()), flush=True)
