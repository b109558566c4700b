"""What a number is drawn by: nothing where it is fixed, else a range and how likely its parts are."""

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np

from reinet.core.errors import ConfigError


@dataclass(frozen=True)
class Uniform:
    """A range in which every difference is as likely as any other; its lower limit may be 0."""

    low: float
    high: float

    def at(self, share: float) -> float:
        """Returns the number below which that share of the range lies, linearly."""
        return self.low + (self.high - self.low) * share


@dataclass(frozen=True)
class LogUniform:
    """A range above 0 in which every factor is as likely as any other."""

    low: float
    high: float

    def at(self, share: float) -> float:
        """Returns the number below which that share of the range lies, by logarithm."""
        return float(self.low * (self.high / self.low) ** share)


Law = Uniform | LogUniform
Range = float | tuple[float, float] | list[float] | Law
"""A number, or a range to draw from. A pair of limits, which YAML and JSON have as a list, is drawn by the option's own
law, as ``LinkDomain`` says."""


def law_of(kind: type[Law], low: float, high: float) -> float | Law:
    """Returns how to draw from a range: a number where its ends are equal, for which nothing is drawn."""
    return low if low == high else kind(low, high)


def limits(value: float | Law) -> tuple[float, float]:
    """Returns the least and the largest number; both are the same where it is fixed."""
    return (value.low, value.high) if isinstance(value, Law) else (value, value)


def check_law(key: str, value: float | Law) -> None:
    """Raises ConfigError for limits in the wrong order, below 0 or, by logarithm, at 0; ``key`` names them."""
    low, high = limits(value)
    if not (isinstance(low, Real) and isinstance(high, Real)):
        raise ConfigError(f"{key}: {value!r} is no number; give one, or a pair (low, high) as a range")
    least = math.ulp(0.0) if isinstance(value, LogUniform) else 0.0
    if not least <= low <= high < math.inf:
        raise ConfigError(f"{key}: {(low, high)} is no range of positive numbers, the lower one first")


def value_at(value: float | Law, share: float) -> float:
    """Returns the number below which that share of the range lies, or the fixed one."""
    return value.at(share) if isinstance(value, Law) else float(value)


def drawn(value: float | Law, rng: np.random.Generator) -> float:
    """Returns a number by its law; a fixed one takes nothing from the generator."""
    return value.at(float(rng.random())) if isinstance(value, Law) else float(value)


def happens(share: float, rng: np.random.Generator) -> bool:
    """Returns whether something happens that does so in that share of the cases; never takes nothing from ``rng``."""
    return share > 0 and float(rng.random()) < share
