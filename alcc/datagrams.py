"""A law over UDP: who may send to whom, and a transfer from end to end. The packets themselves are native.

The sender asks for a token, the receiver answers with one that only its own secret makes of the sender's address, and
keeps nothing in mind of it; data without the token is not answered. So nobody makes a receiver talk to somebody who did
not ask, and no answer is larger than what it answers.
"""

import contextlib
import hashlib
import hmac
import ipaddress
import os
import resource
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reinet.alcc._alcc import UdpReceiver, UdpSender, law_names
from reinet.core.closing import Closing
from reinet.core.errors import ConfigError, TransferError

MOST_SECONDS = 600.0
"""Longer transfers belong to transports with users of their own; this is an instrument."""
NO_DEADLINE_S = 1e9
MOST_INPUT_BYTES = 1 << 30
HELLO = struct.Struct("<4s8s52x")
"""What a sender asks with, b"RNH1" and a nonce; padded, so that the answer is smaller."""
COOKIE = struct.Struct("<4s8s8s")
"""The answer, b"RNC1", the nonce and the token."""
TOKEN_AT = 8
"""In data, alcc/udp/wire.hpp has the layout."""
HELLOS = 20
HELLO_AGAIN_S = 0.5
STEP_US = 100_000
"""The native part comes back so often, for Ctrl-C."""
BLOCK_BYTES = 1 << 16
SOCKET_BUFFER_BYTES = 4 << 20
"""Some of a second at the rates here; the kernel gives what net.core.rmem_max allows."""

_IP_MTU_DISCOVER, _IP_PMTUDISC_DO = 10, 2
"""Of linux/in.h; Python 3.10 has no names for them."""


@dataclass(frozen=True)
class Sent:
    """A transfer, as its sender saw it."""

    law: str
    seconds: float
    """From the first packet to the deadline, or to the last ACK before it."""
    throughput_mbps: float
    """Of the data, as its ACKs came in that time."""
    rtt_mean_ms: float
    rtt_p95_ms: float
    sent_bytes: int
    unsent_bytes: int
    """Of the data, what the deadline left out."""
    sent_pkts: int
    lost_pkts: int
    """Deemed lost; of these ``late_acks`` were not."""
    late_acks: int
    timeouts: int
    ignored_datagrams: int
    """That are no ACK of anything sent."""
    cpu_s: float


@dataclass(frozen=True)
class Received:
    """A transfer, as its receiver saw it."""

    peer: str
    seconds: float
    throughput_mbps: float
    received_bytes: int
    cut_short: bool
    """Whether the sender had more, and no time for it."""
    received_pkts: int
    duplicate_pkts: int
    ignored_datagrams: int
    cpu_s: float


