"""One path and the flows through it, as a user describes them: the simulator and Mahimahi take the same description.

Each of the two refuses by name what it cannot do: ``require_simulated`` (``envs/sim/options.py``) and
``require_emulated`` (``envs/mahimahi/spec.py``). What no link can do is refused here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from reinet.core.errors import ConfigError
from reinet.core.records import HEADER_BYTES
from reinet.core.target import LEAST_TARGET_PER_RTT, Target
from reinet.envs.trace import Trace
from reinet.envs.trace.trace import MAX_MS

TraceMs = npt.NDArray[np.uint32]
_Spec = TypeVar("_Spec", bound="FlowSpec")

LARGEST_BUFFER_BYTES = 1 << 30
"""A buffer that no window fills: the largest window is some 2.7 MB."""

QUEUES = ("infinite", "droptail", "drophead", "codel", "pie")
"""The queues that mm-link has."""
SCHEDULERS = ("fifo", "proportional-fair")
MOST_FLOWS = 65_535
LATEST_MS = 1e12
"""Nothing of a flow is planned for later, some 30 years from the start: microseconds stay exact in doubles."""
LONGEST_MRTT_MS = LONGEST_DETOUR_MS = 10_000.0
LEAST_MBPS, MOST_MBPS = 1e-9, 100_000.0
"""A slower rate is none, and the simulator would not live to see a packet through."""
MOST_SEGMENTS = 2**32 - 2
"""The simulator's sequence numbers count segments in 32 bits; the largest number stands for a flow without an end."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FlowSpec:
    """What every flow of a path has: the first one's fields are the path's own, ``LinkSpec``."""

    cc: str = "cubic"
    """A congestion control by its kernel name; which ones there are is the business of who runs it."""
    start_ms: float = 0.0
    """When the flow starts, from the start of the path."""
    stop_ms: float | None = None
    """When it stops, from the start of the path: it then sends no more (the first flow's records are flagged CLOSED),
    and what is on its way still takes its place in the queue. None = never."""
    mrtt_ms: float | None = None
    """The fixed delay, half of it each way; a path measures 1 to 4 ms more, for the links' clocks of 1 ms."""
    forward_ms: float | None = None
    """The part of ``mrtt_ms`` on the way to the receiver; None = half, as mm-delay splits it."""
    flow_bytes: int = 0
    """What the flow sends, rounded up to whole segments; then its records are flagged CLOSED. 0 = no end."""
    app_mbps: float = 0.0
    """The rate at which the application writes; 0 = as fast as the flow goes."""
    object_bytes: int = 0
    """The application writes objects of so many bytes, rounded up to whole segments, each at once when the one before
    has been acknowledged and ``pause_ms`` have passed, as a server answers requests over a connection that is kept
    alive. ``flow_bytes`` is then rounded up to whole objects. 0 = one stream."""
    pause_ms: float = 0.0
    """The time between an object's last acknowledgement and the next object."""
    target_us: int | None = None
    """The delay asked for, RTT."""
    trace: Trace | TraceMs | None = None
    """The flow's channel, where it has one of its own."""

    def __post_init__(self) -> None:
        if not isinstance(self.cc, str):
            raise ConfigError(f"cc: {self.cc!r} is no name of a congestion control")
        self._check_ranges(
            ("start_ms", 0.0, LATEST_MS),
            ("flow_bytes", 0, 2**42),  # as full packets some 3 billion: see MOST_SEGMENTS
            ("app_mbps", 0.0 if self.app_mbps == 0 else LEAST_MBPS, MOST_MBPS),
            ("object_bytes", 0, 2**32),  # the largest have 49 million segments of the least size
            ("pause_ms", 0.0, LATEST_MS),
        )
        if self.object_bytes and self.app_mbps:
            raise ConfigError("object_bytes, app_mbps: an application writes objects at once or at a rate, not both")
        if self.stop_ms is not None:
            self._check_ranges(("stop_ms", 0.0, LATEST_MS))
            if not self.start_ms < self.stop_ms:
                raise ConfigError(f"stop_ms: {self.stop_ms} is not after start_ms, {self.start_ms}")
        if self.target_us is not None:
            self._check_ranges(("target_us", 0, 2**32 - 1))
        if self.mrtt_ms is not None:
            check_mrtt(self.mrtt_ms)
            if self.forward_ms is not None:
                self._check_ranges(("forward_ms", 0.0, float(self.mrtt_ms)))
        if self.trace is not None:
            _check_trace("trace", self.trace)

    @property
    def trace_ms(self) -> TraceMs:
        """Returns the trace's delivery opportunities in ms; an array that was given as such is shared, not copied."""
        assert self.trace is not None, "a further flow has none before it has joined its path"
        return times_of(self.trace)

    @classmethod
    def from_mapping(cls: type[_Spec], values: Mapping[str, Any]) -> _Spec:
        """Returns the description with these fields; raises ConfigError for unknown keys and a path without a trace."""
        known = [f.name for f in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ConfigError(f"{cls._NAME}: unknown key {', '.join(unknown)}; known are {', '.join(known)}")
        if issubclass(cls, LinkSpec) and "trace" not in values:
            raise ConfigError("link: the key trace is missing; give an array of delivery opportunities in ms")
        return cls(**values)

    def _check_ranges(self, *ranges: tuple[str, float, float]) -> None:
        for key, low, high in ranges:
            check_range(key, getattr(self, key), low, high)

    _NAME: ClassVar[str] = "flow"


@dataclass(frozen=True, eq=False, kw_only=True)
class FurtherFlow(FlowSpec):
    """A flow beside the first, which shares its ``mrtt_ms``, ``forward_ms``, ``target_us`` and ``trace`` where None.

    Only in a cell has it a trace of its own.
    """

    cap_pkts: int = 0
    """The cap that holds for the whole run, unless the flow is stepped; 0 = none."""
    stepped: bool = False
    """Its records are returned too, in their turn: see ``SimBatch``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_ranges(("cap_pkts", 0, 2**31))
        if not isinstance(self.stepped, bool):
            raise ConfigError(f"stepped: {self.stepped!r} is neither true nor false")


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkSpec(FlowSpec):
    """One path, with its first flow; the defaults are DeepCC's set-up: one flow, droptail, 20 ms, 150 KB, 50 ms."""

    trace: Trace | TraceMs = field(kw_only=False)
    """The delivery opportunities in the data's direction: in ms, non-decreasing, the last above 0."""
    uplink: Trace | TraceMs | None = None
    """The opportunities in the ACKs' direction; None = more than ACKs can fill."""
    mrtt_ms: float = 20.0
    target_us: int = 50_000
    buffer_bytes: int = 150_000
    """The default holds 99 full packets of 1504 bytes. 0 = no limit in bytes."""
    start_offset_ms: int = 0
    """Trace time at which the path, and with it the first flow, starts."""
    seed: int = 0
    """It seeds jitter, losses and PIE's dice in the simulator; each flow draws numbers of its own. A real host's noise
    has no seed."""
    mss_bytes: int = 1448
    """The payload of a packet; 1448 makes 1500 bytes of IP."""
    late_us: int = 100
    """How late the emulator's processes wake that sleep until a time; they sleep whole milliseconds, as Mahimahi's do.
    0 = an ideal path: exact delays, every delivery opportunity used at its time."""
    jitter_us: int = 1000
    """ACKs come up to so much later, for the hosts on their way. A busy one has more; Cubic's HyStart notices."""
    pkts_per_ack: float = 2.0
    """How many packets an ACK acknowledges on average; a kernel whose receiver is woken late has 2.4 or so."""
    forward_jitter_us: int = 0
    """Data packets come to the queue up to so much later; none overtakes another."""
    detour_ms: Sequence[tuple[float, float]] = ()
    """How much longer the way to the queue is from then on, as (ms after the start, ms) pairs with rising times: a
    handover, another route. ``mrtt_ms`` stays what it was, as for a sender that has measured it before."""
    decision_ms: float = 0.0
    """How long deciding takes: a cap that answers a record is in force from the first ACK so much later. 0 = from the
    next ACK, as for an agent that needs no time."""
    loss: float = 0.0
    """The probability that a data packet is lost before the queue, each by itself, as in mm-loss."""
    queue: str = "droptail"
    """One of QUEUES."""
    buffer_pkts: int = 0
    """A limit in packets beside that in bytes; 0 = none."""
    codel_target_ms: int = 5
    """CoDel's TARGET; the default is RFC 8289's."""
    codel_interval_ms: int = 100
    """CoDel's INTERVAL; the default is RFC 8289's."""
    pie_reference_ms: int = 15
    """PIE's QDELAY_REF; the default is RFC 8033's."""
    pie_burst_ms: int = 150
    """PIE's MAX_BURST; the default is RFC 8033's."""
    wired_mbps: Sequence[tuple[float, float]] = ()
    """A second, wired bottleneck before the cellular one, as (ms after the start, Mbit/s) pairs: the first at 0, times
    rising, the last rate above 0. Empty = none."""
    wired_buffer_bytes: int = 150_000
    """The wired bottleneck's droptail buffer, the packet being sent included."""
    flows: Sequence[FurtherFlow | Mapping[str, Any]] = ()
    """Further flows; they share the path's loss, jitter and packet size."""
    scheduler: str = "fifo"
    """fifo: all flows in one queue. proportional-fair: a cell, in which each flow is a user with its own queue and
    channel (``trace``) and every millisecond goes to one of them."""
    fair_window_ms: float = 100.0
    """How long the cell's scheduler remembers what a user got; LTE's usual choice is 100 intervals."""

    cap_pkts: ClassVar[int] = 0
    """The first flow has no fixed cap: whoever steps it sets one."""
    stepped: ClassVar[bool] = True
    """The first flow's records are always returned."""
    _NAME: ClassVar[str] = "link"

    def __post_init__(self) -> None:
        check_choice("queue", "there is no queue", self.queue, QUEUES)
        check_choice("scheduler", "there is no scheduler", self.scheduler, SCHEDULERS)
        for name in ("trace", "mrtt_ms", "target_us"):
            if getattr(self, name) is None:
                raise ConfigError(f"{name}: a path needs one")
        super().__post_init__()
        if self.uplink is not None:
            _check_trace("uplink", self.uplink)
        self._check_ranges(("mss_bytes", 88, 1448))  # TCP's least segment; an opportunity carries one full packet
        packet_bytes = int(self.mss_bytes) + HEADER_BYTES  # with less room nothing ever gets through
        self._check_ranges(
            ("buffer_bytes", 0 if self.buffer_bytes == 0 else packet_bytes, LARGEST_BUFFER_BYTES),
            ("buffer_pkts", 0, 2**31),
            ("start_offset_ms", 0, 2**40),
            ("seed", 0, 2**64 - 1),
            ("late_us", 0, 999),
            ("jitter_us", 0, 1_000_000),
            ("forward_jitter_us", 0, 1_000_000),
            ("pkts_per_ack", 2.0, 64.0),
            ("decision_ms", 0.0, 1000.0),
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
        if not isinstance(self.flows, Sequence) or not all(isinstance(f, FurtherFlow | Mapping) for f in self.flows):
            raise ConfigError(f"flows: a list of FurtherFlow or mappings with its keys is needed, not {self.flows!r}")
        if len(self.flows) >= MOST_FLOWS:
            raise ConfigError(f"flows: {len(self.flows)} and the first are more than {MOST_FLOWS}")
        self._check_steps()
        for flow in self.all_flows():  # raises what is wrong with one
            self._check_segments(flow)

    @property
    def is_cell(self) -> bool:
        """Returns whether each flow is a user of a radio cell, with a channel of its own."""
        return self.scheduler == "proportional-fair"

    def all_flows(self) -> Iterator[FlowSpec]:
        """Yields the first flow, then the further ones, each with all that it has from the first filled in.

        Raises ConfigError for a further flow that makes no sense.
        """
        yield self
        for given in self.flows:
            flow = given if isinstance(given, FurtherFlow) else FurtherFlow.from_mapping(given)
            if flow.trace is not None and not self.is_cell:
                raise ConfigError("trace: a flow has a channel of its own only with scheduler = 'proportional-fair'")
            has_own_path = flow.mrtt_ms is not None
            yield replace(
                flow,
                mrtt_ms=flow.mrtt_ms if has_own_path else self.mrtt_ms,
                forward_ms=flow.forward_ms if has_own_path or flow.forward_ms is not None else self.forward_ms,
                target_us=self.target_us if flow.target_us is None else flow.target_us,
                trace=self.trace if flow.trace is None else flow.trace,
            )

    def _check_segments(self, flow: FlowSpec) -> None:
        whole_bytes, object_bytes, mss_bytes = int(flow.flow_bytes), int(flow.object_bytes), int(self.mss_bytes)
        segments = -(-whole_bytes // mss_bytes)
        if object_bytes:
            segments = -(-whole_bytes // object_bytes) * -(-object_bytes // mss_bytes)
        if segments > MOST_SEGMENTS:
            objects = f", in objects of {object_bytes}," if object_bytes else ""
            raise ConfigError(
                f"flow_bytes: {whole_bytes} bytes{objects} are {segments} segments of mss_bytes = {mss_bytes}; "
                f"{MOST_SEGMENTS} are the most: give fewer bytes or larger segments"
            )

    def _check_steps(self) -> None:
        wired = _times_and_values(self.wired_mbps)
        if wired is None or (wired[0] and not _is_wired(*wired)):
            raise ConfigError(
                f"wired_mbps: (ms, Mbit/s) pairs are needed, the first at 0 ms, times rising up to {LATEST_MS:g} ms, "
                f"rates 0 or from {LEAST_MBPS:g} to a million, not below 0 and the last above it, not {self.wired_mbps}"
            )
        detour = _times_and_values(self.detour_ms)
        if detour is None or not all(0 <= longer_ms <= LONGEST_DETOUR_MS for longer_ms in detour[1]):
            raise ConfigError(
                f"detour_ms: (ms, ms) pairs are needed, times rising from 0 up to {LATEST_MS:g} ms, "
                f"detours from 0 to {LONGEST_DETOUR_MS:g} ms, not {self.detour_ms}"
            )


def _times_and_values(steps: object) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Returns the times and values of pairs, None for what are no pairs of numbers with rising times."""
    if not isinstance(steps, Sequence):  # an array does not cross the border
        return None
    try:
        times_ms, values = zip(*steps, strict=True) if steps else ((), ())
        rising = all(a < b for a, b in pairwise(times_ms))
        sound = rising and all(0 <= t <= LATEST_MS for t in times_ms) and all(v >= 0 for v in values)
    except (TypeError, ValueError):
        return None
    return (times_ms, values) if sound else None


def _is_wired(times_ms: tuple[float, ...], rates: tuple[float, ...]) -> bool:
    return times_ms[0] == 0 and all(r == 0 or LEAST_MBPS <= r < 1e6 for r in rates) and rates[-1] > 0


def times_of(trace: Trace | TraceMs) -> TraceMs:
    """Returns the delivery opportunities of a trace, in ms, however it was given: nobody can write into them later."""
    if isinstance(trace, Trace):
        return np.ascontiguousarray(trace.opportunities_ms, dtype=np.uint32)
    times_ms = np.ascontiguousarray(trace, dtype=np.uint32)
    return times_ms.copy() if np.asarray(trace).flags.writeable and np.may_share_memory(times_ms, trace) else times_ms


DEFAULT_TARGET_MS = LinkSpec.target_us / 1000


def default_target_ms(mrtt_ms: float) -> float:
    """Returns the target of a path that was given none: DeepCC's, or the least that can be kept where that is more."""
    return max(DEFAULT_TARGET_MS, LEAST_TARGET_PER_RTT * mrtt_ms)


def target_on(target_ms: float | str, mrtt_ms: float) -> float:
    """Returns the RTT in ms that is asked for on a path of this ``mrtt_ms``, of a number in ms or a target's text.

    A relative one ("+30ms", "2.5x") counts from the fixed delay, although a flow measures 1 to 4 ms more. Raises
    ConfigError for a text that is none.
    """
    if isinstance(target_ms, str):
        return Target.parse(target_ms).resolve_ms(mrtt_ms)
    check_kind("target_ms", target_ms, Real, "a number of ms, or a text such as '+30ms'")
    return target_ms


def check_mrtt(mrtt_ms: float) -> None:
    """Raises ConfigError for what is no path's fixed delay: whoever resolves a target from it asks this first."""
    check_range("mrtt_ms", mrtt_ms, 0.0, LONGEST_MRTT_MS)


def check_target(target_ms: float, mrtt_ms: float) -> None:
    """Raises ConfigError for a target below 1.1 x the path's minimum RTT, or of 0 where that is 0."""
    if target_ms == 0 == mrtt_ms:
        raise ConfigError("target_ms: 0 ms, of a path whose mrtt_ms is 0, is no target; give more of either")
    # In whole microseconds, as records have it: 1.1 x 3 is a little more than 3.3 in floating point.
    least_ms = float(np.ceil(LEAST_TARGET_PER_RTT * mrtt_ms * 1000 - 1e-6)) / 1000
    if not target_ms >= least_ms:
        raise ConfigError(
            f"target_ms: {target_ms:g} ms is below {LEAST_TARGET_PER_RTT:g} x the path's minimum RTT, {mrtt_ms:g} ms; "
            f"give at least {least_ms:.8g} ms"
        )


def check_choice(key: str, no_such: str, value: object, known: Sequence[str]) -> None:
    """Raises ConfigError for a name that is not among the known ones; tells the nearest."""
    if value not in known:
        near = get_close_matches(str(value), known, 1)
        hint = f"did you mean {near[0]!r}? There are" if near else "there are"
        raise ConfigError(f"{key}: {no_such} {value!r}; {hint} {', '.join(known)}")


def check_kind(key: str, value: object, kind: type | tuple[type, ...], needed: str) -> None:
    """Raises ConfigError for a value of another type, which would else be an error in the midst of the code."""
    if not isinstance(value, kind):
        raise ConfigError(f"{key}: {needed} is needed, not {value!r:.40}")


def check_range(key: str, value: Any, low: float, high: float) -> None:
    """Raises ConfigError for a number outside the limits, or none; limits that are whole ask for a whole number."""
    whole = isinstance(low, int)
    is_number = isinstance(value, Integral if whole else Real)
    if not is_number:
        raise ConfigError(f"{key}: {value!r} is not a {'whole ' if whole else ''}number")
    if not low <= value <= high:
        raise ConfigError(f"{key}: {value} is outside {low} to {high}")


def _check_trace(key: str, trace: object) -> None:
    if isinstance(trace, Trace):
        return
    values = np.asarray(trace)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.unsignedinteger):
        raise ConfigError(
            f"{key}: an array of unsigned whole milliseconds is needed, such as Trace.opportunities_ms, or a Trace"
        )
    if values.size == 0:
        raise ConfigError(f"{key}: holds no opportunity; give the times of at least one")
    if values.itemsize > 4 and values.max() > MAX_MS:  # a cast would make 5 of 2^32 + 5
        raise ConfigError(f"{key}: {values.max()} ms is beyond {MAX_MS}, some 49 days; cut the trace")
