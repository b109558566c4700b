"""What the gate costs a machine that sends: busy time under it over busy time without, in turn.

Each arm has flows of its own, through a bottleneck each and over Mahimahi's delay, from one process that was started
with the preload or without. In the busy time are sender, receiver and path; the own CPU time is the sending process'.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reinet.alcc.launch import Law, Settings
from reinet.core.target import Target
from reinet.daemon.benches import busy
from reinet.daemon.benches.sending import Run

TARGET = Target.parse("+30ms")
"""As the daemon's default is."""


@dataclass(frozen=True)
class GateCost(busy.Paired):
    """One law's figures over one crowd, the gate's over plain's; shares are percent of one core, medians over pairs."""

    law: str
    flows: int
    rate_mbps: float
    cc: str
    seconds: float
    """Each arm of a pair was measured for so long."""
    plain_rtt_mean_ms: float
    capped_rtt_mean_ms: float
    """Smoothed round trips: without a gap between both the gate did not bind."""


def measure(law: Law, flows: int, rate_mbps: float, pairs: int, seconds: float) -> GateCost:
    """Returns what the gate costs such a crowd; needs root and Mahimahi. Raises LinkError and DaemonError."""
    idle_before = busy.idle_share(seconds)
    arms: dict[bool, list[tuple[busy.Window, Run]]] = {False: [], True: []}
    for gated in busy.arms_in_turn(pairs):
        variables = Settings(law=law, target=TARGET).variables() if gated else None
        with busy.crowd(flows, rate_mbps, variables) as path:
            path.wait(busy.SETTLE_S)
            arms[gated].append((busy.window(path, seconds, (path.cgroup,)), path.end()))
    plain, capped = ([(took, run.total_rate(*took.span_s)) for took, run in arms[arm]] for arm in (False, True))
    rtt_ms = {arm: float(np.median([run.rtt_mean_ms(*took.span_s) for took, run in arms[arm]])) for arm in arms}
    return GateCost(
        **busy.paired(plain, capped, (idle_before, busy.idle_share(seconds))),
        law=law.name,
        flows=flows,
        rate_mbps=rate_mbps,
        cc=busy.CC,
        seconds=seconds,
        plain_rtt_mean_ms=rtt_ms[False],
        capped_rtt_mean_ms=rtt_ms[True],
    )


def measure_all(law: Law, pairs: int, seconds: float, say: Callable[[str], None]) -> list[GateCost]:
    """Returns the figures of every crowd."""
    rows = []
    for flows, rate_mbps in busy.CROWDS:
        say(f"{law.name}: {flows} flows of {rate_mbps:g} Mbit/s, {pairs} pairs")
        rows.append(measure(law, flows, rate_mbps, pairs, seconds))
    return rows
