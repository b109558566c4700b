"""States, rewards and caps for many flows at once; the arithmetic is in ``states/``."""

import ipaddress
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.errors import ConfigError
from reinet.core.features import DEFAULT_FEATURE_SET, feature_set_named, head_index
from reinet.core.normaliser import Normaliser
from reinet.core.records import FLOW_STATS_DTYPE, FlowStatsArray, as_bytes
from reinet.core.rewards import DEFAULT_REWARD, DELAY_WEIGHT, Offers, reward_index

MAX_CAP_PKTS: int = _core.MAX_CAP_PKTS
"""No cap lies above this, the paper's ceiling: 480 Mbit/s at an RTT of 1 s."""
MIN_CAP_PKTS: int = _core.MIN_CAP_PKTS
"""No cap lies below this, the paper's floor: fewer packets cannot trigger fast retransmit."""
MOST_CALM_RTTS: float = _core.MOST_CALM_RTTS
"""The slowest that caps may follow their network; ``states/calm.hpp`` says why."""
RULE_GAIN: float = _core.RULE_GAIN
"""The gain of the hand rule where none is named, and of the ``bdp`` head; ``states/heads.hpp`` says why."""

LEAST_TARGET_PER_RTT: float = _core.LEAST_TARGET_PER_RTT
"""The least target that can be kept, in minimum RTTs of the path; ``states/delay_ratio.hpp`` has the reason."""

FOREIGN_ROUNDS: float = _core.FOREIGN_ROUNDS
"""So long a flow waits in a queue of others before that queue is asked; ``guard/others.hpp`` has the reasons."""
ASK_ROUNDS: float = _core.ASK_ROUNDS
"""So long each of the two questions takes."""
LEAST_YIELD_S: float = _core.LEAST_YIELD_NS / 1e9
"""A flow is left alone until a multiple of this, by the records' clock."""

LOOK_AFTER_S: float = _core.LOOK_AFTER_NS / 1e9
LOOK_EVERY_S: float = _core.LOOK_EVERY_NS / 1e9
LOOK_REST_S: float = _core.LOOK_REST_NS / 1e9
LOOK_STEP_ROUNDS: int = _core.LOOK_STEP_ROUNDS
LOOK_LONGEST_ROUND_S: float = _core.LOOK_LONGEST_ROUND_NS / 1e9
HOLD_PER_PATH: float = _core.HOLD_PER_PATH
"""The look for a path's true minimum RTT; ``guard/min_rtt_look.hpp`` has each with its reason."""

KEPT_RECORDS: int = _core.KEPT_RECORDS
"""So many records of each flow are remembered."""

ANSWER_NONE: int = _core.ANSWER_NONE
ANSWER_DECIDED: int = _core.ANSWER_DECIDED
ANSWER_CLOSED: int = _core.ANSWER_CLOSED
ANSWER_STALE: int = _core.ANSWER_STALE
"""What becomes of a record that a reflex answers; ``states/reflex.hpp`` says it."""
VERDICT_DTYPE = np.dtype(
    [
        ("code", np.uint8),  # Why
        ("wanted_pkts", np.uint32),  # the cap as the agent returned it
        ("allowed_pkts", np.uint32),  # what gate and guard left of it, 0 = none
        ("target_us", np.uint32),
        ("min_rtt_us", np.uint32),
    ]
)
"""What a guard says of a record, packed as ``guard/guard.hpp`` has it; ``agents/decide/verdicts.py`` has the words."""
VERDICT_BYTES: int = _core.VERDICT_BYTES
"""Its size there."""

Rest = _core.Rest
"""For how long whoever answers records rests between two looks; ``states/reflex.hpp`` has the rule."""

INVALID_CAP_PKTS: int = _core.INVALID_CAP_PKTS
"""An agent returns this for a flow for which it computed no number at all (NaN or infinity)."""


def room_beyond_us(room_beyond_ms: float | None) -> float:
    """Returns the length of path that ``states/state.hpp`` has it in; None stands for no path at all."""
    return math.inf if room_beyond_ms is None else room_beyond_ms * 1e3


_NO_OFFERS = np.empty((0, 2), np.float64)


