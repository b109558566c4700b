"""Hindsight: the cap that would have been right, had one known what the link was about to carry.

A simulator knows it. In the minimum RTT and a little more, the link will have so many opportunities; a window of as
many packets keeps it busy and leaves hardly a queue. A network that sees only what a sender sees cannot know that
number, but it can learn its distribution: trained on the pinball loss of a quantile q (Koenker and Bassett 1978), it
gives the window that suffices in a share q of such moments. On a steady link that is the very number, on an unsteady
one more: how much more is what q says, as in Sprout's forecasts (Winstein et al. 2013), here learned. Learning from
one's privileged self is Chen et al. 2020, "Learning by cheating".

A quantile asks how often a window is too large, not for how long: what is in flight when an outage begins waits for all
of it. With ``waits`` the price of a packet too many rises with the time that it would wait, a sum of such losses.

Nor is a packet too many as dear everywhere. Whoever asks for less delay pays more for it, and so does a long path, on
which one quantile for all leaves as long a queue as the hand rule does (``dearness``).

It is supervised, so it takes a minute and hardly differs between seeds; policy gradients start from there.
"""

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import FloatArray
from reinet.agents.learn.config import HindsightSection
from reinet.core import actions_from_caps
from reinet.core.rewards import delay_rooms_us
from reinet.envs.sim import SimBatch

REFERENCE_RTT_MS = 20.0
REFERENCE_ROOM_MS = 30.0
REFERENCE_ROOM_RTTS = 1.5
"""DeepCC's evaluation, a target of 50 ms on a path of 20: there ``quantile`` means what it says."""
MOST_DEAR, LEAST_DEAR = 5.0, 0.2
"""A packet too many costs so many times the usual at most, and at least: beyond that a target asks for what no quantile
gives."""


def teach(sim: SimBatch, section: HindsightSection, head: str) -> FloatArray:
    """Returns (N, K + 1) after the latest records of N links: the actions in [-1, 1] that hindsight would take, one for
    each of ``section.shares``, and last how dear a packet too many is. Above action k, what is too much waits for
    longer than that share of the room.
    """
    min_rtts_ms, rooms_ms = sim.stats["min_rtt_us"] / 1000, delay_rooms_us(sim.stats) / 1000
    waits_ms = [share * rooms_ms for share in section.shares]
    waits_ms[0] = np.minimum(waits_ms[0], section.most_room_ms)
    columns = []
    for wait_ms in waits_ms:
        caps_pkts = sim.clairvoyant_caps(np.rint(wait_ms).astype(np.uint64))
        columns.append(actions_from_caps(head, caps_pkts, sim.stats["cwnd_pkts"], sim.rule_pkts))
    return np.stack([*columns, dearness(min_rtts_ms, rooms_ms, section)], axis=1)


def dearness(min_rtts_ms: NDArray[np.float64], rooms_ms: NDArray[np.float64], section: HindsightSection) -> FloatArray:
    """Returns by how much a packet too many is dearer than usual on paths (N,) whose target leaves ``rooms_ms``.

    It is 1 on a path of ``REFERENCE_RTT_MS`` or less whose target leaves ``REFERENCE_ROOM_MS``, or up to 1.5 minimum
    RTTs where those are more (2.5x); above it falls and below it rises with the power ``room_power`` of the room. A
    longer path has (its minimum RTT, or the room if that is less, / REFERENCE_RTT_MS) ^ ``path_power`` of it.
    """
    usual_ms = np.maximum(REFERENCE_ROOM_MS, np.minimum(REFERENCE_ROOM_RTTS * min_rtts_ms, rooms_ms))
    longer = np.maximum(np.minimum(min_rtts_ms, rooms_ms) / REFERENCE_RTT_MS, 1.0)
    dear = (usual_ms / rooms_ms) ** section.room_power * longer**section.path_power
    return np.clip(dear, LEAST_DEAR, MOST_DEAR).astype(np.float32)


def prices(section: HindsightSection) -> NDArray[np.float32]:
    """Returns by how much the price of a larger action rises at each of ``teach``'s (K,): at the first from 0."""
    steps = section.wait_price * np.diff(section.shares, prepend=0.0)
    steps[0] += 1.0
    return ((1.0 - section.quantile) * steps).astype(np.float32)
