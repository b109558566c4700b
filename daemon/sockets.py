"""Which policy a flow is under: what the kernel says of open TCP sockets, asked for over netlink (``sock_diag``).

Records name a flow by its cookie alone. A dump of the network namespace's sockets says of every cookie the ports, the
peer and the cgroup; it needs no capability. It is made in a thread of its own, when there are flows that nobody knows
yet, and never more often than every ``LOOK_INTERVAL_S``. A flow that a dump does not show is in another network
namespace (a container's, as a rule): it is under the default, whatever the policies say.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from reinet.daemon.cgroups import standing_for
from reinet.daemon.policies import PolicyConfig

LOOK_INTERVAL_S = 0.1
"""A flow has its first cap no earlier than its gate opens, seldom before a second has passed."""
MOST_OF_A_CORE = 0.1
"""The share of a core that dumps may take: after a long one the next waits longer."""
ANSWER_S = 2.0
"""The kernel answers at once; a socket without an end would hold a thread for ever."""
DEFAULT = 0
"""The place of flows that are under no policy."""

_SOCK_DIAG_BY_FAMILY = 20
_NETLINK_SOCK_DIAG = 4
_REQUEST_DUMP = 0x1 | 0x300
_DONE, _ERROR = 3, 2
_OPEN_STATES = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11  # all in which data may still be sent
_CGROUP_ID = 21  # INET_DIAG_CGROUP_ID, since 5.8
_HEADER = struct.Struct("=IHHII")
_PORTS = struct.Struct("!HH")
_U64 = struct.Struct("=Q")
_ATTRIBUTE = struct.Struct("=HH")
_MESSAGE_BYTES, _COOKIE_AT = 72, 44

log = structlog.get_logger("reinet.sockets")


@dataclass(frozen=True)
class Socket:
    """An open TCP socket, as the kernel tells of it."""

    cookie: int
    local_port: int
    peer: IPv4Address | IPv6Address
    cgroup_id: int
    """The number of its cgroup's folder (``st_ino``), 0 where the kernel does not say."""


Dump = Callable[[Container[int]], dict[int, Socket | None]]
"""Returns the open sockets by their cookies, None in place of those that were not asked for."""


class KernelSockets:
    """Asks the kernel for the open TCP sockets of this network namespace; any thread may.

    What is confined must have been made before: it may ask, but open nothing to ask on.
    """

    def __init__(self) -> None:
        """Opens what it asks on; raises OSError."""
        self._channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        self._channel.settimeout(ANSWER_S)
        self._lock = threading.Lock()
        self._request = 0

    def __call__(self, wanted: Container[int] | None = None) -> dict[int, Socket | None]:
        """Returns the sockets by their cookies, None in place of those that are not ``wanted``; raises OSError."""
        found: dict[int, Socket | None] = {}
        with self._lock:
            for family in (socket.AF_INET, socket.AF_INET6):
                self._request += 1
                body = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 0, 0, _OPEN_STATES)
                size = _HEADER.size + len(body)
                self._channel.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, self._request, 0) + body)
                while self._take(self._channel.recv(1 << 18), wanted, found):
                    pass
        return found

    def close(self) -> None:
        """Asks no more."""
        self._channel.close()

    def _take(self, buffer: bytes, wanted: Container[int] | None, found: dict[int, Socket | None]) -> bool:
        """Takes the messages of a reply; returns False after the last one. Those of an earlier request are left out."""
        start = 0
        while start < len(buffer):
            size, kind, _, request, _ = _HEADER.unpack_from(buffer, start)
            begin = start + _HEADER.size
            if request == self._request:
                if kind == _DONE:
                    return False
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", buffer, begin)[0], "sock_diag")
                (cookie,) = _U64.unpack_from(buffer, begin + _COOKIE_AT)
                known = wanted is None or cookie in wanted
                found[cookie] = _socket(buffer, begin, start + size) if known else None
            start += (size + 3) & ~3
        return True


