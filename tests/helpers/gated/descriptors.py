"""Descriptors that come and go under the gate, by cases as in ``edges.py``: what the gate must not hold on to."""

import ctypes
import json
import mmap
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress

from edges import Seen, drain, fill, pair  # beside this file
from server import BLOCK, MSS_BYTES, held_bytes

SYS_CLOSE = {"x86_64": 3, "aarch64": 57}
PROT_NONE = 0
ROUNDS = 50
LINKS_FIRST_FD = 700
"""From it on are the link's own descriptors (alcc/link/link.cpp)."""

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


def watched_once_as_it_connects() -> Seen:
    """A socket is told of once when connect() has come to its end, and watched in another way from then on."""
    with socket.socket() as listener, socket.socket() as sock, select.epoll() as waiter:
        for end in (listener, sock):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sock.setblocking(False)
        sock.connect_ex(listener.getsockname())
        waiter.register(sock, select.EPOLLOUT | select.EPOLLONESHOT)
        assert waiter.poll(10)
        waiter.modify(sock, select.EPOLLIN)
        fill(sock)
        return {"held": held_bytes(sock)}


def watched_with_a_number_used_before() -> Seen:
    """A connection was closed unseen, and another one has got its number unseen, which is watched for edges."""
    sock, peer = pair(4096)
    number = connection()
    library.dup2(sock.fileno(), number)
    library.close(sock.detach())
    os.set_blocking(number, False)
    edges = sent = 0
    with select.epoll() as waiter:
        waiter.register(number, select.EPOLLOUT | select.EPOLLET)
        for _ in range(5):
            edges += len(waiter.poll(5))
            with suppress(BlockingIOError):
                while True:
                    sent += os.write(number, BLOCK[:20_000])
            sent -= len(drain(peer, sent))
    return {"edges": edges}


def small_sets() -> Seen:
    """Select's sets are as long as the count asks for; behind this one is memory that nobody may touch."""
    sock, _peer = pair(4096)
    fill(sock)
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    behind = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + mmap.PAGESIZE
    library.mprotect(ctypes.c_void_p(behind), mmap.PAGESIZE, PROT_NONE)
    asked = ctypes.c_uint64.from_address(behind - 8)
    asked.value = 1 << sock.fileno()
    timeout = (ctypes.c_long * 2)(0, 50_000)
    ready = gate.select(sock.fileno() + 1, None, ctypes.byref(asked), None, timeout)
    return {"ready": ready, "set": asked.value}


def forked_with_the_links_numbers() -> Seen:
    """The program has closed what it does not know, and has files of its own with these numbers when it forks."""
    sock, peer = pair()
    until_s = time.monotonic() + 10
    while not (links := [n for n in map(int, os.listdir("/proc/self/fd")) if n >= LINKS_FIRST_FD]):
        assert time.monotonic() < until_s, "no link was made"
        sock.sendall(BLOCK)
        drain(peer, len(BLOCK))
    sock.close()  # no more looks
    with tempfile.TemporaryFile() as file:
        for number in links:
            os.dup2(file.fileno(), number)
        child = os.fork()
        if child == 0:
            os._exit(sum(not os.path.exists(f"/proc/self/fd/{number}") for number in links))
        return {"lost": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


CASES: dict[str, Callable[[], Seen]] = {
    f.__name__: f
    for f in (closed_by_number, closed_past_the_library, closed_and_a_file_since, closed_epolls,
              watched_once_as_it_connects, watched_with_a_number_used_before, small_sets, forked_with_the_links_numbers)
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()), flush=True)
