"""The period rule of ``period.h`` for Python: when a FlowStats record is due, and what it says."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.errors import ConfigError
from reinet.core.records import FLOW_STATS_DTYPE, as_bytes, empty_stats

SILENCE_NS: int = _core.SILENCE_NS
"""Data outstanding and no ACK for this long: a record flagged NO_SAMPLE."""

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


class PeriodTracker:
    """One flow's period. Records come with cookie, slot, target and cap zero: those are the caller's to fill."""

    def __init__(self, config: PeriodConfig | None = None) -> None:
        config = config or PeriodConfig()
        self._core = _core.PeriodTracker(config.min_period_ns, config.packet_timed)

    def on_acks(self, acks: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Take ACKs (ACK_DTYPE, shape (N,)) in order; return the records they cause (FLOW_STATS_DTYPE, shape (M,))."""
        records = empty_stats(len(acks))
        return records[: self._core.on_acks(as_bytes(acks), _writable(records))]

    def on_tick(self, now_ns: int, outstanding: bool) -> npt.NDArray[np.void]:
        """Take the time; return one NO_SAMPLE record if data is outstanding and the silence has lasted, else none."""
        records = empty_stats(1)
        return records[: self._core.on_tick(now_ns, outstanding, _writable(records))]

    def on_restart(self, now_ns: int) -> None:
        """Take the start of a transmission after an idle time, which then counts neither as silence nor in the rate."""
        self._core.on_restart(now_ns)


def _writable(records: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    return records.view(np.uint8).reshape(len(records), FLOW_STATS_DTYPE.itemsize)
