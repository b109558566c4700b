"""The capacity of a link, estimated from the records of a flow that crossed it.

A link that has a packet waiting serves at its capacity, so what it delivers then *is* its capacity. A packet that left
after it had queued for q shows that packets waited for the q before; where every RTT sample of a period lies so far
above the minimum RTT that each such stretch reaches back to the sample before, the link had work for the whole period:
the period is *measured*. So is a silence with packets outstanding: the link delivered nothing.

In other periods the link could have delivered more. A pause of at most BRIDGE_MS between measured ones is *bridged*:
what was delivered is the least, and the estimate is the rate of the measured periods on both sides where that is more.
At a longer one the trace ends, and another begins with the next measured period. Bridged time is what is uncertain of
an estimate; how much of it there is, and the least and most that the mean rate can have been, stand beside each trace.

What cannot be known: a flow that shared its queue with others shows its own share; a rate that changed within a period
is its mean; a link that was never full shows nothing, and gives no trace.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.core.period import SILENCE_NS
from reinet.core.records import Flag
from reinet.envs.trace.trace import PKTS_PER_MBIT, FloatArray, Trace, most_opportunities, served_at_ms
from reinet.kshim.recorded import RecordArray

LEAST_QUEUE_MS = 2.0
"""RTTs vary by so much without a queue: timers of both ends and the link's own grain of a millisecond."""
GAPS = 2.0
"""A queue has to reach back over so many mean gaps between samples: few gaps are twice the mean."""
BRIDGE_MS = 1000.0
"""Cellular rates decorrelate within a second or two (docs/traces.md); over longer pauses nothing is known."""
LEAST_S = 5.0
"""Training takes no shorter recording (``agents/learn/recordings.py``)."""
NEIGHBOURS_MS = 200.0
"""The rate beside a pause is that of so much measured time on each side: some five periods, so that one of two packets
does not stand for it."""

SILENCE_MS = SILENCE_NS / 1e6
"""A record of a silence says that nothing came for so long (``core/period.h``)."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Estimate:
    """A stretch of a link's capacity, with what is uncertain of it."""

    trace: Trace
    start_ms: float
    """When it begins, counted from the end of the flow's first record."""
    measured_share: float
    """Of its time; the rest is bridged."""
    least_mbps: float
    """The mean rate if the link could have delivered no more than it did."""
    most_mbps: float
    """The mean rate if bridged time ran at the highest measured rate within BRIDGE_MS."""
    resolution_ms: float
    """The median length of a period: rates that change faster are not seen."""

    def row(self) -> dict[str, Any]:
        """Returns the estimate as a row of a table; units are in the keys."""
        return {
            "trace": self.trace.name,
            "duration_s": self.trace.duration_ms / 1000,
            "mean_mbps": self.trace.mean_mbps,
            "least_mbps": self.least_mbps,
            "most_mbps": self.most_mbps,
            "measured_share": self.measured_share,
            "resolution_ms": self.resolution_ms,
            "sha256": self.trace.sha256,
        }


def estimates(records: RecordArray, name: str, least_s: float = LEAST_S) -> list[Estimate]:
    """Returns what one flow's records show of its link, stretch by stretch, each of ``least_s`` or more."""
    pieces = Pieces.of(records)
    stretches = [part for part in pieces.stretches() if pieces.lengths_ms[part].sum() >= 1000 * least_s]
    names = [name if len(stretches) == 1 else f"{name}-{number}" for number in range(1, len(stretches) + 1)]
    found = [_estimate(pieces.part(part), called) for part, called in zip(stretches, names, strict=True)]
    return [one for one in found if one is not None and one.trace.duration_ms >= 1000 * least_s]


