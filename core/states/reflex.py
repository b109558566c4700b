"""The answer to a record without the interpreter."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.features import head_index
from reinet.core.guard import VERDICT_DTYPE, Guard, verdict_bytes
from reinet.core.peers import Peers
from reinet.core.records import FlowStatsArray, as_bytes
from reinet.core.state import StateBank

ANSWER_NONE: int = _core.ANSWER_NONE
ANSWER_DECIDED: int = _core.ANSWER_DECIDED
ANSWER_CLOSED: int = _core.ANSWER_CLOSED
ANSWER_STALE: int = _core.ANSWER_STALE
"""What becomes of a record that a reflex answers; ``reflex.hpp`` says it."""
Rest = _core.Rest
"""For how long whoever answers records rests between two looks; ``reflex.hpp`` has the rule."""


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
    """The answer to a record without the interpreter, for the flows of one policy: ``reflex.hpp``."""

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
        self.core.answer(as_bytes(records), now_ns, verdict_bytes(done.verdicts), done.answers)
        return done

    def show(self, slot: int) -> tuple[npt.NDArray[np.float32], float]:
        """Returns a slot's state (S,) as it is, and the hand rule's product; any thread may ask."""
        state = np.empty(self._state_size, np.float32)
        return state, self.core.show(slot, state)
