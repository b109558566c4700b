"""Addresses that never leave the host: this user's own sockets, and where metrics are served."""

import ipaddress
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

UNIX = "unix:"
MOST_PORT = 65535
MAX_SOCKET_PATH_BYTES = 107
"""The kernel's sun_path is 108 bytes with its terminator."""


def is_port(number: int) -> bool:
    """Returns whether clients can be told this port: 0 is any that is free, which nobody who asks could know."""
    return 1 <= number <= MOST_PORT


def own_socket(name: str) -> Path:
    """Returns where this user's socket of that name lies: below /run for root, else below their own run-time folder."""
    if os.geteuid() != 0 and (own := os.environ.get("XDG_RUNTIME_DIR")):
        return Path(own) / "reinet" / name
    return Path("/run/reinet") / name


def socket_path(path: Path) -> Path:
    """Returns a Unix socket's path, made absolute; raises ValueError for one that is too long, or that no file has."""
    absolute = path.absolute()
    if not absolute.name or "\0" in absolute.name:
        raise ValueError(f"{str(path)!r} names no file; write the path of a socket")
    if (length := len(os.fsencode(absolute))) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"a Unix socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes, this one {length}")
    return absolute


def grpc_target(path: Path) -> str:
    """Returns what gRPC calls a Unix socket: a URI, in which a path of any bytes is quoted."""
    return UNIX + quote(os.fsencode(path))


def listen_privately(server: Any, path: Path) -> None:
    """Has a gRPC server listen at a Unix socket that nobody but its owner may open.

    Raises OSError or RuntimeError where it cannot, PermissionError where the socket came out open to others.
    """
    before = os.umask(0o177)  # the socket must never exist with wider permissions, not even for a moment
    try:
        server.add_insecure_port(grpc_target(path))
        mode = path.stat().st_mode
    finally:
        os.umask(before)
    if stat.S_IMODE(mode) & 0o077:
        raise PermissionError(f"made with mode {stat.S_IMODE(mode):o}, which others may use")


@dataclass(frozen=True)
class Endpoint:
    """A loopback address with a port, 0 = any that is free, or a Unix socket's path."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """Returns what ``127.0.0.1:9469``, ``[::1]:9469`` or ``unix:/run/reinet/metrics.sock`` names.

        Raises ValueError for anything else: what leaves the host is for a proxy with a right to ask for passwords.
        """
        if text.startswith(UNIX):
            path = Path(text.removeprefix(UNIX))
            if not path.is_absolute():
                raise ValueError(f"{text!r}: a Unix socket's path begins with /")
            return cls(path=path)
        host, _, port = text.rpartition(":")
        try:
            address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
            number = int(port)
        except ValueError:
            raise ValueError(f"{text!r}: write 127.0.0.1:9469, [::1]:9469 or unix:/run/reinet/metrics.sock") from None
        if not address.is_loopback:
            raise ValueError(f"{text!r} is not a loopback address: put a proxy in front for other hosts")
        if not is_port(number):
            raise ValueError(f"{text!r}: a port lies in 1 to {MOST_PORT}; choose one that is free, as 9469")
        return cls(str(address), number)

    def __str__(self) -> str:
        """Returns the text that ``parse`` takes."""
        if self.path is not None:
            return f"{UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
