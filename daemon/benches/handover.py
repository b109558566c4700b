"""A daemon is stopped, or killed, and started again while its flows send: what that costs them.

Every flow has a bottleneck of its own, so that its rate is the link's as long as its queue never runs dry, and every
loss of throughput is the switch's. The path's delay is Mahimahi's. A second run, with no daemon at all, says what the
queue and the host's own timing are without one, of flows of the same age.
"""

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.core.errors import DaemonError, LinkError
from reinet.daemon.benches.served import ServedDaemon, weigh
from reinet.envs.mahimahi.namespace import BIN, LinkNamespace, own_cgroup
from reinet.envs.mahimahi.process import SYSTEM_PATH, Child
from reinet.kshim.probe import cgroup2_mount

SETTLE_S = 8.0
"""Slow start and BBR's STARTUP are over, gates are open and caps have drained the queues."""
BEFORE_S = 5.0
"""A flow's usual throughput is its mean over so long before the switch."""
SWITCH_S = 1.0
AFTER_S = 4.0
NETWORK_NICENESS = -10
BUFFER_BYTES = 30_000
"""Twenty packets: 240 ms at 1 Mbit/s."""


@dataclass(frozen=True)
class Handover:
    """What one restart cost; throughput ratios are (N,) over the flows, the second of the switch over those before."""

    cc: str
    how: str
    flows: int
    flows_capped_before: int
    flows_lost: int
    """Connections that broke, or bytes that arrived otherwise than they were sent."""
    flows_taken_over: int
    gap_s: float
    """From the end of the old daemon until the new one has all flows."""
    leaving_ratio_min: float
    leaving_within_5_percent: float
    """The share of the flows whose throughput was within 5 % of their own before."""
    taking_over_ratio_min: float
    taking_over_within_5_percent: float
    plain_ratio_min: float
    """The same of a second without any switch, in a run without a daemon."""
    plain_within_5_percent: float
    qdelay_p99_ms: float
    """99th percentile over flows and samples, from the end of the old daemon on: smoothed RTT less the path's."""
    qdelay_before_p99_ms: float
    plain_qdelay_p99_ms: float
    late_ms: float
    """How late the sampling of either run was at worst: on a host that lags no figure is the switch's."""


@dataclass(frozen=True)
class _Run:
    """The samples of one run, (S, N) for S samples of N flows."""

    times_s: NDArray[np.float64]
    acked_bytes: NDArray[np.float64]
    rtts_ms: NDArray[np.float64]
    wrapped: NDArray[np.int64]  # (S,)
    lost: int
    late_s: float

    def rate(self, from_s: float, to_s: float) -> NDArray[np.float64]:
        """Returns (N,) bytes/s between the samples nearest to both times, by each flow's own clock."""
        first, last = (int(np.argmin(np.abs(self.times_s[:, 0] - at_s))) for at_s in (from_s, to_s))
        took_s = self.times_s[last] - self.times_s[first]
        return np.asarray((self.acked_bytes[last] - self.acked_bytes[first]) / took_s, np.float64)

    def qdelay_p99_ms(self, from_s: float, to_s: float, mrtt_ms: float) -> float:
        """Returns the 99th percentile over flows and samples of a time."""
        inside = (self.times_s[:, 0] >= from_s) & (self.times_s[:, 0] <= to_s)
        return float(np.percentile(self.rtts_ms[inside], 99)) - mrtt_ms


def measure(
    cc: str, flows: int, how: str = "stop", model: str = "rule", rate_mbit: float = 1.0, mrtt_ms: float = 20.0
) -> Handover:
    """Returns what a restart costs; ``how`` the old daemon ends: stop or kill. Raises LinkError and DaemonError."""
    with tempfile.TemporaryDirectory() as name, _Senders(cc, flows, rate_mbit, mrtt_ms) as senders:
        folder = Path(name)
        with ServedDaemon(folder, senders.cgroup, model) as daemon:
            senders.wait(SETTLE_S)
            _, capped = daemon.flows()
            switch_s = daemon.end(how)
            with ServedDaemon(folder, senders.cgroup, model):
                started_s = senders.wait(AFTER_S)
                run = senders.end()
    begun_s = float(run.times_s[0, 0])
    with _Senders(cc, flows, rate_mbit, mrtt_ms) as senders:
        plain_at_s = senders.wait(switch_s - begun_s)
        senders.wait(float(run.times_s[-1, 0]) - switch_s)
        plain = senders.end()
    all_wrapped = run.wrapped == flows
    again = np.flatnonzero(all_wrapped & (run.times_s[:, 0] > started_s - AFTER_S))
    leaving = _ratios(run, switch_s, switch_s)
    taken_s = float(run.times_s[again[0], 0]) if again.size else started_s
    taking = _ratios(run, switch_s, taken_s - SWITCH_S / 2)
    without = _ratios(plain, plain_at_s, plain_at_s)
    return Handover(
        cc=cc,
        how=how,
        flows=flows,
        flows_capped_before=capped,
        flows_lost=run.lost,
        flows_taken_over=int(run.wrapped[-1]),
        gap_s=taken_s - switch_s,
        leaving_ratio_min=float(leaving.min()),
        leaving_within_5_percent=_within(leaving),
        taking_over_ratio_min=float(taking.min()),
        taking_over_within_5_percent=_within(taking),
        plain_ratio_min=float(without.min()),
        plain_within_5_percent=_within(without),
        qdelay_p99_ms=run.qdelay_p99_ms(switch_s, float(run.times_s[-1, 0]), mrtt_ms),
        qdelay_before_p99_ms=run.qdelay_p99_ms(switch_s - SWITCH_S, switch_s, mrtt_ms),
        plain_qdelay_p99_ms=plain.qdelay_p99_ms(plain_at_s, float(plain.times_s[-1, 0]), mrtt_ms),
        late_ms=1e3 * max(run.late_s, plain.late_s),
    )


