"""A path between two UDP ends on this host that loses, swaps, repeats and invents datagrams."""

import random
import socket
import threading
from collections.abc import Callable


class Relay:
    """Passes datagrams on between whoever sends first and an address. Use as a context manager."""

    def __init__(
        self,
        to: tuple[str, int],
        lost: float = 0.0,
        swapped: float = 0.0,
        repeated: float = 0.0,
        inject: Callable[[bytes, bool], list[bytes]] = lambda _, __: [],
    ) -> None:
        """``inject(datagram, back)``: what goes along with each to the same end, before it."""
        self._to, self._shares, self._inject = to, (lost, swapped, repeated), inject
        self._near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._near.bind(("127.0.0.1", 0))
        self._far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._far.connect(to)
        self._over = False
        self._threads = [threading.Thread(target=self._pass, args=(back,)) for back in (False, True)]
        self._peer: tuple[str, int] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where the first end sends to."""
        host, port = self._near.getsockname()
        return host, port

    def __enter__(self) -> "Relay":
        for sock in (self._near, self._far):
            sock.settimeout(0.05)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        for thread in self._threads:
            thread.join()
        self._near.close()
        self._far.close()

    def _pass(self, back: bool) -> None:
        rng = random.Random(int(back))
        source = self._far if back else self._near
        held: bytes | None = None
        while not self._over:
            try:
                datagram, peer = source.recvfrom(2048)
            except (TimeoutError, ConnectionRefusedError):
                datagrams, held = [held] if held else [], None
            else:
                if not back:
                    self._peer = peer
                datagrams, held = self._treated(datagram, held, rng)
                datagrams = self._inject(datagram, back) + datagrams
            for one in datagrams:
                try:
                    if not back:
                        self._far.send(one)
                    elif self._peer:
                        self._near.sendto(one, self._peer)
                except ConnectionRefusedError:
                    pass

    def _treated(self, datagram: bytes, held: bytes | None, rng: random.Random) -> tuple[list[bytes], bytes | None]:
        lost, swapped, repeated = self._shares
        if rng.random() < lost:
            return [], held
        if held is None and rng.random() < swapped:
            return [], datagram
        datagrams = [datagram] * (2 if rng.random() < repeated else 1)
        return ([*datagrams, held] if held else datagrams), None
