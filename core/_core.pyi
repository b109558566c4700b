"""The C++ core as Python sees it; the classes to use are in the modules around it."""

from numpy import float32, float64, int32, uint8, uint32
from numpy.typing import NDArray

FLOW_STATS_FIELDS: list[tuple[str, str, int]]
FLOW_STATS_SIZE: int
ACK_FIELDS: list[tuple[str, str, int]]
ACK_SIZE: int
FLAG_APP_LIMITED: int
FLAG_IN_RECOVERY: int
FLAG_SLOW_START: int
FLAG_NO_SAMPLE: int
FLAG_CLOSED: int
INPUT_NAMES: list[str]
HEAD_NAMES: list[str]
FEATURES: list[tuple[str, str, float, float]]
FEATURE_SET_NAME: str
FEATURE_SET_VERSION: int
HISTORY: int
REFERENCE_MIN_RTT_MS: float
RULE_GAIN: float
RULE_PERIODS: int
MIN_CAP_PKTS: int
MAX_CAP_PKTS: int
MIN_PERIOD_NS: int
SILENCE_NS: int
HEADER_BYTES: int
OPPORTUNITY_BYTES: int

def observe(table: NDArray[float64], stats: NDArray[uint8]) -> None: ...
def merge(table: NDArray[float64], other: NDArray[float64]) -> None: ...
def caps_from_actions(
    head: int,
    actions: NDArray[float32],
    cwnd_pkts: NDArray[uint32],
    rule_pkts: NDArray[float32],
    ceiling_pkts: int,
    caps_pkts: NDArray[uint32],
) -> None: ...

class PeriodTracker:
    def __init__(self, min_period_ns: int, packet_timed: bool) -> None: ...
    def on_acks(self, acks: NDArray[uint8], out: NDArray[uint8]) -> int: ...
    def on_tick(self, now_ns: int, outstanding: bool, out: NDArray[uint8]) -> int: ...
    def on_restart(self, now_ns: int) -> None: ...

class StateBank:
    def __init__(self, capacity: int, table: NDArray[float64]) -> None: ...
    @property
    def capacity(self) -> int: ...
    def grow(self, capacity: int) -> None: ...
    def set_normaliser(self, table: NDArray[float64]) -> None: ...
    def reset(self, rows: NDArray[int32]) -> None: ...
    def update(
        self,
        rows: NDArray[int32],
        stats: NDArray[uint8],
        states: NDArray[float32],
        rewards: NDArray[float32],
        rule_pkts: NDArray[float32],
        decided: NDArray[uint8],
    ) -> None: ...
