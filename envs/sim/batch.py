"""Many simulated links, each with one flow, stepped together; the engine is in ``batch.hpp`` and what it includes."""

import math
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from reinet.core import OPPORTUNITY_BYTES
from reinet.core.errors import ConfigError
from reinet.core.features import DEFAULT_FEATURE_SET, feature_set_named, head_index
from reinet.core.normaliser import Normaliser
from reinet.core.period import PeriodConfig
from reinet.core.records import FlowStatsArray, empty_stats
from reinet.core.rewards import DEFAULT_REWARD, DELAY_WEIGHT, reward_index
from reinet.core.state import room_beyond_us, rows_of
from reinet.envs.link.spec import LinkSpec, check_kind, check_range
from reinet.envs.link.tandem import carried_bytes
from reinet.envs.sim import _sim
from reinet.envs.sim.options import native_options

MOST_THREADS = 1024
MOST_HORIZON_MS = 2**40
"""As far as a path may start: nobody looks further ahead."""
NO_END_MS = 2**63
"""No simulation gets so far."""


class SimBatch:
    """N links, each advanced by ``step`` to its flow's next FlowStats record.

    A record ends a period or reports a silence (flag NO_SAMPLE). Results do not depend on what else is in the batch,
    nor on the number of threads that share its rows.
    The properties are views of arrays that the next ``step`` or ``reset`` overwrites: copy what is to be kept.
    One thread uses a batch at a time, and with ``threads`` no forked child of its process does: RuntimeError.

    With several stepped flows on a link, its row tells of one after the other, as their records come: ``cookie`` in
    its stats is row + 1 + 2^32 x the flow's number (0 = the first), state and reward are that flow's, and the next
    step's action is for it.

    ``reward`` is one of ``reinet.core.REWARDS``, with ``delay_weight`` for ``regret``; the formulas are in
    ``core/states/reward.hpp``. What the link offered is counted from the flow's trace: with several flows in one queue
    that is all of the link's capacity.

    Where a link's stepped flows have no record for an hour of trace time and for 20 million ACKs and timers, ``reset``
    and the steps raise ConfigError, which names the row: nothing of theirs gets through, while others go on. The other
    rows have their records, and that one needs another reset.
    """

    def __init__(
        self,
        links: Sequence[LinkSpec | Mapping[str, Any]],
        period: PeriodConfig | None = None,
        feature_set: str = DEFAULT_FEATURE_SET,
        head: str = "cwnd",
        normaliser: Normaliser | None = None,
        record_log: bool = False,
        threads: int = 1,
        reward: str = DEFAULT_REWARD,
        delay_weight: float = DELAY_WEIGHT,
        room_beyond_ms: float | None = None,
    ) -> None:
        check_range("threads", threads, 1, MOST_THREADS)
        check_kind("period", period, (PeriodConfig, NoneType), "a PeriodConfig, or None,")
        period = period or PeriodConfig()
        count = len(links)
        self.feature_set = feature_set_named(feature_set)
        self._states = np.zeros((count, self.feature_set.state_size), np.float32)
        self._rewards = np.zeros(count, np.float32)
        self._stats = empty_stats(count)
        self._rule_pkts = np.zeros(count, np.float32)
        self._decided = np.zeros(count, np.bool_)
        self._may_cap = np.zeros(count, np.bool_)
        self._core = _sim.SimBatch(
            rows=count,
            min_period_ns=period.min_period_ns,
            packet_timed=period.packet_timed,
            feature_set=self.feature_set.number,
            head=head_index(head),
            reward=reward_index(reward, delay_weight),
            delay_weight=delay_weight,
            room_beyond_us=room_beyond_us(room_beyond_ms),
            table=Normaliser.of(self.feature_set, normaliser).table,
            record_log=record_log,
            states=self._states,
            rewards=self._rewards,
            stats=self._stats.view(np.uint8).reshape(count, self._stats.itemsize),
            rule_pkts=self._rule_pkts,
            decided=self._decided.view(np.uint8),
            may_cap=self._may_cap.view(np.uint8),
            threads=threads,
        )
        self._specs: dict[int, LinkSpec] = {}
        """Of rows whose log tells what a wired link lets through: the next reset's."""
        self._logged: dict[int, LinkSpec] = {}
        """The same of the run that is on."""
        self._record_log = record_log
        for row, link in enumerate(links):
            self.set_link(row, link)

    def __len__(self) -> int:
        return len(self._rewards)

    def __reduce__(self) -> NoReturn:
        """Raises TypeError: nobody copies simulations in their midst, and environments are asked for a copy, too."""
        raise TypeError(
            "simulated links cannot be pickled or copied; hand on what makes them, such as "
            "functools.partial(gymnasium.make, 'reinet/SimLink-v0', ...), and call it where they are to run"
        )

    @property
    def states(self) -> npt.NDArray[np.float32]:
        """Returns the states (N, S), newest observation first."""
        return self._states

    @property
    def rewards(self) -> npt.NDArray[np.float32]:
        """Returns the rewards (N,) of the records that just came; ``deepcc`` is 0 where ``decided`` is False."""
        return self._rewards

    @property
    def stats(self) -> FlowStatsArray:
        """Returns records, FLOW_STATS_DTYPE (N,); ``time_ns`` is trace time, from ``start_offset_ms`` on."""
        return self._stats

    @property
    def rule_pkts(self) -> npt.NDArray[np.float32]:
        """Returns the hand rule's product in packets (N,), see the feature set's ``rule``; 0 while unknown."""
        return self._rule_pkts

    @property
    def decided(self) -> npt.NDArray[np.bool_]:
        """Returns a mask (N,), False where the record has no RTT sample and asks for no decision."""
        return self._decided

    @property
    def may_cap(self) -> npt.NDArray[np.bool_]:
        """Returns a mask (N,), False where the flow has shown no queue of its own: ``core/guard/gate.hpp``."""
        return self._may_cap

    def set_link(self, row: int, link: LinkSpec | Mapping[str, Any]) -> None:
        """Gives a row another link, from its next reset on."""
        spec = link if isinstance(link, LinkSpec) else LinkSpec.from_mapping(link)
        self._core.set_link(row, *native_options(spec))
        self._specs.pop(row, None)
        if self._record_log and spec.wired_mbps:
            self._specs[row] = spec

    def reset(self, rows: npt.ArrayLike | None = None) -> None:
        """Starts new flows in these rows (None = all) and runs each to its first record, without a cap.

        ``rows`` are their numbers, or a mask (N,). Raises ConfigError for anything else.
        """
        index = np.arange(len(self)) if rows is None else rows_of(rows, len(self))
        self._core.reset(index.astype(np.int32))
        if self._specs or self._logged:
            gone = set(index.tolist())
            kept = {row: spec for row, spec in self._logged.items() if row not in gone}
            self._logged = kept | {row: spec for row, spec in self._specs.items() if row in gone}

    def step(self, actions: npt.ArrayLike) -> None:
        """Applies actions in [-1, 1], shape (N,), through the head, and runs each link to its next record.

        An action means no cap where ``may_cap`` is False, and is ignored where ``decided`` is: the cap stays.
        """
        self._core.step(np.ascontiguousarray(actions, dtype=np.float32))

    def step_caps(self, caps_pkts: npt.ArrayLike) -> None:
        """Applies caps in packets, shape (N,), 0 = none, as they are, and runs each link to its next record.

        Raises ConfigError for what are no whole packets.
        """
        self._core.step_caps(_whole("caps_pkts", caps_pkts, np.uint32))

    def clairvoyant_caps(self, horizon_ms: int | npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
        """Returns caps (N,): each trace's opportunities in the next min RTT + ``horizon_ms``, plus one packet.

        The horizon is one for all links, or one for each (N,). Raises ConfigError for what are no whole milliseconds.
        """
        caps_pkts = np.empty(len(self), np.uint32)
        horizons_ms = np.broadcast_to(_whole("horizon_ms", horizon_ms, np.uint64, MOST_HORIZON_MS), len(self))
        self._core.clairvoyant_caps(np.ascontiguousarray(horizons_ms), caps_pkts)
        return caps_pkts

    def hidden_pkts(self, horizons_ms: Sequence[int]) -> npt.NDArray[np.float32]:
        """Returns what only a simulator knows, (N, 2 + H): packets queued, opportunities and opportunities to come.

        The first opportunities are those of which the sender cannot have heard yet, those of the time that an ACK needs
        to come back; the others are those in each of the times from now on.

        No agent may see it; a critic, which is gone when the actor is deployed, may learn from it. Raises ConfigError
        for what are no whole milliseconds.
        """
        values = np.empty((len(self), 2 + len(horizons_ms)), np.float32)
        self._core.hidden(_whole("horizons_ms", horizons_ms, np.uint64, MOST_HORIZON_MS), values)
        return values

    def packets(self, row: int) -> dict[str, int]:
        """Returns where the packets sent since the reset are: sent = dropped + on_path + queued + delivered."""
        return self._core.packets(row)

    def objects(self, row: int, flow: int = 0) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Returns when each of a flow's objects was written and when its last byte had arrived, in ms of trace time.

        Two arrays (K,), of the K objects that have arrived since the reset, of a flow with ``object_bytes``.
        """
        written_us, received_us = self._core.objects(row, flow)
        return written_us / 1000, received_us / 1000

    def memory_bytes(self, row: int) -> int:
        """Returns the bytes of memory held for the row, its trace and log apart."""
        return self._core.memory_bytes(row)

    def log(self, row: int, until_ms: float = math.inf) -> dict[str, Any]:
        """Returns what the link logged since the reset, as arrays in trace time; ValueError unless ``record_log``.

        ``arrival_ms, arrival_bytes`` (dropped packets included), ``opportunity_ms``, ``departure_ms,
        departure_bytes, departure_delay_ms``, ``drop_ms, drop_bytes``, each with the number of the flow in
        ``arrival_flow, departure_flow, drop_flow``, and the numbers ``start_ms, end_ms``. Bytes include the TUN header,
        as in Mahimahi's log. Opportunities are those of the first flow's trace, up to ``until_ms`` alone: a flow that
        hears nothing for years is stepped over billions of them, for which no memory would do.

        Behind a wired link a packet's delay is that of both queues, from when it was sent, and ``opportunity_bytes``
        says what the wired link lets each opportunity carry. Arrivals and drops are those of the queue behind it.
        """
        log = self._core.log(row, int(min(until_ms, NO_END_MS)))
        if (spec := self._logged.get(row)) is not None:
            buffer_bytes = math.inf if spec.queue == "infinite" else spec.buffer_bytes or math.inf
            if spec.buffer_pkts and spec.queue != "infinite":
                buffer_bytes = min(buffer_bytes, spec.buffer_pkts * OPPORTUNITY_BYTES)
            log["opportunity_bytes"] = carried_bytes(
                log["opportunity_ms"], spec.wired_mbps, spec.start_offset_ms, buffer_bytes
            )
        return log


def _whole(
    key: str, given: npt.ArrayLike, dtype: type[np.unsignedinteger[Any]], most: int | None = None
) -> npt.NDArray[Any]:
    """Returns whole numbers from 0 on in C's order; a cast would make 4294967295 of -1, and 0 of 0.9."""
    values = np.asarray(given)
    highest = int(np.iinfo(dtype).max) if most is None else most
    if values.size and values.dtype != np.uint32:
        if values.dtype.kind not in "iu":
            raise ConfigError(f"{key}: {values.dtype} are no whole numbers; give integers from 0 to {highest}")
        if values.min() < 0 or values.max() > highest:
            raise ConfigError(f"{key}: {values.min()} to {values.max()} reach outside 0 to {highest}")
    return np.ascontiguousarray(values, dtype)
