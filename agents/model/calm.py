"""Calm: a cap follows the network's wish within round trips of the path, not from one decision to the next.

With a decision every 5 ms a path of 100 ms has twenty of them in a round trip. The network's wishes scatter from one to
the next, and each low one costs more than the high one after it can mend: what is in flight above a cap stops the
sender, and from a cap the window comes back only as slow start lets it, by twice in a round trip. So the longer the
path, the slower the cap moves; on one of 20 ms it hardly lags (measured in docs/training.md).

It has no memory of its own: the cap in force is in each record, and that is a whole number of packets. So that small
steps add up, the fraction is rounded up as often as it says, by a number that the record's time gives: the same for the
same record.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.core import MAX_CAP_PKTS, MIN_CAP_PKTS

CapArray = NDArray[np.uint32]

_SPREAD = 2_654_435_761
"""Knuth's multiplicative hash, 2^32 over the golden ratio: neighbouring times give numbers that lie far apart."""


def calmed(caps_pkts: CapArray, stats: NDArray[Any], calm_rtts: float, ceiling_pkts: int = MAX_CAP_PKTS) -> CapArray:
    """Returns the caps (N,) on their way from those in force to ``caps_pkts``, 1 - 1 / e of it in so many minimum RTTs.

    ``stats`` has the flows' records, FLOW_STATS_DTYPE (N,).

    The way is measured in logarithms: half and twice are equally far. A flow without a cap in force, and one for which
    none is wanted (0), gets what is wanted; so do all where ``calm_rtts`` is 0.
    """
    in_force_pkts = stats["cap_pkts"]
    moving = np.asarray((caps_pkts != 0) & (in_force_pkts != 0))
    if not calm_rtts or not moving.any():
        return caps_pkts
    some = stats[moving]
    periods = some["period_ns"].astype(np.float64) / 1e3 / np.maximum(some["min_rtt_us"], 1)
    stays = np.exp(-periods / calm_rtts)
    was, wanted = np.log(in_force_pkts[moving].astype(np.float64)), np.log(caps_pkts[moving].astype(np.float64))
    pkts = np.floor(np.exp(stays * was + (1.0 - stays) * wanted) + _fractions(some["time_ns"]))
    calm_pkts: CapArray = caps_pkts.copy()
    calm_pkts[moving] = np.clip(pkts, MIN_CAP_PKTS, max(ceiling_pkts, MIN_CAP_PKTS)).astype(np.uint32)
    return calm_pkts


def _fractions(time_ns: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Returns numbers in [0, 1), evenly spread over the times (N,)."""
    hashed = (time_ns // np.uint64(1000) * np.uint64(_SPREAD)) & np.uint64(0xFFFF_FFFF)
    return np.asarray(hashed.astype(np.float64) / 2.0**32)
