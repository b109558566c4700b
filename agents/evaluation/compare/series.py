"""The curves of a run, on a grid that all runs share, and those of the link that they ran over."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from reinet.agents.evaluation.picture import BIN_MS
from reinet.agents.evaluation.run import Run
from reinet.core import Flag
from reinet.core.tensorboard.curves import CURVES, POINT_INTERVAL_MS
from reinet.envs.link.metrics import rate_mbps

MOST_POINTS = 1000
"""TensorBoard shows so many of a curve, by chance chosen if there are more, which would part curves on one grid."""

Curve = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Steps in milliseconds since the link's start, and values (N,), both without gaps."""

OF_LINKS = ("min_rtt_ms",)
"""Curves of a flow that a simulated link has as well, once for all agents: the daemon's flows alone draw theirs."""
MEANS = ("rtt_mean_us", "delivery_rate_bytes_per_s")
"""Fields of which a point is the mean over its records' time; of the others it is the last one's.

A record of some milliseconds often holds a burst: as much as a long one it must not count, or agents that decide often
would seem to send more than the link carries.
"""


def interval_ms(seconds: float) -> int:
    """Returns the distance of the grid's points for runs that last so long."""
    return max(POINT_INTERVAL_MS, math.ceil(seconds * 1000 / MOST_POINTS / POINT_INTERVAL_MS) * POINT_INTERVAL_MS)


def curves_of(run: Run) -> dict[str, Curve]:
    """Returns a run's curves by name; one that has no point, such as the cap of an uncapped flow, is left out.

    A point stands at the end of the interval whose records it sums up: means of delay and rate, the last window and
    cap. Intervals without a record that had an RTT sample have no point, nor has a cap of 0, which is none.
    """
    records = run.records.copy()
    records["cap_pkts"] = run.caps_pkts
    records = records[(records["flags"] & Flag.NO_SAMPLE) == 0]
    grid_ms = interval_ms(run.scenario.seconds)
    since_ms = records["time_ns"] / 1e6 - run.scenario.path.start_offset_ms
    place = np.floor(since_ms / grid_ms).astype(np.int64)
    found: dict[str, Curve] = {}
    for field, name, factor in CURVES:
        if name in OF_LINKS:
            continue
        values = records[field].astype(np.float64) * factor
        known = values > 0 if field == "cap_pkts" else np.ones(len(values), bool)
        if known.any():
            points, means, last = _sums(place[known], values[known], records["period_ns"][known].astype(np.float64))
            found[name] = (points + 1) * grid_ms, means if field in MEANS else last
    return found


def curves_of_link(run: Run) -> dict[str, Curve]:
    """Returns what was the same for every run over this link: its capacity, the target and the path's minimum RTT."""
    end_ms = run.scenario.seconds * 1000
    start_ms = float(run.scenario.path.start_offset_ms)
    opportunities = run.log.opportunity_ms, run.log.opportunity_bytes
    bin_ms = max(BIN_MS, interval_ms(run.scenario.seconds))
    capacity = rate_mbps(*opportunities, start_ms, start_ms + end_ms, bin_ms)
    steps = (np.arange(len(capacity), dtype=np.int64) + 1) * bin_ms
    flat = np.ones(len(steps))
    return {
        "capacity_mbps": (steps, capacity),
        "target_ms": (steps, flat * run.scenario.target_ms),
        "min_rtt_ms": (steps, flat * run.scenario.path.mrtt_ms),
    }


def by_step(curves: Mapping[str, Curve]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields every step in order, with the values that curves have there."""
    steps: dict[int, dict[str, float]] = {}
    for name, (places, values) in curves.items():
        for step, value in zip(places.tolist(), values.tolist(), strict=True):
            steps.setdefault(step, {})[name] = value
    yield from sorted(steps.items())


def _sums(
    place: NDArray[np.int64], values: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns the places that have values, in order, with the weighted mean and the last of each."""
    points, index = np.unique(place, return_inverse=True)
    weights = np.maximum(weights, 1.0)  # a record without a length counts next to nothing
    means = np.bincount(index, values * weights) / np.bincount(index, weights)
    last = np.empty(len(points))
    last[index] = values  # records are in order of time: the last one stays
    return points, means, last
