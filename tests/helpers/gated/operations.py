"""Random system calls on TCP sockets, the same for the same seed: with the gate and without, the log must be the same.

``python operations.py SEED OPERATIONS`` prints a line per operation: what it was and what came of it. What hangs on
the size of buffers, which the gate changes on purpose, is followed to its end (short counts, EAGAIN) before it is told.
"""

import array
import ctypes
import errno
import fcntl
import hashlib
import os
import random
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import warnings

MSS_BYTES = 536
LINGER_NONE = struct.pack("ii", 1, 0)
PIPE_BYTES = 60_000
"""Fits into a pipe as the kernel makes it."""

libc = ctypes.CDLL(None, use_errno=True)


class Message(ctypes.Structure):
    """The kernel's struct mmsghdr."""

    _fields_ = [(name, ctypes.c_size_t) for name in
                ("name", "name_size", "buffers", "count", "control", "control_size", "flags", "sent")]  # fmt: skip


def checked(result: int) -> int:
    """Raise what a call of the C library failed with."""
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def send_messages(fd: int, texts: list[bytes]) -> int:
    """Send them by one sendmmsg; return how many bytes went."""
    buffers = [(ctypes.c_size_t * 2)(ctypes.cast(text, ctypes.c_void_p).value or 0, len(text)) for text in texts]
    messages = (Message * len(texts))(*(Message(buffers=ctypes.addressof(buffer), count=1) for buffer in buffers))
    taken = checked(libc.sendmmsg(fd, messages, len(texts), 0))
    return sum(message.sent & 0xFFFFFFFF for message in messages[:taken])


def ppoll_writable(fd: int) -> int:
    asked = (ctypes.c_uint64 * 1)(fd | select.POLLOUT << 32)
    return int(libc.ppoll(asked, ctypes.c_ulong(1), (ctypes.c_long * 2)(60, 0), None))


