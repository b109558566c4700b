"""The normaliser: running statistics of the state's inputs, updated in training and frozen into the model."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.errors import ConfigError, ModelError
from reinet.core.features import DEFAULT_FEATURE_SET, STATISTICS, FeatureSet, feature_set_named
from reinet.core.records import FlowStatsArray, as_bytes

MOST_VALUE = sys.float_info.max
"""A manifest's integers have any size, and a larger one is no float."""


class Normaliser:
    """Count, mean, sum of squared deviations and minimum of each input (rows: the feature set's ``inputs``, columns
    ``STATISTICS``).

    It belongs to a feature set, and has no rows where that needs no statistics. A normalised input is its distance from
    the smallest value seen, in standard deviations. Only ``observe`` and ``merge`` change the statistics; a
    ``StateBank`` or ``SimBatch`` takes a copy.
    """

    def __init__(self, feature_set: str = DEFAULT_FEATURE_SET) -> None:
        self.feature_set = feature_set_named(feature_set)
        self.table: npt.NDArray[np.float64] = np.zeros((len(self.feature_set.inputs), len(STATISTICS)))

    @classmethod
    def reference(cls, feature_set: str = DEFAULT_FEATURE_SET) -> "Normaliser":
        """Returns fixed statistics of a typical cellular path, for use before any training.

        They weigh as much as two records, so that training that starts from them soon forgets them.
        """
        normaliser = cls(feature_set)
        _core.typical_table(normaliser.feature_set.number, normaliser.table)
        return normaliser

    @classmethod
    def of(cls, feature_set: FeatureSet, normaliser: "Normaliser | None") -> "Normaliser":
        """Returns the normaliser of a feature set, None = the reference; raises ConfigError for another set's."""
        if normaliser is None:
            return cls.reference(feature_set.name)
        if not isinstance(normaliser, Normaliser):
            raise ConfigError(f"normaliser: a Normaliser, or None, is needed, not {normaliser!r:.40}")
        if normaliser.feature_set != feature_set:
            raise ConfigError(
                f"normaliser: it belongs to the feature set {normaliser.feature_set.name}, not to {feature_set.name}; "
                "give one of the same set, or none"
            )
        return normaliser

    def observe(self, stats: FlowStatsArray) -> None:
        """Adds FlowStats records, in order; those without an RTT sample are passed over."""
        _core.observe(self.feature_set.number, self.table, as_bytes(stats))

    def merge(self, other: "Normaliser") -> None:
        """Adds what the other has seen, as if it had been observed here."""
        _core.merge(self.feature_set.number, self.table, other.of(self.feature_set, other).table)

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Returns ``{input: {statistic: value}}``, ready for JSON; exact, since JSON keeps all digits of a float."""
        return {
            given.name: {key: float(value) for key, value in zip(STATISTICS, row, strict=True)}
            for given, row in zip(self.feature_set.inputs, self.table, strict=True)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], feature_set: str = DEFAULT_FEATURE_SET) -> "Normaliser":
        """Returns what ``to_dict`` was made of; raises ModelError for another layout or impossible statistics."""
        normaliser = cls(feature_set)
        names = [given.name for given in normaliser.feature_set.inputs]
        if not isinstance(values, Mapping) or set(values) != set(names):
            raise ModelError(
                f"normaliser: the inputs must be {', '.join(names) or 'none'} for {feature_set}; export the model again"
            )
        for row, name in enumerate(names):
            normaliser.table[row] = _row_from(name, values[name])
        return normaliser

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Normaliser)
            and self.feature_set == other.feature_set
            and np.array_equal(self.table, other.table)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Normaliser({self.feature_set.name}, {self.to_dict()})"


def _row_from(name: str, entry: object) -> list[float]:
    if not isinstance(entry, Mapping) or set(entry) != set(STATISTICS):
        raise ModelError(f"normaliser.{name}: the statistics must be {', '.join(STATISTICS)}; export the model again")
    row = [entry[key] for key in STATISTICS]
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and abs(v) <= MOST_VALUE for v in row):
        raise ModelError(f"normaliser.{name}: {row} are not all finite numbers; export the model again")
    count, mean, m2, minimum = row
    if count < 0 or m2 < 0 or (count > 0 and minimum > mean + 1e-9 * abs(mean)):
        raise ModelError(f"normaliser.{name}: {dict(entry)} cannot be statistics of anything; export the model again")
    return [float(v) for v in row]
