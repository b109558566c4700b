"""Which flows wait in a queue of others, by ``core/states/others.hpp``, for all that a guard looks after."""

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import StatsArray
from reinet.core import _core
from reinet.core.records import FLOW_STATS_DTYPE, as_bytes

FOREIGN_ROUNDS: float = _core.FOREIGN_ROUNDS
"""So many round trips tell."""
YIELD_S: float = _core.YIELD_NS / 1e9
"""A flow is left alone until a multiple of this, by the records' clock."""


class OthersQueues:
    """Says which flows are left alone. A flow is named by cookie and slot; a slot has one flow at a time."""

    def __init__(self) -> None:
        self._core = _core.OthersQueues()

    def forget(self, slots: NDArray[np.intp], cookies: NDArray[np.uint64]) -> None:
        """Drops what is known of flows that ended."""
        self._core.forget(np.asarray(slots, np.int64), np.asarray(cookies, np.uint64))

    def stand(self, stats: StatsArray) -> NDArray[np.bool_]:
        """Returns (N,) where a flow is to be left alone, after one record of each with an RTT sample."""
        alone = np.empty(len(stats), np.uint8)
        self._core.update(as_bytes(stats, FLOW_STATS_DTYPE), alone)
        return alone.view(np.bool_)
