"""States, rewards and caps for many flows at once; the arithmetic is in ``state.hpp``."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.features import DEFAULT_FEATURE_SET, feature_set_named, head_index
from reinet.core.normaliser import Normaliser
from reinet.core.records import FLOW_STATS_DTYPE, as_bytes

MAX_CAP_PKTS: int = _core.MAX_CAP_PKTS
MIN_CAP_PKTS: int = _core.MIN_CAP_PKTS

LEAST_TARGET_PER_RTT = 1.1
"""A target below this multiple of the path's minimum RTT asks for a queue that cannot be kept: the window collapses."""


class Batch(NamedTuple):
    """What N records made of their flows' states."""

    states: npt.NDArray[np.float32]
    """(N, S), newest observation first."""
    rewards: npt.NDArray[np.float32]
    """(N,), in [-100, 100]; 0 where ``decided`` is False."""
    rule_pkts: npt.NDArray[np.float32]
    """(N,), max delivery rate of the last 10 periods x min RTT / mss; 0 while unknown."""
    decided: npt.NDArray[np.bool_]
    """(N,), False for a record without an RTT sample: it changed nothing and asks for no decision."""


class StateBank:
    """The states of up to ``capacity`` flows, one per row."""

    def __init__(
        self, capacity: int, feature_set: str = DEFAULT_FEATURE_SET, normaliser: Normaliser | None = None
    ) -> None:
        self.feature_set = feature_set_named(feature_set)
        self._core = _core.StateBank(capacity, (normaliser or Normaliser.reference()).table)

    @property
    def capacity(self) -> int:
        """Number of rows."""
        return self._core.capacity

    def grow(self, capacity: int) -> None:
        """Add rows, up to ``capacity``; those there keep their states."""
        self._core.grow(capacity)

    def set_normaliser(self, normaliser: Normaliser) -> None:
        """Use these statistics from the next record on; observations already in a history stay as they are."""
        self._core.set_normaliser(normaliser.table)

    def reset(self, rows: npt.ArrayLike) -> None:
        """Empty the histories of these rows, for new flows."""
        self._core.reset(np.atleast_1d(np.asarray(rows, dtype=np.int32)))

    def update(self, rows: npt.ArrayLike, stats: npt.NDArray[np.void]) -> Batch:
        """Take one record per row; a row may occur several times and is then updated in order.

        ``rows`` int32 (N,), ``stats`` FLOW_STATS_DTYPE (N,). IndexError for a row outside the bank, before any change.
        """
        index = np.atleast_1d(np.asarray(rows, dtype=np.int32))
        count = len(index)
        batch = Batch(
            np.empty((count, self.feature_set.state_size), np.float32),
            np.empty(count, np.float32),
            np.empty(count, np.float32),
            np.empty(count, np.bool_),
        )
        self._core.update(
            index, as_bytes(stats, FLOW_STATS_DTYPE), batch.states, batch.rewards, batch.rule_pkts,
            batch.decided.view(np.uint8),
        )  # fmt: skip
        return batch


def caps_from_actions(
    head: str,
    actions: npt.ArrayLike,
    cwnd_pkts: npt.ArrayLike,
    rule_pkts: npt.ArrayLike,
    ceiling_pkts: int = MAX_CAP_PKTS,
) -> npt.NDArray[np.uint32]:
    """Caps in packets for actions in [-1, 1], all of shape (N,), clamped to [4, ceiling]; 0 = no cap.

    0 also stands for an action that is not finite, and for the ``bdp`` head while the rule is unknown.
    """
    chosen = head_index(head)
    a = np.ascontiguousarray(np.atleast_1d(actions), dtype=np.float32)
    caps_pkts = np.empty(len(a), np.uint32)
    _core.caps_from_actions(
        chosen,
        a,
        np.ascontiguousarray(np.atleast_1d(cwnd_pkts), dtype=np.uint32),
        np.ascontiguousarray(np.atleast_1d(rule_pkts), dtype=np.float32),
        ceiling_pkts,
        caps_pkts,
    )
    return caps_pkts
