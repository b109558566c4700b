"""The gate for servers on asyncio: in their own process and by their own sockets, without ``reinet run``'s preload.

>>> async def main() -> None:
...     server = await asyncio.start_server(answer, sock=gated.listen("127.0.0.1", 8080))
...     await server.serve_forever()
>>> gated.start(law="rule", target="+30ms")
>>> with asyncio.Runner(loop_factory=gated.EventLoop) as runner:
...     runner.run(main())

Connections that a socket of ``listen`` accepts are gated; frameworks that take a listening socket take this one. A
closed gate is a socket that is not writable: asyncio keeps what a transport was given, and ``drain()`` waits. Under
``reinet run`` the preload gates the process already, and what is here leaves the sockets to it.
"""

import asyncio
import ctypes
import os
import select
import selectors
import socket
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from reinet.alcc.launch import PRELOAD, Law, Settings, find_preload
from reinet.core.errors import ConfigError, ReinetError
from reinet.core.target import Target

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LIBRARY = "libreinet_alcc.so"
"""The gate with a C ABI, ``alcc/reinet_alcc.h``."""
BACKLOG = 4096
"""Connections that may wait to be accepted; the kernel takes its own limit (``somaxconn``) where that is smaller."""
BLOCK_BYTES = 256 * 1024
"""Of a file that is sent, read at a time."""
EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD = 1, 2, 3
"""``sys/epoll.h``; the module select keeps them to itself."""


def start(
    law: str | Law = "rule", target: str | Target = "+30ms", *, ports: Sequence[int] = (), always: bool = False
) -> None:
    """Says what decides in this process and below which round-trip time its connections are to stay.

    A process has one gate, and its forks have the same; call this before anything is sent. ``law`` is one of those of
    ``reinet run``: ``none``, ``rule``, ``rule:G``, ``fixed:N`` (packets), ``copa``, ``verus`` or ``sprout``. A small
    learned policy is ``make_agent("checkpoints/small", link="app").law_of_the_gate()``, the daemon
    ``Law("daemon", daemon=Path(...))``. ``ports``: only connections with one of these at either end, all without any.
    ``always``: cap before a queue was seen, too, for tests.

    Raises ConfigError for what makes no sense, where the library was not built, or where another gate was asked for
    before.
    """
    global _started, _library
    asked = target if isinstance(target, Target) else Target.parse(target)
    settings = Settings(Law(law) if isinstance(law, str) else law, asked, ports, always=always)
    with _starting:
        if _started not in (None, settings):
            raise ConfigError("this process has a gate already, with another law or target: start it once")
        if _started is None and PRELOAD not in os.environ.get("LD_PRELOAD", ""):
            _library = _asked(settings)
        _started = settings


class Socket(socket.socket):
    """A TCP socket that hands the kernel no more than the gate lets through; for ``EventLoop``, which waits for it.

    Its calls never wait: a closed gate is a BlockingIOError, or a short count.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        _gated.add(self.fileno())

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts a connection; it is gated in an ``EventLoop`` only, for another loop would ask without end."""
        accepted, address = super().accept()
        if _library is None:
            return accepted, address
        if not _in_own_loop():
            warnings.warn(f"{__name__}: connections of another event loop are not gated: use EventLoop", stacklevel=2)
            return accepted, address
        return Socket(self.family, self.type, self.proto, fileno=accepted.detach()), address

    def send(self, data: "ReadableBuffer", flags: int = 0, /) -> int:
        """As the kernel's, with a send buffer that is as large as the cap."""
        if _library is None:
            return super().send(data, flags)
        part = np.frombuffer(memoryview(data), np.uint8)
        return _checked(_library.reinet_alcc_send(self.fileno(), part.ctypes.data, part.nbytes, flags))

    def sendall(self, data: "ReadableBuffer", flags: int = 0, /) -> None:
        """As the kernel's; at a closed gate a BlockingIOError, which does not say how much was sent."""
        if _library is None:
            super().sendall(data, flags)
            return
        left = memoryview(data).cast("B")
        while left:
            left = left[self.send(left, flags) :]

    def sendmsg(
        self,
        buffers: "Iterable[ReadableBuffer]",
        ancdata: Iterable[tuple[int, int, "ReadableBuffer"]] = (),
        flags: int = 0,
        address: Any = None,
        /,
    ) -> int:
        """As the kernel's, with a send buffer that is as large as the cap. Ancillary data passes by the gate."""
        if _library is None or ancdata or address is not None:
            return super().sendmsg(buffers, ancdata, flags, address)
        parts = [np.frombuffer(memoryview(buffer), np.uint8) for buffer in buffers]
        vectors = (_Vector * len(parts))(*(_Vector(part.ctypes.data, part.nbytes) for part in parts))
        message = _Message(None, 0, ctypes.addressof(vectors), len(parts), None, 0, 0)
        return _checked(_library.reinet_alcc_sendmsg(self.fileno(), ctypes.byref(message), flags))

    def close(self) -> None:
        """Closes it; the gate forgets the descriptor before another socket has its number."""
        self._forget()
        super().close()

    def detach(self) -> int:
        """Returns the descriptor, of which the gate knows nothing from now on."""
        self._forget()
        return super().detach()

    def _forget(self) -> None:
        _gated.discard(self.fileno())
        if _library is not None and self.fileno() >= 0:
            _library.reinet_alcc_forget(self.fileno())


