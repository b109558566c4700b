"""The simulator as Python sees it; the classes to use are in ``batch.py``."""

from typing import Any

from numpy import float32, float64, int32, uint8, uint32
from numpy.typing import NDArray

NEVER_US: int
CONGESTION_CONTROLS: tuple[str, ...]

def opportunities_until(trace_ms: NDArray[uint32], now_ms: int) -> int: ...

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
        feature_set: int,
        head: int,
        reward: int,
        delay_weight: float,
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
