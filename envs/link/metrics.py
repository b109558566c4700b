"""What a run was like, computed in one way for every link: throughput, utilisation, queueing delay, delay.

The interval runs from the flow's first data packet at the link to the end of the run. Times are milliseconds of the
link's clock; an event stamped t happened in [t, t + 1), so an interval [start, end) counts stamps start .. end - 1.
Ratios between runs are formed per trace, then averaged, by whoever compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reinet.core import OPPORTUNITY_BYTES
from reinet.core.errors import LinkError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LARGEST_CONTROL_PACKET_BYTES = 104
"""IPv6 header 40 + longest TCP header 60 + TUN 4: a larger packet carries data; a SYN-ACK or a pure ACK never is."""

QUANTILE = 0.95


@dataclass(frozen=True)
class LinkLog:
    """What happened at a bottleneck in one direction, in order of time. Bytes include the 4 of the TUN header.

    ``arrival_*``: packets offered to the queue, those it dropped included. ``opportunity_*``: every delivery
    opportunity, used or not (``opportunity_bytes`` is an array, or one size for all). ``departure_*``: packets that
    left, stamped when their last byte did, with the time they had spent in the queue. Raises LinkError when the arrays
    of a kind differ in length or a queueing delay is negative.
    """

    arrival_ms: FloatArray
    arrival_bytes: IntArray
    opportunity_ms: FloatArray
    departure_ms: FloatArray
    departure_bytes: IntArray
    departure_delay_ms: FloatArray
    opportunity_bytes: IntArray | int = OPPORTUNITY_BYTES

    def __post_init__(self) -> None:
        for kind, names in {
            "arrival": ("arrival_ms", "arrival_bytes"),
            "departure": ("departure_ms", "departure_bytes", "departure_delay_ms"),
            "opportunity": ("opportunity_ms",)
            if isinstance(self.opportunity_bytes, int)
            else ("opportunity_ms", "opportunity_bytes"),
        }.items():
            for name in names:
                dtype = np.int64 if name.endswith("_bytes") else np.float64
                object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))
            lengths = {name: getattr(self, name).shape for name in names}
            if len(set(lengths.values())) != 1:
                raise LinkError(f"link log: {kind} arrays differ in length ({lengths}); one entry per {kind} is needed")
        if self.departure_delay_ms.size and not float(self.departure_delay_ms.min()) >= 0:
            raise LinkError("link log: a packet left before it arrived (negative queueing delay); the log is damaged")

    @classmethod
    def of_flow(cls, log: Mapping[str, Any], flow: int = 0) -> LinkLog:
        """Returns that flow's packets of what ``SimBatch.log`` gives, and every opportunity."""
        own = {}
        for name in cls.__dataclass_fields__:
            if name in log:
                flows = log.get(f"{name.partition('_')[0]}_flow")
                own[name] = log[name] if flows is None else log[name][flows == flow]
        return cls(**own)


@dataclass(frozen=True)
class Metrics:
    """Figures of one run. ``qdelay``: time from arrival to departure at the bottleneck, per packet that left."""

    throughput_mbps: float
    """The bytes that left the bottleneck over the interval."""
    capacity_mbps: float
    """The bytes of all delivery opportunities over the interval."""
    utilization: float
    """The former over the latter; 0 when the link offered nothing."""
    qdelay_mean_ms: float
    qdelay_p95_ms: float
    """sorted[int(0.95 n)], as Mahimahi's own report has it."""
    qdelay_max_ms: float
    delay_mean_ms: float
    """The mean queueing delay plus the path's fixed round trip."""
    delay_p95_ms: float
    interval_s: float
    packets: int
    """How many packets left in the interval."""
    longest_stall_ms: float
    """The longest time in the interval in which nothing left the link."""


def first_data_ms(log: LinkLog) -> float:
    """Returns the arrival time of the first packet that carries data. Raises LinkError when none did."""
    return float(log.arrival_ms[_first_data(log)])


def syn_ack_ms(log: LinkLog) -> float:
    """Returns the arrival time of the packet before the first data, the sender's answer to the SYN."""
    return float(log.arrival_ms[max(0, _first_data(log) - 1)])


def _first_data(log: LinkLog) -> int:
    data = np.flatnonzero(log.arrival_bytes > LARGEST_CONTROL_PACKET_BYTES)
    if not data.size:
        raise LinkError(
            f"link log: no data packet arrived at the link ({log.arrival_ms.size} control packets did); "
            "the flow never started: check that sender and receiver ran"
        )
    return int(data[0])