def _ratios(run: _Run, switch_s: float, at_s: float) -> NDArray[np.float64]:
    return run.rate(at_s, at_s + SWITCH_S) / run.rate(switch_s - BEFORE_S, switch_s)


def _within(ratios: NDArray[np.float64]) -> float:
    return float((np.abs(ratios - 1) <= 0.05).mean())


class _Senders:
    """Flows over Mahimahi's delay, in a cgroup of their own."""

    def __init__(self, cc: str, flows: int, rate_mbit: float, mrtt_ms: float) -> None:
        mount = cgroup2_mount()
        if mount is None:
            raise DaemonError("no cgroup v2 hierarchy is mounted: mount -t cgroup2 none /sys/fs/cgroup")
        self.flows = flows
        self.cgroup = own_cgroup(mount)
        self._namespace = LinkNamespace(self.cgroup)
        try:
            self._sender, self._shell = self._start(cc, rate_mbit, mrtt_ms)
        except BaseException:
            self._namespace.close()
            raise

    def wait(self, seconds: float) -> float:
        """Lets time pass; returns when it was over, CLOCK_MONOTONIC. Raises LinkError where the path has died."""
        time.sleep(seconds)
        for child in (self._sender, self._shell):
            if child.process.poll() is not None:
                child.events()
                raise LinkError(f"{child.name} ended with status {child.process.returncode}{child.said()}")
        return time.monotonic()

    def end(self) -> _Run:
        """Ends the flows and returns what was seen."""
        self._sender.end_input()
        seen = self._sender.wait_for("flows")
        ends = [self._shell.wait_for("received") for _ in range(self.flows)]
        whole = sum(bool(end["intact"] and end["clean"]) for end in ends)
        samples: list[dict[str, Any]] = seen["samples"]
        return _Run(
            times_s=np.array([one["times_ns"] for one in samples], np.float64) / 1e9,
            acked_bytes=np.array([one["acked_bytes"] for one in samples], np.float64),
            rtts_ms=np.array([one["rtts_us"] for one in samples], np.float64) / 1e3,
            wrapped=np.array([one["wrapped"] for one in samples]),
            late_s=float(seen["late_s"]),
            lost=max(int(seen["lost"]), self.flows - whole),
        )

    def _start(self, cc: str, rate_mbit: float, mrtt_ms: float) -> tuple[Child, Child]:
        plan = {
            "cgroup": str(self.cgroup), "cc": cc, "flows": self.flows, "rate_mbit": rate_mbit,
            "buffer_bytes": BUFFER_BYTES,
        }  # fmt: skip
        script = str(Path(__file__).with_name("senders.py"))
        sender = self._namespace.spawn([sys.executable, "-IS", script, json.dumps(plan)], "senders", privileged=True)
        port = str(sender.wait_for("listening")["port"])
        receive = [f"{BIN}/reinet-receiver", port, str(self.flows)]
        command = ["env", "--ignore-environment", f"PATH={SYSTEM_PATH}", "mm-delay", str(round(mrtt_ms / 2)), *receive]
        shell = self._namespace.spawn(command, "Mahimahi", privileged=False)
        for child in (sender, shell):  # they stand for a network, which does not slow down when a process starts
            weigh(child.process.pid, NETWORK_NICENESS)
        sender.wait_for("sending", beside=shell)
        return sender, shell

    def __enter__(self) -> "_Senders":
        return self

    def __exit__(self, *_: object) -> None:
        self._namespace.close()
