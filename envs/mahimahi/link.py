"""Mahimahi as a link: real packets of the real kernel through an emulated bottleneck, with nothing left on the host.

Every link runs in a cell (``helpers/cell.c``): network, mount and PID namespaces that end with the process that made
them, kill -9 included. In it, outside the shells, sit the sender and a process that watches how late the host wakes it;
inside sits the receiver. Data flows down::

    sender -> [ mm-delay mRTT/2 -> [ mm-link queue + trace -> receiver ] ]

Mahimahi is started as a program, never linked (GPL-3).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reinet.core.errors import ConfigError, LinkError
from reinet.envs.link.metrics import LinkLog, Metrics, compute, first_data_ms
from reinet.envs.trace import Trace

UPLINK_MBPS = 48.0
"""ACKs meet no congestion: DeepCC's set-up."""
MIN_BUFFER_BYTES = 2 * 1504
"""A queue that holds fewer than two full packets never lets a sender fill the link."""
MAX_MRTT_MS = 10_000

LATE_SHARE = 0.001
LATE_ONCE_US = 50_000
LOGGED_SHARE = 0.98
STALL_SLACK_MS = 2000
"""Thresholds of a valid run, from the contract (design, Metrics)."""

START_TIMEOUT_S = 20.0
"""Longest wait for a shell, a sender or a connection; all of it takes 0.2 s on an idle machine."""
DRAIN_MS = 30
"""Added to half a mRTT between the sender's last packet and the end of the log: mm-link's clock ticks in ms."""

NICENESS = -10
"""Of everything in a cell, the sleeper that judges it included: an emulated link should not slow down because a learner
computes beside it."""

_NOBODY = 65534
_USER_FILES = "/run/reinet/user"
_BIN = "/run/reinet/bin"
_HELPERS = ("reinet-gate", "reinet-iptables", "reinet-receiver", "reinet-sender", "reinet-sleeper")
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES = "run docker/packages.sh as root"
_CGROUP_PREFIX = "reinet-link-"
_numbers = itertools.count()

Event = dict[str, Any]


@dataclass(frozen=True)
class LinkSpec:
    """An emulated path. Raises ConfigError where Mahimahi could not do it, or would silently do something else."""

    trace: Trace
    """Delivery opportunities in the data's direction."""
    uplink: Trace | None = None
    """Those of the ACKs' direction; None = constant 48 Mbit/s."""
    mrtt_ms: float = 20.0
    """Fixed round trip, half of it each way: an even number of whole milliseconds."""
    buffer_bytes: int = 150_000
    """Room in the bottleneck's queue; a full packet counts 1504 bytes."""
    queue: Literal["droptail", "drophead"] = "droptail"
    start_offset_ms: int = 0
    """Where in the trace the link starts; moved to the next delivery opportunity, so that the loop keeps its length."""

    def __post_init__(self) -> None:
        if not 0 <= self.mrtt_ms <= MAX_MRTT_MS or self.mrtt_ms % 2:
            raise ConfigError(
                f"mrtt_ms is {self.mrtt_ms:g}: Mahimahi delays each way by whole milliseconds, so give an even number "
                f"between 0 and {MAX_MRTT_MS}"
            )
        if self.buffer_bytes < MIN_BUFFER_BYTES:
            raise ConfigError(f"buffer_bytes is {self.buffer_bytes}; two full packets ({MIN_BUFFER_BYTES}) must fit")
        if self.queue not in ("droptail", "drophead"):
            raise ConfigError(f"queue is {self.queue!r}; choose droptail or drophead")
        if self.start_offset_ms < 0:
            raise ConfigError(f"start_offset_ms is {self.start_offset_ms}; give 0 or above, from the trace's start")

    def opportunities_ms(self) -> npt.NDArray[np.int64]:
        """Delivery opportunities of the first loop, counted from where the link starts."""
        times_ms = self.trace.opportunities_ms.astype(np.int64)
        loop_ms = int(times_ms[-1])
        if not self.start_offset_ms % loop_ms:
            return times_ms
        start_ms = times_ms[np.searchsorted(times_ms, self.start_offset_ms % loop_ms)]
        return np.sort((times_ms - start_ms - 1) % loop_ms + 1)