class Batch(NamedTuple):
    """What N records made of their flows' states."""

    states: npt.NDArray[np.float32]
    """(N, S), newest observation first."""
    rewards: npt.NDArray[np.float32]
    """(N,); see ``states/reward.hpp``. ``deepcc`` lies in [-100, 100], and is 0 where ``decided`` is False."""
    rule_pkts: npt.NDArray[np.float32]
    """(N,), the hand rule's product, see the feature set's ``rule``; 0 while unknown."""
    decided: npt.NDArray[np.bool_]
    """(N,), False for a record without an RTT sample: it changed nothing and asks for no decision."""
    may_cap: npt.NDArray[np.bool_]
    """(N,), False for a flow that has shown no queue of its own, which a cap could only harm: ``guard/gate.hpp``."""


def rows_of(rows: npt.ArrayLike, count: int) -> npt.NDArray[np.int64]:
    """Returns row numbers in order, each once, of numbers or a mask (N,); raises ConfigError for anything else.

    A mask taken for numbers would stand for the rows 0 and 1.
    """
    found = np.atleast_1d(np.asarray(rows))
    if found.dtype == np.bool_ and found.shape == (count,):
        return np.flatnonzero(found)
    if found.size == 0:
        return np.zeros(0, np.int64)
    if not np.issubdtype(found.dtype, np.integer) or found.min() < 0 or found.max() >= count:
        raise ConfigError(f"rows: numbers from 0 to {count - 1} or a mask of {count} are needed, not {found!r:.100}")
    return np.unique(found).astype(np.int64)


class StateBank:
    """The states of up to ``capacity`` flows, one per row.

    Features see a target that leaves as much room for queueing as a path's minimum RTT is longer than
    ``room_beyond_ms`` (None = on no path); gate and reward see it as it is.
    """

    def __init__(
        self,
        capacity: int,
        feature_set: str = DEFAULT_FEATURE_SET,
        normaliser: Normaliser | None = None,
        reward: str = DEFAULT_REWARD,
        delay_weight: float = DELAY_WEIGHT,
        room_beyond_ms: float | None = None,
    ) -> None:
        self.feature_set = feature_set_named(feature_set)
        self.core = _core.StateBank(
            capacity, self.feature_set.number, Normaliser.of(self.feature_set, normaliser).table,
            reward_index(reward, delay_weight), delay_weight, room_beyond_us(room_beyond_ms),
        )  # fmt: skip

    @property
    def capacity(self) -> int:
        """Returns the number of rows."""
        return self.core.capacity

    def grow(self, capacity: int) -> None:
        """Adds rows, up to ``capacity``; those there keep their states."""
        self.core.grow(capacity)

    def reset(self, rows: npt.ArrayLike) -> None:
        """Empties the histories of these rows, their numbers or a mask (N,), for new flows. Raises ConfigError."""
        self.core.reset(rows_of(rows, self.capacity).astype(np.int32))

    def longer_us(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.uint32]:
        """Returns the least RTT (N,) of each row's path where that has become longer than the kernel's, else 0."""
        found = np.empty(len(rows), np.uint32)
        self.core.longer_us(rows.astype(np.int32), found)
        return found

    def show(self, row: int) -> tuple[npt.NDArray[np.float32], float]:
        """Returns a row's state (S,) as it is, and the hand rule's product."""
        state = np.empty(self.feature_set.state_size, np.float32)
        return state, self.core.show(row, state)

    def update(self, rows: npt.ArrayLike, stats: FlowStatsArray, offers: Offers | None = None) -> Batch:
        """Takes one record per row and returns what they made of the states.

        A row may occur several times and is then updated in order.
        ``rows`` is int32 (N,), ``stats`` FLOW_STATS_DTYPE (N,); ``offers``, of N links, is for the reward ``regret``,
        which alone needs it. Raises IndexError for a row outside the bank, before any change.
        """
        index = np.atleast_1d(np.asarray(rows, dtype=np.int32))
        count = len(index)
        batch = Batch(
            np.empty((count, self.feature_set.state_size), np.float32), np.empty(count, np.float32),
            np.empty(count, np.float32), np.empty(count, np.bool_), np.empty(count, np.bool_),
        )  # fmt: skip
        self.core.update(
            index, as_bytes(stats, FLOW_STATS_DTYPE),
            _NO_OFFERS if offers is None else np.stack([offers.bytes, offers.unit_bytes], axis=1),
            batch.states, batch.rewards, batch.rule_pkts, batch.decided.view(np.uint8),
            batch.may_cap.view(np.uint8),
        )  # fmt: skip
        return batch


