"""A server that sends a pattern to every client, in one way of many; it runs with and without the gate.

``python server.py MODE BYTES CLIENTS``: prints its port, then a JSON line when all clients are served.
"""

import asyncio
import json
import os
import select
import socket
import struct
import sys
import tempfile

MSS_BYTES = 536  # loopback's own would put a megabyte under a cap of 16 packets
BLOCK = bytes((i * 7 + i // 251) % 256 for i in range(1 << 16))
SIOCOUTQ = 0x5411


def pattern(size: int) -> bytes:
    return (BLOCK * (size // len(BLOCK) + 1))[:size]


def listen() -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS_BYTES)
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    print(listener.getsockname()[1], flush=True)
    return listener


class Course:
    """A client that is being served without waiting."""

    def __init__(self, sock: socket.socket, data: bytes) -> None:
        sock.setblocking(False)
        self.sock, self.data, self.sent = sock, memoryview(data), 0

    def advance(self) -> bool:
        """Send what goes; tell whether all is sent."""
        try:
            while self.sent < len(self.data):
                self.sent += self.sock.send(self.data[self.sent :])
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            pass
        self.sock.close()
        return True


def blocking(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)


def writev(sock: socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while len(view):
        view = view[os.writev(sock.fileno(), [view[:700], view[700:701], view[701:90_000]]) :]


def write(sock: socket.socket, data: bytes) -> None:
    # One call sends all of it, as the kernel's own does.
    assert os.write(sock.fileno(), data) == len(data)


def sendmsg(sock: socket.socket, data: bytes) -> None:
    view = memoryview(data)
    while len(view):
        view = view[sock.sendmsg([view[:3], view[3:100_000]]) :]


def sendfile(sock: socket.socket, data: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        offset = 0
        while offset < len(data):
            offset += os.sendfile(sock.fileno(), file.fileno(), offset, len(data) - offset)


def with_timeout(sock: socket.socket, data: bytes) -> None:
    sock.settimeout(60)  # Python then polls
    sock.sendall(data)


def forked(sock: socket.socket, data: bytes) -> None:
    child = os.fork()
    if child == 0:
        sock.sendall(data)
        sock.close()
        os._exit(0)
    sock.close()
    assert os.waitpid(child, 0)[1] == 0


def duplicated(sock: socket.socket, data: bytes) -> None:
    half = len(data) // 2
    sock.sendall(data[:half])
    copy = sock.dup()
    number = sock.fileno()
    sock.close()
    other = os.open("/dev/null", os.O_WRONLY)  # takes the number
    assert other == number
    os.write(other, b"not for the client")
    copy.sendall(data[half:])
    copy.close()
    os.close(other)


ONE_BY_ONE = {f.__name__: f for f in (blocking, write, writev, sendmsg, sendfile, with_timeout, forked, duplicated)}


def poll_loop(courses: list[Course]) -> None:
    poller = select.poll()
    for course in courses:
        poller.register(course.sock, select.POLLOUT)
    by_fd = {course.sock.fileno(): course for course in courses}
    while by_fd:
        for fd, _ in poller.poll():
            poller.unregister(fd)
            if by_fd[fd].advance():
                del by_fd[fd]
            else:
                poller.register(fd, select.POLLOUT)


def select_loop(courses: list[Course]) -> None:
    while courses:
        _, ready, _ = select.select([], [course.sock for course in courses], [])
        courses = [course for course in courses if course.sock not in ready or not course.advance()]


def epoll_loop(courses: list[Course], how: int) -> None:
    waiter = select.epoll()
    by_fd = {course.sock.fileno(): course for course in courses}
    for fd in by_fd:
        waiter.register(fd, select.EPOLLIN | select.EPOLLOUT | how)
    while by_fd:
        events = waiter.poll(60)
        assert events, f"a wake-up was lost: {len(by_fd)} clients wait"
        for fd, _ in events:
            if fd in by_fd and by_fd[fd].advance():
                del by_fd[fd]


def epoll_on_demand(courses: list[Course]) -> None:
    """Ask for EPOLLOUT only after a refusal, as many servers do."""
    waiter = select.epoll()
    by_fd = {course.sock.fileno(): course for course in courses}
    for fd in by_fd:
        waiter.register(fd, select.EPOLLIN)
    todo = list(by_fd)
    while by_fd:
        for fd in todo:
            if by_fd[fd].advance():
                del by_fd[fd]
            else:
                waiter.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        events = waiter.poll(60) if by_fd else []
        assert events or not by_fd, f"a wake-up was lost: {len(by_fd)} clients wait"
        todo = [fd for fd, _ in events if fd in by_fd]


def epoll_once(courses: list[Course]) -> None:
    waiter = select.epoll()
    by_fd = {course.sock.fileno(): course for course in courses}
    for fd in by_fd:
        waiter.register(fd, select.EPOLLOUT | select.EPOLLONESHOT)
    while by_fd:
        events = waiter.poll(60)
        assert events, f"a wake-up was lost: {len(by_fd)} clients wait"
        for fd, _ in events:
            if by_fd[fd].advance():
                del by_fd[fd]
            else:
                waiter.modify(fd, select.EPOLLOUT | select.EPOLLONESHOT)


LOOPS = {
    "poll": poll_loop,
    "select": select_loop,
    "level": lambda courses: epoll_loop(courses, 0),
    "edge": lambda courses: epoll_loop(courses, select.EPOLLET),
    "exclusive": lambda courses: epoll_loop(courses, select.EPOLLEXCLUSIVE),
    "exclusive_edge": lambda courses: epoll_loop(courses, select.EPOLLEXCLUSIVE | select.EPOLLET),
    "demand": epoll_on_demand,
    "once": epoll_once,
}


async def serve_asyncio(listener: socket.socket, data: bytes, clients: int) -> None:
    left = asyncio.Semaphore(0)

    async def client(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        left.release()

    server = await asyncio.start_server(client, sock=listener)
    for _ in range(clients):
        await left.acquire()
    server.close()


def held_bytes(sock: socket.socket) -> int:
    import fcntl

    return int(struct.unpack("=i", fcntl.ioctl(sock, SIOCOUTQ, bytes(4)))[0])


def main() -> None:
    mode, size, clients = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    data = pattern(size)
    listener = listen()
    told: dict[str, object] = {}
    if mode == "asyncio":
        asyncio.run(serve_asyncio(listener, data, clients))
    elif mode == "held":  # how much the kernel takes while the client reads nothing
        sock = listener.accept()[0]
        course = Course(sock, data)
        course.advance()
        waiter = select.epoll()
        waiter.register(sock, select.EPOLLOUT)
        while ready := waiter.poll(0.3):  # the client's buffer fills first
            before = course.sent
            course.advance()
            if course.sent == before:
                break
        told = {"sent": course.sent, "held": held_bytes(sock), "writable": bool(ready),
                "polled": bool(select.select([], [sock], [], 0.2)[1])}  # fmt: skip
        print(json.dumps(told), flush=True)
        while not course.advance():
            assert waiter.poll(60)
    elif mode in LOOPS:
        LOOPS[mode]([Course(listener.accept()[0], data) for _ in range(clients)])
    else:
        for _ in range(clients):
            sock = listener.accept()[0]
            try:
                ONE_BY_ONE[mode](sock, data)
            except (BrokenPipeError, ConnectionResetError, AssertionError) as error:
                told["error"] = type(error).__name__
            sock.close()
    print(json.dumps({"served": clients, **told}), flush=True)


if __name__ == "__main__":
    main()