@dataclass(frozen=True)
class Sleeper:
    """What the 1 ms sleeper beside a run saw of the host."""

    wakes: int
    late_5ms: int
    max_late_us: int


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
    """First data packet at the link, in the log's time."""
    end_ms: float
    sleeper: Sleeper
    closed: list[Event] = field(default_factory=list)
    """The sender's account of every flow: sent_bytes, acked_bytes, retrans_pkts, finished."""
    received: list[Event] = field(default_factory=list)
    """The receiver's, of flows that ended before the link did: bytes, intact (as sent), clean (ended by a FIN)."""

    @property
    def valid(self) -> bool:
        """True when the figures can be believed."""
        return self.invalid_reason is None


def parse_log(text: str, name: str = "link log") -> tuple[LinkLog, int]:
    """Read what mm-link wrote: the log, its times counted from the trace's start, and that start (Unix time, ms).

    An unfinished last line is left out: the link was ended while it wrote. Raises LinkError with the line's number.
    """
    stamps = {"# init timestamp": -1, "# base timestamp": -1}
    arrivals: list[tuple[int, int]] = []
    opportunities: list[tuple[int, int]] = []
    departures: list[tuple[int, int, int]] = []
    number = 0
    try:
        for line in text[: text.rfind("\n") + 1].splitlines():
            number += 1
            if line.startswith("#"):
                key, colon, value = line.partition(": ")
                if colon and key in stamps:
                    stamps[key] = int(value)
                continue
            time_ms, kind, *rest = line.split()
            if kind == "#":
                (size,) = rest
                opportunities.append((int(time_ms), int(size)))
            elif kind == "+":
                (size,) = rest
                arrivals.append((int(time_ms), int(size)))
            elif kind == "-":
                size, delay_ms = rest
                departures.append((int(time_ms), int(size), int(delay_ms)))
            elif kind != "d":  # drops, in newer builds only: they follow from arrivals and departures
                raise ValueError(f"unknown event {kind!r}")
    except ValueError as error:
        raise LinkError(f"{name}:{number}: not a line of mm-link's log ({error}); is it another version's?") from error
    if min(stamps.values()) < 0:
        raise LinkError(f"{name}: has no init or no base timestamp; it is not mm-link's log, or the link never started")

    init_ms, base_ms = stamps.values()

    def columns(rows: Sequence[tuple[int, ...]], width: int) -> list[npt.NDArray[np.int64]]:
        return list(np.array(rows, dtype=np.int64).reshape(-1, width).T)

    arrival_ms, arrival_bytes = columns(arrivals, 2)
    opportunity_ms, opportunity_bytes = columns(opportunities, 2)
    departure_ms, departure_bytes, delay = columns(departures, 3)
    log = LinkLog(
        arrival_ms=(arrival_ms - base_ms).astype(np.float64),
        arrival_bytes=arrival_bytes,
        opportunity_ms=(opportunity_ms - base_ms).astype(np.float64),
        opportunity_bytes=opportunity_bytes,
        departure_ms=(departure_ms - base_ms).astype(np.float64),
        departure_bytes=departure_bytes,
        departure_delay_ms=delay.astype(np.float64),
    )
    return log, init_ms + base_ms


def expected_opportunities(opportunities_ms: npt.NDArray[np.int64], start_ms: float, end_ms: float) -> int:
    """Count a looping trace's opportunities in [start, end), times counted from the trace's start."""
    loop_ms = int(opportunities_ms[-1])

    def before(time_ms: float) -> int:
        loops, rest_ms = divmod(time_ms, loop_ms)
        if loops and not rest_ms:  # what falls on a loop's end is not before it
            loops, rest_ms = loops - 1, loop_ms
        return int(loops) * opportunities_ms.size + int(np.searchsorted(opportunities_ms, rest_ms))

    return before(max(end_ms, 0)) - before(max(start_ms, 0))