def round_caps(pkts: npt.ArrayLike, ceiling_pkts: int = MAX_CAP_PKTS) -> npt.NDArray[np.uint32]:
    """Returns packets (N,) as whole packets within [4, ceiling], halves to the even one; 0 = no cap, for NaN."""
    given = np.ascontiguousarray(np.atleast_1d(pkts), dtype=np.float64)
    caps_pkts = np.empty(len(given), np.uint32)
    _core.round_caps(given, ceiling_pkts, caps_pkts)
    return caps_pkts


def caps_from_actions(
    head: str,
    actions: npt.ArrayLike,
    cwnd_pkts: npt.ArrayLike,
    rule_pkts: npt.ArrayLike,
    ceiling_pkts: int = MAX_CAP_PKTS,
) -> npt.NDArray[np.uint32]:
    """Returns caps in packets for actions in [-1, 1], all of shape (N,), clamped to [4, ceiling]; 0 = no cap.

    The cap is also 0 for an action that is not finite, and under the ``bdp`` head while the rule is unknown.
    """
    chosen = head_index(head)
    a = np.ascontiguousarray(np.atleast_1d(actions), dtype=np.float32)
    caps_pkts = np.empty(len(a), np.uint32)
    _core.caps_from_actions(
        chosen,
        a,
        np.ascontiguousarray(np.atleast_1d(cwnd_pkts), dtype=np.uint32),
        np.ascontiguousarray(np.atleast_1d(rule_pkts), dtype=np.float32),
        ceiling_pkts,
        caps_pkts,
    )
    return caps_pkts


def calm_caps(
    wanted_pkts: npt.NDArray[np.uint32], stats: FlowStatsArray, calm_rtts: float, ceiling_pkts: int = MAX_CAP_PKTS
) -> npt.NDArray[np.uint32]:
    """Returns the caps (N,) on their way from those in force to what is wanted (N,), 1 - 1 / e of it in so many minimum
    RTTs (``states/calm.hpp``). ``stats`` has the flows' records, FLOW_STATS_DTYPE (N,).

    A flow without a cap in force, one for which none is wanted (0) and any where ``calm_rtts`` is 0 get what is wanted.
    """
    caps_pkts = np.empty(len(stats), np.uint32)
    wanted = np.ascontiguousarray(wanted_pkts, np.uint32)
    _core.calm_caps(wanted, as_bytes(stats, FLOW_STATS_DTYPE), calm_rtts, ceiling_pkts, caps_pkts)
    return caps_pkts


def learned_caps(
    head: str,
    actions: npt.NDArray[np.float32],
    stats: FlowStatsArray,
    rule_pkts: npt.NDArray[np.float32],
    calm_rtts: float,
    ceiling_pkts: int = MAX_CAP_PKTS,
) -> npt.NDArray[np.uint32]:
    """Returns what ``caps_from_actions`` and then ``calm_caps`` do, INVALID_CAP_PKTS where an action (N,) is no number.

    The policy of a running daemon decides by this in one call.
    """
    caps_pkts = np.empty(len(actions), np.uint32)
    _core.learned_caps(
        head_index(head), actions, as_bytes(stats, FLOW_STATS_DTYPE), np.ascontiguousarray(rule_pkts, np.float32),
        calm_rtts, ceiling_pkts, caps_pkts,
    )  # fmt: skip
    return caps_pkts


def actions_from_caps(
    head: str, caps_pkts: npt.ArrayLike, cwnd_pkts: npt.ArrayLike, rule_pkts: npt.ArrayLike
) -> npt.NDArray[np.float32]:
    """Returns the actions (N,) in [-1, 1] that come nearest to these caps, all of shape (N,); 1 for no cap."""
    caps = np.ascontiguousarray(np.atleast_1d(caps_pkts), dtype=np.uint32)
    actions = np.empty(len(caps), np.float32)
    _core.actions_from_caps(
        head_index(head),
        caps,
        np.ascontiguousarray(np.atleast_1d(cwnd_pkts), dtype=np.uint32),
        np.ascontiguousarray(np.atleast_1d(rule_pkts), dtype=np.float32),
        actions,
    )
    return actions


def peer_of(address: str) -> int:
    """Returns what records call a peer of this IP address: ``peers/peer.h``. Raises ValueError for what is none."""
    return _core.peer_of(ipaddress.ip_address(address).packed)


