"""Mahimahi as a link: real packets of the real kernel through an emulated bottleneck, with nothing left on the host.

Every link runs in network, mount and PID namespaces of its own (``helpers/netns.c``), which end with the process that
made them, kill -9 included. In them, outside the shells, sit the sender and a process that watches how late the host
wakes it; inside the shells sits the receiver. Data flows down::

    sender -> [ mm-delay mRTT/2 -> [ mm-link queue + trace -> receiver ] ]

Mahimahi is started as a program, never linked (GPL-3).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reinet.core.closing import Closing
from reinet.core.errors import LinkError
from reinet.envs.link.metrics import LinkLog, Metrics, compute, first_data_ms
from reinet.envs.link.spec import LinkSpec
from reinet.envs.link.stalls import held_up_ms
from reinet.envs.mahimahi.log import parse_log
from reinet.envs.mahimahi.namespace import BIN, TRACES, USER_FILES, LinkNamespace
from reinet.envs.mahimahi.process import SYSTEM_PATH, Event, require_open_to_all
from reinet.envs.mahimahi.spec import downlink_ms, queue_options, require_emulated, trace_files
from reinet.envs.mahimahi.validity import Sleeper, judge

DRAIN_MS = 30
"""The log ends this long, and half a mRTT, after the sender's last packet: mm-link's clock ticks in ms."""
_LOOK_S = 0.05
"""So soon is it seen that a part of the link has died."""


@dataclass(frozen=True)
class Ends:
    """Other programs than ``reinet-sender`` and ``reinet-receiver`` that do and say what these do, for one flow."""

    sender: list[str]
    receiver: list[str]
    """Without the port, which follows."""
    files: tuple[Path, ...]
    """What the receiver reads: the link's own user must be able to."""

    @classmethod
    def over_udp(cls, law: str) -> Ends:
        """Returns the ends of a law's own transport (``udp_ends``)."""
        both = [sys.executable, "-m", "reinet.envs.mahimahi.udp_ends"]
        return cls([*both, "send", law], [*both, "receive"], (Path(sys.executable), Path(__file__)))


@dataclass(frozen=True)
class Flow:
    """One connection of the sender: its cookie names it to the shim; ``cc`` is its congestion control once it is up."""

    cookie: int
    cc: str


@dataclass(frozen=True)
class LinkRun:
    """What was recorded of a run: the downlink's log and figures, and whether they can be believed."""

    log: LinkLog
    metrics: Metrics
    invalid_reason: str | None
    """Why the figures must not be used (the host lagged, the flow stalled); None = valid."""
    zero_ns: int
    """CLOCK_MONOTONIC at the log's time 0, the trace's start; exact to about 2 ms."""
    start_ms: float
    """When the first data packet came to the link, in the log's time."""
    end_ms: float
    sender_cpu_us: int = 0
    """The CPU time of the sender's process; ACKs are taken in interrupts, which are charged to nobody."""
    closed: list[Event] = field(default_factory=list)
    """The sender's account of every flow: sent_bytes, acked_bytes, retrans_pkts, finished."""
    received: list[Event] = field(default_factory=list)
    """The receiver's account of flows that ended before the link: bytes, intact (as sent), clean (ended by a FIN)."""