def compute(log: LinkLog, path_rtt_ms: float, end_ms: float, warmup_ms: float = 0.0) -> Metrics:
    """Returns a run's figures from its first data packet to ``end_ms``; ``warmup_ms`` cuts that much off the front.

    Raises LinkError when the interval is empty or nothing left the link in it.
    """
    start_ms = first_data_ms(log) + warmup_ms
    interval_ms = end_ms - start_ms
    if not interval_ms > 0:
        raise LinkError(
            f"link log: the interval is empty: it starts at {start_ms:.0f} ms (first data packet + {warmup_ms:.0f} ms "
            f"of warm-up) and the run ended at {end_ms:.0f} ms; run longer or cut less"
        )
    left = (log.departure_ms >= start_ms) & (log.departure_ms < end_ms)
    delays_ms = np.sort(log.departure_delay_ms[left])
    if not delays_ms.size:
        raise LinkError(
            f"link log: nothing left the link between {start_ms:.0f} and {end_ms:.0f} ms; "
            "the trace may have no opportunity there, or the flow broke: look at the run's log"
        )
    offered = (log.opportunity_ms >= start_ms) & (log.opportunity_ms < end_ms)
    if isinstance(log.opportunity_bytes, int):
        offered_bytes = int(offered.sum()) * log.opportunity_bytes
    else:
        offered_bytes = int(log.opportunity_bytes[offered].sum())
    left_bytes = int(log.departure_bytes[left].sum())
    mean_ms = float(delays_ms.mean())
    p95_ms = float(delays_ms[int(QUANTILE * delays_ms.size)])
    edges_ms = np.concatenate(([start_ms], log.departure_ms[left], [end_ms]))
    return Metrics(
        throughput_mbps=left_bytes * 8 / (interval_ms * 1000),
        capacity_mbps=offered_bytes * 8 / (interval_ms * 1000),
        utilization=left_bytes / offered_bytes if offered_bytes else 0.0,
        qdelay_mean_ms=mean_ms,
        qdelay_p95_ms=p95_ms,
        qdelay_max_ms=float(delays_ms[-1]),
        delay_mean_ms=mean_ms + path_rtt_ms,
        delay_p95_ms=p95_ms + path_rtt_ms,
        interval_s=interval_ms / 1000,
        packets=int(delays_ms.size),
        longest_stall_ms=float(np.diff(edges_ms).max()),
    )


def rate_mbps(
    times_ms: FloatArray, sizes_bytes: IntArray | int, start_ms: float, end_ms: float, bin_ms: float
) -> FloatArray:
    """Returns the rate of some events over time, for plots: Mbit/s in each whole bin of [start, end)."""
    bins = int((end_ms - start_ms) // bin_ms)
    place = np.floor((times_ms - start_ms) / bin_ms).astype(np.int64)
    inside = (place >= 0) & (place < bins)
    weights = np.broadcast_to(np.asarray(sizes_bytes, dtype=np.float64), times_ms.shape)
    total_bytes = np.bincount(place[inside], weights=weights[inside], minlength=bins)
    return np.asarray(total_bytes * 8 / (bin_ms * 1000), dtype=np.float64)


def frontier_ratio(
    utilization: float, qdelay_mean_ms: float, knob_utilization: Sequence[float], knob_qdelay_mean_ms: Sequence[float]
) -> float:
    """Returns a policy's mean queueing delay over that of a rule, with its knob swept, at the same utilisation.

    Both ran on the same trace; below 1 the policy is better than any setting. The rule's lower envelope is the chain of
    its settings that no other beats in both utilisation and delay, joined by straight lines; beyond either end it stays
    at the end's delay. Raises LinkError without a setting or at zero delay.
    """
    if len(knob_utilization) != len(knob_qdelay_mean_ms) or not len(knob_utilization):
        raise LinkError(
            "frontier: give one utilisation and one delay for each setting of the knob, and one setting at least"
        )
    points = sorted(zip(knob_utilization, knob_qdelay_mean_ms, strict=True), key=lambda point: (-point[0], point[1]))
    envelope: list[tuple[float, float]] = []
    for use, delay_ms in points:  # from the highest utilisation down: a setting stays if it brings less delay
        if not envelope or delay_ms < envelope[-1][1]:
            envelope.append((use, delay_ms))
    use_up, delay_up_ms = zip(*reversed(envelope), strict=True)
    reference_ms = float(np.interp(utilization, use_up, delay_up_ms))
    if not reference_ms > 0:
        raise LinkError("frontier: the rule has no queueing delay there, so a ratio means nothing; compare the delays")
    return qdelay_mean_ms / reference_ms
