"""A server on asyncio that is gated by itself, and its clients; prints what was seen as JSON.

Arguments: what the server does, what decides, and whose event loop it is (``own`` or ``other``).
"""

import asyncio
import fcntl
import hashlib
import json
import os
import socket
import struct
import sys
import tempfile
import warnings
from typing import Any

from reinet.alcc import gated

CLIENTS = 20
MSS_BYTES = 536
DATA = os.urandom(1_500_000)
SIOCOUTQ = 0x5411
SLOW_S = 0.3
"""So long the clients read nothing."""

polls = 0
seen: dict[str, Any] = {"held_bytes": 0, "polls_while_closed": 0}


async def hold(sock: Any) -> None:
    """Notes what the kernel holds while nobody reads, and how often the loop wakes meanwhile."""
    before = polls
    await asyncio.sleep(SLOW_S / 2)
    seen["polls_while_closed"] = max(seen["polls_while_closed"], polls - before)
    (held,) = struct.unpack("=i", fcntl.ioctl(sock.fileno(), SIOCOUTQ, bytes(4)))
    seen["held_bytes"] = max(seen["held_bytes"], held)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(DATA)
    await hold(writer.get_extra_info("socket"))
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def send_file(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    with tempfile.TemporaryFile() as file:
        file.write(DATA)
        file.seek(0)
        sending = asyncio.get_running_loop().sendfile(writer.transport, file)
        await asyncio.gather(sending, hold(writer.get_extra_info("socket")))
    writer.close()
    await writer.wait_closed()


async def accept_all(listener: socket.socket) -> None:
    accepted = [await asyncio.get_running_loop().sock_accept(listener) for _ in range(CLIENTS)]
    await asyncio.gather(*(by_calls(sock) for sock, _ in accepted))


async def by_calls(sock: socket.socket) -> None:
    """Messages of several parts, and the loop's own calls for sockets."""
    loop = asyncio.get_running_loop()
    await loop.sock_recv(sock, 2)
    parts = [memoryview(DATA)[at : at + 1000] for at in range(0, len(DATA) // 2, 1000)]
    sent = 0
    while sent < 200_000:
        try:
            sent += sock.sendmsg([parts[sent // 1000][sent % 1000 :], *parts[sent // 1000 + 1 :][:9]])
        except BlockingIOError:
            await writable(sock)
    with tempfile.TemporaryFile() as file:
        file.write(DATA)
        sending = loop.sock_sendfile(sock, file, sent, 300_000)
        _, sent_of_file = await asyncio.gather(hold(sock), sending)
    await loop.sock_sendall(sock, DATA[sent + sent_of_file :])
    sock.close()


async def writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    opened = loop.create_future()
    loop.add_writer(sock, lambda: opened.done() or opened.set_result(None))
    await opened
    loop.remove_writer(sock)


async def fetch(port: int) -> bool:
    """Returns whether the bytes that came are those that were sent."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, MSS_BYTES)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, b"x\n")
    await asyncio.sleep(SLOW_S)
    got = hashlib.sha256()
    while block := await loop.sock_recv(sock, 1 << 16):
        got.update(block)
    sock.close()
    return got.digest() == hashlib.sha256(DATA).digest()


async def main(case: str) -> None:
    listener = gated.listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    fetching = asyncio.gather(*(fetch(port) for _ in range(CLIENTS)))
    if case == "by_calls":
        await accept_all(listener)
        seen["same"] = await fetching
        listener.close()
        return
    server = await asyncio.start_server({"answer": answer, "send_file": send_file}[case], sock=listener)
    seen["same"] = await fetching
    server.close()
    await server.wait_closed()


class CountingEpoll(gated._Epoll):
    """Counts how often the loop looks."""

    def __init__(self) -> None:
        super().__init__()
        poll = self.poll

        def counted(*arguments: Any) -> list[tuple[int, int]]:
            global polls
            polls += 1
            return poll(*arguments)

        self.poll = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    case, law, loop = sys.argv[1:]
    gated._Selector._selector_cls = CountingEpoll  # type: ignore[attr-defined]
    with warnings.catch_warnings(record=True) as caught:
        gated.start(law=law, always=True)
        if loop == "own":
            with asyncio.Runner(loop_factory=gated.EventLoop) as runner:
                runner.run(main(case))
        else:
            asyncio.run(main(case))
    seen["flows"] = gated._library.reinet_alcc_flows() if gated._library else None
    seen["warnings"] = [str(warning.message) for warning in caught]
    print(json.dumps(seen))
