"""The reward ``regret`` (the paper's is in ``core/state.hpp``).

Between two decisions, with C the bytes of the link's
opportunities, D the delivered ones (both with headers, C seen half a base RTT earlier, when the acknowledged bytes
left the bottleneck), rho = (RTT - min RTT) / (target - min RTT) and w = ``delay_weight``:

    r = -[(C - D) + w D log(1 + 4 rho) / log 5] / U,  within [-10, 10]
    U = the trace's mean capacity x 20 ms, at least a packet

Capacity left unused and delay are both losses, in units of what the link carries in one of the paper's periods;
summed over a flow they are the same whatever the link's rate. At a queue as long as the target allows the delay costs
w; the logarithm asks for less delay also where there is little, and gives up less throughput where an outage makes a
long queue anyway. C does not depend on the action and only takes the link's luck out of the sum. It is known in a
simulator alone: the reward uses it, the state does not.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.agents.learn.config import TrainConfig
from reinet.core import HEADER_BYTES, OPPORTUNITY_BYTES
from reinet.core.state import LEAST_TARGET_PER_RTT
from reinet.envs.link.spec import LinkSpec

REWARD_PERIOD_S = 0.020
DELAY_CURVE = 4.0
"""How much more the first part of a queue costs than the last. At 1 (measured) a weight that keeps links with outages
busy leaves fast steady links with 0.43 of Cubic's delay."""
REWARD_LIMIT = 10.0
"""Of a transition: a retransmission timeout after an outage leaves seconds of capacity unused, and would outweigh
all."""


def cumulative_regret(stats: NDArray[Any], link: LinkSpec, config: TrainConfig) -> NDArray[np.float64]:
    """The reward ``regret`` of one flow, summed from its first record: (T,) for FLOW_STATS_DTYPE[T]."""
    trace_ms = link.trace_ms
    end_ms = stats["time_ns"] / 1e6 - link.mrtt_ms / 2
    offered = OPPORTUNITY_BYTES * opportunities_until(trace_ms, end_ms)
    capacity = np.diff(offered, prepend=offered[0])
    mss = np.maximum(stats["mss_bytes"].astype(np.float64), 1.0)
    delivered = stats["delivered_bytes"] * (mss + HEADER_BYTES) / mss
    delivered[0] = 0.0
    cost = config.reward.delay_weight * delivered * _delay_cost(_rho(stats))
    unit = max(OPPORTUNITY_BYTES * len(trace_ms) / (trace_ms[-1] / 1e3) * REWARD_PERIOD_S, OPPORTUNITY_BYTES)
    return np.asarray(np.cumsum(-(capacity - delivered + cost) / unit), np.float64)


def _delay_cost(rho: NDArray[np.float64]) -> NDArray[np.float64]:
    """0 at an empty queue, 1 at the target; see ``DELAY_CURVE``."""
    return np.asarray(np.log1p(DELAY_CURVE * np.maximum(rho, 0.0)) / np.log1p(DELAY_CURVE))


def _rho(stats: NDArray[Any]) -> NDArray[np.float64]:
    """Queueing delay as a share of what the target allows; the guard's margin is the least that it can allow."""
    min_rtt_us = stats["min_rtt_us"].astype(np.float64)
    room_us = np.maximum(stats["target_us"] - min_rtt_us, (LEAST_TARGET_PER_RTT - 1) * min_rtt_us)
    return np.asarray((stats["rtt_mean_us"] - min_rtt_us) / np.maximum(room_us, 1.0), np.float64)


def opportunities_until(trace_ms: NDArray[np.uint32], times_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many opportunities a looping trace had by each time, counted from its own start."""
    loops, within_ms = np.divmod(times_ms, float(trace_ms[-1]))
    return np.asarray(loops * len(trace_ms) + np.searchsorted(trace_ms, within_ms, side="right"), np.float64)