def shell_command(spec: LinkSpec, inside: list[str]) -> list[str]:
    """Returns the command that runs a program inside the shells of a path, whose traces and log have fixed places."""
    command = ["env", "--ignore-environment", f"PATH={SYSTEM_PATH}"]
    # What is inside each asks at the gate for forwarding in the namespace that it made.
    if spec.loss:
        command += ["mm-loss", "downlink", f"{spec.loss:f}", f"{BIN}/reinet-gate"]
    if spec.mrtt_ms:
        command += ["mm-delay", str(int(spec.mrtt_ms) // 2), f"{BIN}/reinet-gate"]
    log = f"--downlink-log={USER_FILES}/log"
    # "--", or mm-link takes the options of the command inside for its own.
    return [*command, "mm-link", log, *queue_options(spec), "--", f"{TRACES}/up", f"{TRACES}/down", *inside]


class MahimahiLink(Closing):
    """One flow or several over an emulated path; ``start`` and ``stop`` make a run, any number in turn.

    ``cgroup``: a cgroup v2 folder to make for the sender. ``bytes_per_flow``: end each flow with a FIN after so many;
    None = send until ``stop``. ``sender_variables``: of the sender's environment. ``ends``: other programs in the
    place of the project's own sender and receiver, for one flow. Raises LinkError, and ConfigError for a path that
    Mahimahi cannot do.
    """

    def __init__(
        self,
        spec: LinkSpec,
        *,
        cgroup: Path | None = None,
        flows: int = 1,
        bytes_per_flow: int | None = None,
        sender_variables: Mapping[str, str] | None = None,
        ends: Ends | None = None,
    ) -> None:
        self.spec = require_emulated(spec)
        self._flows = flows
        self._bytes_per_flow = bytes_per_flow
        self._sender_variables = [f"{name}={value}" for name, value in (sender_variables or {}).items()]
        if ends is not None:
            require_open_to_all(*ends.files)
        self._ends = ends
        self._used = False
        self._opportunities_ms = downlink_ms(spec)
        self._namespace = LinkNamespace(cgroup)

    @property
    def cgroup(self) -> Path | None:
        """Returns the sender's cgroup, None = it has none of its own."""
        return self._namespace.cgroup

    def start(self, spec: LinkSpec | None = None) -> list[Flow]:
        """Brings path and flows up, over another path than before if given; returns when data is being sent."""
        self.spec = require_emulated(spec or self.spec)
        self._opportunities_ms = downlink_ms(self.spec)
        if self._used:
            self._namespace.fresh()
        self._used = True
        for name, text in trace_files(self.spec).items():
            self._namespace.write_trace(name, text)
        self._sleeper = self._namespace.spawn([f"{BIN}/reinet-sleeper"], "the sleeper", privileged=False)
        self._sleeper.wait_for("awake")
        self._sender = self._namespace.spawn(self._sender_command(), "the sender", privileged=True)
        port = int(self._sender.wait_for("listening")["port"])
        self._shells = self._namespace.spawn(
            shell_command(self.spec, self._receiver_command(port)), "Mahimahi", privileged=False
        )
        self._shells_are_up(port)
        found = [self._sender.wait_for("flow", beside=self._shells) for _ in range(self._flows)]
        self.started_ns = int(self._sender.wait_for("sending", beside=self._shells)["time_ns"])
        self._sleeper.tell("\n")
        _, zero_unix_ms = parse_log(self._log_text(), "the downlink's log")
        self.zero_ns = zero_unix_ms * 1_000_000 - (time.time_ns() - time.monotonic_ns())
        return [Flow(int(event["cookie"]), str(event["cc"])) for event in found]

    def check(self) -> None:
        """Raises LinkError when a part of the running link has died."""
        for child in (self._sender, self._shells, self._sleeper):
            child.check()

    def go_on(self, seconds: float, progress: Callable[[float], None] | None = None) -> None:
        """Waits until the flows have run for so long; ``progress`` is told the seconds that have passed.

        Raises LinkError when a part of the link dies meanwhile.
        """
        until_ns = self.started_ns + round(seconds * 1e9)
        while (left_ns := until_ns - time.monotonic_ns()) > 0:
            time.sleep(min(_LOOK_S, left_ns / 1e9))
            self.check()
            if progress is not None:
                progress((time.monotonic_ns() - self.started_ns) / 1e9)

    def wait_finished(self, timeout_s: float) -> None:
        """Waits until all flows have sent their bytes and ended. Raises LinkError when they have not by then."""
        try:
            self._sender.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise LinkError(f"the sender has not finished within {timeout_s:g} s") from None

    def stop(self) -> LinkRun:
        """Ends the flows, then reads, judges and returns the log; ``close`` or another ``start`` ends the path."""
        self._sender.end_input()
        closed = [self._sender.wait_for("closed", beside=None) for _ in range(self._flows)]
        end = self._sender.wait_for("end")
        ended_ns = int(end["time_ns"])
        # What was sent last is on its way to the link for half a round trip; the log must reach beyond it.
        time.sleep((self.spec.mrtt_ms / 2 + DRAIN_MS) / 1000)
        self._sleeper.end_input()
        seen = self._sleeper.wait_for("sleeper")
        sleeper = Sleeper(int(seen["wakes"]), int(seen["late_5ms"]), int(seen["max_late_us"]))
        log, _ = parse_log(self._log_text(), "the downlink's log")
        start_ms = first_data_ms(log)
        end_ms = start_ms + (ended_ns - self.started_ns) / 1e6
        metrics = compute(log, self.spec.mrtt_ms, end_ms)
        return LinkRun(
            log=log,
            metrics=metrics,
            invalid_reason=judge(
                log, metrics, self._opportunities_ms, start_ms, end_ms, sleeper, held_up_ms(self.spec)
            ),
            zero_ns=self.zero_ns,
            start_ms=start_ms,
            end_ms=end_ms,
            sender_cpu_us=int(end["cpu_us"]),
            closed=closed,
            received=[event for event in self._shells.events() if event.get("event") == "received"],
        )

    def read_file(self, name: str) -> bytes:
        """Returns what the sender or the shells wrote into a file of the folder USER_FILES. Raises LinkError."""
        return self._namespace.read_bytes(name)

    def close(self) -> None:
        """Ends everything, bounded in time; further calls do nothing."""
        self._namespace.close()

    def _log_text(self) -> str:
        return self._namespace.read_log("log")

    def _shells_are_up(self, port: int) -> None:
        """Does what has to be done before a receiver can connect; here that connects by itself."""

    def _receiver_command(self, port: int) -> list[str]:
        if self._ends is not None:
            return [*self._ends.receiver, str(port)]
        return [f"{BIN}/reinet-receiver", str(port), str(self._flows)]

    def _sender_command(self) -> list[str]:
        if self._ends is not None:
            return self._ends.sender
        command = [
            "env",
            *self._sender_variables,
            f"{BIN}/reinet-sender",
            "--cc",
            self.spec.cc,
            "--flows",
            str(self._flows),
        ]
        if self._namespace.cgroup is not None:
            command += ["--cgroup", str(self._namespace.cgroup)]
        if self._bytes_per_flow is not None:
            command += ["--bytes", str(self._bytes_per_flow)]
        return command
