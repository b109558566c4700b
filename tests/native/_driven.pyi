"""``reinet.envs.sim._driven``: what tests drive by hand; editable installs alone have it."""

from numpy import uint8
from numpy.typing import NDArray

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
    """All below next_seq has arrived; beyond that, since the ACK before, [sack_begin, sack_end); what lies just below
    duplicate_end did a second time, where that is not 0."""

    next_seq: int
    sack_begin: int
    sack_end: int
    duplicate_end: int
    echo_us: int

def delays_us(mrtt_ms: float, forward_ms: float | None) -> tuple[int, int]:
    """A flow's fixed delay there and back, as the simulator makes it of what a user says."""

def delay_line(arrives_us: list[int], delay_us: int, late_us: int) -> list[int]:
    """When packets that come to a fixed delay at those times, in order, leave it."""

def opportunities_until(times_ms: list[int], until_ms: int) -> int:
    """The opportunities of a looping trace at times in [0, until]."""

class DelayProfile:
    """Verus's delay by window."""

    def add(self, window_pkts: int, delay_ms: float) -> None:
        """An ACK of a packet that was sent in that window."""
    def fit(self, below_pkts: int) -> bool:
        """Lays a curve through the points below that window; False: they are too few."""
    def window_pkts(self, delay_ms: float) -> int:
        """The window below the first whose delay is larger, 0: there is none."""
    def delay_ms(self, window_pkts: float) -> float:
        """The delay of that window, below 0: not known."""

class DrivenReceiver:
    """A receiver without a path."""

    def __init__(self, pkts_per_ack: float = 2.0, singly: bool = False) -> None: ...
    def packet(self, now_us: int, seq: int, sent_us: int) -> list[Ack]:
        """The ACKs that a packet draws at once."""
    def advance(self, now_us: int) -> list[Ack]:
        """The ACKs that are delayed no longer than that."""

class DrivenSender:
    """A sender without a path, under Reno; total_bytes: 0 = for ever, object_pkts: 0 = one stream."""

    def __init__(
        self, now_us: int, rtt_us: int, total_bytes: int = 0, object_pkts: int = 0, pause_us: int = 0
    ) -> None: ...
    def advance(self, now_us: int) -> None:
        """Its own timers, up to that time."""
    def ack(
        self, now_us: int, next_seq: int, echo_us: int, sack_begin: int = 0, sack_end: int = 0, cap_pkts: int = 0,
        duplicate_end: int = 0,
    ) -> None: ...  # fmt: skip
    def take_sent(self) -> list[tuple[int, int]]:
        """Time in us and segment of each transmission since the last call."""
    @property
    def cwnd_pkts(self) -> int: ...
    @property
    def ssthresh_pkts(self) -> int: ...

class WithheldWindow:
    """reinet_withheld_window of core/cc/withheld_window.h."""

    cwnd_pkts: int
    def __init__(self) -> None: ...
    def on_cap(self, in_force_pkts: int, cap_pkts: int, delivered_pkts: int, timeout: int = 1) -> None: ...
    def blamed_pkts(self, cwnd_pkts: int) -> int: ...

def blamed_ssthresh_pkts(blamed_pkts: int, cwnd_pkts: int, ssthresh_pkts: int) -> int:
    """reinet_blamed_ssthresh_pkts of core/cc/withheld_window.h."""

class Outage:
    """reinet_outage of core/cc/outage.h."""

    def __init__(self) -> None: ...
    def on_ack(self, now_us: int, rtt_us: int, min_rtt_us: int, una_seq: int, next_seq: int) -> None: ...
    def capped_pkts(self, cap_pkts: int, in_flight_pkts: int, una_seq: int, next_seq: int) -> int: ...

def cap_limited_until(caps_own: int, limited_until: int, delivered_pkts: int, in_flight_pkts: int) -> tuple[int, int]:
    """reinet_cap_limited_until of core/cc/cap_limited.h: the cap's own mark, and the flow's."""

def cwnd_after_idle_pkts(cwnd_pkts: int, idle: int, timeout: int) -> int:
    """reinet_cwnd_after_idle_pkts of core/cc/withheld_window.h."""

def windows_side_by_side(law: str, seconds: float, loss_every: int, reordering_pkts: int) -> list[tuple[int, int]]:
    """The windows of the simulator's sender and of alcc/driver/ after each event; empty: no law of datagrams."""

def cubic_side_by_side(
    seconds: float, buffer_pkts: int, cap_pkts: int = 0, acks_per_look: int = 1
) -> list[tuple[int, int, int, int, bool]]:
    """After each look: the simulator's window and ssthresh, those of alcc/stats/virtual_cubic.hpp, and whether a loss
    is being mended; over a link of a packet a millisecond and 40 ms."""

def given_up(sent: int, acked: list[int], reordering_pkts: int) -> list[int]:
    """The packets given up while these of them are acknowledged, in that order."""

def cap_seen(
    written_for: int, expires_ns: int, cap_pkts: int, seen_by: int, now_ns: int, before: int = 0, sequence: int = 0
) -> int: ...
def caps_seen_while_written(seconds: float) -> tuple[int, int]: ...
def silence(
    seen: int, owner: int, last_ack_ns: int, now_ns: int, restarted: bool = False, answered: bool = True
) -> tuple[int, int, int] | None: ...
def account(records: list[tuple[int, bool]]) -> tuple[list[tuple[int, bool]], bool]: ...
def visit_namespaces(most_ms: int, held: bool) -> tuple[int, bool]:
    """How many network namespaces beside one's own were entered within that time, and whether it sufficed; held: also
    those that only descriptors hold."""

class DrivenRing:
    """The reader of a ring buffer of 64-bit entries; bytes: of its data, a power of two."""

    def __init__(self, fd: int, bytes: int) -> None: ...
    def consume(self) -> list[int]: ...
    def discard(self) -> None: ...
    def wait(self) -> None:
        """Looks whether there is an entry, without waiting for one."""

class Missing:
    """What alcc/gate/missing.hpp lets through beyond a cap."""

    def __init__(self) -> None: ...
    def begin(self, now_ns: int) -> None: ...
    def end(self) -> None: ...
    def look(self, now_ns: int, room_bytes: int) -> None: ...
    def send(self, bytes: int) -> None: ...
    def make_up(self, now_ns: int, srtt_us: int, mss_bytes: int, heard: bool) -> None: ...
    @property
    def pkts(self) -> int: ...

class PeriodTracker:
    def __init__(self, min_period_ns: int, packet_timed: bool) -> None: ...
    def on_acks(self, acks: NDArray[uint8], out: NDArray[uint8]) -> int: ...
    def on_tick(self, now_ns: int, outstanding: bool, out: NDArray[uint8]) -> int: ...
    def on_restart(self, now_ns: int) -> None: ...
