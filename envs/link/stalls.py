"""The rule by which a run over any link says nothing because its flow stalled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reinet.envs.link.metrics import LinkLog, first_data_ms
from reinet.envs.link.spec import LinkSpec, times_of
from reinet.envs.link.tandem import longest_pause_ms

STALL_SLACK_MS = 2000
"""The threshold of a valid run, which README.md states."""


def why_stalled(longest_stall_ms: float, opportunities_ms: npt.NDArray[Any], also_ms: float = 0.0) -> str | None:
    """Returns why a run must not be believed, in which nothing left the link for so long; None where it may.

    ``opportunities_ms`` are the trace's, ``also_ms`` is for how long the rest of the path may hold everything up.
    """
    if longest_stall_ms <= also_ms + STALL_SLACK_MS:
        return None  # whatever the trace's gaps; to look for the longest takes longer than many a run
    allowed_ms = _longest_gap_ms(opportunities_ms) + also_ms + STALL_SLACK_MS
    if longest_stall_ms <= allowed_ms:
        return None
    which = "the trace's longest gap" if not also_ms else "the path's longest gap"
    return (
        f"the flow stalled: nothing left the link for {longest_stall_ms:.0f} ms; "
        f"{which} + {STALL_SLACK_MS / 1000:g} s is {allowed_ms:g} ms"
    )


def why_stalled_in(log: Mapping[str, Any], path: LinkSpec, from_ms: float, end_ms: float) -> str | None:
    """Returns the same of what ``SimBatch.log`` gave of all of a path's flows, from the first one's first data on.

    A flow that has an end, or an application that pauses, may leave the link idle: of such a run it says nothing.
    """
    if path.app_mbps or path.flow_bytes or path.stop_ms is not None or (path.object_bytes and path.pause_ms):
        return None
    own = LinkLog.of_flow(log)
    start_ms = max(from_ms, first_data_ms(own))
    left_ms = np.asarray(log["departure_ms"], np.float64)
    inside = left_ms[(left_ms >= start_ms) & (left_ms < end_ms)]
    longest_ms = float(np.diff(np.concatenate(([start_ms], inside, [end_ms]))).max())
    return why_stalled(longest_ms, path.trace_ms, held_up_ms(path))


def held_up_ms(path: LinkSpec) -> float:
    """Returns for how long the rest of a path, beside its trace, may hold a flow up: while no ACK comes back a sender
    has its timer alone, which doubles."""
    uplink_ms = 0 if path.uplink is None else _longest_gap_ms(times_of(path.uplink))
    longer_ms = max((ms for _, ms in path.detour_ms), default=0.0)
    return longest_pause_ms(path.wired_mbps) + longer_ms + uplink_ms


def _longest_gap_ms(times_ms: npt.NDArray[Any]) -> int:
    return int(np.diff(np.asarray(times_ms, np.int64), prepend=0).max())