class Peers:
    """What flows of a host know together: ``peers/peers.hpp``. A flow is named by cookie and slot, 0 = no peer."""

    def __init__(self) -> None:
        """Makes one that knows of no flow."""
        self.core = _core.Peers()

    def annotate(self, records: FlowStatsArray) -> None:
        """Takes N records, FLOW_STATS_DTYPE (N,), in their order, and writes into them what others know.

        That is ``peer_delivered_bytes``, the flag COMPANY, and in ``min_rtt_us`` the minimum RTT of another flow that
        waits in the same queue. Nobody else may have seen the records before.
        """
        self.core.annotate(as_bytes(records, FLOW_STATS_DTYPE))

    def forget(self, slots: npt.NDArray[np.intp], cookies: npt.NDArray[np.uint64]) -> None:
        """Drops what is known of flows that ended; a socket that connects anew is another flow of that name."""
        self.core.forget(np.asarray(slots, np.int64), np.asarray(cookies, np.uint64))


class Guard:
    """The last check before a cap reaches a socket, for many flows: ``guard/guard.hpp``.

    It looks for the true minimum RTT of long flows behind a queue that does not drain, and leaves those alone that wait
    in a queue of others. A flow is named by cookie and slot; a slot has one at a time.
    """

    def __init__(self, ceiling_pkts: int = MAX_CAP_PKTS, bounds_steps: bool = False) -> None:
        """Makes a guard; ``bounds_steps`` keeps each cap near the one in force, as the daemon wants it.

        Evaluations do without: there a fixed or a random cap is to be what it says.
        """
        self.core = _core.GuardBank(ceiling_pkts, bounds_steps)

    def forget(self, slots: npt.NDArray[np.intp], cookies: npt.NDArray[np.uint64]) -> None:
        """Drops what is known of flows that ended."""
        self.core.forget(np.asarray(slots, np.int64), np.asarray(cookies, np.uint64))

    def see(self, stats: FlowStatsArray, aims_at_target: bool = False) -> None:
        """Takes N records with RTT samples on which nobody decides, as later ones of their flows are there by now."""
        self.core.see(as_bytes(stats, FLOW_STATS_DTYPE), aims_at_target)

    def judge(
        self,
        stats: FlowStatsArray,
        wanted_pkts: npt.NDArray[np.uint32],
        may_cap: npt.NDArray[np.bool_],
        aims_at_target: bool = False,
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.void]]:
        """Returns the caps that may be applied (N,), 0 = none, and what was said of each, VERDICT_DTYPE (N,).

        ``stats`` has one record of each flow, FLOW_STATS_DTYPE (N,), with an RTT sample; ``wanted_pkts`` (N,) is as an
        agent returned it; ``may_cap`` (N,) is False where the flow's gate is closed; ``aims_at_target`` leaves flows
        alone that wait in a queue of others.
        """
        caps_pkts, verdicts = np.empty(len(stats), np.uint32), np.empty(len(stats), VERDICT_DTYPE)
        self.core.judge(
            as_bytes(stats, FLOW_STATS_DTYPE),
            np.ascontiguousarray(wanted_pkts),
            np.ascontiguousarray(may_cap).view(np.uint8),
            aims_at_target,
            caps_pkts,
            _verdict_bytes(verdicts),
        )
        return caps_pkts, verdicts


