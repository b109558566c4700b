"""States and rewards for many flows at once; the arithmetic is in ``states/``."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.errors import ConfigError
from reinet.core.features import DEFAULT_FEATURE_SET, feature_set_named
from reinet.core.normaliser import Normaliser
from reinet.core.records import FlowStatsArray, as_bytes
from reinet.core.rewards import DEFAULT_REWARD, DELAY_WEIGHT, Offers, reward_index


def room_beyond_us(room_beyond_ms: float | None) -> float:
    """Returns the length of path that ``states/state.hpp`` has it in; None stands for no path at all."""
    return math.inf if room_beyond_ms is None else room_beyond_ms * 1e3


_NO_OFFERS = np.empty((0, 2), np.float64)


class Batch(NamedTuple):
    """What N records made of their flows' states."""

    states: npt.NDArray[np.float32]
    """(N, S), newest observation first."""
    rewards: npt.NDArray[np.float32]
    """(N,); see ``states/reward.hpp``. ``deepcc`` lies in [-100, 100], and is 0 where ``decided`` is False."""
    rule_pkts: npt.NDArray[np.float32]
    """(N,), the hand rule's product, see the feature set's ``rule``; 0 while unknown."""
    decided: npt.NDArray[np.bool_]
    """(N,), False for a record without an RTT sample: it changed nothing and asks for no decision."""
    may_cap: npt.NDArray[np.bool_]
    """(N,), False for a flow that has shown no queue of its own, which a cap could only harm: ``guard/gate.hpp``."""


def rows_of(rows: npt.ArrayLike, count: int) -> npt.NDArray[np.int64]:
    """Returns row numbers in order, each once, of numbers or a mask (N,); raises ConfigError for anything else.

    A mask taken for numbers would stand for the rows 0 and 1.
    """
    found = np.atleast_1d(np.asarray(rows))
    if found.dtype == np.bool_ and found.shape == (count,):
        return np.flatnonzero(found)
    if found.size == 0:
        return np.zeros(0, np.int64)
    if not np.issubdtype(found.dtype, np.integer) or found.min() < 0 or found.max() >= count:
        raise ConfigError(f"rows: numbers from 0 to {count - 1} or a mask of {count} are needed, not {found!r:.100}")
    return np.unique(found).astype(np.int64)


class StateBank:
    """The states of up to ``capacity`` flows, one per row.

    Features see a target that leaves as much room for queueing as a path's minimum RTT is longer than
    ``room_beyond_ms`` (None = on no path); gate and reward see it as it is.
    """

    def __init__(
        self,
        capacity: int,
        feature_set: str = DEFAULT_FEATURE_SET,
        normaliser: Normaliser | None = None,
        reward: str = DEFAULT_REWARD,
        delay_weight: float = DELAY_WEIGHT,
        room_beyond_ms: float | None = None,
    ) -> None:
        self.feature_set = feature_set_named(feature_set)
        self.core = _core.StateBank(
            capacity, self.feature_set.number, Normaliser.of(self.feature_set, normaliser).table,
            reward_index(reward, delay_weight), delay_weight, room_beyond_us(room_beyond_ms),
        )  # fmt: skip

    @property
    def capacity(self) -> int:
        """Returns the number of rows."""
        return self.core.capacity

    def grow(self, capacity: int) -> None:
        """Adds rows, up to ``capacity``; those there keep their states."""
        self.core.grow(capacity)

    def reset(self, rows: npt.ArrayLike) -> None:
        """Empties the histories of these rows, their numbers or a mask (N,), for new flows. Raises ConfigError."""
        self.core.reset(rows_of(rows, self.capacity).astype(np.int32))

    def longer_us(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.uint32]:
        """Returns the least RTT (N,) of each row's path where that has become longer than the kernel's, else 0."""
        found = np.empty(len(rows), np.uint32)
        self.core.longer_us(rows.astype(np.int32), found)
        return found

    def show(self, row: int) -> tuple[npt.NDArray[np.float32], float]:
        """Returns a row's state (S,) as it is, and the hand rule's product."""
        state = np.empty(self.feature_set.state_size, np.float32)
        return state, self.core.show(row, state)

    def update(self, rows: npt.ArrayLike, stats: FlowStatsArray, offers: Offers | None = None) -> Batch:
        """Takes one record per row and returns what they made of the states.

        A row may occur several times and is then updated in order.
        ``rows`` is int32 (N,), ``stats`` FLOW_STATS_DTYPE (N,); ``offers``, of N links, is for the reward ``regret``,
        which alone needs it. Raises IndexError for a row outside the bank, before any change.
        """
        index = np.atleast_1d(np.asarray(rows, dtype=np.int32))
        count = len(index)
        batch = Batch(
            np.empty((count, self.feature_set.state_size), np.float32), np.empty(count, np.float32),
            np.empty(count, np.float32), np.empty(count, np.bool_), np.empty(count, np.bool_),
        )  # fmt: skip
        self.core.update(
            index, as_bytes(stats),
            _NO_OFFERS if offers is None else np.stack([offers.bytes, offers.unit_bytes], axis=1),
            batch.states, batch.rewards, batch.rule_pkts, batch.decided.view(np.uint8),
            batch.may_cap.view(np.uint8),
        )  # fmt: skip
        return batch
