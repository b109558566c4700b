"""A simulated link and the flows through it, as a user describes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from reinet.core.errors import ConfigError
from reinet.core.records import HEADER_BYTES
from reinet.envs.sim import _sim

SIM_CONGESTION_CONTROLS: tuple[str, ...] = _sim.CONGESTION_CONTROLS
"""By their kernel names where the kernel has them; the list is in congestion_controls.hpp."""

LARGEST_BUFFER_BYTES = 1 << 30
"""A buffer that no window fills: the largest window is some 2.7 MB."""

QUEUES = ("infinite", "droptail", "drophead", "codel", "pie")
SCHEDULERS = ("fifo", "proportional-fair")
MOST_FLOWS = 65_535


class _Checked:
    """A frozen dataclass that checks its numbers, and can be made from a mapping."""

    start_ms: float
    stop_ms: float | None

    @classmethod
    def _from(cls, what: str, values: Mapping[str, Any]) -> Any:
        known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ConfigError(f"{what}: unknown key {', '.join(unknown)}; known are {', '.join(known)}")
        return cls(**values)

    def _check_ranges(self, *ranges: tuple[str, float, float]) -> None:
        for key, low, high in ranges:
            _check_range(key, getattr(self, key), low, high)

    def _check_life(self) -> None:
        """The keys that say what a flow has to send, and when."""
        self._check_ranges(
            ("start_ms", 0.0, 1e12),
            ("flow_bytes", 0, 2**42),  # sequence numbers count segments in 32 bits
            ("app_mbps", 0.0, 100_000.0),
        )
        if self.stop_ms is not None:
            self._check_ranges(("stop_ms", 0.0, 1e12))
            if not self.start_ms < self.stop_ms:
                raise ConfigError(f"stop_ms: {self.stop_ms} is not after start_ms, {self.start_ms}")

    def _check_choice(self, key: str, what: str, known: Sequence[str]) -> None:
        value = getattr(self, key)
        if value not in known:
            near = get_close_matches(str(value), known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"{key}: the simulator has no {what} {value!r}; {hint}It has {', '.join(known)}")


def _check_range(key: str, value: Any, low: float, high: float) -> None:
    """Limits that are whole ask for a whole number."""
    whole = isinstance(low, int)
    is_number = isinstance(value, Integral if whole else Real)
    if not is_number:
        raise ConfigError(f"{key}: {value!r} is not a {'whole ' if whole else ''}number")
    if not low <= value <= high:
        raise ConfigError(f"{key}: {value} is outside {low} to {high}")


def _check_trace(trace: object) -> None:
    values = np.asarray(trace)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.unsignedinteger):
        raise ConfigError("trace: an array of unsigned whole milliseconds is needed, such as Trace.opportunities_ms")


@dataclass(frozen=True, eq=False)
class FlowConfig(_Checked):
    """A further flow through a link. None = as the link's first flow has it."""

    cc: str = "cubic"
    start_ms: float = 0.0
    """After the start of the simulation."""
    stop_ms: float | None = None
    """After the start of the simulation: from then on it sends no more, what is on its way still takes its place in
    the queue. None = never."""
    mrtt_ms: float | None = None
    forward_ms: float | None = None
    flow_bytes: int = 0
    app_mbps: float = 0.0
    target_us: int | None = None
    trace: npt.NDArray[np.uint32] | None = None
    """Its channel; only in a cell."""
    cap_pkts: int = 0
    """Held for the whole run, unless stepped; 0 = none."""
    stepped: bool = False
    """Its records are returned too, in their turn: ``SimBatch``."""

    def __post_init__(self) -> None:
        self._check_choice("cc", "congestion control", SIM_CONGESTION_CONTROLS)
        self._check_life()
        self._check_ranges(("cap_pkts", 0, 2**31))
        if self.trace is not None:
            _check_trace(self.trace)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "FlowConfig":
        """ConfigError for unknown keys."""
        return cast("FlowConfig", cls._from("flow", values))