def pselect_writable(fd: int) -> int:
    asked = (ctypes.c_uint64 * 16)()
    asked[fd // 64] = 1 << fd % 64
    return int(libc.pselect(fd + 1, None, asked, None, (ctypes.c_long * 2)(60, 0), None))


class Reader(threading.Thread):
    """The peer: it reads to the end and says how that was."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self.sock, self.size, self.digest, self.end = sock, 0, hashlib.sha256(), ""
        self.progress = threading.Condition()
        self.start()

    def run(self) -> None:
        while True:
            try:
                block = self.sock.recv(1 << 16)
            except OSError as error:
                block, self.end = b"", errno.errorcode[error.errno or 0]
            with self.progress:
                if not block:
                    self.end = self.end or "EOF"
                    self.progress.notify()
                    return
                self.size += len(block)
                self.digest.update(block)
                self.progress.notify()

    def reach(self, size: int) -> str:
        """Wait until so many bytes have come; tell their digest."""
        with self.progress:
            assert self.progress.wait_for(lambda: self.size >= size or self.end, 60), "bytes are missing"
            return f"{self.size} {self.digest.hexdigest()[:12]}"

    def finish(self) -> str:
        self.join(60)
        self.sock.close()  # now, not when Python's end of the thread lets go of it: numbers are compared
        return f"{self.end} {self.size} {self.digest.hexdigest()[:12]}"


class Connection:
    def __init__(self, listener: socket.socket) -> None:
        peer = socket.create_connection(listener.getsockname())
        self.sock = listener.accept()[0]
        self.peer, self.reader, self.sent = peer, Reader(peer), 0
        self.blocking = True
        self.watch()

    def watch(self) -> None:
        self.epoll = select.epoll()
        self.epoll.register(self.sock, select.EPOLLIN)


def outcome(call, *args) -> str:
    try:
        return str(call(*args))
    except OSError as error:
        return errno.errorcode[error.errno or 0]


class Driver:
    def __init__(self, seed: int) -> None:
        self.random, self.waits = random.Random(seed), random.Random(seed)
        self.listener = socket.socket()
        self.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS_BYTES)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.data = random.Random(1).randbytes(1 << 18)
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 (to the end)
        self.file.write(self.data)
        self.file.flush()
        self.open: list[Connection] = []
        signal.signal(signal.SIGALRM, lambda *_: None)

    # ---- sending: to the end, by one call or by many

    def piece(self) -> memoryview:
        size = self.random.choice(
            [0, 1, 2, MSS_BYTES - 1, MSS_BYTES, MSS_BYTES + 1, 3000, 8 * MSS_BYTES, 30_000, 90_000]
        )
        start = self.random.randrange(1 << 16)
        return memoryview(self.data)[start : start + size]

    def once(self, c: Connection, way: str, piece: memoryview) -> int:
        fd = c.sock.fileno()
        if way == "write":
            return os.write(fd, piece)
        if way == "writev":
            cut = len(piece) // 3
            return os.writev(fd, [piece[:cut], b"", piece[cut : cut + 1], piece[cut + 1 :]])
        if way == "pwritev2":
            return os.pwritev(fd, [piece[:5], piece[5:]], -1)
        if way == "sendmsg":
            return c.sock.sendmsg([piece[:5], piece[5:]])
        if way == "dontwait":
            return c.sock.send(piece, socket.MSG_DONTWAIT)
        if way == "more":
            return c.sock.send(piece, socket.MSG_MORE)
        if way == "sendto":
            return c.sock.sendto(piece, c.peer.getsockname())
        if way == "sendmmsg":
            cut = len(piece) // 2
            return send_messages(fd, [bytes(piece[:cut]), bytes(piece[cut:])])
        if way == "nosignal":
            return c.sock.send(piece, socket.MSG_NOSIGNAL)
        return c.sock.send(piece)

    def wait_writable(self, c: Connection) -> None:
        how = self.waits.choice(
            ["poll", "ppoll", "select", "pselect", "level", "edge"]
        )  # how often one waits is the gate's
        if how == "poll":
            poller = select.poll()
            poller.register(c.sock, select.POLLOUT)
            assert poller.poll(60_000), "a wake-up was lost (poll)"
        elif how == "ppoll":
            assert ppoll_writable(c.sock.fileno()) == 1, "a wake-up was lost (ppoll)"
        elif how == "pselect":
            assert pselect_writable(c.sock.fileno()) == 1, "a wake-up was lost (pselect)"
        elif how == "select":
            assert select.select([], [c.sock], [], 60)[1], "a wake-up was lost (select)"
        else:
            c.epoll.modify(c.sock, select.EPOLLOUT | (select.EPOLLET if how == "edge" else 0))
            assert c.epoll.poll(60), f"a wake-up was lost ({how})"

    def send(self) -> str:
        c = self.random.choice(self.open)
        way = self.random.choice(
            ["write", "writev", "pwritev2", "sendmsg", "sendmmsg", "sendto", "dontwait", "more", "nosignal", "send"]
        )
        piece = self.piece()
        total = len(piece)
        calls = 0
        while True:
            try:
                n = self.once(c, way, piece)
            except BlockingIOError:
                self.wait_writable(c)
                continue
            calls += 1
            piece = piece[n:]
            if not len(piece):
                break
            if c.blocking and way != "dontwait":
                return f"{way}: a call that waits sent {n} of {total}"
        c.sent += total
        return f"{way} {total}"

    def sendfile(self) -> str:
        c = self.random.choice(self.open)
        offset, size = self.random.randrange(1 << 17), self.random.choice([1, 536, 10_000, 100_000])
        end = offset + size
        while offset < end:
            try:
                offset += os.sendfile(c.sock.fileno(), self.file.fileno(), offset, end - offset)
            except BlockingIOError:
                self.wait_writable(c)
        c.sent += size
        return f"sendfile {size}"

    def splice(self) -> str:
        c = self.random.choice(self.open)
        size = self.random.choice([1, 536, 10_000, PIPE_BYTES])
        reading, writing = os.pipe()
        os.write(writing, self.data[:size])
        os.close(writing)
        left = size
        while left:
            try:
                left -= checked(libc.splice(reading, None, c.sock.fileno(), None, ctypes.c_size_t(left), 0))
            except BlockingIOError:
                self.wait_writable(c)
        os.close(reading)
        c.sent += size
        return f"splice {size}"

    def timed(self) -> str:
        """A timeout for writing that does not pass."""
        c = self.random.choice(self.open)
        piece = self.piece()
        c.sock.setblocking(True)
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 60, 0))
        told = outcome(os.write, c.sock.fileno(), piece)
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
        c.sock.setblocking(c.blocking)
        c.sent += len(piece)
        return f"timed {told} of {len(piece)}"

    def expire(self) -> str:
        """A timeout for writing that passes: nobody reads."""
        with socket.create_connection(self.listener.getsockname()), self.listener.accept()[0] as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 20_000))
            while (told := outcome(os.write, sock.fileno(), self.data)).isdecimal():
                pass
            return f"expire {told}"

    def check(self) -> str:
        c = self.random.choice(self.open)
        # What MSG_MORE holds back goes with the next segment, at the latest after 200 ms.
        return f"check {c.reader.reach(c.sent)}"

    # ---- descriptors

    def connect(self) -> str:
        self.open.append(Connection(self.listener))
        return f"connect {self.open[-1].sock.fileno()}"

    def toggle(self) -> str:
        c = self.random.choice(self.open)
        c.blocking = not c.blocking
        c.sock.setblocking(c.blocking)
        return f"blocking {c.blocking}"

    def cork(self) -> str:
        c = self.random.choice(self.open)
        corked = self.random.choice([0, 1])
        c.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, corked)
        return f"cork {corked}"

    def duplicate(self) -> str:
        c = self.random.choice(self.open)
        how = self.random.choice(["dup", "dup2", "fcntl"])
        old = c.sock.fileno()
        if how == "dup":
            new = os.dup(old)
        elif how == "dup2":
            new = os.dup2(old, os.dup(0))
        else:
            new = fcntl.fcntl(old, fcntl.F_DUPFD_CLOEXEC, 30)
        self.take(c, new)
        return f"{how} {new}"

    def take(self, c: Connection, new: int) -> None:
        """Go on with another descriptor of the same connection, the old one is closed."""
        c.sock.close()
        c.sock = socket.socket(fileno=new)
        c.sock.setblocking(c.blocking)
        c.epoll.close()
        c.watch()

    def pass_on(self) -> str:
        c = self.random.choice(self.open)
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        with ours, theirs:
            ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [c.sock.fileno()]))])
            _, ancillary, _, _ = theirs.recvmsg(1, socket.CMSG_LEN(4))
        (new,) = struct.unpack("i", ancillary[0][2][:4])
        self.take(c, new)
        return f"pass_on {new}"

    def execute(self) -> str:
        """Another program writes into the connection that it got as its standard output."""
        c = self.random.choice(self.open)
        piece = self.piece()[:PIPE_BYTES]
        reading, writing = os.pipe()
        os.write(writing, piece)
        os.close(writing)
        child = os.fork()
        if child == 0:
            c.sock.setblocking(True)
            os.dup2(reading, 0)
            os.dup2(c.sock.fileno(), 1)
            os.execvp("cat", ["cat"])
        os.close(reading)
        status = os.waitpid(child, 0)[1]
        c.sock.setblocking(c.blocking)
        c.sent += len(piece)
        return f"execute {len(piece)} {status}"

    def fork(self) -> str:
        c = self.random.choice(self.open)
        piece = self.piece()
        child = os.fork()
        if child == 0:
            c.sock.setblocking(True)
            c.sock.sendall(piece)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        c.sock.setblocking(c.blocking)
        c.sent += len(piece)
        return f"fork {len(piece)} {status}"

    def signal(self) -> str:
        c = self.random.choice(self.open)
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        piece = self.piece()
        c.sock.setblocking(True)
        c.sock.sendall(piece)
        c.sock.setblocking(c.blocking)
        signal.setitimer(signal.ITIMER_REAL, 0)
        c.sent += len(piece)
        return f"signal {len(piece)}"

    # ---- the end

    def leave(self) -> str:
        c = self.open.pop(self.random.randrange(len(self.open)))
        how = self.random.choice(["close", "shutdown", "abort", "peer"])
        told = []
        if how == "shutdown":
            c.sock.shutdown(socket.SHUT_WR)
            told = [outcome(c.sock.send, b"x"), outcome(os.write, c.sock.fileno(), b"x")]
        elif how == "abort":
            c.reader.reach(c.sent)
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        elif how == "peer":
            c.reader.reach(c.sent)
            c.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
            c.peer.shutdown(socket.SHUT_RD)  # wakes the reader
            c.reader.join(60)
            c.peer.close()
            select.select([c.sock], [], [], 5)
            told = [outcome(c.sock.send, b"x"), outcome(c.sock.send, b"x")]
        number = c.sock.fileno()
        c.sock.close()
        told += [outcome(os.write, number, b"x")] if number < 0 else []
        c.epoll.close()
        end = c.reader.finish()
        c.peer.close()
        return f"{how} {told} {end}"

    def splice_of(self, source: int, c: Connection) -> str:
        return outcome(lambda: checked(libc.splice(source, None, c.sock.fileno(), None, ctypes.c_size_t(10), 0)))

    def strange(self) -> str:
        """Calls that fail or have nothing to do, each with its own errno or count."""
        c = self.random.choice(self.open)
        fresh = socket.socket()
        fd = c.sock.fileno()
        reading, writing = os.pipe()
        told = [self.splice_of(number, c) for number in (9999, writing, self.file.fileno())]
        os.close(writing)
        told += [
            self.splice_of(reading, c),
            outcome(fresh.send, b"x"),
            outcome(os.write, 9999, b"x"),
            outcome(os.write, fd, b""),
            outcome(os.sendfile, fd, 9999, 0, 10),
            outcome(os.sendfile, fd, self.file.fileno(), len(self.data), 10),
            outcome(c.sock.sendmsg, [b"x"], [(socket.SOL_SOCKET, 9999, b"abcd")]),
            outcome(os.pwritev, fd, [b"x"], 0),
            outcome(self.listener.send, b"x"),
            outcome(os.writev, fd, []),
            outcome(os.dup2, 9999, 50),
            outcome(os.close, 9999),
        ]
        os.close(reading)
        fresh.close()
        return f"strange {told}"

    def run(self, operations: int) -> None:
        choices = [self.send] * 12 + [self.sendfile] * 3 + [self.check] * 3 + [self.toggle] * 2
        choices += [self.cork, self.duplicate, self.signal, self.strange, self.splice, self.timed, self.pass_on]
        for number in range(operations):
            step = self.random.choice(choices)
            if not self.open or (self.random.random() < 0.04 and len(self.open) < 12):
                step = self.connect
            elif self.random.random() < 0.03:
                step = self.leave
            elif self.random.random() < 0.01:
                step = self.random.choice([self.fork, self.execute, self.expire])
            print(number, step(), flush=True)
        while self.open:
            print(self.leave(), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Python 3.12 says so of forks beside our reading threads; it names the process, so no two logs would be the same.
    warnings.filterwarnings("ignore", ".*is multi-threaded", DeprecationWarning)
    Driver(int(sys.argv[1])).run(int(sys.argv[2]))