def listen(
    host: str, port: int, *, family: socket.AddressFamily = socket.AF_INET, backlog: int = BACKLOG,
    reuse_port: bool = False,
) -> Socket:  # fmt: skip
    """Returns a listening socket whose connections are gated. Raises OSError as ``socket.create_server`` does."""
    plain = socket.create_server((host, port), family=family, backlog=backlog, reuse_port=reuse_port)
    plain.setblocking(False)
    return Socket(plain.family, plain.type, plain.proto, fileno=plain.detach())


class EventLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, told by the gate when a connection may be written."""

    def __init__(self) -> None:
        selector = _Selector()
        if not isinstance(getattr(selector, "_selector", None), _Epoll):
            raise ReinetError("the selectors of this Python are made otherwise: start the program by `reinet run`")
        super().__init__(selector)

    async def sock_sendfile(
        self, sock: socket.socket, file: IO[bytes], offset: int = 0, count: int | None = None, *,
        fallback: bool | None = True,
    ) -> int:  # fmt: skip
        """As asyncio's; into a gated socket by reading and sending: the kernel's sendfile would pass by the gate.

        A transport asks for no fallback and has one of its own, which from Python 3.12 on reads each block over the one
        before, of which the transport keeps what a closed gate did not take: the peer would have other bytes.
        """
        if not isinstance(sock, Socket) or _library is None:
            return await super().sock_sendfile(sock, file, offset, count, fallback=fallback)
        file.seek(offset)
        sent = 0
        while block := file.read(BLOCK_BYTES if count is None else min(BLOCK_BYTES, count - sent)):
            await self.sock_sendall(sock, block)
            sent += len(block)
        return sent


class _Epoll:
    """An epoll of which a closed gate is not writable."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.fileno, self.poll = self._epoll.fileno, self._epoll.poll

    def register(self, fd: int, events: int) -> None:
        self._control(EPOLL_CTL_ADD, fd, events, self._epoll.register)

    def modify(self, fd: int, events: int) -> None:
        self._control(EPOLL_CTL_MOD, fd, events, self._epoll.modify)

    def unregister(self, fd: int) -> None:
        self._control(EPOLL_CTL_DEL, fd, 0, lambda fd, _: self._epoll.unregister(fd))

    def close(self) -> None:
        if _library is not None and not self._epoll.closed:
            _library.reinet_alcc_forget(self.fileno())
        self._epoll.close()

    def _control(self, operation: int, fd: int, events: int, plain: Callable[[int, int], None]) -> None:
        if _library is None or fd not in _gated:
            plain(fd, events)
        else:
            _checked(_library.reinet_alcc_epoll_ctl(self.fileno(), operation, fd, ctypes.byref(_Event(events, fd))))


class _Selector(selectors.EpollSelector):
    _selector_cls = _Epoll


class _Event(ctypes.Structure):
    """``struct epoll_event``."""

    _pack_ = 1 if os.uname().machine == "x86_64" else 0
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


class _Vector(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """``struct msghdr``."""

    _fields_ = (
        ("name", ctypes.c_void_p), ("name_size", ctypes.c_uint32),
        ("vectors", ctypes.c_void_p), ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p), ("control_size", ctypes.c_size_t), ("flags", ctypes.c_int),
    )  # fmt: skip


_gated: set[int] = set()
"""The descriptors of sockets made here."""
_started: Settings | None = None
_library: ctypes.CDLL | None = None
"""Where this process is gated by it; none before ``start`` and under ``reinet run``."""
_starting = threading.Lock()


def _loaded() -> ctypes.CDLL:
    library = ctypes.CDLL(str(find_preload().with_name(LIBRARY)), use_errno=True)
    library.reinet_alcc_send.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.reinet_alcc_send.restype = library.reinet_alcc_sendmsg.restype = ctypes.c_ssize_t
    library.reinet_alcc_forget.restype = None
    return library


def _asked(settings: Settings) -> ctypes.CDLL:
    """Returns the library, which gates this process as it was asked to. Raises ConfigError."""
    library = _loaded()
    if library.reinet_alcc_start(settings.text().encode()) != 0:
        raise ConfigError(
            f"law {settings.law.name!r}: there are none, rule, rule:G, fixed:N (packets), copa, verus and sprout; a "
            "learned policy is make_agent(FOLDER, link='app').law_of_the_gate()"
        )
    return library


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _in_own_loop() -> bool:
    try:
        return isinstance(asyncio.get_running_loop(), EventLoop)
    except RuntimeError:
        return False