def parse_address(text: str, default_host: str = "") -> tuple[str, int]:
    """Returns host and port of ``HOST:PORT`` or, with a default host, ``PORT``. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    host = host if colon else default_host
    if not host or ":" in host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        form = "PORT or ADDRESS:PORT" if default_host else "HOST:PORT"
        raise ConfigError(f"{text!r} is no address: write {form}, as 10.0.0.2:5000 (IPv4)")
    return host, int(port)


def send(
    address: tuple[str, int],
    law: str,
    seconds: float | None,
    data: npt.NDArray[np.uint8] | None = None,
) -> Sent:
    """Sends data, or for so long what nobody wants to have, to a receiver; returns what came of it.

    ``data`` that has not gone by then is left out; without ``seconds`` all of it goes. Raises ConfigError for a law or
    an address that makes no sense, TransferError where the transfer did not come to its end.
    """
    if law not in law_names():
        raise ConfigError(f"law {law!r} does not run over UDP: choose one of {', '.join(law_names())}")
    if seconds is None:
        if data is None:
            raise ConfigError(f"noise has no end of its own: say for how long, at most {MOST_SECONDS:g} s")
        seconds = NO_DEADLINE_S
    elif not 0 < seconds <= MOST_SECONDS:
        raise ConfigError(f"{seconds:g} s: a transfer takes more than 0 and at most {MOST_SECONDS:g} s")
    with _connected(address) as sock:
        token, rtt_us = _ask(sock, address)
        block = np.frombuffer(secrets.token_bytes(BLOCK_BYTES) * 2, np.uint8) if data is None else data
        before_s = _cpu_s()
        sender = UdpSender(
            sock.fileno(), token, law, block, data is None, round(seconds * 1e6), rtt_us, secrets.randbits(63),
        )  # fmt: skip
        while not sender.step(STEP_US):
            pass
        cpu_s = _cpu_s() - before_s
    if sender.failure:
        raise TransferError(f"{address[0]}:{address[1]}: {sender.failure}")
    return _sent(law, sender.counts(), cpu_s)


def _sent(law: str, counts: dict[str, Any], cpu_s: float) -> Sent:
    seconds = counts["sending_us"] / 1e6
    return Sent(
        law=law,
        seconds=seconds,
        throughput_mbps=counts["acked_in_time_bytes"] * 8e-6 / max(seconds, 1e-6),
        rtt_mean_ms=counts["rtt_mean_us"] / 1e3,
        rtt_p95_ms=counts["rtt_p95_us"] / 1e3,
        cpu_s=cpu_s,
        **{
            key: int(counts[key])
            for key in (
                "sent_bytes",
                "unsent_bytes",
                "sent_pkts",
                "lost_pkts",
                "late_acks",
                "timeouts",
                "ignored_datagrams",
            )
        },
    )


class Receiver(Closing):
    """Waits at an address for one sender."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Binds; port 0 lets the kernel choose. Raises ConfigError where the address is taken or not this host's."""
        self._secret = secrets.token_bytes(32)
        place = _resolved(address)
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._sock.bind(place)
        except OSError as error:
            self._sock.close()
            raise ConfigError(f"{address[0]}:{address[1]} cannot be listened at: {error.strerror}") from None
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        self.ignored_datagrams = 0

    def close(self) -> None:
        """Closes the socket."""
        self._sock.close()

    @property
    def port(self) -> int:
        """Returns the port that it listens at."""
        return int(self._sock.getsockname()[1])

    def receive(self, wait_s: float, out_fd: int = -1) -> Received:
        """Takes one transfer, whose first packet comes within that time; writes its bytes to a descriptor.

        Raises TransferError where none comes, or where it does not come to its end.
        """
        first, peer = self._first(time.monotonic() + wait_s)
        try:
            self._sock.connect(peer)
        except OSError as error:
            raise TransferError(f"{peer[0]}:{peer[1]} cannot be answered: {error.strerror}") from None
        receiver = UdpReceiver(self._sock.fileno(), int.from_bytes(self._token(peer), "little"), out_fd)
        before_s = _cpu_s()
        receiver.take(first)
        while not receiver.step(STEP_US):
            pass
        cpu_s = _cpu_s() - before_s
        if receiver.failure:
            raise TransferError(f"{peer[0]}:{peer[1]}: {receiver.failure}")
        counts = receiver.counts()
        seconds = counts["receiving_us"] / 1e6
        return Received(
            peer=f"{peer[0]}:{peer[1]}",
            seconds=seconds,
            throughput_mbps=counts["received_bytes"] * 8e-6 / max(seconds, 1e-6),
            received_bytes=counts["received_bytes"],
            cut_short=bool(counts["cut_short"]),
            received_pkts=counts["received_pkts"],
            duplicate_pkts=counts["duplicate_pkts"],
            ignored_datagrams=counts["ignored_datagrams"] + self.ignored_datagrams,
            cpu_s=cpu_s,
        )

    def _first(self, until_s: float) -> tuple[bytes, Any]:
        """Answers those who ask; returns the first data with a token, and who sent it."""
        while (left_s := until_s - time.monotonic()) > 0:
            self._sock.settimeout(left_s)
            try:
                datagram, peer = self._sock.recvfrom(2048)
            except TimeoutError:
                break
            if len(datagram) == HELLO.size and datagram[:4] == b"RNH1":
                with contextlib.suppress(OSError):  # nobody there any more
                    self._sock.sendto(COOKIE.pack(b"RNC1", datagram[4:12], self._token(peer)), peer)
            elif datagram[:1] in (b"D", b"E") and hmac.compare_digest(
                datagram[TOKEN_AT : TOKEN_AT + 8], self._token(peer)
            ):
                self._sock.settimeout(None)
                return datagram, peer
            else:
                self.ignored_datagrams += 1
        raise TransferError(f"port {self.port}: no sender came in time")

    def _token(self, peer: Any) -> bytes:
        return hmac.digest(self._secret, repr(peer).encode(), hashlib.sha256)[:8]


def _ask(sock: socket.socket, address: tuple[str, int]) -> tuple[int, int]:
    """Returns the token for this socket, and what the asking took in us."""
    nonce = os.urandom(8)
    for _ in range(HELLOS):
        asked_s = time.monotonic()
        try:
            sock.send(HELLO.pack(b"RNH1", nonce))
            while (left_s := asked_s + HELLO_AGAIN_S - time.monotonic()) > 0:
                sock.settimeout(left_s)
                answer = sock.recv(2048)
                if len(answer) == COOKIE.size and COOKIE.unpack(answer)[:2] == (b"RNC1", nonce):
                    sock.settimeout(None)
                    return int.from_bytes(COOKIE.unpack(answer)[2], "little"), round((time.monotonic() - asked_s) * 1e6)
        except TimeoutError:
            continue
        except ConnectionRefusedError:
            time.sleep(HELLO_AGAIN_S)  # it may be about to start
        except OSError as error:
            raise TransferError(f"{address[0]}:{address[1]} cannot be reached: {error.strerror}") from None
    raise TransferError(
        f"{address[0]}:{address[1]}: no receiver answers; start one there with reinet send --udp --listen {address[1]}"
    )


def _connected(address: tuple[str, int]) -> socket.socket:
    place = _resolved(address)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)  # no packet is cut up on the way
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        sock.connect(place)
    except OSError as error:
        sock.close()
        raise ConfigError(f"{address[0]}:{address[1]} cannot be sent to: {error.strerror}") from None
    return sock


def _resolved(address: tuple[str, int]) -> tuple[str, int]:
    try:
        found = socket.getaddrinfo(*address, family=socket.AF_INET, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise ConfigError(f"{address[0]}: {error.strerror}") from None
    host, port = str(found[0][4][0]), int(found[0][4][1])
    if ipaddress.IPv4Address(host).is_multicast or host == "255.255.255.255":
        raise ConfigError(f"{address[0]} is an address of many hosts: a transfer is between two")
    return host, port


def read_input(path: Path) -> npt.NDArray[np.uint8]:
    """Returns a file's bytes. Raises ConfigError for one that cannot be read or is too large."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MOST_INPUT_BYTES:
            raise ConfigError(f"{path}: {size_bytes} bytes are more than the {MOST_INPUT_BYTES} that go at a time")
        return np.fromfile(path, np.uint8)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