@dataclass(frozen=True, eq=False)
class LinkConfig(_Checked):
    """One link and the flows through it; the defaults are DeepCC's set-up: one flow, droptail."""

    trace: npt.NDArray[np.uint32]
    """Delivery opportunities in ms, non-decreasing, the last above 0; the array is shared, not copied."""
    buffer_bytes: int = 150_000
    """Full packets of 1504 bytes: 99 of them. 0 = no limit in bytes."""
    mrtt_ms: float = 20.0
    """Fixed delay, half of it each way; a path measures up to 2 ms more, for each link's clock of 1 ms."""
    target_us: int = 50_000
    """The delay asked for, RTT."""
    start_offset_ms: int = 0
    """Trace time at which the simulation, and with it the first flow, starts."""
    seed: int = 0
    """Of jitter, losses and PIE's dice; each flow draws numbers of its own."""
    cc: str = "cubic"
    """One of SIM_CONGESTION_CONTROLS."""
    start_ms: float = 0.0
    """Of the first flow, after the start of the simulation."""
    stop_ms: float | None = None
    """After the start of the simulation: from then on its records are flagged CLOSED. None = never."""
    flow_bytes: int = 0
    """What the flow sends, rounded up to whole segments; then its records are flagged CLOSED. 0 = no end."""
    app_mbps: float = 0.0
    """Rate at which the application writes; 0 = as fast as the flow goes."""
    mss_bytes: int = 1448
    """Payload of a packet; 1448 makes 1500 bytes of IP."""
    late_us: int = 100
    """How late the emulator's processes wake that sleep until a time; they sleep whole milliseconds, as Mahimahi's do.
    0 = an ideal path: exact delays, every delivery opportunity used at its time."""
    jitter_us: int = 1000
    """ACKs come up to so much later: hosts in between. A busy one has more; Cubic's HyStart notices."""
    forward_ms: float | None = None
    """The part of ``mrtt_ms`` on the way to the receiver; None = half, as mm-delay splits it."""
    pkts_per_ack: float = 2.0
    """Mean number of packets that an ACK acknowledges; a kernel whose receiver is woken late has 2.4 or so."""
    forward_jitter_us: int = 0
    """Data packets come to the queue up to so much late; none overtakes another."""
    loss: float = 0.0
    """Probability that a data packet is lost before the queue, each by itself, as in mm-loss."""
    queue: str = "droptail"
    """mm-link's: infinite, droptail, drophead, codel or pie."""
    buffer_pkts: int = 0
    """A limit in packets beside that in bytes; 0 = none."""
    codel_target_ms: int = 5
    """RFC 8289's; so the next."""
    codel_interval_ms: int = 100
    pie_reference_ms: int = 15
    """RFC 8033's QDELAY_REF and, next, MAX_BURST."""
    pie_burst_ms: int = 150
    wired_mbps: Sequence[tuple[float, float]] = ()
    """A second, wired bottleneck before the cellular one, as (ms after the start, Mbit/s) pairs: the first at 0, times
    rising, the last rate above 0. Empty = none."""
    wired_buffer_bytes: int = 150_000
    """Droptail, the packet being sent included."""
    flows: Sequence[FlowConfig | Mapping[str, Any]] = ()
    """Further flows; loss, jitter and packet size are as above."""
    scheduler: str = "fifo"
    """fifo: all flows in one queue. proportional-fair: a cell, in which each flow is a user with its own queue and
    channel (``trace``) and every millisecond goes to one of them."""
    fair_window_ms: float = 100.0
    """How long the cell's scheduler remembers what a user got; LTE's usual choice is 100 intervals."""

    def __post_init__(self) -> None:
        self._check_choice("cc", "congestion control", SIM_CONGESTION_CONTROLS)
        self._check_choice("queue", "queue", QUEUES)
        self._check_choice("scheduler", "scheduler", SCHEDULERS)
        _check_trace(self.trace)
        self._check_life()
        self._check_ranges(("mss_bytes", 88, 1448))  # TCP's least segment; an opportunity carries one full packet
        packet_bytes = self.mss_bytes + HEADER_BYTES  # with less room nothing ever gets through
        self._check_ranges(
            ("buffer_bytes", 0 if self.buffer_bytes == 0 else packet_bytes, LARGEST_BUFFER_BYTES),
            ("buffer_pkts", 0, 2**31),
            ("mrtt_ms", 0.0, 10_000.0),
            ("target_us", 0, 2**32 - 1),
            ("start_offset_ms", 0, 2**40),
            ("seed", 0, 2**64 - 1),
            ("late_us", 0, 999),
            ("jitter_us", 0, 1_000_000),
            ("forward_jitter_us", 0, 1_000_000),
            ("pkts_per_ack", 2.0, 64.0),
            ("loss", 0.0, 0.999),
            ("codel_target_ms", 1, 10_000),
            ("codel_interval_ms", 1, 10_000),
            ("pie_reference_ms", 1, 10_000),
            ("pie_burst_ms", 1, 10_000),
            ("wired_buffer_bytes", packet_bytes, LARGEST_BUFFER_BYTES),
            ("fair_window_ms", 1.0, 1e6),
        )
        if self.buffer_bytes == 0 and self.buffer_pkts == 0 and self.queue != "infinite":
            raise ConfigError(f"buffer_bytes: a {self.queue} queue needs a limit in bytes or, buffer_pkts, in packets")
        if not isinstance(self.flows, Sequence) or not all(isinstance(f, FlowConfig | Mapping) for f in self.flows):
            raise ConfigError(f"flows: a list of FlowConfig or mappings with its keys is needed, not {self.flows!r}")
        if len(self.flows) >= MOST_FLOWS:
            raise ConfigError(f"flows: {len(self.flows)} and the first are more than {MOST_FLOWS}")
        self._check_wired()
        for flow in self._further():
            if self.scheduler == "fifo" and flow.trace is not None:
                raise ConfigError("trace: a flow has a channel of its own only with scheduler = 'proportional-fair'")
            self._delays_us(flow)
        self._delays_us(self)

    def _check_wired(self) -> None:
        if not self.wired_mbps:
            return
        try:
            times_ms, rates = zip(*self.wired_mbps, strict=True)
            rising = all(a < b for a, b in pairwise(times_ms))
            sound = times_ms[0] == 0 and rising and all(0 <= r < 1e6 for r in rates) and rates[-1] > 0
        except (TypeError, ValueError):  # no pairs, or not of numbers
            sound = False
        if not sound:
            raise ConfigError(
                "wired_mbps: (ms, Mbit/s) pairs are needed, the first at 0 ms, times rising, rates not below 0 and the "
                f"last above it, not {self.wired_mbps}"
            )

    def _further(self) -> list[FlowConfig]:
        return [f if isinstance(f, FlowConfig) else FlowConfig.from_mapping(f) for f in self.flows]

    def _delays_us(self, flow: "LinkConfig | FlowConfig") -> tuple[int, int]:
        """The fixed delay there and back."""
        mrtt_ms = self.mrtt_ms if flow.mrtt_ms is None else flow.mrtt_ms
        _check_range("mrtt_ms", mrtt_ms, 0.0, 10_000.0)
        mrtt_us = round(mrtt_ms * 1000)
        forward_ms = self.forward_ms if flow.forward_ms is None and flow.mrtt_ms is None else flow.forward_ms
        if forward_ms is None:
            return mrtt_us // 2, mrtt_us // 2
        _check_range("forward_ms", forward_ms, 0.0, float(mrtt_ms))
        return round(forward_ms * 1000), mrtt_us - round(forward_ms * 1000)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "LinkConfig":
        """ConfigError for unknown keys and a missing trace."""
        if "trace" not in values and not set(values) - {f.name for f in fields(cls)}:
            raise ConfigError("link: the key trace is missing; give an array of delivery opportunities in ms")
        return cast("LinkConfig", cls._from("link", values))

    def _setup(self) -> tuple[_sim.PathSetup, list[npt.NDArray[np.uint32]]]:
        """What the core needs: the path, and its traces."""
        start_us = self.start_offset_ms * 1000
        pie = self.queue == "pie"
        queue = _sim.QueueConfig(
            kind=getattr(_sim.QueueKind, "droptail" if self.queue == "infinite" else self.queue),
            limit_bytes=0 if self.queue == "infinite" else self.buffer_bytes,
            limit_pkts=0 if self.queue == "infinite" else self.buffer_pkts,
            target_ms=self.pie_reference_ms if pie else self.codel_target_ms,
            interval_ms=self.pie_burst_ms if pie else self.codel_interval_ms,
            seed=self.seed,
        )
        first = FlowConfig(
            self.cc,
            self.start_ms,
            self.stop_ms,
            self.mrtt_ms,
            self.forward_ms,
            self.flow_bytes,
            self.app_mbps,
            stepped=True,
        )
        flows = [first, *self._further()]
        setups = []
        for number, flow in enumerate(flows):
            forward_us, return_us = self._delays_us(flow)
            setups.append(
                _sim.FlowSetup(
                    cc=flow.cc,
                    start_us=start_us + round(flow.start_ms * 1000),
                    stop_us=_sim.NEVER_US if flow.stop_ms is None else start_us + round(flow.stop_ms * 1000),
                    forward_us=forward_us,
                    return_us=return_us,
                    mss_bytes=self.mss_bytes,
                    total_bytes=flow.flow_bytes,
                    app_bytes_per_s=flow.app_mbps * 125_000,
                    target_us=self.target_us if flow.target_us is None else flow.target_us,
                    late_us=self.late_us,
                    jitter_us=self.jitter_us,
                    forward_jitter_us=self.forward_jitter_us,
                    pkts_per_ack=self.pkts_per_ack,
                    loss=self.loss,
                    seed=(self.seed + number * _SEED_GAP) % 2**64,
                    cap_pkts=flow.cap_pkts,
                    stepped=flow.stepped,
                )
            )
        cell = self.scheduler == "proportional-fair"
        path = _sim.PathSetup(
            start_us=start_us,
            queue=queue,
            wired=[(start_us + round(ms * 1000), float(mbps)) for ms, mbps in self.wired_mbps],
            wired_buffer_bytes=self.wired_buffer_bytes,
            late_us=self.late_us,
            fair_window_ms=self.fair_window_ms if cell else 0.0,
            flows=setups,
        )
        traces = [self.trace if flow.trace is None else flow.trace for flow in flows] if cell else [self.trace]
        return path, [np.ascontiguousarray(trace, dtype=np.uint32) for trace in traces]


_SEED_GAP = 0x632BE59BD9B4E019
"""Odd and without a pattern, so that the flows' seeds lie far apart."""
