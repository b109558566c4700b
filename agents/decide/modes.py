"""What is asked for: agent, target, and whether caps are applied, only shown, or put to the test."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import Agent
from reinet.core.target import Target

PLAIN_SHARE = 0.2
"""One flow in five is held out: of a hundred flows twenty, which tell a fifth more delay from chance within a minute
(docs/modes.md), at the price of a fifth of what caps are worth."""


class Mode(str, Enum):
    """What becomes of decisions."""

    ENFORCE = "enforce"
    """They are applied."""
    SHADOW = "shadow"
    """They are made and shown, and none is applied."""
    HOLD_OUT = "hold-out"
    """They are applied, but a share of flows stays plain; if those fare better, all flows do."""


@dataclass(frozen=True)
class PolicySpec:
    """One policy as it is asked for."""

    agent: Agent
    target: Target
    mode: Mode = Mode.ENFORCE
    plain_share: float = PLAIN_SHARE
    """The share of flows that a hold-out leaves plain, above 0 and below 1."""
    name: str = "default"


class Placer(Protocol):
    """Says which policy a flow is under."""

    def place(self, cookies: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Returns (N,) the number of each flow's policy, -1 = not known yet; never waits."""


def lots(cookies: NDArray[np.uint64], salt: int) -> NDArray[np.float64]:
    """Returns (N,) a number in [0, 1) for each flow, always the same one for the same cookie and salt.

    Cookies are consecutive numbers; the mixer is SplitMix64's (Steele, Lea and Flood 2014), whose bits are independent.
    """
    with np.errstate(over="ignore"):
        bits = cookies + np.uint64((salt + 1) * 0x9E37_79B9_7F4A_7C15 % 2**64)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
        bits ^= bits >> np.uint64(31)
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53, np.float64)
