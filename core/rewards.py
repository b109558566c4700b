"""Rewards by name; formulas, constants and reasons are in ``states/reward.hpp``."""

import math
from numbers import Real
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.errors import ConfigError
from reinet.core.records import OPPORTUNITY_BYTES, FlowStatsArray, as_bytes

REWARDS: tuple[str, ...] = tuple(_core.REWARD_NAMES)
"""``deepcc``: the paper's. ``regret``: capacity left unused, and delay."""

DEFAULT_REWARD = "deepcc"

DELAY_WEIGHT: float = _core.DELAY_WEIGHT
"""The weight of delay in ``regret`` where none is given; ``states/reward.hpp`` says what it weighs."""


class Offers(NamedTuple):
    """What links had offered when N records were due; ``regret`` compares with it."""

    bytes: npt.NDArray[np.float64]
    """(N,), bytes of all opportunities from any fixed time of the flow's link to half a base RTT before the record."""
    unit_bytes: npt.NDArray[np.float64]
    """(N,), a unit of the reward: what the link carries in 20 ms on average, at least a packet."""


def offer(opportunities: int, per_loop: int, loop_ms: int) -> Offers:
    """Returns the offer (1,) of a link that has had so many opportunities; its trace has ``per_loop`` in a loop."""
    unit_bytes = _core.regret_unit_bytes(per_loop, loop_ms)
    return Offers(np.array([float(opportunities * OPPORTUNITY_BYTES)]), np.array([unit_bytes]))


def reward_index(name: str, delay_weight: float = DELAY_WEIGHT) -> int:
    """Returns the reward's number in the C++ core; raises ConfigError for an unknown one and for a bad weight."""
    if name not in REWARDS:
        raise ConfigError(f"reward: there is no reward {name!r}; choose one of {', '.join(REWARDS)}")
    if not (isinstance(delay_weight, Real) and math.isfinite(delay_weight) and delay_weight >= 0):
        raise ConfigError(f"delay_weight: {delay_weight} is not a number from 0 on")
    return REWARDS.index(name)


def delay_ratios(stats: FlowStatsArray) -> npt.NDArray[np.float64]:
    """Returns (RTT - min RTT) / (target - min RTT) of FLOW_STATS_DTYPE records (N,): 0 = no queue, 1 = the target.

    The least room that a target may leave, a tenth of the minimum RTT, guards the denominator.
    """
    ratios = np.empty(len(stats), np.float64)
    _core.delay_ratios(as_bytes(stats), ratios)
    return ratios


def delay_rooms_us(stats: FlowStatsArray) -> npt.NDArray[np.float64]:
    """Returns the queueing delay that the target allows, at least a tenth of the minimum RTT, of N records (N,)."""
    rooms_us = np.empty(len(stats), np.float64)
    _core.delay_rooms_us(as_bytes(stats), rooms_us)
    return rooms_us
