"""How many delivery opportunities a looping trace has had: ``Schedule::count_until`` (C++) counts in the same way."""

import math

import numpy as np
import numpy.typing as npt


def opportunities_until(
    times_ms: npt.NDArray[np.integer], until_ms: npt.ArrayLike, *, closed: bool
) -> npt.NDArray[np.int64]:
    """Returns how many opportunities of a looping trace lie in [0, until], or in [0, until) if not ``closed``.

    ``times_ms`` are those of one loop, whose length is the last. ``until_ms`` are times from the trace's first start,
    not below 0, whole or not, of any shape, which the result has too. What falls on a loop's end belongs to that loop,
    and comes at the same time as the next one's opportunities at 0.
    """
    loop_ms = float(times_ms[-1])
    loops, within_ms = np.divmod(np.asarray(until_ms, np.float64), loop_ms)
    if not closed:  # what falls on a loop's end is not before it
        at_the_seam = (within_ms == 0) & (loops > 0)
        loops, within_ms = loops - at_the_seam, np.where(at_the_seam, loop_ms, within_ms)
    inside = np.searchsorted(times_ms, within_ms, side="right" if closed else "left")
    return np.asarray(loops * len(times_ms) + inside, np.int64)


def next_opportunity_ms(times_ms: npt.NDArray[np.integer], from_ms: float) -> float:
    """Returns when a looping trace has its first opportunity at ``from_ms`` or after it, in ms from its first start."""
    loop_ms = float(times_ms[-1])
    loops, within_ms = divmod(from_ms, loop_ms)
    if within_ms == 0 and loops:
        return from_ms  # a loop's end is its last opportunity
    at_ms = times_ms.dtype.type(math.ceil(within_ms))  # of another type, numpy would convert all of the trace for it
    return loops * loop_ms + float(times_ms[np.searchsorted(times_ms, at_ms)])


def data_leaves_ms(
    times_ms: npt.NDArray[np.integer],
    begin_ms: float,
    mrtt_ms: float,
    uplink_ms: npt.NDArray[np.integer] | None = None,
) -> float:
    """Returns before when no data of a flow leaves a looping trace's link, where the flow begins at ``begin_ms``.

    The answer to the SYN goes over the link first, and what that brings about once round the path: over the uplink,
    where that has a trace (``uplink_ms``, of the same clock), and to the link again.
    """
    answered_ms = next_opportunity_ms(times_ms, begin_ms)
    if uplink_ms is not None:
        answered_ms = next_opportunity_ms(uplink_ms, answered_ms)
    return next_opportunity_ms(times_ms, answered_ms + mrtt_ms)


def opportunities_between(times_ms: npt.NDArray[np.integer], start_ms: float, end_ms: float) -> int:
    """Returns how many opportunities of a looping trace lie in [start, end); before time 0 there is none."""
    first, last = opportunities_until(times_ms, [max(start_ms, 0.0), max(end_ms, 0.0)], closed=False)
    return int(last - first)
