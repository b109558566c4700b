import numpy as np
import numpy.typing as npt

LINK_BYTES: int
LINK_SLOTS: int
LINK_RECORDS: int
LINK_MAGIC: int
WRITTEN_AT: int
CAPS_AT: int
BUSY_AT: int
RECORDS_AT: int

class Link:
    def __init__(self, fd: int, min_period_ns: int, packet_timed: bool) -> None: ...
    def take(self, most: int) -> npt.NDArray[np.uint8]: ...
    def apply(self, slot: int, cookie: int, cap_pkts: int, expires_ns: int, target_us: int) -> None: ...
    def release(self, slot: int, cookie: int) -> None: ...
    def busy(self, slot: int) -> bool: ...
