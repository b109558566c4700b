"""The service manager's protocol, sd_notify(3): a datagram of a few words to the socket that the environment names."""

import os
import socket as sockets
import time
from collections.abc import Callable
from contextlib import suppress

SIGN_S = 1.0
"""A sign of life in so long is several in WatchdogSec."""


def notify(*words: str) -> bool:
    """Sends ``READY=1`` and the like; returns False where no service manager listens. Never waits, never raises."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):
        return False
    address = "\0" + name[1:] if name.startswith("@") else name
    with suppress(OSError), sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM | sockets.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        sender.sendto("\n".join(words).encode(), address)
        return True
    return False


class Watchdog:
    """Tells the service manager that ticks complete; it restarts a daemon of which it hears nothing for WatchdogSec.

    ``ticks`` is the loop's count: a loop that hangs, or whose agent fails at every tick, completes none.
    """

    def __init__(self, ticks: Callable[[], int]) -> None:
        self._ticks = ticks
        self._fed_at = 0
        self._signed_s = -SIGN_S

    def feed(self) -> None:
        """Sends a sign of life if a tick was completed since the last one; call it several times per WatchdogSec.

        Raises what ``ticks`` raises, where the loop is in another process that does not answer.
        """
        ticks = self._ticks()
        if ticks != self._fed_at and notify("WATCHDOG=1"):
            self._fed_at = ticks

    def beside(self, wait: Callable[[float], bool]) -> Callable[[float], bool]:
        """Returns ``wait`` with signs of life, for a start anew: no ticks complete meanwhile, and it ends by itself.

        On a host without CPU to spare, or where a registry stalls, it takes longer than WatchdogSec. A service manager
        that restarts all of the daemon then would end a pause that somebody has asked for.
        """

        def waited(timeout_s: float) -> bool:
            if time.monotonic() - self._signed_s >= SIGN_S:
                self._signed_s = time.monotonic()
                notify("WATCHDOG=1")
            return wait(timeout_s)

        return waited