def _verdict_bytes(verdicts: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(verdicts).view(np.uint8).reshape(len(verdicts), VERDICT_DTYPE.itemsize)


class FlowMemory:
    """The latest records of each row's flow, and counts since the start: ``states/flow_memory.hpp``."""

    def __init__(
        self, rows: int, delays_s: Sequence[float], rates_bytes_per_s: Sequence[float], latencies_s: Sequence[float]
    ) -> None:
        """Takes the bounds between which RTTs and queueing delays, delivery rates, and decisions' ages are counted."""
        self._core = _core.FlowMemory(rows, list(delays_s), list(rates_bytes_per_s), list(latencies_s))

    def grow(self, rows: int) -> None:
        """Adds rows, up to ``rows``; those there keep what they hold."""
        self._core.grow(rows)

    def reset(self, rows: npt.NDArray[np.intp]) -> None:
        """Empties the rows of new flows. Raises ValueError for a row that is not there."""
        self._core.reset(np.ascontiguousarray(rows, np.int64))

    def record(self, rows: npt.NDArray[np.intp], stats: FlowStatsArray) -> None:
        """Keeps and counts N records, FLOW_STATS_DTYPE (N,), whose flows own these rows; a flow's come in order.

        Raises ValueError for a row that is not there.
        """
        self._core.record(np.ascontiguousarray(rows, np.int64), as_bytes(stats, FLOW_STATS_DTYPE))

    def decide(
        self,
        rows: npt.NDArray[np.intp],
        stored_ns: npt.NDArray[np.uint64],
        stats: FlowStatsArray,
        verdicts: npt.NDArray[np.void],
    ) -> None:
        """Counts decisions on N records, whose caps were stored then (N,); verdicts as of ``Guard.judge``."""
        self._core.decide(
            np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(stored_ns),
            as_bytes(stats, FLOW_STATS_DTYPE), _verdict_bytes(verdicts),
        )  # fmt: skip

    def seen(self, row: int, cookie: int) -> tuple[FlowStatsArray, int]:
        """Returns the records that are kept of the flow that owns a row, oldest first, and when it was decided on, 0 =
        never; none, if the row is another's by now.
        """
        records = np.zeros(KEPT_RECORDS, FLOW_STATS_DTYPE)
        count, decided_ns = self._core.seen(row, cookie, as_bytes(records))
        return records[:count], decided_ns

    def counts(self) -> dict[str, Any]:
        """Returns ``rtt_s``, ``queueing_s``, ``rate`` (in bytes/s) and ``latency_s``, each as the numbers between the
        bounds and the sum of all values, and ``verdicts``, how many decisions came to each by its number.
        """
        return self._core.counts()


class Answered(NamedTuple):
    """N records that a reflex answered, those of flows that ended among them."""

    records: FlowStatsArray
    """FLOW_STATS_DTYPE (N,), each with its target."""
    verdicts: npt.NDArray[np.void]
    """VERDICT_DTYPE (N,)."""
    answers: npt.NDArray[np.uint8]
    """(N,), what became of each: ``ANSWER_NONE`` and so on."""
    stored_ns: npt.NDArray[np.uint64]
    """(N,), when the cap was stored, by CLOCK_MONOTONIC."""

    def of(self, chosen: npt.NDArray[np.bool_]) -> "Answered":
        """Returns some of them."""
        return Answered(self.records[chosen], self.verdicts[chosen], self.answers[chosen], self.stored_ns[chosen])


class Reflex:
    """The answer to a record without the interpreter, for the flows of one policy: ``states/reflex.hpp``."""

    def __init__(
        self,
        bank: StateBank,
        guard: Guard,
        layers: Sequence[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]],
        head: str,
        calm_rtts: float,
        ceiling_pkts: int,
        lease_ns: int,
    ) -> None:
        """Makes one of a loop's own bank and guard; ``layers`` are weights (out, in) and biases (out,) of an actor."""
        self.core = _core.Reflex(
            bank.core, guard.core,
            [np.ascontiguousarray(weight.T, np.float32) for weight, _ in layers],
            [np.ascontiguousarray(bias, np.float32) for _, bias in layers],
            head_index(head), calm_rtts, ceiling_pkts, lease_ns,
        )  # fmt: skip
        self._state_size = bank.feature_set.state_size

    def set_target(self, min_rtts: float, extra_us: float) -> None:
        """Asks for RTTs below so many minimum RTTs and so much more: ``Target.line``."""
        self.core.set_target(min_rtts, extra_us)

    def begin(self, owners: npt.NDArray[np.uint64], peers: Peers) -> None:
        """Says whose the slots are by now (rows,), by their cookies, 0 = nobody's; ``peers`` are the loop's own."""
        self.core.begin(np.ascontiguousarray(owners), peers.core)

    def answer(self, records: FlowStatsArray, now_ns: int) -> Answered:
        """Answers N records, FLOW_STATS_DTYPE (N,), and writes their targets into them; stores no caps."""
        count = len(records)
        done = Answered(
            records, np.empty(count, VERDICT_DTYPE), np.empty(count, np.uint8), np.full(count, now_ns, np.uint64)
        )
        self.core.answer(as_bytes(records, FLOW_STATS_DTYPE), now_ns, _verdict_bytes(done.verdicts), done.answers)
        return done

    def show(self, slot: int) -> tuple[npt.NDArray[np.float32], float]:
        """Returns a slot's state (S,) as it is, and the hand rule's product; any thread may ask."""
        state = np.empty(self._state_size, np.float32)
        return state, self.core.show(slot, state)