def _socket(buffer: bytes, start: int, end: int) -> Socket:
    """Returns what a ``struct inet_diag_msg`` and its attributes say."""
    family = buffer[start]
    local_port, _ = _PORTS.unpack_from(buffer, start + 4)
    peer = ip_address(buffer[start + 24 : start + (28 if family == socket.AF_INET else 40)])
    if isinstance(peer, IPv6Address) and peer.ipv4_mapped is not None:
        peer = peer.ipv4_mapped
    (cookie,) = _U64.unpack_from(buffer, start + _COOKIE_AT)
    cgroup_id, at = 0, start + _MESSAGE_BYTES
    while at + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(buffer, at)
        if kind == _CGROUP_ID:
            (cgroup_id,) = _U64.unpack_from(buffer, at + 4)
        at += max((length + 3) & ~3, 4)
    return Socket(cookie, local_port, peer, cgroup_id)


def cgroup_ids(folder: Path) -> set[int]:
    """Returns the numbers of a cgroup and of all below it; none where it is gone."""
    found = set()
    for path, _, _ in os.walk(folder):
        try:
            found.add(os.stat(path).st_ino)
        except OSError:
            continue
    return found


class SocketPlacer:
    """A ``Placer`` by the policies' selectors; ``place`` is the loop's, a thread of its own asks the kernel."""

    def __init__(self, policies: Sequence[PolicyConfig], sockets: Dump) -> None:
        """Makes a placer that asks ``sockets``, ``KernelSockets`` as a rule, for what it does not know."""
        self._policies = policies
        self._sockets = sockets
        self._known = (np.zeros(0, np.uint64), np.zeros(0, np.int32))  # cookies in order, places; replaced as a whole
        self._wanted: list[NDArray[np.uint64]] = []
        self._wake = threading.Event()
        self._closed = False
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="socket-placer", daemon=True)

    def start(self) -> "SocketPlacer":
        """Starts the thread; returns the placer."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Ends the thread."""
        self._closed = True
        self._wake.set()

    def place(self, cookies: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Returns (N,) the place of each flow, -1 = not known yet; never waits."""
        known, places = self._known
        at = np.searchsorted(known, cookies)
        hit = at < len(known)
        hit[hit] = known[at[hit]] == cookies[hit]
        found = np.full(len(cookies), -1, np.int32)
        found[hit] = places[at[hit]]
        if not hit.all():
            self._wanted.append(cookies[~hit])
            self._wake.set()
        return found

    def look(self, cookies: NDArray[np.uint64]) -> None:
        """Asks the kernel now, for these flows too; then ``place`` knows them. Raises OSError."""
        wanted = [cookies, *(self._wanted.pop() for _ in range(len(self._wanted)))]
        asked = np.unique(np.concatenate(wanted).astype(np.uint64))
        shown = self._sockets(set(asked.tolist()))
        ids = [set().union(*map(cgroup_ids, standing_for(policy.cgroups))) for policy in self._policies]
        before, places_before = self._known
        still = np.isin(before, np.fromiter(shown, np.uint64, len(shown)))
        asked = np.setdiff1d(asked, before[still])
        new = np.array([self._place_of(shown.get(cookie), ids) for cookie in asked.tolist()], np.int32)
        merged = np.concatenate([before[still], asked])
        order = np.argsort(merged)
        self._known = merged[order], np.concatenate([places_before[still], new])[order]

    def _place_of(self, found: Socket | None, ids: Sequence[set[int]]) -> int:
        if found is None:
            return DEFAULT
        for index, policy in enumerate(self._policies):
            if (
                (not policy.cgroups or found.cgroup_id in ids[index])
                and (not policy.local_ports or any(low <= found.local_port <= high for low, high in policy.local_ports))
                and (not policy.peers or any(found.peer in prefix for prefix in policy.peers))
            ):
                return index + 1
        return DEFAULT

    def _run(self) -> None:
        while self._wake.wait() and not self._closed:
            self._wake.clear()
            start_s = time.monotonic()
            try:
                if self._wanted:
                    self.look(np.zeros(0, np.uint64))
                self._failed = False
            except OSError as error:  # flows stay where they are: without a policy, and so without a cap
                if not self._failed:
                    log.error("which policy flows are under cannot be asked", error=str(error))
                self._failed = True
            time.sleep(max(LOOK_INTERVAL_S, (time.monotonic() - start_s) / MOST_OF_A_CORE))
