import numpy as np
import numpy.typing as npt

LINK_BYTES: int
LINK_SLOTS: int
LINK_RECORDS: int
LINK_MAGIC: int
WRITTEN_AT: int
CAPS_AT: int
RECORDS_AT: int

class Link:
    def __init__(self, fd: int, min_period_ns: int, packet_timed: bool) -> None: ...
    def take(self, most: int) -> npt.NDArray[np.uint8]: ...
    def apply(self, slot: int, cookie: int, cap_pkts: int, expires_ns: int, target_us: int) -> None: ...
    def release(self, slot: int, cookie: int) -> None: ...
    def busy(self, slot: int) -> bool: ...

SUMS_BYTES: int
SUMS_PLACES: int
SUMS_MAGIC: int
SUM_COUNTS: tuple[str, ...]

def sums_of(copy: bytes) -> tuple[int, list[dict[str, float]]]:
    """How many processes took a place among those of ``alcc/gate/sums.hpp``, and what is in each place."""

def watch_signal(number: int) -> None:
    """From now on, until its handler of Python's is another one, ``was_sent`` knows of that signal."""

def was_sent(number: int) -> bool:
    """Whether a process sent that signal since the last question; a terminal's key is none."""

def law_names() -> list[str]:
    """The laws that run outside the simulator."""

class UdpSender:
    """The sending end of a transfer; endless: data is a block twice, which goes again and again."""

    def __init__(
        self, fd: int, token: int, law: str, data: npt.NDArray[np.uint8], endless: bool, seconds_us: int,
        rtt_us: int, seed: int,
    ) -> None: ...  # fmt: skip
    def step(self, most_us: int) -> bool:
        """Goes on for so long at most; whether it is over."""
    @property
    def failure(self) -> str:
        """Why it is over, empty = all arrived."""
    def counts(self) -> dict[str, float]: ...

class UdpReceiver:
    """The receiving end; out_fd: takes the bytes, -1 = nobody does."""

    def __init__(self, fd: int, token: int, out_fd: int) -> None: ...
    def take(self, datagram: bytes) -> None: ...
    def step(self, most_us: int) -> bool: ...
    @property
    def failure(self) -> str: ...
    def counts(self) -> dict[str, int]: ...
