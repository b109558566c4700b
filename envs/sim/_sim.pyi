"""The simulator as Python sees it; the classes to use are in ``batch.py``."""

from typing import Any

from numpy import float32, float64, int32, uint8, uint32, uint64
from numpy.typing import NDArray

from reinet.core.errors import ConfigError

CONGESTION_CONTROLS: tuple[str, ...]
QUEUES: tuple[str, ...]
SCHEDULERS: tuple[str, ...]

class FlowOptions:
    """One attribute for each of NAMES, the rows of REINET_FLOW_OPTIONS in ``options.hpp``."""

    NAMES: tuple[str, ...]

class LinkOptions:
    """One attribute for each of NAMES, the rows of REINET_LINK_OPTIONS in ``options.hpp``, and one flow or more."""

    NAMES: tuple[str, ...]
    flows: list[FlowOptions]

class StalledError(ConfigError):
    """A link whose stepped flows have no record any more, see ``batch.hpp``."""

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
        room_beyond_us: float,
        table: NDArray[float64],
        record_log: bool,
        states: NDArray[float32],
        rewards: NDArray[float32],
        stats: NDArray[uint8],
        rule_pkts: NDArray[float32],
        decided: NDArray[uint8],
        may_cap: NDArray[uint8],
        threads: int,
    ) -> None: ...
    def set_link(
        self, row: int, link: LinkOptions, traces_ms: list[NDArray[uint32]], uplink_ms: NDArray[uint32]
    ) -> None: ...
    def reset(self, rows: NDArray[int32]) -> None: ...
    def step(self, actions: NDArray[float32]) -> None: ...
    def step_caps(self, caps_pkts: NDArray[uint32]) -> None: ...
    def clairvoyant_caps(self, horizons_ms: NDArray[uint64], caps_pkts: NDArray[uint32]) -> None: ...
    def hidden(self, horizons_ms: NDArray[uint64], values: NDArray[float32]) -> None: ...
    def packets(self, row: int) -> dict[str, int]: ...
    def objects(self, row: int, flow: int) -> tuple[NDArray[uint64], NDArray[uint64]]: ...
    def memory_bytes(self, row: int) -> int: ...
    def log(self, row: int, until_ms: int) -> dict[str, Any]: ...
