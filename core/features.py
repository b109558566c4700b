"""What a policy sees and does, by name: feature sets, heads, and the hash that travels with every model.

The table of feature sets is in ``states/feature_sets.hpp``; this is Python's view of it.
"""

import hashlib
import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.errors import ConfigError

STATISTICS = ("count", "mean", "m2", "minimum")
"""What the normaliser keeps of each input, in the order of its columns."""

HEADS: tuple[str, ...] = tuple(_core.HEAD_NAMES)
"""``cwnd``: cap = 2^a x cwnd (DeepCC). ``bdp``: cap = 1.5 x 2^a x the hand rule's product, ``wide``: 1.3 x 4^a x it."""

_CAPS = {
    "cwnd": "2^a x cwnd",
    "bdp": f"{_core.RULE_GAIN} x 2^a x rule",
    "wide": f"{_core.WIDE_GAIN} x 4^a x rule",
}


@dataclass(frozen=True)
class Feature:
    """One value of an observation, with the bounds it is clipped to."""

    name: str
    unit: str
    low: float
    high: float
    formula: str
    """It is written for people and for the schema hash; its terms are the feature set's."""


@dataclass(frozen=True)
class Input:
    """A quantity that the feature set's normaliser keeps statistics of."""

    name: str
    formula: str


@dataclass(frozen=True)
class FeatureSet:
    """A named, versioned layout of the state: ``history`` observations of ``features``, newest first."""

    name: str
    version: int
    history: int
    features: tuple[Feature, ...]
    inputs: tuple[Input, ...]
    """They stand in the order of the normaliser's rows; there are none where features need no statistics."""
    terms: str
    """It says what the symbols in the features' formulas mean."""
    rule: str
    """The formula of the hand rule's product, in packets."""
    number: int
    """The set's index in the C++ core."""

    @property
    def state_size(self) -> int:
        """Returns the number of float32 values in a state."""
        return self.history * len(self.features)

    def low(self) -> npt.NDArray[np.float32]:
        """Returns the lower bounds of a state, shape (state_size,)."""
        return np.array([f.low for f in self.features] * self.history, dtype=np.float32)

    def high(self) -> npt.NDArray[np.float32]:
        """Returns the upper bounds of a state, shape (state_size,)."""
        return np.array([f.high for f in self.features] * self.history, dtype=np.float32)


def _feature_set(number: int, row: dict[str, Any]) -> FeatureSet:
    features = tuple(Feature(*feature) for feature in row["features"])
    inputs = tuple(Input(*given) for given in row["inputs"])
    return FeatureSet(
        row["name"], row["version"], row["history"], features, inputs, row["terms"], row["rule"], number
    )  # fmt: skip


FEATURE_SETS = MappingProxyType({row["name"]: _feature_set(i, row) for i, row in enumerate(_core.FEATURE_SETS)})

DEFAULT_FEATURE_SET: str = next(iter(FEATURE_SETS))


def feature_set_named(name: str) -> FeatureSet:
    """Returns the feature set of that name; raises ConfigError for an unknown one."""
    if name not in tuple(FEATURE_SETS):  # also what has no hash
        raise ConfigError(f"feature_set: there is no feature set {name!r}; choose one of {', '.join(FEATURE_SETS)}")
    return FEATURE_SETS[name]


def head_index(name: str) -> int:
    """Returns the head's number in the C++ core; raises ConfigError for an unknown one."""
    if name not in HEADS:
        raise ConfigError(f"head: there is no head {name!r}; choose one of {', '.join(HEADS)}")
    return HEADS.index(name)


def schema_hash(feature_set: str, head: str) -> str:
    """Returns the SHA-256, in hex, of all that a policy's weights rely on: two builds that compute differently must
    not share a model.

    It covers the feature set's row of the table with its formulas, the head and the normaliser's layout.
    """
    chosen = feature_set_named(feature_set)
    head_index(head)
    schema = {
        "feature_set": {
            "name": chosen.name,
            "version": chosen.version,
            "history": chosen.history,
            "features": [[f.name, f.unit, f.low, f.high, f.formula] for f in chosen.features],
            "terms": chosen.terms,
            "rule": chosen.rule,
        },
        "head": {"name": head, "cap_pkts": _CAPS[head], "lowest": _core.MIN_CAP_PKTS, "highest": _core.MAX_CAP_PKTS},
        "normaliser": {
            "inputs": [[i.name, i.formula] for i in chosen.inputs],
            "statistics": list(STATISTICS),
            "formula": _core.NORMALISED_FORMULA,
        },
    }
    return hashlib.sha256(json.dumps(schema, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
