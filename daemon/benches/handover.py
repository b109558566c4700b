"""A daemon is stopped, or killed, and started again while its flows send: what that costs them.

Every flow has a bottleneck of its own, so that its rate is the link's as long as its queue never runs dry, and every
loss of throughput is the switch's. The path's delay is Mahimahi's. A second run, with no daemon at all, says what the
queue and the host's own timing are without one, of flows of the same age.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reinet.daemon.benches.sending import Run, Senders
from reinet.daemon.benches.served import ServedDaemon

SETTLE_S = 8.0
"""Slow start and BBR's STARTUP are over, gates are open and caps have drained the queues."""
BEFORE_S = 5.0
"""A flow's usual throughput is its mean over so long before the switch."""
SWITCH_S = 1.0
AFTER_S = 4.0


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


def measure(
    cc: str, flows: int, how: str = "stop", model: str = "rule", rate_mbps: float = 1.0, mrtt_ms: float = 20.0
) -> Handover:
    """Returns what a restart costs; ``how`` the old daemon ends: stop or kill. Raises LinkError and DaemonError."""
    with tempfile.TemporaryDirectory() as name, Senders(cc, flows, rate_mbps, mrtt_ms) as senders:
        folder = Path(name)
        with ServedDaemon(folder, senders.cgroup, model) as daemon:
            senders.wait(SETTLE_S)
            _, capped = daemon.flows()
            switch_s = daemon.end(how)
            with ServedDaemon(folder, senders.cgroup, model):
                started_s = senders.wait(AFTER_S)
                run = senders.end()
    begun_s = float(run.times_s[0, 0])
    with Senders(cc, flows, rate_mbps, mrtt_ms) as senders:
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


def _ratios(run: Run, switch_s: float, at_s: float) -> NDArray[np.float64]:
    return run.rate(at_s, at_s + SWITCH_S) / run.rate(switch_s - BEFORE_S, switch_s)


def _within(ratios: NDArray[np.float64]) -> float:
    return float((np.abs(ratios - 1) <= 0.05).mean())
