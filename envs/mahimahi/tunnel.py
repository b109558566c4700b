"""A TCP tunnel over an emulated link: TCP in TCP, as behind a VPN where nothing but TCP gets through.

openvpn carries it, as it comes from Debian and in clear text. Beside the flow that is measured another one may run
through the same tunnel, plain TCP or UDP that goes on and off::

    sender, other -> [ tun | openvpn ] -> [ mm-delay mRTT/2 -> [ mm-link queue + trace -> [ openvpn | tun ] -> ends ] ]

The tunnel's own connection has the path's congestion control: the route to the other end says so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from reinet.core.errors import LinkError
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun, MahimahiLink
from reinet.envs.mahimahi.namespace import BIN
from reinet.envs.mahimahi.process import START_TIMEOUT_S, Child, find_program

Beside = Literal["tcp", "udp"]

OUTSIDE, INSIDE = "10.77.0.1", "10.77.0.2"
"""The tunnel's ends; nothing else in the link's namespaces has such addresses."""
PORT = 1194
UP = "Initialization Sequence Completed"
"""What openvpn says when a tunnel stands."""


@dataclass(frozen=True)
class TunnelRun:
    """A run through the tunnel: the link's own, and what the two flows got."""

    link: LinkRun
    mbps: float
    """What the measured flow's receiver acknowledged."""
    beside_mbps: float
    """The same of plain TCP, what arrived of UDP; 0 where nothing ran beside."""


class TunnelLink(MahimahiLink):
    """One flow through a tunnel over an emulated path, and another one beside it, None = nobody. Raises LinkError."""

    def __init__(
        self, spec: LinkSpec, *, beside: Beside | None = None, sender_variables: Mapping[str, str] | None = None
    ) -> None:
        for program in ("openvpn", "ip"):
            find_program(program, "run docker/packages.sh --bench as root")
        self._beside = beside
        super().__init__(spec, sender_variables=sender_variables)

    def stop_both(self) -> TunnelRun:
        """Ends both flows, then does as ``stop``."""
        for child in self._others:
            child.end_input()
        seconds = (time.monotonic_ns() - self.started_ns) / 1e9
        run = self.stop()
        beside_bytes = 0
        if self._beside == "tcp":
            beside_bytes = int(self._others[0].wait_for("closed")["acked_bytes"])
        elif self._beside == "udp":
            beside_bytes = int(self._others[1].wait_for("bursts")["bytes"])
        return TunnelRun(run, int(run.closed[0]["acked_bytes"]) * 8e-6 / seconds, beside_bytes * 8e-6 / seconds)

    def check(self) -> None:
        """Raises LinkError when a part of the running link, or of the tunnel, has died."""
        super().check()
        for child in (*self._tunnel, *self._others):
            child.check()

    def _receiver_command(self, port: int) -> list[str]:
        return ["sh"]

    def _shells_are_up(self, port: int) -> None:
        self._shells.tell("""echo '{"event": "inside", "pid": '$$', "base": "'$MAHIMAHI_BASE'"}'\n""")
        inside = self._shells.wait_for("inside", beside=self._sender)
        enter = ["nsenter", f"--target={inside['pid']}", "--net", "--"]
        self._namespace.route_by(self.spec.cc)
        common = ["openvpn", "--dev", "tun77", "--dev-type", "tun", "--cipher", "none", "--auth", "none"]
        self._tunnel = [
            self._namespace.spawn(
                [*common, "--proto", "tcp4-server", "--port", str(PORT), "--ifconfig", OUTSIDE, INSIDE],
                "openvpn outside", privileged=True,
            ),
            self._namespace.spawn(
                [*enter, *common, "--proto", "tcp4-client", "--nobind", "--remote", str(inside["base"]), str(PORT),
                 "--connect-retry", "1", "--ifconfig", INSIDE, OUTSIDE],
                "openvpn inside", privileged=True,
            ),
        ]  # fmt: skip
        for end in self._tunnel:
            _wait_said(end, UP)
        self._others: list[Child] = []
        if self._beside == "tcp":
            sender = self._namespace.spawn([f"{BIN}/reinet-sender", "--cc", self.spec.cc], "the other", privileged=True)
            self._others = [sender]
            self._receive(int(sender.wait_for("listening")["port"]))
            sender.wait_for("sending", beside=self._shells)
        elif self._beside == "udp":
            bursts = [sys.executable, "-m", "reinet.envs.mahimahi.bursts"]
            counter = self._namespace.spawn([*enter, *bursts, "receive", INSIDE], "the other's end", privileged=True)
            counter.wait_for("began")
            sender = self._namespace.spawn([*bursts, "send", INSIDE], "the other", privileged=True)
            sender.wait_for("began")  # its start would disturb the run that it is beside
            self._others = [sender, counter]
        self._receive(port)

    def _receive(self, port: int) -> None:
        self._shells.tell(f"MAHIMAHI_BASE={OUTSIDE} {BIN}/reinet-receiver {port} &\n")


def _wait_said(child: Child, text: str) -> None:
    until_s = time.monotonic() + START_TIMEOUT_S
    while not any(text in word for word in child.words):
        if child.process.poll() is not None or time.monotonic() > until_s:
            raise LinkError(f"{child.name} did not come up{child.said()}")
        time.sleep(0.02)
        child.events()