def judge(
    log: LinkLog,
    metrics: Metrics,
    opportunities_ms: npt.NDArray[np.int64],
    start_ms: float,
    end_ms: float,
    sleeper: Sleeper,
) -> str | None:
    """Say why a run must not be believed, or None. Times count from the trace's start, as the log's do."""
    if sleeper.late_5ms > LATE_SHARE * sleeper.wakes:
        return (
            f"the host lagged: {sleeper.late_5ms} of {sleeper.wakes} one-millisecond sleeps ended over 5 ms late "
            f"({100 * LATE_SHARE:g} % may)"
        )
    if sleeper.max_late_us > LATE_ONCE_US:
        return f"the host lagged: a one-millisecond sleep ended {sleeper.max_late_us / 1000:.0f} ms late (50 may be)"
    expected = expected_opportunities(opportunities_ms, start_ms, end_ms)
    logged = int(((log.opportunity_ms >= start_ms) & (log.opportunity_ms < end_ms)).sum())
    if logged < LOGGED_SHARE * expected:
        return f"the link lagged: {logged} of the trace's {expected} delivery opportunities were logged"
    allowed_ms = int(np.diff(opportunities_ms, prepend=0).max()) + STALL_SLACK_MS
    if metrics.longest_stall_ms > allowed_ms:
        return (
            f"the flow stalled: nothing left the link for {metrics.longest_stall_ms:.0f} ms; "
            f"the trace's longest gap + {STALL_SLACK_MS / 1000:g} s is {allowed_ms} ms"
        )
    return None


class _Child:
    """A process that reports JSON lines on its standard output and ends when its standard input does."""

    def __init__(self, argv: Sequence[str], name: str) -> None:
        self.name = name
        self.words: list[str] = []  # what it said that is no event
        self._pending = b""
        self._events: list[Event] = []
        # A session of its own: Ctrl-C reaches this process only, which then ends the rest in order.
        self.process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={"PATH": _SYSTEM_PATH},
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def events(self) -> list[Event]:
        """Take the events that are there, without waiting."""
        assert self.process.stdout is not None
        while chunk := self.process.stdout.read():
            self._pending += chunk
            *lines, self._pending = self._pending.split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                try:
                    self._events.append(json.loads(text))
                except ValueError:
                    self.words.append(text)
        taken, self._events = self._events, []
        return taken

    def wait_for(self, kind: str, timeout_s: float = START_TIMEOUT_S, beside: _Child | None = None) -> Event:
        """Wait for one event. Raises LinkError when it does not come or this process, or the one beside it, ends."""
        deadline_s = time.monotonic() + timeout_s
        assert self.process.stdout is not None
        while True:
            ended = self.process.poll() is not None
            events = self.events()
            for index, event in enumerate(events):
                if event.get("event") == kind:
                    self._events = events[index + 1 :] + self._events
                    return event
                if event.get("event") == "error":
                    raise LinkError(f"{self.name}: {event['message']}")
            if ended:
                raise LinkError(f"{self.name} ended with status {self.process.returncode}{self.said()}")
            if beside is not None and beside.process.poll() is not None:
                beside.events()
                raise LinkError(f"{beside.name} ended with status {beside.process.returncode}{beside.said()}")
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                others = beside.said() if beside is not None else ""
                raise LinkError(f"{self.name}: no '{kind}' within {timeout_s:g} s{self.said()}{others}")
            select.select([self.process.stdout], [], [], min(left_s, 0.05))

    def said(self) -> str:
        """Its last words, to end a message with."""
        return f": {' | '.join(self.words[-4:])}" if self.words else ""

    def tell(self, text: str) -> None:
        """Write to its standard input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()

    def end_input(self) -> None:
        """Close its standard input, which asks it to end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def reap(self, timeout_s: float) -> None:
        """Collect it; one that has not ended by then is killed."""
        self.end_input()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def helper_folder() -> Path:
    """Give the folder of the compiled helpers. Raises LinkError when they were not built."""
    import reinet.envs.mahimahi

    for folder in map(Path, reinet.envs.mahimahi.__path__):
        if all((folder / "bin" / name).is_file() for name in (*_HELPERS, "reinet-cell")):
            return folder / "bin"
    raise LinkError("the helpers around Mahimahi were not built; install a C compiler and run docker/setup.sh again")


def find_program(name: str) -> Path:
    """Give a system program's path. Raises LinkError when it is not installed."""
    path = shutil.which(name, path=_SYSTEM_PATH)
    if path is None:
        raise LinkError(f"{name} is not installed; {_PACKAGES}")
    return Path(path)


def find_xtables(iptables: Path) -> Path:
    """Give the legacy iptables, which Mahimahi's set-up was proved with; else whatever iptables there is."""
    legacy = shutil.which("xtables-legacy-multi", path=_SYSTEM_PATH)
    return Path(legacy) if legacy else iptables


