"""Single cases under the gate, each named on the command line; prints a JSON line with what was seen."""

import array
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from server import BLOCK, MSS_BYTES, held_bytes, pattern  # beside this file

Seen = dict[str, Any]

SYS_IO_URING_SETUP = 425
PR_SET_KEEPCAPS, CAP_SETUID, LINUX_CAPABILITY_VERSION_3, NOBODY = 8, 7, 0x20080522, 65534
IO_URING_PARAMS_BYTES = 120
IPPROTO_MPTCP = 262


def pair(receive_buffer_bytes: int = 0) -> tuple[socket.socket, socket.socket]:
    """Return a sender and its peer."""
    with socket.socket() as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        peer = socket.socket()
        if receive_buffer_bytes:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        peer.connect(listener.getsockname())
        return listener.accept()[0], peer


def fill(sock: socket.socket) -> int:
    """Send BLOCK, over and over, without waiting until nothing goes any more for a while; return how much went."""
    sock.setblocking(False)
    sent = 0
    quiet_until = time.monotonic() + 0.3
    while time.monotonic() < quiet_until:
        try:
            sent += sock.send(memoryview(BLOCK)[sent % len(BLOCK) :])
            quiet_until = time.monotonic() + 0.3
        except BlockingIOError:
            time.sleep(0.01)
    return sent


def drain(peer: socket.socket, size: int) -> bytes:
    peer.settimeout(60)
    got = b""
    while len(got) < size and (block := peer.recv(1 << 16)):
        got += block
    return got


def interrupted() -> Seen:
    """A signal with a handler cuts a waiting write short, or ends it with EINTR where nothing was sent."""
    sock, _peer = pair(4096)
    fill(sock)
    sock.setblocking(True)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, True)
    libc_write = ctypes.CDLL(None, use_errno=True).write
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)  # again: a busy host may begin the wait later
    result = libc_write(sock.fileno(), BLOCK, len(BLOCK))
    error = ctypes.get_errno()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return {"result": result, "errno": errno.errorcode.get(error, str(error))}


def interrupted_select() -> Seen:
    """A signal ends a select with EINTR and leaves the sets as they were, to be asked with again."""
    sock, _peer = pair(4096)
    fill(sock)
    signal.signal(signal.SIGALRM, lambda *_: None)
    libc = ctypes.CDLL(None, use_errno=True)
    asked = bytearray(128)  # an fd_set
    asked[sock.fileno() // 8] = 1 << sock.fileno() % 8
    read, write = (ctypes.create_string_buffer(bytes(asked), 128) for _ in range(2))
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)  # again: a busy host may begin the wait later
    result = libc.select(sock.fileno() + 1, read, write, None, None)
    error = errno.errorcode.get(ctypes.get_errno())
    signal.setitimer(signal.ITIMER_REAL, 0)
    return {"result": result, "errno": error, "read": read.raw == asked, "write": write.raw == asked}


def restarted() -> Seen:
    """A handler with SA_RESTART does not end a waiting write."""
    sock, peer = pair(4096)
    sent = fill(sock)
    sock.setblocking(True)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    reader = threading.Timer(0.5, lambda: drain(peer, sent + len(BLOCK)))
    reader.start()
    libc_write = ctypes.CDLL(None, use_errno=True).write
    result = libc_write(sock.fileno(), BLOCK, len(BLOCK))
    return {"result": result}


def cut_by_a_signal() -> Seen:
    """A handler with SA_RESTART ends a write that has sent some of its bytes."""
    sock, peer = pair(4096)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    data = bytes(30_000_000)
    reader = threading.Timer(2.0, drain, (peer, len(data)))
    reader.daemon = True
    reader.start()
    result = ctypes.CDLL(None).write(sock.fileno(), data, len(data))
    return {"cut": 0 < result < len(data)}


def result_of_write(sock: socket.socket) -> str:
    """How one more write ends: "sent", or the error's name."""
    try:
        os.write(sock.fileno(), BLOCK)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "sent"


def timed() -> Seen:
    """SO_SNDTIMEO ends a waiting write."""
    sock, _peer = pair(4096)
    fill(sock)
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300_000))
    before_s = time.monotonic()
    return {"result": result_of_write(sock), "seconds": time.monotonic() - before_s}


def read_slowly(peer: socket.socket, pause_s: float) -> None:
    """Has a thread read up to 32 KB at a time, with a pause after each, up to the end."""

    def read() -> None:
        while peer.recv(1 << 15):
            time.sleep(pause_s)

    threading.Thread(target=read, daemon=True).start()


def timed_in_pieces() -> Seen:
    """SO_SNDTIMEO ends a call that goes on and on because its peer reads slowly, however many pieces it is cut into."""
    sock, peer = pair(1 << 16)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
    read_slowly(peer, 0.01)
    before_s = time.monotonic()
    sent = sock.send(bytes(30_000_000))
    return {"cut": 0 < sent < 30_000_000, "seconds": time.monotonic() - before_s}


