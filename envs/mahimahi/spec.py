"""A path that Mahimahi can emulate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace

MIN_BUFFER_BYTES = 2 * 1504
"""A queue that holds fewer than two full packets never lets a sender fill the link."""
MAX_MRTT_MS = 10_000


@dataclass(frozen=True)
class LinkSpec:
    """An emulated path. Raises ConfigError where Mahimahi could not do it, or would silently do something else."""

    trace: Trace
    """Delivery opportunities in the data's direction."""
    uplink: Trace | None = None
    """Those of the ACKs' direction; None = constant 48 Mbit/s."""
    mrtt_ms: float = 20.0
    """Fixed round trip, half of it each way: an even number of whole milliseconds."""
    buffer_bytes: int = 150_000
    """Room in the bottleneck's queue; a full packet counts 1504 bytes."""
    queue: Literal["droptail", "drophead"] = "droptail"
    start_offset_ms: int = 0
    """Where in the trace the link starts; moved to the next delivery opportunity, so that the loop keeps its length."""

    def __post_init__(self) -> None:
        if not 0 <= self.mrtt_ms <= MAX_MRTT_MS or self.mrtt_ms % 2:
            raise ConfigError(
                f"mrtt_ms is {self.mrtt_ms:g}: Mahimahi delays each way by whole milliseconds, so give an even number "
                f"between 0 and {MAX_MRTT_MS}"
            )
        if self.buffer_bytes < MIN_BUFFER_BYTES:
            raise ConfigError(f"buffer_bytes is {self.buffer_bytes}; two full packets ({MIN_BUFFER_BYTES}) must fit")
        if self.queue not in ("droptail", "drophead"):
            raise ConfigError(f"queue is {self.queue!r}; choose droptail or drophead")
        if self.start_offset_ms < 0:
            raise ConfigError(f"start_offset_ms is {self.start_offset_ms}; give 0 or above, from the trace's start")

    def opportunities_ms(self) -> npt.NDArray[np.int64]:
        """Delivery opportunities of the first loop, counted from where the link starts."""
        times_ms = self.trace.opportunities_ms.astype(np.int64)
        loop_ms = int(times_ms[-1])
        if not self.start_offset_ms % loop_ms:
            return times_ms
        start_ms = times_ms[np.searchsorted(times_ms, self.start_offset_ms % loop_ms)]
        return np.sort((times_ms - start_ms - 1) % loop_ms + 1)
