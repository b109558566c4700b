"""The last check before a cap reaches a socket. What fails it stays uncapped: the kernel's own control is always safe.

One verdict needs care. A target below 1.1 x the path's minimum RTT cannot be kept, and the flow stays uncapped; but
what is known of the minimum may be a queue, the flow's own or that of others that were there before. So long flows that
keep a queue are held back together now and then (``MinRttLook``), until they see their path; a young or short one never.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.min_rtt import MinRttLook
from reinet.agents.decide.protocol import CapArray, StatsArray
from reinet.core import MAX_CAP_PKTS, MIN_CAP_PKTS
from reinet.core.state import LEAST_TARGET_PER_RTT
from reinet.core.target import UNKNOWN_RTT_US

INVALID_CAP_PKTS = 0xFFFF_FFFF
"""An agent returns this for a flow for which it computed no number at all (NaN or infinity)."""


class Guard:
    """``guard`` with a memory: looks for the true minimum RTT of long flows behind a queue that does not drain."""

    def __init__(self, ceiling_pkts: int = MAX_CAP_PKTS) -> None:
        self._ceiling_pkts = ceiling_pkts
        self._look = MinRttLook()

    def forget(self, cookies: Iterable[int]) -> None:
        """Drops what is known of flows that ended."""
        self._look.forget(cookies)

    def check(self, stats: StatsArray, caps_pkts: CapArray) -> tuple[CapArray, list[str | None]]:
        """Returns what ``guard`` does, for one record per flow; a flow that is looked at gets less, and no reason."""
        caps, reasons = guard(stats, caps_pkts, self._ceiling_pkts)
        out_of_reach = _too_tight(stats) & (stats["target_us"] > 0) & ~_unmeasured(stats)
        held_pkts = self._look.hold_pkts(stats, out_of_reach, np.asarray(caps_pkts) != 0)
        for row in np.flatnonzero(held_pkts):
            caps[row], reasons[row] = min(held_pkts[row], caps[row] or MAX_CAP_PKTS), None
        return caps, reasons


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
    return np.asarray((min_rtt_us == 0) | (min_rtt_us == UNKNOWN_RTT_US), np.bool_)


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