def timed_file() -> Seen:
    """SO_SNDTIMEO is of each piece of a file: a peer that reads slowly and never pauses for so long gets all of it."""
    sock, peer = pair(1 << 16)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 500_000))
    read_slowly(peer, 0.02)
    with tempfile.TemporaryFile() as file:
        file.truncate(2_000_000)
        return {"sent": os.sendfile(sock.fileno(), file.fileno(), 0, 2_000_000)}


def reset_while_waiting() -> Seen:
    """The peer resets while a write waits: it ends as it would in the kernel."""
    sock, peer = pair(4096)
    fill(sock)
    sock.setblocking(True)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    threading.Timer(0.3, peer.close).start()
    return {"result": result_of_write(sock)}


def shut_while_waiting() -> Seen:
    """Another thread shuts the socket down while a write waits."""
    sock, _peer = pair(4096)
    fill(sock)
    sock.setblocking(True)
    threading.Timer(0.3, sock.shutdown, (socket.SHUT_WR,)).start()
    return {"result": result_of_write(sock)}


def passed_on() -> Seen:
    """A descriptor that came over a Unix socket is the same flow; another socket with an old number is not."""
    sock, peer = pair(4096)
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))])
    (_, ancillary, _, _) = theirs.recvmsg(1, socket.CMSG_LEN(4))
    came = array.array("i")
    came.frombytes(ancillary[0][2][:4])
    other = socket.socket(fileno=came[0])
    sent = fill(other)
    held = held_bytes(sock)
    sock.close()
    return {"held": held, "same": drain(peer, sent) == pattern(sent)}


def past_the_library() -> Seen:
    """Bytes that stdio writes do not pass the gate: the flow goes on uncapped."""
    sock, peer = pair()
    sock.sendall(b"a")
    ctypes = __import__("ctypes")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fdopen(os.dup(sock.fileno()), b"w"))
    data = pattern(100_000)
    libc.fwrite(data, 1, len(data), stream)
    libc.fflush(stream)
    got = drain(peer, 100_001)
    time.sleep(0.2)
    sock.sendall(data)
    got += drain(peer, len(data))
    return {"same": got == b"a" + data + data}


def little_past_the_library() -> Seen:
    """Stdio writes a little into a socket, as git's upload-pack does, and then the gate is what holds the rest."""
    sock, peer = pair(4096)
    sock.sendall(b"a")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fdopen(os.dup(sock.fileno()), b"w"))
    libc.fwrite(BLOCK, 1, 2000, stream)
    libc.fflush(stream)
    got = drain(peer, 2001)
    time.sleep(0.2)
    fill(sock)
    return {"same": got == b"a" + BLOCK[:2000], "held": held_bytes(sock)}


def several_paths() -> Seen:
    """An MPTCP socket has no gate."""
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    except OSError as error:
        return {"failed": errno.errorcode.get(error.errno or 0)}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock.connect(listener.getsockname())
        peer = listener.accept()[0]
    sock.sendall(b"hello")
    return {"got": drain(peer, 5).decode()}


def ring() -> Seen:
    """A program asks for an io_uring as libuv does, by the C library's syscall(); says how that ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(SYS_IO_URING_SETUP, 8, ctypes.create_string_buffer(IO_URING_PARAMS_BYTES))
    return {"result": "made" if result >= 0 else errno.errorcode.get(ctypes.get_errno())}


def asking() -> Seen:
    """A program tries to write again and again, without waiting, to a peer that reads nothing."""
    sock, peer = pair(4096)
    fill(sock)
    taken = refusals = 0
    while not taken and refusals < 5000:
        try:
            taken += sock.send(bytes(MSS_BYTES))
        except BlockingIOError:
            refusals += 1
    peer.close()
    return {"taken": taken, "refusals": refusals}


def asking_beside_a_ring() -> Seen:
    """The same in a program that made an io_uring."""
    ring()
    return asking()


def whole_file() -> Seen:
    """Python's socket.sendfile() goes on until the kernel says that the file has no more, as splice() callers do."""
    signal.alarm(30)
    sock, peer = pair()
    data = pattern(100_000)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(drain(peer, len(data))))
    reader.start()
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        sent = sock.sendfile(file)
        reading, writing = os.pipe()
        os.close(writing)
        spliced = ctypes.CDLL(None).splice(reading, None, sock.fileno(), None, 10, 0)
    reader.join()
    return {"sent": sent, "same": got == [data], "spliced": spliced}


def no_file() -> Seen:
    """What is asked for is no file, or one to write into, and nothing could be sent anyway."""
    sock, _peer = pair(4096)
    fill(sock)
    told = []
    for source in (9999, os.open("/dev/null", os.O_WRONLY)):
        try:
            told.append(str(os.sendfile(sock.fileno(), source, 0, 10)))
        except OSError as error:
            told.append(errno.errorcode[error.errno or 0])
    return {"told": told}


