"""Many simulated links, each with one flow, stepped together; the simulator is in ``sim.hpp`` and what it includes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.errors import ConfigError
from reinet.core.features import DEFAULT_FEATURE_SET, feature_set_named, head_index
from reinet.core.normaliser import Normaliser
from reinet.core.period import PeriodConfig
from reinet.core.records import empty_stats

SIM_CONGESTION_CONTROLS: tuple[str, ...] = _core.CONGESTION_CONTROLS
"""By their kernel names where the kernel has them; the list is in congestion_controls.hpp."""
OPPORTUNITY_BYTES: int = _core.OPPORTUNITY_BYTES
"""What one delivery opportunity carries: a packet of 1500 bytes and its TUN header."""

LARGEST_BUFFER_BYTES = 1 << 30
"""A buffer that no window fills: the largest window is some 2.7 MB."""


@dataclass(frozen=True, eq=False)
class LinkConfig:
    """One link and the flow through it; the defaults are DeepCC's set-up."""

    trace: npt.NDArray[np.uint32]
    """Delivery opportunities in ms, non-decreasing, the last above 0; the array is shared, not copied."""
    buffer_bytes: int = 150_000
    """Droptail, full packets of 1504 bytes: 99 of them."""
    mrtt_ms: float = 20.0
    """Fixed delay, half of it each way; a path measures up to 2 ms more, for each link's clock of 1 ms."""
    target_us: int = 50_000
    """The delay asked for, RTT."""
    start_offset_ms: int = 0
    """Trace time at which the flow starts."""
    seed: int = 0
    """Of the jitter."""
    cc: str = "cubic"
    """One of SIM_CONGESTION_CONTROLS."""
    flow_bytes: int = 0
    """What the flow sends, rounded up to whole segments; then its records are flagged CLOSED. 0 = no end."""
    app_mbps: float = 0.0
    """Rate at which the application writes; 0 = as fast as the flow goes."""
    mss_bytes: int = 1448
    """Payload of a packet; 1448 makes 1500 bytes of IP."""
    jitter_us: int = 400
    """ACKs come up to so much late: the wake-ups of a quiet host; a busy one has 2000. Cubic's HyStart notices."""

    def __post_init__(self) -> None:
        if self.cc not in SIM_CONGESTION_CONTROLS:
            nearest = get_close_matches(self.cc, SIM_CONGESTION_CONTROLS, n=1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            known = ", ".join(SIM_CONGESTION_CONTROLS)
            raise ConfigError(f"cc: the simulator has no congestion control {self.cc!r}; {hint}It has {known}")
        if np.asarray(self.trace).ndim != 1 or not np.issubdtype(np.asarray(self.trace).dtype, np.unsignedinteger):
            raise ConfigError(
                "trace: an array of unsigned whole milliseconds is needed, such as Trace.opportunities_ms"
            )
        for key, low, high in (
            ("buffer_bytes", self.mss_bytes + 56, LARGEST_BUFFER_BYTES),  # below one packet nothing ever gets through
            ("mrtt_ms", 0.0, 10_000.0),
            ("target_us", 0, 2**32 - 1),
            ("start_offset_ms", 0, 2**40),
            ("seed", 0, 2**64 - 1),
            ("flow_bytes", 0, 2**42),  # sequence numbers count segments in 32 bits
            ("app_mbps", 0.0, 100_000.0),
            ("mss_bytes", 88, 1448),  # TCP's least segment; an opportunity carries no more than one full packet
            ("jitter_us", 0, 1_000_000),
        ):
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigError(f"{key}: {value} is outside {low} to {high}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "LinkConfig":
        """ConfigError for unknown keys and a missing trace."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ConfigError(f"link: unknown key {', '.join(unknown)}; known are {', '.join(known)}")
        if "trace" not in values:
            raise ConfigError("link: the key trace is missing; give an array of delivery opportunities in ms")
        return cls(**values)


class SimBatch:
    """N links, each advanced by ``step`` to its flow's next FlowStats record.

    A record ends a period or reports a silence (flag NO_SAMPLE). Results do not depend on what else is in the batch.
    The properties are views of arrays that the next ``step`` or ``reset`` overwrites: copy what is to be kept.
    """

    def __init__(
        self,
        links: Sequence[LinkConfig | Mapping[str, Any]],
        period: PeriodConfig | None = None,
        feature_set: str = DEFAULT_FEATURE_SET,
        head: str = "cwnd",
        normaliser: Normaliser | None = None,
        record_log: bool = False,
    ) -> None:
        period = period or PeriodConfig()
        count = len(links)
        self.feature_set = feature_set_named(feature_set)
        self.head = head
        self._states = np.zeros((count, self.feature_set.state_size), np.float32)
        self._rewards = np.zeros(count, np.float32)
        self._stats = empty_stats(count)
        self._rule_pkts = np.zeros(count, np.float32)
        self._decided = np.zeros(count, np.bool_)
        self._core = _core.SimBatch(
            count, period.min_period_ns, period.packet_timed, head_index(head),
            (normaliser or Normaliser.reference()).table, record_log, self._states, self._rewards,
            self._stats.view(np.uint8).reshape(count, self._stats.itemsize), self._rule_pkts,
            self._decided.view(np.uint8),
        )  # fmt: skip
        for row, link in enumerate(links):
            self.set_link(row, link)

    def __len__(self) -> int:
        return len(self._rewards)

    @property
    def states(self) -> npt.NDArray[np.float32]:
        """(N, S), newest observation first."""
        return self._states

    @property
    def rewards(self) -> npt.NDArray[np.float32]:
        """(N,), of the periods that just ended; 0 where ``decided`` is False."""
        return self._rewards

    @property
    def stats(self) -> npt.NDArray[np.void]:
        """(N,), FLOW_STATS_DTYPE; ``time_ns`` is trace time, so a flow starts at its ``start_offset_ms``."""
        return self._stats

    @property
    def rule_pkts(self) -> npt.NDArray[np.float32]:
        """(N,), max delivery rate of the last 10 periods x min RTT / mss; 0 while unknown."""
        return self._rule_pkts

    @property
    def decided(self) -> npt.NDArray[np.bool_]:
        """(N,), False where the record has no RTT sample and asks for no decision."""
        return self._decided

    def set_link(self, row: int, link: LinkConfig | Mapping[str, Any]) -> None:
        """Give a row another link, from its next reset on."""
        config = link if isinstance(link, LinkConfig) else LinkConfig.from_mapping(link)
        self._core.set_link(
            row, np.ascontiguousarray(config.trace, dtype=np.uint32), config.buffer_bytes,
            round(config.mrtt_ms * 1000), config.target_us, config.start_offset_ms, config.mss_bytes,
            config.jitter_us, config.seed, config.flow_bytes, config.app_mbps * 125_000, config.cc,
        )  # fmt: skip

    def set_normaliser(self, normaliser: Normaliser) -> None:
        """Use these statistics from the next record on."""
        self._core.set_normaliser(normaliser.table)

    def reset(self, rows: npt.ArrayLike | None = None) -> None:
        """Start new flows in these rows (None = all) and run each to its first record, without a cap."""
        index = np.arange(len(self)) if rows is None else np.atleast_1d(np.asarray(rows))
        self._core.reset(index.astype(np.int32))

    def step(self, actions: npt.ArrayLike) -> None:
        """Apply actions in [-1, 1], shape (N,), through the head, and run each link to its next record."""
        self._core.step(np.ascontiguousarray(actions, dtype=np.float32))

    def step_caps(self, caps_pkts: npt.ArrayLike) -> None:
        """Apply caps in packets, shape (N,), 0 = none, and run each link to its next record."""
        self._core.step_caps(np.ascontiguousarray(caps_pkts, dtype=np.uint32))

    def clairvoyant_caps(self, horizon_ms: int) -> npt.NDArray[np.uint32]:
        """(N,), opportunities in the next min RTT + ``horizon_ms`` of each link's trace, plus one packet."""
        caps_pkts = np.empty(len(self), np.uint32)
        self._core.clairvoyant_caps(horizon_ms, caps_pkts)
        return caps_pkts

    def packets(self, row: int) -> dict[str, int]:
        """Where the packets sent since the reset are: sent = dropped + on_path + queued + delivered."""
        return self._core.packets(row)

    def log(self, row: int) -> dict[str, Any]:
        """What the link logged since the reset, as arrays in trace time; ValueError unless ``record_log``.

        ``arrival_ms, arrival_bytes`` (dropped packets included), ``opportunity_ms``, ``departure_ms,
        departure_bytes, departure_delay_ms``, ``drop_ms, drop_bytes``, and the numbers ``start_ms, end_ms``. Bytes
        include the TUN header, as in Mahimahi's log.
        """
        return self._core.log(row)
