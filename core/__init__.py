"""What several parts share, in C++: records, periods, states and rewards."""

from reinet.core.errors import ConfigError, DaemonError, LinkError, ModelError, ReinetError, ShimError, TraceError
from reinet.core.features import (
    DEFAULT_FEATURE_SET,
    FEATURE_SETS,
    HEADS,
    INPUTS,
    Feature,
    FeatureSet,
    schema_hash,
)
from reinet.core.normaliser import Normaliser
from reinet.core.period import SILENCE_NS, PeriodConfig, PeriodTracker
from reinet.core.records import ACK_DTYPE, FLOW_STATS_DTYPE, HEADER_BYTES, OPPORTUNITY_BYTES, Flag
from reinet.core.state import MAX_CAP_PKTS, MIN_CAP_PKTS, Batch, StateBank, caps_from_actions

__all__ = [
    "ACK_DTYPE",
    "DEFAULT_FEATURE_SET",
    "FEATURE_SETS",
    "FLOW_STATS_DTYPE",
    "HEADER_BYTES",
    "HEADS",
    "INPUTS",
    "MAX_CAP_PKTS",
    "MIN_CAP_PKTS",
    "OPPORTUNITY_BYTES",
    "SILENCE_NS",
    "Batch",
    "ConfigError",
    "DaemonError",
    "Feature",
    "FeatureSet",
    "Flag",
    "LinkError",
    "ModelError",
    "Normaliser",
    "PeriodConfig",
    "PeriodTracker",
    "ReinetError",
    "ShimError",
    "StateBank",
    "TraceError",
    "caps_from_actions",
    "schema_hash",
]
