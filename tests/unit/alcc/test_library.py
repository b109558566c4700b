"""The gate as a C library, driven from a program of its own."""

import json
import subprocess
import sys
from typing import Any

from reinet.alcc.launch import find_preload

PROGRAM = """
import ctypes, json, os, signal, socket, struct, sys, threading, fcntl
library = ctypes.CDLL(sys.argv[1], use_errno=True)
library.reinet_alcc_send.restype = ctypes.c_ssize_t
refused = [library.reinet_alcc_start(text) for text in (b"law=guess", b"law=rule:0x1p3")]
started = library.reinet_alcc_start(b"law=fixed:8 target=1:30000 always=1")
listener = socket.socket()
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
listener.bind(("127.0.0.1", 0))
listener.listen()
peer = socket.socket()
peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
peer.connect(listener.getsockname())
fd = library.reinet_alcc_accept(listener.fileno(), None, None)
data = bytes(range(256)) * 4000
sent = 0
while library.reinet_alcc_wait(fd, 300) == 1:  # until the peer's buffer and the gate are full
    n = library.reinet_alcc_send(fd, data[sent:], len(data) - sent, socket.MSG_DONTWAIT)
    sent += max(n, 0)
held = struct.unpack("=i", fcntl.ioctl(fd, 0x5411, bytes(4)))[0]
SYS_CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
copy = ctypes.CDLL(None).syscall(SYS_CLONE, signal.SIGCHLD, None, None, None, None)  # a process past fork()
if copy == 0:
    os._exit(library.reinet_alcc_wait(fd, 10_000))
in_copy = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
got = []
def read():
    while block := peer.recv(1 << 16):
        got.append(block)
reader = threading.Thread(target=read)
reader.start()
rest = library.reinet_alcc_send(fd, data[sent:], len(data) - sent, 0)  # waits
closed = library.reinet_alcc_close(fd)
reader.join(60)
print(json.dumps({"refused": refused, "started": started, "held": held, "sent": sent, "rest": rest, "closed": closed,
                  "in_copy": in_copy, "same": b"".join(got) == data, "size": len(data)}))
"""

CONNECTING = """
import ctypes, errno, fcntl, json, socket, struct, sys
library = ctypes.CDLL(sys.argv[1], use_errno=True)
library.reinet_alcc_send.restype = ctypes.c_ssize_t
assert library.reinet_alcc_start(b"law=fixed:8 target=1:30000 always=1") == 0
listener = socket.socket()
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
listener.bind(("127.0.0.1", 0))
listener.listen()
def connect(sock, port):
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", port, socket.inet_aton("127.0.0.1"))
    return library.reinet_alcc_connect(sock.fileno(), address, len(address))
with socket.socket() as nobody:
    nobody.bind(("127.0.0.1", 0))
    refused = connect(socket.socket(), nobody.getsockname()[1]), errno.errorcode.get(ctypes.get_errno())
sock = socket.socket()
connected = connect(sock, listener.getsockname()[1])
again = connect(sock, listener.getsockname()[1]), errno.errorcode.get(ctypes.get_errno())
peer = listener.accept()[0]
data = bytes(range(256)) * 4000
sent = 0
while library.reinet_alcc_wait(sock.fileno(), 300) == 1:
    sent += max(library.reinet_alcc_send(sock.fileno(), data[sent:], len(data) - sent, socket.MSG_DONTWAIT), 0)
held = struct.unpack("=i", fcntl.ioctl(sock.fileno(), 0x5411, bytes(4)))[0]
got = b""
while len(got) < sent:
    got += peer.recv(1 << 16)
print(json.dumps({"refused": refused, "connected": connected, "again": again, "held": held, "sent": sent,
                  "same": got == data[:sent]}))
"""


def _seen(program: str) -> dict[str, Any]:
    """Returns what a program with the library told."""
    library = find_preload().with_name("libreinet_alcc.so")
    done = subprocess.run(
        [sys.executable, "-c", program, str(library)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def test_a_connection_that_the_program_opens_is_gated_too() -> None:
    seen = _seen(CONNECTING)
    assert seen["refused"] == [-1, "ECONNREFUSED"]
    assert (seen["connected"], seen["again"]) == (0, [-1, "EISCONN"])
    assert 0 < seen["held"] <= 8 * 536
    assert seen["sent"] > 0
    assert seen["same"]


def test_a_program_of_its_own_is_gated_by_the_library() -> None:
    seen = _seen(PROGRAM)
    assert seen["refused"] == [-1, -1], "numbers are decimal ones with a point, whatever the locale's functions take"
    assert (seen["started"], seen["closed"]) == (0, 0)
    assert seen["held"] <= 8 * 536
    assert seen["in_copy"] == 1, "in a copy past fork() there is no gate, which nobody would open"
    assert seen["sent"] < seen["size"]
    assert seen["sent"] + seen["rest"] == seen["size"]
    assert seen["same"]
