"""Whether a run can be believed: the host must not have lagged, nor the flow stalled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reinet.envs.link.metrics import LinkLog, Metrics
from reinet.envs.link.stalls import why_stalled
from reinet.envs.trace.counting import opportunities_between

LATE_SHARE = 0.001
LATE_ONCE_US = 50_000
LOGGED_SHARE = 0.98
"""The thresholds of a valid run, which README.md states; that of a stall is the same on every link."""


@dataclass(frozen=True)
class Sleeper:
    """The host as the 1 ms sleeper beside a run saw it."""

    wakes: int
    late_5ms: int
    max_late_us: int


def judge(
    log: LinkLog,
    metrics: Metrics,
    opportunities_ms: npt.NDArray[np.int64],
    start_ms: float,
    end_ms: float,
    sleeper: Sleeper,
    also_ms: float = 0.0,
) -> str | None:
    """Returns why a run must not be believed, or None. Times count from the trace's start, as the log's do.

    ``also_ms`` is for how long the path may hold a flow up beside its trace's gaps (``held_up_ms``).
    """
    if sleeper.late_5ms > LATE_SHARE * sleeper.wakes:
        return (
            f"the host lagged: {sleeper.late_5ms} of {sleeper.wakes} one-millisecond sleeps ended over 5 ms late "
            f"({100 * LATE_SHARE:g} % may)"
        )
    if sleeper.max_late_us > LATE_ONCE_US:
        return f"the host lagged: a one-millisecond sleep ended {sleeper.max_late_us / 1000:.0f} ms late (50 may be)"
    expected = opportunities_between(opportunities_ms, start_ms, end_ms)
    logged = int(((log.opportunity_ms >= start_ms) & (log.opportunity_ms < end_ms)).sum())
    if logged < LOGGED_SHARE * expected:
        return f"the link lagged: {logged} of the trace's {expected} delivery opportunities were logged"
    return why_stalled(metrics.longest_stall_ms, opportunities_ms, also_ms)
