"""The period rule of ``core/period.h`` by hand, against which simulator, reader and BPF are held."""

import numpy as np
import numpy.typing as npt

from reinet.core import FLOW_STATS_DTYPE, PeriodConfig
from reinet.core.records import ACK_DTYPE, Flag, as_bytes, empty_stats
from reinet.envs.sim import _driven

SILENT = int(Flag.NO_SAMPLE | Flag.SILENCE)
"""The flags of a silence's record."""


class PeriodTracker:
    """One flow's period. Records come with cookie, slot, target and cap zero: those are the caller's to fill."""

    def __init__(self, config: PeriodConfig | None = None) -> None:
        config = config or PeriodConfig()
        self._core = _driven.PeriodTracker(config.min_period_ns, config.packet_timed)

    def on_acks(self, acks: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Take ACKs (ACK_DTYPE, shape (N,)) in order; return the records they cause (FLOW_STATS_DTYPE, shape (M,))."""
        records = empty_stats(len(acks))
        return records[: self._core.on_acks(as_bytes(acks, ACK_DTYPE), _writable(records))]

    def on_tick(self, now_ns: int, outstanding: bool) -> npt.NDArray[np.void]:
        """Take the time; return one record if data is outstanding and the silence has lasted, else none."""
        records = empty_stats(1)
        return records[: self._core.on_tick(now_ns, outstanding, _writable(records))]

    def on_restart(self, now_ns: int) -> None:
        """Take the start of a transmission after an idle time, which then counts neither as silence nor in the rate."""
        self._core.on_restart(now_ns)


def _writable(records: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    return records.view(np.uint8).reshape(len(records), FLOW_STATS_DTYPE.itemsize)
