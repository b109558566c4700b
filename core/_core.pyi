"""The C++ core as Python sees it; the classes to use are in the modules around it."""

from typing import Any

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
OPPORTUNITY_BYTES: int
NEVER_US: int
CONGESTION_CONTROLS: tuple[str, ...]

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

class QueueKind: ...

class QueueConfig:
    def __init__(
        self, kind: QueueKind, limit_bytes: int, limit_pkts: int, target_ms: int, interval_ms: int, seed: int
    ) -> None: ...

class FlowSetup:
    def __init__(
        self,
        cc: str,
        start_us: int,
        stop_us: int,
        forward_us: int,
        return_us: int,
        mss_bytes: int,
        total_bytes: int,
        app_bytes_per_s: float,
        target_us: int,
        late_us: int,
        jitter_us: int,
        forward_jitter_us: int,
        pkts_per_ack: float,
        loss: float,
        seed: int,
        cap_pkts: int,
        stepped: bool,
    ) -> None: ...

class PathSetup:
    def __init__(
        self,
        start_us: int,
        queue: QueueConfig,
        wired: list[tuple[int, float]],
        wired_buffer_bytes: int,
        late_us: int,
        fair_window_ms: float,
        flows: list[FlowSetup],
    ) -> None: ...

class SimBatch:
    def __init__(
        self,
        rows: int,
        min_period_ns: int,
        packet_timed: bool,
        head: int,
        table: NDArray[float64],
        record_log: bool,
        states: NDArray[float32],
        rewards: NDArray[float32],
        stats: NDArray[uint8],
        rule_pkts: NDArray[float32],
        decided: NDArray[uint8],
        threads: int,
    ) -> None: ...
    def set_link(self, row: int, setup: PathSetup, traces_ms: list[NDArray[uint32]]) -> None: ...
    def set_normaliser(self, table: NDArray[float64]) -> None: ...
    def reset(self, rows: NDArray[int32]) -> None: ...
    def step(self, actions: NDArray[float32]) -> None: ...
    def step_caps(self, caps_pkts: NDArray[uint32]) -> None: ...
    def clairvoyant_caps(self, horizon_ms: int, caps_pkts: NDArray[uint32]) -> None: ...
    def packets(self, row: int) -> dict[str, int]: ...
    def memory_bytes(self, row: int) -> int: ...
    def log(self, row: int) -> dict[str, Any]: ...

class DrivenControl:
    """One congestion control without a connection; what is sent stays in flight until acknowledged in order."""

    def __init__(
        self, name: str, mss_bytes: int = 1448, rtt_us: int = 20_000, target_us: int = 0, seed: int = 0
    ) -> None: ...
    cwnd_pkts: int
    ssthresh_pkts: int
    @property
    def pacing_bytes_per_s(self) -> float: ...
    def send(self, now_us: int, pkts: int) -> None: ...
    def ack(
        self, now_us: int, rtt_us: int, pkts: int = 1, lost_pkts: int = 0, rate_us: int = 0, sent_us: int = 0
    ) -> None:
        """rtt_us: negative = no sample; rate_us: what was in flight took so long, 0 = no sample; sent_us: of pkts."""
    def loss(self, timeout: bool = False) -> None: ...
    def open(self) -> None: ...
    def advance(self, now_us: int) -> None:
        """The control's own timers, up to that time."""

class Ack:
    """All below next_seq has arrived; beyond that, since the ACK before, [sack_begin, sack_end)."""

    next_seq: int
    sack_begin: int
    sack_end: int
    echo_us: int

def delay_line(arrives_us: list[int], delay_us: int, late_us: int) -> list[int]:
    """When packets that come to a fixed delay at those times, in order, leave it."""

class DrivenReceiver:
    """A receiver without a path."""

    def __init__(self, pkts_per_ack: float = 2.0) -> None: ...
    def packet(self, now_us: int, seq: int, sent_us: int) -> list[Ack]:
        """The ACKs that a packet draws at once."""
    def advance(self, now_us: int) -> list[Ack]:
        """The ACKs that are delayed no longer than that."""

class DrivenSender:
    """A sender without a path, under Reno; total_bytes: 0 = for ever."""

    def __init__(self, now_us: int, rtt_us: int, total_bytes: int = 0) -> None: ...
    def advance(self, now_us: int) -> None:
        """Its own timers, up to that time."""
    def ack(self, now_us: int, next_seq: int, echo_us: int, sack_begin: int = 0, sack_end: int = 0) -> None: ...
    def take_sent(self) -> list[tuple[int, int]]:
        """Time in us and segment of each transmission since the last call."""
    @property
    def cwnd_pkts(self) -> int: ...
    @property
    def ssthresh_pkts(self) -> int: ...
