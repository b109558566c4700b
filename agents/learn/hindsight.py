"""Hindsight: the cap that would have been right, had one known what the link was about to carry.

A simulator knows it. In the minimum RTT and a little more, the link will have so many opportunities; a window of as
many packets keeps it busy and leaves hardly a queue. A network that sees only what a sender sees cannot know that
number, but it can learn its distribution: trained on the pinball loss of a quantile q (Koenker and Bassett 1978), it
gives the window that suffices in a share q of such moments. On a steady link that is the very number, on an unsteady
one more: how much more is what q says, as in Sprout's forecasts (Winstein et al. 2013), here learned. Learning from
one's privileged self is Chen et al. 2020, "Learning by cheating".

It is supervised, so it takes a minute and hardly differs between seeds; policy gradients start from there.
"""

import numpy as np

from reinet.agents.decide.protocol import FloatArray
from reinet.agents.learn.config import HindsightSection
from reinet.core import actions_from_caps
from reinet.core.rewards import delay_rooms_us
from reinet.envs.sim import SimBatch


def teach(sim: SimBatch, section: HindsightSection, head: str) -> FloatArray:
    """Returns the action (N,) in [-1, 1] that hindsight would take after the latest records of N links."""
    horizons_ms = np.rint(section.room_share * delay_rooms_us(sim.stats) / 1000).astype(np.uint64)
    caps_pkts = sim.clairvoyant_caps(horizons_ms)
    return actions_from_caps(head, caps_pkts, sim.stats["cwnd_pkts"], sim.rule_pkts)
