"""What a policy sees and does, by name: feature sets, heads, and the hash that travels with every model."""

import hashlib
import json
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.errors import ConfigError

INPUTS: tuple[str, ...] = tuple(_core.INPUT_NAMES)
"""The inputs that the normaliser keeps statistics of, in the order of its rows."""

STATISTICS = ("count", "mean", "m2", "minimum")
"""What the normaliser keeps of each input, in the order of its columns."""

HEADS: tuple[str, ...] = tuple(_core.HEAD_NAMES)
"""``cwnd``: cap = 2^a x cwnd (DeepCC). ``bdp``: cap = 1.5 x 2^a x the hand rule's product."""

# What the hash covers beside names and bounds: two builds that compute differently must not share a model.
_NORMALISED = "(x - minimum) / sqrt(m2 / count)"
_CAPS = {"cwnd": "2^a * cwnd_pkts", "bdp": f"{_core.RULE_GAIN} * 2^a * max_rate_{_core.RULE_PERIODS} * min_rtt / mss"}


@dataclass(frozen=True)
class Feature:
    """One value of an observation, with the bounds it is clipped to."""

    name: str
    unit: str
    low: float
    high: float


@dataclass(frozen=True)
class FeatureSet:
    """A named, versioned layout of the state: ``history`` observations of ``features``, newest first."""

    name: str
    version: int
    history: int
    features: tuple[Feature, ...]
    inputs: tuple[str, ...]

    @property
    def state_size(self) -> int:
        """Number of float32 values in a state."""
        return self.history * len(self.features)

    def low(self) -> npt.NDArray[np.float32]:
        """Lower bounds of a state, shape (state_size,)."""
        return np.array([f.low for f in self.features] * self.history, dtype=np.float32)

    def high(self) -> npt.NDArray[np.float32]:
        """Upper bounds of a state, shape (state_size,)."""
        return np.array([f.high for f in self.features] * self.history, dtype=np.float32)


DEFAULT_FEATURE_SET: str = _core.FEATURE_SET_NAME

FEATURE_SETS = MappingProxyType(
    {
        DEFAULT_FEATURE_SET: FeatureSet(
            name=DEFAULT_FEATURE_SET,
            version=_core.FEATURE_SET_VERSION,
            history=_core.HISTORY,
            features=tuple(Feature(*row) for row in _core.FEATURES),
            inputs=INPUTS,
        )
    }
)


def feature_set_named(name: str) -> FeatureSet:
    """The feature set of that name; ConfigError for an unknown one."""
    if name not in FEATURE_SETS:
        raise ConfigError(f"feature_set: there is no feature set {name!r}; choose one of {', '.join(FEATURE_SETS)}")
    return FEATURE_SETS[name]


def head_index(name: str) -> int:
    """The head's number in the C++ core; ConfigError for an unknown one."""
    if name not in HEADS:
        raise ConfigError(f"head: there is no head {name!r}; choose one of {', '.join(HEADS)}")
    return HEADS.index(name)


def schema_hash(feature_set: str, head: str) -> str:
    """SHA-256, in hex, of all that a policy's weights rely on: feature set, head and normaliser layout."""
    chosen = feature_set_named(feature_set)
    head_index(head)
    schema = {
        "feature_set": {
            "name": chosen.name,
            "version": chosen.version,
            "history": chosen.history,
            "features": [[f.name, f.unit, f.low, f.high] for f in chosen.features],
            "reference_min_rtt_ms": _core.REFERENCE_MIN_RTT_MS,
        },
        "head": {"name": head, "cap_pkts": _CAPS[head], "lowest": _core.MIN_CAP_PKTS, "highest": _core.MAX_CAP_PKTS},
        "normaliser": {"inputs": list(chosen.inputs), "statistics": list(STATISTICS), "formula": _NORMALISED},
    }
    return hashlib.sha256(json.dumps(schema, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
