"""What the queue behind a wired link could carry: of two links in a row, the smaller one is the path's capacity."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from reinet.core import OPPORTUNITY_BYTES


def carried_bytes(
    opportunity_ms: npt.NDArray[np.float64],
    wired_mbps: Sequence[tuple[float, float]],
    start_ms: float,
    buffer_bytes: float,
) -> npt.NDArray[np.int64]:
    """Returns what each opportunity would carry of a sender that keeps the wired link busy from ``start_ms`` on.

    That is up to a packet of what the wired link (``LinkSpec.wired_mbps``) has brought by then and the queue, which
    holds ``buffer_bytes`` and the packet being sent, has room for. So a stretch in which the wired link is the slower
    one offers what that one lets through, and no path's utilisation is above 1.
    """
    came = np.diff(_brought_bytes(opportunity_ms, wired_mbps, start_ms), prepend=0.0)
    most_bytes = buffer_bytes + OPPORTUNITY_BYTES
    held_bytes, carried = 0.0, []
    for new_bytes in came.tolist():
        held_bytes = min(held_bytes + new_bytes, most_bytes)
        carried.append(min(int(held_bytes), OPPORTUNITY_BYTES))
        held_bytes -= carried[-1]
    return np.array(carried, np.int64)


def longest_pause_ms(wired_mbps: Sequence[tuple[float, float]]) -> float:
    """Returns for how long a wired link lets nothing through at most; 0 where it always does, or there is none."""
    longest_ms, since_ms = 0.0, None
    for at_ms, mbps in wired_mbps:  # the last rate is above 0
        if mbps > 0:
            longest_ms, since_ms = max(longest_ms, at_ms - (at_ms if since_ms is None else since_ms)), None
        elif since_ms is None:
            since_ms = at_ms
    return longest_ms


def _brought_bytes(
    at_ms: npt.NDArray[np.float64], wired_mbps: Sequence[tuple[float, float]], start_ms: float
) -> npt.NDArray[np.float64]:
    """Returns how much a busy wired link has let through from its start to each of these times."""
    times_ms = [start_ms + from_ms for from_ms, _ in wired_mbps]
    by_then = [0.0]
    for (step_ms, mbps), (next_ms, _) in pairwise(wired_mbps):
        by_then.append(by_then[-1] + (next_ms - step_ms) * mbps * 125)  # 1 Mbit/s is 125 bytes a millisecond
    step = np.searchsorted(times_ms, at_ms, side="right") - 1
    rates = np.array([mbps for _, mbps in wired_mbps]) * 125
    return np.asarray(np.array(by_then)[step] + (at_ms - np.array(times_ms)[step]) * rates[step], np.float64)
