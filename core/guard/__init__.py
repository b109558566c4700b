"""Where no cap may act; each rule has a file of its own here, with its reasons."""

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.records import FlowStatsArray, as_bytes
from reinet.core.states.caps import MAX_CAP_PKTS

FOREIGN_ROUNDS: float = _core.FOREIGN_ROUNDS
"""So long a flow waits in a queue of others before that queue is asked; ``others.hpp`` has the reasons."""
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
"""The look for a path's true minimum RTT; ``min_rtt_look.hpp`` has each with its reason."""

VERDICT_DTYPE = np.dtype(
    [
        ("code", np.uint8),  # Why
        ("wanted_pkts", np.uint32),  # the cap as the agent returned it
        ("allowed_pkts", np.uint32),  # what gate and guard left of it, 0 = none
        ("target_us", np.uint32),
        ("min_rtt_us", np.uint32),
    ]
)
"""What a guard says of a record, packed as ``guard.hpp`` has it; ``agents/decide/verdicts.py`` has the words."""
VERDICT_BYTES: int = _core.VERDICT_BYTES
"""Its size there."""


class Guard:
    """The last check before a cap reaches a socket, for many flows: ``guard.hpp``.

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
        self.core.see(as_bytes(stats), aims_at_target)

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
        alone that wait in a queue of others, and gives more to those whose queue is empty.
        """
        caps_pkts, verdicts = np.empty(len(stats), np.uint32), np.empty(len(stats), VERDICT_DTYPE)
        self.core.judge(
            as_bytes(stats),
            np.ascontiguousarray(wanted_pkts),
            np.ascontiguousarray(may_cap).view(np.uint8),
            aims_at_target,
            caps_pkts,
            verdict_bytes(verdicts),
        )
        return caps_pkts, verdicts


def verdict_bytes(verdicts: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    """Returns verdicts (N,), VERDICT_DTYPE, as bytes (N, VERDICT_BYTES)."""
    return np.ascontiguousarray(verdicts).view(np.uint8).reshape(len(verdicts), VERDICT_DTYPE.itemsize)