class Cell:
    """Namespaces in which Mahimahi runs; everything in them ends with ``close``, or with this process.

    Given ``cgroup``, that cgroup v2 folder is made with the cell and removed with it. Raises LinkError.
    """

    def __init__(self, cgroup: Path | None = None) -> None:
        if os.geteuid() != 0:
            raise LinkError("emulated links need root, to make namespaces of their own: run as root")
        for program in ("mm-link", "mm-delay", "nsenter", "setpriv"):
            find_program(program)
        if not Path("/dev/net/tun").exists():
            raise LinkError("/dev/net/tun is missing; modprobe tun, or in a container pass --device /dev/net/tun")
        folder, iptables = helper_folder(), find_program("iptables").resolve()
        self.cgroup = cgroup
        self._children: list[_Child] = []
        self._main = _Child(
            [
                str(folder / "reinet-cell"),
                str(os.getpid()),
                str(iptables),
                str(find_xtables(iptables)),
                str(cgroup) if cgroup else "-",
                *(str(folder / name) for name in _HELPERS),
            ],
            "the link's cell",
        )
        # Forgotten without close(): closing the pipe ends it all the same.
        self._forgotten = weakref.finalize(self, self._main.end_input)
        try:
            self.pid = int(self._main.wait_for("cell")["pid"])
            self._main.wait_for("ready")
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> Path:
        """The folder of the unprivileged user inside, as seen from outside."""
        return Path(f"/proc/{self.pid}/root{_USER_FILES}")

    def spawn(self, argv: Sequence[str], name: str, *, privileged: bool) -> _Child:
        """Start a program inside, outside all shells; as nobody unless ``privileged``."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--"]
        favour = ["nice", f"--adjustment={NICENESS}"]
        drop = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--"]
        child = _Child([*enter, *favour, *([] if privileged else drop), *argv], name)
        self._children.append(child)
        return child

    def fresh(self) -> None:
        """End everything inside and start from an empty network; the cgroup stays."""
        self._main.tell("fresh\n")
        self._main.wait_for("fresh")
        self._reap_children()

    def close(self) -> None:
        """End everything inside, bounded in time; further calls do nothing."""
        if self._main.process.returncode is None:
            self._main.tell("quit\n")  # not only the end of input: a forked child of ours may hold the pipe
            self._main.end_input()
            try:
                self._main.process.wait(5)
            except subprocess.TimeoutExpired:
                self._main.process.send_signal(signal.SIGTERM)
            self._main.reap(5)
        self._reap_children()
        if self.cgroup is not None:
            with contextlib.suppress(OSError):  # the cell removed it, unless it was killed itself
                self.cgroup.rmdir()
        self._forgotten.detach()

    def _reap_children(self) -> None:
        for child in self._children:
            child.reap(5)
        self._children.clear()

    def __enter__(self) -> Cell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def own_cgroup(mount: Path) -> Path:
    """Name a cgroup of this process that no other uses; the owner's pid is in the name.

    Removes empty ones of owners that are gone: a cell's supervisor does so itself, unless it was killed too.
    """
    for stale in mount.glob(f"{_CGROUP_PREFIX}*-*"):
        owner = stale.name[len(_CGROUP_PREFIX) :].partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):  # in use after all, or gone meanwhile
                stale.rmdir()
    return mount / f"{_CGROUP_PREFIX}{os.getpid()}-{next(_numbers)}"


class MahimahiLink:
    """One flow or several over an emulated path; ``start`` and ``stop`` make a run, any number in turn.

    ``cc``: the sender's congestion control, by its kernel name. ``cgroup``: a cgroup v2 folder to make for the sender.
    ``bytes_per_flow``: end each flow with a FIN after so many; None = send until ``stop``. Raises LinkError.
    """

    def __init__(
        self,
        spec: LinkSpec,
        cc: str = "cubic",
        *,
        cgroup: Path | None = None,
        flows: int = 1,
        bytes_per_flow: int | None = None,
    ) -> None:
        self.spec = spec
        self.cc = cc
        self._flows = flows
        self._bytes_per_flow = bytes_per_flow
        self._used = False
        self._opportunities_ms = spec.opportunities_ms()
        self._cell = Cell(cgroup)

    @property
    def cgroup(self) -> Path | None:
        """The sender's cgroup."""
        return self._cell.cgroup

    def start(self, spec: LinkSpec | None = None) -> list[Flow]:
        """Bring path and flows up, over another path than before if given; returns when data is being sent."""
        self.spec = spec or self.spec
        self._opportunities_ms = self.spec.opportunities_ms()
        if self._used:
            self._cell.fresh()
        self._used = True
        uplink = self.spec.uplink or Trace.constant(UPLINK_MBPS, 1)
        for name, times_ms in (("down", self._opportunities_ms), ("up", uplink.opportunities_ms)):
            (self._cell.files / name).write_text("".join(f"{time_ms}\n" for time_ms in times_ms.tolist()))
        self._sleeper = self._cell.spawn([f"{_BIN}/reinet-sleeper"], "the sleeper", privileged=False)
        self._sleeper.wait_for("awake")
        self._sender = self._cell.spawn(self._sender_command(), "the sender", privileged=True)
        port = int(self._sender.wait_for("listening")["port"])
        self._shells = self._cell.spawn(self._shell_command(port), "Mahimahi", privileged=False)
        found = [self._sender.wait_for("flow", beside=self._shells) for _ in range(self._flows)]
        self.started_ns = int(self._sender.wait_for("sending", beside=self._shells)["time_ns"])
        self._sleeper.tell("\n")
        _, zero_unix_ms = parse_log(self._log_text(), "the downlink's log")
        self.zero_ns = zero_unix_ms * 1_000_000 - (time.time_ns() - time.monotonic_ns())
        return [Flow(int(event["cookie"]), str(event["cc"])) for event in found]

    def check(self) -> None:
        """Raise LinkError when a part of the running link has died."""
        for child in (self._sender, self._shells, self._sleeper):
            if child.process.poll() is not None:
                child.events()
                raise LinkError(f"{child.name} ended with status {child.process.returncode}{child.said()}")

    def wait_finished(self, timeout_s: float) -> None:
        """Wait until all flows have sent their bytes and ended. Raises LinkError when they have not by then."""
        try:
            self._sender.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise LinkError(f"the sender has not finished within {timeout_s:g} s") from None

    def stop(self) -> LinkRun:
        """End the flows, then read and judge the log; ``close`` or another ``start`` ends the path."""
        self._sender.end_input()
        closed = [self._sender.wait_for("closed", beside=None) for _ in range(self._flows)]
        ended_ns = int(self._sender.wait_for("end")["time_ns"])
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
            invalid_reason=judge(log, metrics, self._opportunities_ms, start_ms, end_ms, sleeper),
            zero_ns=self.zero_ns,
            start_ms=start_ms,
            end_ms=end_ms,
            sleeper=sleeper,
            closed=closed,
            received=[event for event in self._shells.events() if event.get("event") == "received"],
        )

    def close(self) -> None:
        """End everything, bounded in time; further calls do nothing."""
        self._cell.close()

    def _log_text(self) -> str:
        return (self._cell.files / "log").read_text(errors="replace")

    def _sender_command(self) -> list[str]:
        command = [f"{_BIN}/reinet-sender", "--cc", self.cc, "--flows", str(self._flows)]
        if self._cell.cgroup is not None:
            command += ["--cgroup", str(self._cell.cgroup)]
        if self._bytes_per_flow is not None:
            command += ["--bytes", str(self._bytes_per_flow)]
        return command

    def _shell_command(self, port: int) -> list[str]:
        command = ["env", "--ignore-environment", f"PATH={_SYSTEM_PATH}"]
        if self.spec.mrtt_ms:
            # mm-link, inside, asks at the gate for forwarding in the namespace that mm-delay made
            command += ["mm-delay", str(int(self.spec.mrtt_ms) // 2), f"{_BIN}/reinet-gate"]
        return [
            *command,
            "mm-link",
            f"--downlink-log={_USER_FILES}/log",
            f"--downlink-queue={self.spec.queue}",
            f"--downlink-queue-args=bytes={self.spec.buffer_bytes}",
            f"{_USER_FILES}/up",
            f"{_USER_FILES}/down",
            f"{_BIN}/reinet-receiver",
            str(port),
            str(self._flows),
        ]

    def __enter__(self) -> MahimahiLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