def another_user() -> Seen:
    """As proftpd does: one thread alone keeps what lets it become root again, after the gate's thread began."""
    sock, peer = pair(4096)
    before = fill(sock)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    asked = (ctypes.c_uint32 * 6)(*2 * (1 << CAP_SETUID,), 0, 0, 0, 0)  # effective and permitted
    if libc.capset((ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0), asked) != 0:
        return {"failed": errno.errorcode.get(ctypes.get_errno())}
    os.setresuid(0, 0, 0)
    drain(peer, before)
    sock.setblocking(True)
    size = 100_000
    reader = threading.Thread(target=drain, args=(peer, size))
    reader.start()
    sock.sendall(bytes(size))
    reader.join(10)
    return {"user": os.getuid(), "all_read": not reader.is_alive()}


def messages_of_which_one_is_cut() -> Seen:
    """A timeout cuts the first of two messages short: the second must not follow, or the stream has a gap."""

    class Message(ctypes.Structure):  # struct mmsghdr
        _fields_ = [(name, ctypes.c_size_t) for name in
                    ("name", "name_size", "buffers", "count", "control", "control_size", "flags", "sent")]  # fmt: skip

    sock, peer = pair(4096)
    before = fill(sock)
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
    texts = [letter * 3_000_000 for letter in (b"1", b"2")]
    buffers = [(ctypes.c_size_t * 2)(ctypes.cast(text, ctypes.c_void_p).value or 0, len(text)) for text in texts]
    messages = (Message * 2)(*(Message(buffers=ctypes.addressof(buffer), count=1) for buffer in buffers))
    reader = threading.Timer(0.1, drain, (peer, before + MSS_BYTES * 20))  # some of the first is taken
    late = threading.Timer(1.25, drain, (peer, sum(map(len, texts))))  # and later there is room again
    for timer in (reader, late):
        timer.daemon = True  # what is left to read keeps nobody
        timer.start()
    taken = ctypes.CDLL(None).sendmmsg(sock.fileno(), messages, 2, 0)
    cut = 0 < messages[0].sent < len(texts[0])
    return {"taken": taken, "cut": cut, "second": messages[1].sent}


def writable() -> Seen:
    """Sends by segments, each after poll or select called the socket writable; counts what was refused."""
    refused = 0
    for way in (select.poll, None):
        sock, _peer = pair(4096)
        sock.setblocking(False)
        sock.send(b"x")  # what nobody has written to is not known yet
        poller = way() if way else None
        if poller:
            poller.register(sock, select.POLLOUT)
        while bool(poller.poll(300)) if poller else bool(select.select([], [sock], [], 0.3)[1]):
            try:
                sock.send(BLOCK[:MSS_BYTES])
            except BlockingIOError:
                refused += 1
    return {"refused": refused}


def turns() -> Seen:
    """Two threads write long messages into one waiting socket: none is torn apart."""
    sock, peer = pair()
    size, rounds = 20_000, 20

    def send(letter: bytes) -> None:
        for _ in range(rounds):
            sock.sendall(letter * size)

    threads = [threading.Thread(target=send, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    got = drain(peer, 3 * size * rounds)
    torn = sum(got[i : i + size] != got[i : i + 1] * size for i in range(0, len(got), size))
    return {"bytes": len(got), "torn": torn}


def closed_epoll() -> Seen:
    """A descriptor's number goes from one socket to another while its gate is closed: the new one is its own flow."""
    sock, peer = pair(4096)
    waiter = select.epoll()
    waiter.register(sock, select.EPOLLOUT)
    fill(sock)
    number = sock.fileno()
    sock.close()
    peer.close()
    sock, peer = pair()
    os.dup2(sock.fileno(), number)
    fresh = socket.socket(fileno=number)
    waiter.register(fresh, select.EPOLLOUT)
    events = waiter.poll(5)
    fresh.setblocking(True)
    fresh.sendall(b"hello")
    return {"events": len(events), "got": drain(peer, 5).decode()}


def after_a_pause() -> Seen:
    """A burst goes out after a pause in which every lease lapsed; says how much of it one call took."""
    sock, peer = pair(4096)  # what the peer has no room for is not acknowledged
    sock.sendall(b"x")
    drain(peer, 1)
    time.sleep(0.8)
    sock.setblocking(False)
    return {"taken": sock.send(pattern(300_000))}


def no_memory_for_the_daemon() -> Seen:
    """Where no memory can be handed over, trying again and again takes no descriptor from the program."""
    sock, peer = pair()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    def send(seconds: float) -> int:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            sock.sendall(BLOCK)
            drain(peer, len(BLOCK))
            time.sleep(0.01)
        return len(os.listdir("/proc/self/fd"))

    return {"taken": -send(0.7) + send(1.6)}


CASES: dict[str, Callable[[], Seen]] = {
    f.__name__: f
    for f in (interrupted, interrupted_select, restarted, cut_by_a_signal, timed, timed_in_pieces, timed_file,
              reset_while_waiting, shut_while_waiting, passed_on, past_the_library, little_past_the_library,
              several_paths, ring, whole_file, no_file,
              another_user, asking, asking_beside_a_ring, messages_of_which_one_is_cut, writable, turns, closed_epoll,
              after_a_pause, no_memory_for_the_daemon)
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()), flush=True)
