"""What only the simulator knows, for a critic: the queue, and what the link is about to carry."""

import numpy as np

from reinet.agents.decide.protocol import FloatArray
from reinet.envs.sim import SimBatch

HORIZONS_MS = (5, 10, 20, 40, 80, 160, 320, 640)
"""An action shows within a few round trips; what lies beyond is the discount's."""
SIZE = 2 + len(HORIZONS_MS)
_MOST = 8.0  # a link that becomes so many times faster than it was is fast: how much so hardly matters


def hidden_of(sim: SimBatch) -> FloatArray:
    """Returns (N, SIZE): log(1 + x / rule) of queue and unheard opportunities, then what each time brings over what the
    rule's rate would, within 8.

    The rule's product is that of each flow's latest record, at least a packet.
    """
    pkts = sim.hidden_pkts(HORIZONS_MS)
    rule_pkts = np.maximum(sim.rule_pkts, 1.0)[:, None]
    round_trips = np.array(HORIZONS_MS) * 1000.0 / np.maximum(sim.stats["min_rtt_us"], 1000)[:, None]
    values = np.empty_like(pkts)
    values[:, :2] = np.log1p(pkts[:, :2] / rule_pkts)
    values[:, 2:] = np.minimum(pkts[:, 2:] / (rule_pkts * round_trips), _MOST)
    return values