@dataclass(frozen=True)
class Pieces:
    """The flow's time in pieces (N,), one behind the other, with what the link delivered in each."""

    start_ms: float
    """When the first one begins, counted from the end of the flow's first record."""
    lengths_ms: FloatArray
    delivered_pkts: FloatArray
    is_measured: Mask

    @classmethod
    def of(cls, records: RecordArray) -> "Pieces":
        """Returns the pieces of a flow's records: a period each, a silence in a piece of its own.

        Records of a silence tell of the period that goes on, from its start: what they count is counted again by the
        next record, and is taken out of it.
        """
        records = records[records["flags"] & int(Flag.CLOSED) == 0]
        if not len(records):
            return cls(0.0, np.zeros(0), np.zeros(0), np.zeros(0, np.bool_))
        ends_ms = records["time_us"].astype(np.float64) / 1000
        starts_ms = ends_ms - records["period_us"] / 1000
        flags = records["flags"]
        goes_on = (flags & int(Flag.SILENCE)) != 0  # the period, in the next record
        went_on = np.concatenate(([False], goes_on[:-1]))
        counted = records["delivered_bytes"] / np.maximum(records["mss_bytes"], 1).astype(np.float64)
        repeated = counted * goes_on
        delivered_pkts = np.maximum(counted - np.concatenate(([0.0], repeated[:-1])), 0.0)
        lengths_ms = np.diff(ends_ms, prepend=starts_ms[0])
        silent_ms = np.where(goes_on, np.minimum(SILENCE_MS, lengths_ms), 0.0)
        worked_ms = lengths_ms - silent_ms

        queue_ms = (records["rtt_least_us"].astype(np.float64) - records["min_rtt_us"]) / 1000
        gap_ms = worked_ms / np.maximum(records["rtt_samples"], 1)
        full = (records["rtt_samples"] > 0) & (queue_ms >= np.maximum(LEAST_QUEUE_MS, GAPS * gap_ms))
        full &= (flags & int(Flag.RESTARTED)) == 0
        # Where a record is missing, or after an idle time, nothing is known of the time before the period.
        full &= went_on | (np.abs(lengths_ms - (ends_ms - starts_ms)) <= 1.0)
        waited = records["inflight_pkts"] > 0
        return cls(
            start_ms=float(starts_ms[0]),
            lengths_ms=np.stack([worked_ms, silent_ms], axis=1).ravel(),
            delivered_pkts=np.stack([delivered_pkts, np.zeros(len(records))], axis=1).ravel(),
            is_measured=np.stack([full, waited], axis=1).ravel(),
        ).without_empty()

    def without_empty(self) -> "Pieces":
        """Returns these without pieces of no length."""
        some = self.lengths_ms > 0
        return Pieces(self.start_ms, self.lengths_ms[some], self.delivered_pkts[some], self.is_measured[some])

    def part(self, part: slice) -> "Pieces":
        """Returns some of them."""
        start_ms = self.start_ms + float(self.lengths_ms[: part.start].sum())
        return Pieces(start_ms, self.lengths_ms[part], self.delivered_pkts[part], self.is_measured[part])

    def stretches(self) -> list[slice]:
        """Returns where a trace begins and ends: with measured pieces that no pause above BRIDGE_MS parts."""
        places = np.flatnonzero(self.is_measured)
        if not places.size:
            return []
        until_ms = np.cumsum(self.lengths_ms)
        pauses_ms = until_ms[places[1:] - 1] - until_ms[places[:-1]]
        cuts = np.flatnonzero(pauses_ms > BRIDGE_MS)
        firsts, lasts = np.append(places[0], places[cuts + 1]), np.append(places[cuts], places[-1])
        return [slice(int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)]


