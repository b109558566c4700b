"""Hindsight: the cap that would have been right, had one known what the link was about to carry.

A simulator knows it. In the minimum RTT and a little more, the link will have so many opportunities; a window of as
many packets keeps it busy and leaves hardly a queue. A network that sees only what a sender sees cannot know that
number, but it can learn its distribution: trained on the pinball loss of a quantile q (Koenker and Bassett 1978), it
gives the window that suffices in a share q of such moments. On a steady link that is the very number, on an unsteady
one more: how much more is what q says, as in Sprout's forecasts (Winstein et al. 2013), here learned. Learning from
one's privileged self is Chen et al. 2020, "Learning by cheating".

A quantile asks how often a window is too large, not for how long: what is in flight when an outage begins waits for all
of it. With ``waits`` the price of a packet too many rises with the time that it would wait, a sum of such losses.

It is supervised, so it takes a minute and hardly differs between seeds; policy gradients start from there.
"""

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import FloatArray
from reinet.agents.learn.config import HindsightSection
from reinet.core import actions_from_caps
from reinet.core.rewards import delay_rooms_us
from reinet.envs.sim import SimBatch


def teach(sim: SimBatch, section: HindsightSection, head: str) -> FloatArray:
    """Returns the actions (N, K) in [-1, 1] that hindsight would take after the latest records of N links, one for
    each of ``section.shares``: above action k, what is too much waits for longer than that share of the room.
    """
    rooms_ms = delay_rooms_us(sim.stats) / 1000
    columns = []
    for share in section.shares:
        caps_pkts = sim.clairvoyant_caps(np.rint(share * rooms_ms).astype(np.uint64))
        columns.append(actions_from_caps(head, caps_pkts, sim.stats["cwnd_pkts"], sim.rule_pkts))
    return np.stack(columns, axis=1)


def prices(section: HindsightSection) -> NDArray[np.float32]:
    """Returns by how much the price of a larger action rises at each of ``teach``'s (K,): at the first from 0."""
    steps = section.wait_price * np.diff(section.shares, prepend=0.0)
    steps[0] += 1.0
    return ((1.0 - section.quantile) * steps).astype(np.float32)
