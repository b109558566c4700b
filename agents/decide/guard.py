"""The last check before a cap reaches a socket. What fails it stays uncapped: the kernel's own control is always safe.

One verdict needs care. A target below 1.1 x the path's minimum RTT cannot be kept, and the flow stays uncapped; but a
flow that began on a slow or stalled link has never seen its path without a queue, and uncapped it never will. So before
that verdict, and again every PROBE_INTERVAL_S, such a flow is held at the floor for the few periods that its queue
needs to drain (the idea of BBR's PROBE_RTT); what the kernel then calls its minimum RTT counts.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import CapArray, StatsArray
from reinet.core import MAX_CAP_PKTS, MIN_CAP_PKTS
from reinet.core.state import LEAST_TARGET_PER_RTT

INVALID_CAP_PKTS = 0xFFFF_FFFF
"""An agent returns this for a flow for which it computed no number at all (NaN or infinity)."""
PROBE_INTERVAL_S = 60.0
"""The time between two looks at a flow whose target is out of reach; at four periods each they cost below 1 %."""
PROBE_DRAINED_PERIODS = 2
"""A probe needs so many periods that end with the floor in flight, or less: the second met an empty queue."""
PROBE_MAX_PERIODS = 16
"""A queue that has not drained by then is not this flow's."""
_UNKNOWN_RTT_US = 0xFFFF_FFFF  # tcp_min_rtt() before the first sample


@dataclass
class _Probe:
    """The state of the look at one flow's minimum RTT."""

    periods: int = 0
    drained: int = 0
    ended_ns: int | None = None


class Guard:
    """``guard`` with a memory: looks for the true minimum RTT before it calls a flow's target out of reach."""

    def __init__(self, ceiling_pkts: int = MAX_CAP_PKTS) -> None:
        self._ceiling_pkts = ceiling_pkts
        self._probes: dict[int, _Probe] = {}  # by cookie; only flows whose target is out of reach so far

    def forget(self, cookies: Iterable[int]) -> None:
        """Drops what is known of flows that ended."""
        for cookie in cookies:
            self._probes.pop(int(cookie), None)

    def check(self, stats: StatsArray, caps_pkts: CapArray) -> tuple[CapArray, list[str | None]]:
        """Returns what ``guard`` does, for one record per flow; a flow under probe gets the floor and no reason."""
        caps, reasons = guard(stats, caps_pkts, self._ceiling_pkts)
        out_of_reach = _too_tight(stats) & (stats["target_us"] > 0) & ~_unmeasured(stats)
        if self._probes:
            self.forget(stats["cookie"][~out_of_reach])
        for row in np.flatnonzero(out_of_reach & (np.asarray(caps_pkts) != 0)):
            if self._probing(stats[row]):
                caps[row], reasons[row] = MIN_CAP_PKTS, None
        return caps, reasons

    def _probing(self, record: Any) -> bool:
        probe = self._probes.setdefault(int(record["cookie"]), _Probe())
        now_ns = int(record["time_ns"])
        if probe.ended_ns is not None:
            if now_ns - probe.ended_ns < PROBE_INTERVAL_S * 1e9:
                return False
            probe = self._probes[int(record["cookie"])] = _Probe()
        # The first record says what was in flight before the probe's cap.
        probe.drained += probe.periods > 0 and int(record["inflight_pkts"]) <= MIN_CAP_PKTS
        probe.periods += 1
        if probe.drained < PROBE_DRAINED_PERIODS and probe.periods <= PROBE_MAX_PERIODS:
            return True
        probe.ended_ns = now_ns
        return False


def guard(
    stats: StatsArray, caps_pkts: CapArray, ceiling_pkts: int = MAX_CAP_PKTS
) -> tuple[CapArray, list[str | None]]:
    """Returns caps that may be applied (N,), and per flow the reason it must stay uncapped, None = nothing is wrong.

    stats is FLOW_STATS_DTYPE (N,), caps_pkts (N,) as an agent returned them, 0 = no cap.
    """
    caps = np.array(caps_pkts, np.uint32)
    reasons: list[str | None] = [None] * len(caps)
    min_rtt_us, target_us = stats["min_rtt_us"], stats["target_us"]
    unmeasured, too_tight = _unmeasured(stats), _too_tight(stats)
    bad_cap = (caps != 0) & ((caps < MIN_CAP_PKTS) | (caps > ceiling_pkts))
    refused = unmeasured | too_tight | bad_cap
    for row in np.flatnonzero(refused):
        if unmeasured[row]:
            reasons[row] = "no RTT measured yet: flow stays uncapped until the first sample"
        elif target_us[row] == 0:
            reasons[row] = "no target delay is set: flow stays uncapped; set one (target)"
        elif too_tight[row]:
            reasons[row] = target_too_tight(int(target_us[row]), int(min_rtt_us[row]))
        elif caps[row] == INVALID_CAP_PKTS:
            reasons[row] = "the model's output was not a finite number: flow stays uncapped; replace the model"
        else:
            reasons[row] = (
                f"a cap of {caps[row]} packets is outside [{MIN_CAP_PKTS}, {ceiling_pkts}]: flow stays uncapped; "
                "check the agent or raise the ceiling"
            )
    caps[refused] = 0
    return caps, reasons


def _unmeasured(stats: StatsArray) -> NDArray[np.bool_]:
    min_rtt_us = stats["min_rtt_us"]
    return np.asarray((min_rtt_us == 0) | (min_rtt_us == _UNKNOWN_RTT_US), np.bool_)


def _too_tight(stats: StatsArray) -> NDArray[np.bool_]:
    target_us, min_rtt_us = stats["target_us"].astype(np.float64), stats["min_rtt_us"].astype(np.float64)
    return np.asarray(target_us < LEAST_TARGET_PER_RTT * min_rtt_us, np.bool_)


def target_too_tight(target_us: int, min_rtt_us: int) -> str:
    """Returns why a flow with this target stays uncapped, and what target would do."""
    least_ms = math.ceil(LEAST_TARGET_PER_RTT * min_rtt_us / 100) / 10  # rounded up, so that doing as told is enough
    return (
        f"target {target_us / 1e3:.1f} ms is below {LEAST_TARGET_PER_RTT} x the path's minimum RTT "
        f"({min_rtt_us / 1e3:.1f} ms): flow stays uncapped; raise the target above {least_ms:.1f} ms "
        f"(+{least_ms - min_rtt_us / 1e3:.1f}ms)"
    )