def _estimate(pieces: Pieces, name: str) -> Estimate | None:
    """Returns the capacity of one stretch, as far as a file can hold it; None where it delivered nothing."""
    likely, most = _beside(pieces)
    pkts, most_pkts = _filled(pieces, likely), _filled(pieces, most)
    edges_ms = np.concatenate(([0.0], np.cumsum(pieces.lengths_ms)))
    served_pkts = np.concatenate(([0.0], np.cumsum(pkts)))
    whole = int(served_pkts[-1])
    if whole < 1:
        return None
    limit = most_opportunities(math.ceil(edges_ms[-1]))
    if whole > limit:  # so many nobody could read again: the trace ends earlier, with a measured piece
        within = np.flatnonzero(pieces.is_measured & (served_pkts[1:] <= limit))
        return _estimate(pieces.part(slice(0, int(within[-1]) + 1)), name) if within.size else None
    times_ms = served_at_ms(edges_ms, served_pkts, np.arange(1, whole + 1, dtype=np.float64))
    times_ms[-1] = math.ceil(edges_ms[-1])  # the loop is as long as the stretch
    mbps = 1000 / edges_ms[-1] / PKTS_PER_MBIT
    return Estimate(
        trace=Trace(times_ms.astype(np.uint32), name),
        start_ms=pieces.start_ms,
        measured_share=float(pieces.lengths_ms[pieces.is_measured].sum() / edges_ms[-1]),
        least_mbps=float(pieces.delivered_pkts.sum() * mbps),
        most_mbps=float(np.maximum(pkts, most_pkts).sum() * mbps),
        resolution_ms=float(np.median(pieces.lengths_ms)),
    )


def _beside(pieces: Pieces) -> tuple[FloatArray, FloatArray]:
    """Returns for each piece the likely and the most packets per ms, by the measured pieces beside it.

    The likely rate goes linearly from that of the last measured time before to that of the first after.
    """
    own = np.flatnonzero(pieces.is_measured)
    ends_ms = np.cumsum(pieces.lengths_ms)
    # Sums over measured time alone, by which the rate of the NEIGHBOURS_MS of it before and after a piece is found.
    time_ms = np.concatenate(([0.0], np.cumsum(pieces.lengths_ms[own])))
    total_pkts = np.concatenate(([0.0], np.cumsum(pieces.delivered_pkts[own])))
    before = _rate(time_ms, total_pkts, time_ms[1:] - NEIGHBOURS_MS, time_ms[1:])
    after = _rate(time_ms, total_pkts, time_ms[:-1], time_ms[:-1] + NEIGHBOURS_MS)
    knots_ms = np.stack([ends_ms[own] - pieces.lengths_ms[own], ends_ms[own]], axis=1).ravel()
    likely = np.interp(ends_ms - pieces.lengths_ms / 2, knots_ms, np.stack([after, before], axis=1).ravel())
    low = np.searchsorted(ends_ms[own], ends_ms - BRIDGE_MS)
    high = np.searchsorted(ends_ms[own], ends_ms + BRIDGE_MS)
    fastest = np.maximum(before, after)
    most = np.array([fastest[a:b].max(initial=0.0) for a, b in zip(low, high, strict=True)])
    return likely, most


def _filled(pieces: Pieces, rate: FloatArray) -> FloatArray:
    """Returns the packets of each piece, those of a pause brought up to a rate (packets per ms) over the pause.

    What was delivered in a piece is kept. The sum is that of the whole pause, since of short pieces each holds a packet
    more or less: the larger of the two in each would be too much in sum.
    """
    number = np.cumsum(
        np.diff(pieces.is_measured.astype(np.int8), prepend=np.int8(1)) != 0
    )  # of the run of like pieces
    lacking = np.where(pieces.is_measured, 0.0, np.maximum(rate * pieces.lengths_ms - pieces.delivered_pkts, 0.0))
    excess = np.where(pieces.is_measured, 0.0, rate * pieces.lengths_ms - pieces.delivered_pkts)
    room = np.maximum(np.bincount(number, excess), 0.0) / np.maximum(np.bincount(number, lacking), 1e-9)
    return np.asarray(pieces.delivered_pkts + lacking * room[number])


def _rate(time_ms: FloatArray, total_pkts: FloatArray, start_ms: FloatArray, end_ms: FloatArray) -> FloatArray:
    start_ms, end_ms = np.maximum(start_ms, 0.0), np.minimum(end_ms, time_ms[-1])
    moved = np.interp(end_ms, time_ms, total_pkts) - np.interp(start_ms, time_ms, total_pkts)
    return np.asarray(moved / np.maximum(end_ms - start_ms, 1e-6))
