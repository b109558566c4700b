"""The C++ core as Python sees it; the classes to use are in the modules around it."""

from typing import Any

from numpy import float32, float64, int32, int64, uint8, uint32, uint64
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
FLAG_RELATIVE: int
FLAG_RESTARTED: int
FLAG_COMPANY: int
FLAG_SILENCE: int
FEATURE_SETS: list[dict[str, Any]]
NORMALISED_FORMULA: str
REWARD_NAMES: list[str]
DELAY_WEIGHT: float
LEAST_TARGET_PER_RTT: float
HEAD_NAMES: list[str]
RULE_GAIN: float
WIDE_GAIN: float
MIN_CAP_PKTS: int
MAX_CAP_PKTS: int
MOST_CALM_RTTS: float
MIN_PERIOD_NS: int
SILENCE_NS: int
FOREIGN_ROUNDS: float
ASK_ROUNDS: float
LEAST_YIELD_NS: int
LOOK_AFTER_NS: int
LOOK_EVERY_NS: int
LOOK_REST_NS: int
LOOK_STEP_ROUNDS: int
LOOK_LONGEST_ROUND_NS: int
HOLD_PER_PATH: float
INVALID_CAP_PKTS: int
KEPT_RECORDS: int
VERDICT_BYTES: int
ANSWER_NONE: int
ANSWER_DECIDED: int
ANSWER_CLOSED: int
ANSWER_STALE: int
HEADER_BYTES: int
OPPORTUNITY_BYTES: int

def typical_table(feature_set: int, table: NDArray[float64]) -> None: ...
def observe(feature_set: int, table: NDArray[float64], stats: NDArray[uint8]) -> None: ...
def merge(feature_set: int, table: NDArray[float64], other: NDArray[float64]) -> None: ...
def regret_unit_bytes(opportunities: int, loop_ms: int) -> float: ...
def delay_ratios(stats: NDArray[uint8], ratios: NDArray[float64]) -> None: ...
def round_caps(pkts: NDArray[float64], ceiling_pkts: int, caps_pkts: NDArray[uint32]) -> None: ...
def calm_caps(
    wanted_pkts: NDArray[uint32],
    stats: NDArray[uint8],
    calm_rtts: float,
    ceiling_pkts: int,
    caps_pkts: NDArray[uint32],
) -> None: ...
def actions_from_caps(
    head: int,
    caps_pkts: NDArray[uint32],
    cwnd_pkts: NDArray[uint32],
    rule_pkts: NDArray[float32],
    actions: NDArray[float32],
) -> None: ...
def delay_rooms_us(stats: NDArray[uint8], rooms_us: NDArray[float64]) -> None: ...
def caps_from_actions(
    head: int,
    actions: NDArray[float32],
    cwnd_pkts: NDArray[uint32],
    rule_pkts: NDArray[float32],
    ceiling_pkts: int,
    caps_pkts: NDArray[uint32],
) -> None: ...
def learned_caps(
    head: int,
    actions: NDArray[float32],
    stats: NDArray[uint8],
    rule_pkts: NDArray[float32],
    calm_rtts: float,
    ceiling_pkts: int,
    caps_pkts: NDArray[uint32],
) -> None: ...

class StateBank:
    def __init__(
        self,
        capacity: int,
        feature_set: int,
        table: NDArray[float64],
        reward: int,
        delay_weight: float,
        room_beyond_us: float,
    ) -> None: ...
    @property
    def capacity(self) -> int: ...
    def grow(self, capacity: int) -> None: ...
    def reset(self, rows: NDArray[int32]) -> None: ...
    def longer_us(self, rows: NDArray[int32], found_us: NDArray[uint32]) -> None: ...
    def show(self, row: int, state: NDArray[float32]) -> float: ...
    def update(
        self,
        rows: NDArray[int32],
        stats: NDArray[uint8],
        offers: NDArray[float64],
        states: NDArray[float32],
        rewards: NDArray[float32],
        rule_pkts: NDArray[float32],
        decided: NDArray[uint8],
        may_cap: NDArray[uint8],
    ) -> None: ...

PEER_EVERYBODY: int
PEER_OF_PROGRAM: int
PEER_NAMED_BY: int

def peer_of(address: bytes) -> int: ...

class Peers:
    def __init__(self, shared_uplink: bool) -> None: ...
    def annotate(self, stats: NDArray[uint8]) -> None: ...
    def forget(self, slots: NDArray[int64], cookies: NDArray[uint64]) -> None: ...

class GuardBank:
    def __init__(self, ceiling_pkts: int, bounds_steps: bool) -> None: ...
    def forget(self, slots: NDArray[int64], cookies: NDArray[uint64]) -> None: ...
    def see(self, stats: NDArray[uint8], aims_at_target: bool) -> None: ...
    def judge(
        self,
        stats: NDArray[uint8],
        wanted_pkts: NDArray[uint32],
        may_cap: NDArray[uint8],
        aims_at_target: bool,
        caps_pkts: NDArray[uint32],
        verdicts: NDArray[uint8],
    ) -> None: ...

class FlowMemory:
    def __init__(
        self, rows: int, delays_s: list[float], rates_bytes_per_s: list[float], latencies_s: list[float]
    ) -> None: ...
    def grow(self, rows: int) -> None: ...
    def reset(self, rows: NDArray[int64]) -> None: ...
    def record(self, rows: NDArray[int64], stats: NDArray[uint8]) -> None: ...
    def decide(
        self, rows: NDArray[int64], now_ns: NDArray[uint64], stats: NDArray[uint8], verdicts: NDArray[uint8]
    ) -> None: ...
    def seen(self, row: int, cookie: int, records: NDArray[uint8]) -> tuple[int, int]: ...
    def counts(self) -> dict[str, Any]: ...

class Reflex:
    def __init__(
        self,
        bank: StateBank,
        guards: GuardBank,
        weights: list[NDArray[float32]],
        biases: list[NDArray[float32]],
        head: int,
        calm_rtts: float,
        ceiling_pkts: int,
        lease_ns: int,
    ) -> None: ...
    def set_target(self, min_rtts: float, extra_us: float) -> None: ...
    def begin(self, owners: NDArray[uint64], peers: Peers) -> None: ...
    def answer(self, stats: NDArray[uint8], now_ns: int, verdicts: NDArray[uint8], answers: NDArray[uint8]) -> None: ...
    def show(self, slot: int, state: NDArray[float32]) -> float: ...

class Rest:
    def __init__(self) -> None: ...
    def after(self, came_ns: int, records: int, most_ns: int) -> int: ...
