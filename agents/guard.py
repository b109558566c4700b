"""The last check before a cap reaches a socket. What fails it stays uncapped: the kernel's own control is always
safe."""

import math

import numpy as np
from reinet.agents.baselines import CEILING_PKTS, FLOOR_PKTS, CapArray, StatsArray

TARGET_MARGIN = 1.1
"""A target below this multiple of the path's minimum RTT asks for a queue that cannot be kept: windows collapse."""
INVALID_CAP_PKTS = 0xFFFF_FFFF
"""What an agent returns for a flow for which it computed no number at all (NaN or infinity)."""
_UNKNOWN_RTT_US = 0xFFFF_FFFF  # tcp_min_rtt() before the first sample


def guard(
    stats: StatsArray, caps_pkts: CapArray, ceiling_pkts: int = CEILING_PKTS
) -> tuple[CapArray, list[str | None]]:
    """Caps that may be applied (N,), and per flow the reason it must stay uncapped, None = nothing wrong.

    stats FLOW_STATS_DTYPE[N], caps_pkts (N,) as an agent returned them, 0 = no cap.
    """
    caps = np.array(caps_pkts, np.uint32)
    reasons: list[str | None] = [None] * len(caps)
    min_rtt_us = stats["min_rtt_us"].astype(np.int64)
    target_us = stats["target_us"].astype(np.int64)
    unmeasured = (min_rtt_us == 0) | (min_rtt_us == _UNKNOWN_RTT_US)
    too_tight = target_us < TARGET_MARGIN * min_rtt_us
    bad_cap = (caps != 0) & ((caps < FLOOR_PKTS) | (caps > ceiling_pkts))
    refused = unmeasured | too_tight | bad_cap
    for row in np.flatnonzero(refused):
        if unmeasured[row]:
            reasons[row] = "no RTT measured yet: flow stays uncapped until the first sample"
        elif target_us[row] == 0:
            reasons[row] = "no target delay is set: flow stays uncapped; set one (target_ms)"
        elif too_tight[row]:
            reasons[row] = target_too_tight(int(target_us[row]), int(min_rtt_us[row]))
        elif caps[row] == INVALID_CAP_PKTS:
            reasons[row] = "the model's output was not a finite number: flow stays uncapped; replace the model"
        else:
            reasons[row] = (
                f"a cap of {caps[row]} packets is outside [{FLOOR_PKTS}, {ceiling_pkts}]: flow stays uncapped; "
                "check the agent or raise the ceiling"
            )
    caps[refused] = 0
    return caps, reasons


def target_too_tight(target_us: int, min_rtt_us: int) -> str:
    """Why a flow with this target stays uncapped, and what target would do."""
    least_ms = math.ceil(TARGET_MARGIN * min_rtt_us / 100) / 10  # rounded up, so that doing as told is enough
    return (
        f"target {target_us / 1e3:.1f} ms is below {TARGET_MARGIN} x the path's minimum RTT "
        f"({min_rtt_us / 1e3:.1f} ms): flow stays uncapped; raise the target above {least_ms:.1f} ms"
    )
