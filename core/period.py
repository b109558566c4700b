"""The period rule of ``period.h`` for Python: when a FlowStats record is due, and what it says."""

from dataclasses import dataclass

from reinet.core import _core
from reinet.core.errors import ConfigError

SILENCE_NS: int = _core.SILENCE_NS
"""Data outstanding and no ACK for this long: a record flagged SILENCE, which does not end its period."""

_LONGEST_PERIOD_NS = 60 * 10**9


@dataclass(frozen=True)
class PeriodConfig:
    """When a period ends.

    ``packet_timed``: at the first ACK of a packet sent after the period began, and no sooner than ``min_period_ns``
    (10 ms: fewer hold too few samples for a mean). Otherwise at the first ACK ``min_period_ns`` after its start;
    DeepCC's published code is ``PeriodConfig(20_000_000, packet_timed=False)``.
    """

    min_period_ns: int = _core.MIN_PERIOD_NS
    packet_timed: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.min_period_ns <= _LONGEST_PERIOD_NS:
            raise ConfigError(f"min_period_ns: {self.min_period_ns} is outside 0 to {_LONGEST_PERIOD_NS} (a minute)")

    def __str__(self) -> str:
        """Returns it in words, for messages."""
        ms = f"{self.min_period_ns / 1e6:g} ms"
        return f"each round trip, {ms} at least" if self.packet_timed else f"every {ms}"
