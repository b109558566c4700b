"""What several parts share, in C++: records, periods, states and rewards."""

from reinet.core.errors import ConfigError, LinkError, ModelError, ShimError, TraceError
from reinet.core.features import DEFAULT_FEATURE_SET, FEATURE_SETS, schema_hash
from reinet.core.normaliser import Normaliser
from reinet.core.period import PeriodConfig
from reinet.core.records import ACK_DTYPE, FLOW_STATS_DTYPE, HEADER_BYTES, OPPORTUNITY_BYTES, Flag
from reinet.core.rewards import DEFAULT_REWARD, DELAY_WEIGHT, REWARDS, Offers, delay_ratios
from reinet.core.state import StateBank
from reinet.core.states.caps import (
    MAX_CAP_PKTS,
    MIN_CAP_PKTS,
    MOST_CALM_RTTS,
    RULE_GAIN,
    actions_from_caps,
    calm_caps,
    caps_from_actions,
    round_caps,
)

__all__ = [
    "ACK_DTYPE",
    "DEFAULT_FEATURE_SET",
    "DEFAULT_REWARD",
    "DELAY_WEIGHT",
    "FEATURE_SETS",
    "FLOW_STATS_DTYPE",
    "HEADER_BYTES",
    "MAX_CAP_PKTS",
    "MIN_CAP_PKTS",
    "MOST_CALM_RTTS",
    "OPPORTUNITY_BYTES",
    "REWARDS",
    "RULE_GAIN",
    "ConfigError",
    "Flag",
    "LinkError",
    "ModelError",
    "Normaliser",
    "Offers",
    "PeriodConfig",
    "ShimError",
    "StateBank",
    "TraceError",
    "actions_from_caps",
    "calm_caps",
    "caps_from_actions",
    "delay_ratios",
    "round_caps",
    "schema_hash",
]
