"""A run's figures from its link's log, over the time in which all of its flows are there.

*Own* flows are those of the agent that is compared; *beside* is the first plain flow in the same queue. The metrics are
those of ``envs/link/metrics.py``, over own flows' packets together; Jain's index is of own flows' throughputs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reinet.envs.link.metrics import FloatArray, LinkLog, Metrics, compute, first_data_ms, rate_mbps

Figures = dict[str, Any]

SERIES_BINS = 120
"""So many points tell of a run's course and leave the store small."""
SHORTEST_BIN_MS = 100.0
MOST_SERIES = 4
"""More flows than that, drawn over each other, cannot be told apart."""


def measure(
    log: Mapping[str, Any],
    mrtts_ms: Sequence[float],
    own: Sequence[int],
    start_ms: float,
    together_ms: float,
    end_ms: float,
) -> Figures:
    """Returns a run's figures; ``start_ms`` is the path's start, ``together_ms`` when its last flow began.

    ``mrtts_ms`` are those of all flows, ``own`` the places of own ones, the first flow's among them. Raises LinkError
    where own flows got nothing through.
    """
    from_ms = start_ms + together_ms
    own_log = _flows(log, own)
    owns = _window(own_log, 0.0, from_ms, end_ms)
    path_rtt_ms = _path_rtt_ms(log, mrtts_ms, own, max(from_ms, first_data_ms(own_log)), end_ms)
    found: Figures = {
        "throughput_mbps": owns.throughput_mbps,
        "capacity_mbps": owns.capacity_mbps,
        "utilization": owns.utilization,
        "qdelay_mean_ms": owns.qdelay_mean_ms,
        "qdelay_p95_ms": owns.qdelay_p95_ms,
        "delay_mean_ms": owns.qdelay_mean_ms + path_rtt_ms,
        "longest_stall_ms": owns.longest_stall_ms,
    }
    if len(mrtts_ms) > 1:
        each = [_flow_rate(log, flow, from_ms, end_ms) for flow in range(len(mrtts_ms))]
        stalls_ms = [_longest_stall_ms(log, flow, from_ms, end_ms) for flow in range(len(mrtts_ms))]
        found["flows_mbps"] = each
        found["longest_stall_ms"] = max(stalls_ms[flow] for flow in own)
        if len(own) > 1:
            found["jain"] = jain([each[flow] for flow in own])
        if len(own) < len(mrtts_ms):
            beside = next(flow for flow in range(len(mrtts_ms)) if flow not in own)
            found["beside_mbps"] = each[beside]
            found["beside_stall_ms"] = stalls_ms[beside]
            found["share"] = sum(each[flow] for flow in own) / sum(each) if sum(each) else 0.0
            found["beside_qdelay_mean_ms"] = (
                _window(LinkLog.of_flow(log, beside), mrtts_ms[beside], from_ms, end_ms).qdelay_mean_ms
                if each[beside]
                else None
            )
    return found


def series(log: Mapping[str, Any], flows: int, start_ms: float, end_ms: float) -> Figures | None:
    """Returns the course of a run for a picture: rates and mean queueing delay in bins; None of too many flows."""
    if flows > MOST_SERIES:
        return None
    bin_ms = max(SHORTEST_BIN_MS, (end_ms - start_ms) / SERIES_BINS)
    edges_ms = start_ms + np.arange(int((end_ms - start_ms) // bin_ms) + 1) * bin_ms
    left_ms, delay_ms = np.asarray(log["departure_ms"], np.float64), np.asarray(log["departure_delay_ms"])
    packets, _ = np.histogram(left_ms, edges_ms)
    total_ms, _ = np.histogram(left_ms, edges_ms, weights=delay_ms)
    mean_ms = [round(float(t / n), 2) if n else None for t, n in zip(total_ms, packets, strict=True)]
    whole = LinkLog.of_flow(log)
    return {
        "bin_ms": bin_ms,
        "capacity_mbps": _rounded(rate_mbps(whole.opportunity_ms, whole.opportunity_bytes, start_ms, end_ms, bin_ms)),
        "flows_mbps": [
            _rounded(rate_mbps(one.departure_ms, one.departure_bytes, start_ms, end_ms, bin_ms))
            for one in (LinkLog.of_flow(log, flow) for flow in range(flows))
        ],
        "qdelay_ms": mean_ms,
    }


def jain(rates: Sequence[float]) -> float:
    """Returns Jain's index of some rates: 1 where all are equal, 1 / n where one has everything (or all nothing)."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 1 / len(rates)


def _flows(log: Mapping[str, Any], flows: Sequence[int]) -> LinkLog:
    """Returns the packets of some flows, in order of time."""
    own = {}
    for name in LinkLog.__dataclass_fields__:
        if name in log:
            of_flow = log.get(f"{name.partition('_')[0]}_flow")
            own[name] = log[name] if of_flow is None else log[name][np.isin(of_flow, list(flows))]
    return LinkLog(**own)


def _window(log: LinkLog, mrtt_ms: float, from_ms: float, end_ms: float) -> Metrics:
    return compute(log, mrtt_ms, end_ms, max(0.0, from_ms - first_data_ms(log)))


def _path_rtt_ms(
    log: Mapping[str, Any], mrtts_ms: Sequence[float], own: Sequence[int], start_ms: float, end_ms: float
) -> float:
    """Returns the fixed RTT of own flows' paths: a mean over the packets that left in the time, as their delay is."""
    if len({mrtts_ms[flow] for flow in own}) == 1:
        return mrtts_ms[own[0]]
    left = (log["departure_ms"] >= start_ms) & (log["departure_ms"] < end_ms) & np.isin(log["departure_flow"], own)
    return float(np.asarray(mrtts_ms)[log["departure_flow"][left]].mean())


def _flow_rate(log: Mapping[str, Any], flow: int, from_ms: float, end_ms: float) -> float:
    own = LinkLog.of_flow(log, flow)
    return float(rate_mbps(own.departure_ms, own.departure_bytes, from_ms, end_ms, end_ms - from_ms)[0])


def _longest_stall_ms(log: Mapping[str, Any], flow: int, from_ms: float, end_ms: float) -> float:
    left_ms = LinkLog.of_flow(log, flow).departure_ms
    inside = left_ms[(left_ms >= from_ms) & (left_ms < end_ms)]
    return float(np.diff(np.concatenate(([from_ms], inside, [end_ms]))).max())


def _rounded(values: FloatArray) -> list[float]:
    return [round(float(value), 3) for value in values]
