"""The last check before a cap reaches a socket. What fails it stays uncapped: the kernel's own control is always safe.

One verdict needs care. A target below 1.1 x the path's minimum RTT cannot be kept, and the flow stays uncapped; but
what is known of the minimum may be a queue, the flow's own or that of others that were there before. So long flows
that keep a queue are held back together now and then (``MinRttLook``), until they see their path; short ones never are.

And a queue that no cap shortens is that of others: beside them a capped flow would give its share away
(``OthersQueues``).
"""

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.min_rtt import MinRttLook
from reinet.agents.decide.protocol import CapArray, StatsArray
from reinet.agents.decide.verdicts import Codes, Why
from reinet.core import MAX_CAP_PKTS, MIN_CAP_PKTS
from reinet.core.state import LEAST_TARGET_PER_RTT, OthersQueues
from reinet.core.target import UNKNOWN_RTT_US

INVALID_CAP_PKTS = 0xFFFF_FFFF
"""An agent returns this for a flow for which it computed no number at all (NaN or infinity)."""

_TOO_TIGHT = int(Why.TOO_TIGHT)
MOST_RISE = 4.0
"""A window at most doubles in a round trip (slow start), so a cap that rises faster than by 4 in one decision allows
nothing that the flow could use before the next one; what would be let loose is a mistake."""
MOST_FALL = 16.0
"""The whole span of the widest head in one decision, from 4 to 1/4 of the rule's product: no model falls further unless
the product itself collapsed too. From the paper's ceiling to its floor a cap needs four decisions. Simulated, 24 runs
of 30 s (six drawn links, Cubic and BBR, 20 and 80 ms, +30ms), neither bound moves a cap of ``default``, ``per-rtt`` or
the rule; a rise of 2 or a fall of 4 at most moves up to 0.6 % of the caps, and up to six of the 24 runs with them."""


class Guard:
    """``guard`` with a memory: looks for the true minimum RTT of long flows behind a queue that does not drain."""

    def __init__(self, ceiling_pkts: int = MAX_CAP_PKTS, bounds_steps: bool = False) -> None:
        """Makes a guard; ``bounds_steps`` keeps each cap near the one in force, as the daemon wants it.

        Evaluations do without: there a fixed or a random cap is to be what it says.
        """
        self._ceiling_pkts = ceiling_pkts
        self._bounds_steps = bounds_steps
        self._look = MinRttLook()
        self._others = OthersQueues()

    def forget(self, slots: NDArray[np.intp], cookies: NDArray[np.uint64]) -> None:
        """Drops what is known of flows that ended."""
        self._look.forget(slots, cookies)
        self._others.forget(slots, cookies)

    def check(self, stats: StatsArray, caps_pkts: CapArray, aims_at_target: bool = False) -> tuple[CapArray, Codes]:
        """Returns what ``guard`` does, for one record per flow; a flow that is looked at gets less, and no reason.

        With ``aims_at_target`` flows are left alone that wait in a queue of others.
        """
        caps, codes = guard(stats, caps_pkts, self._ceiling_pkts)
        if self._bounds_steps:
            caps = bound_step(stats, caps)
        wanted = np.asarray(caps_pkts) != 0
        if aims_at_target and (alone := self._others.stand(stats)).any():
            codes[alone & (caps != 0)] = Why.OTHERS_QUEUE
            caps[alone] = 0
            wanted &= ~alone
        held_pkts = self._look.hold_pkts(stats, codes == _TOO_TIGHT, wanted)
        held = held_pkts != 0
        caps[held] = np.minimum(held_pkts, np.where(caps != 0, caps, MAX_CAP_PKTS))[held]
        codes[held] = Why.CAPPED
        return caps, codes


def guard(stats: StatsArray, caps_pkts: CapArray, ceiling_pkts: int = MAX_CAP_PKTS) -> tuple[CapArray, Codes]:
    """Returns caps that may be applied (N,), and per flow the ``Why`` of its refusal, 0 = nothing is wrong.

    stats is FLOW_STATS_DTYPE (N,), caps_pkts (N,) as an agent returned them, 0 = no cap.
    """
    caps = np.array(caps_pkts, np.uint32)
    codes = np.zeros(len(caps), np.uint8)
    min_rtt_us, target_us = stats["min_rtt_us"], stats["target_us"]
    unmeasured = (min_rtt_us == 0) | (min_rtt_us == UNKNOWN_RTT_US)
    too_tight = target_us < LEAST_TARGET_PER_RTT * min_rtt_us.astype(np.float64)
    bad_cap = (caps != 0) & ((caps < MIN_CAP_PKTS) | (caps > ceiling_pkts))
    refused = unmeasured | too_tight | bad_cap
    if refused.any():  # what weighs more comes later
        codes[bad_cap] = Why.OUT_OF_RANGE
        codes[caps == INVALID_CAP_PKTS] = Why.NOT_FINITE
        codes[too_tight] = Why.TOO_TIGHT
        codes[too_tight & (target_us == 0)] = Why.NO_TARGET
        codes[unmeasured] = Why.UNMEASURED
        caps[refused] = 0
    return caps, codes


def bound_step(stats: StatsArray, caps_pkts: CapArray) -> CapArray:
    """Returns caps (N,) that are no further from what is in force than MOST_RISE and MOST_FALL let them; 0 stays 0."""
    cwnd_pkts = stats["cwnd_pkts"].astype(np.float64)
    in_force_pkts = np.where(stats["cap_pkts"] != 0, stats["cap_pkts"], cwnd_pkts)
    low_pkts = np.maximum(np.ceil(in_force_pkts / MOST_FALL), MIN_CAP_PKTS)
    high_pkts = np.maximum(np.maximum(in_force_pkts, cwnd_pkts), MIN_CAP_PKTS) * MOST_RISE
    return np.where(caps_pkts == 0, 0, np.clip(caps_pkts, low_pkts, high_pkts)).astype(np.uint32)
