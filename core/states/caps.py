"""Caps of many flows: those that actions mean (``heads.hpp``), and how calmly they follow (``calm.hpp``)."""

import numpy as np
import numpy.typing as npt

from reinet.core import _core
from reinet.core.features import head_index
from reinet.core.records import FlowStatsArray, as_bytes

MAX_CAP_PKTS: int = _core.MAX_CAP_PKTS
"""No cap lies above this, the paper's ceiling: 480 Mbit/s at an RTT of 1 s."""
MIN_CAP_PKTS: int = _core.MIN_CAP_PKTS
"""No cap lies below this, the paper's floor: fewer packets cannot trigger fast retransmit."""
MOST_CALM_RTTS: float = _core.MOST_CALM_RTTS
"""The slowest that caps may follow their network; ``calm.hpp`` says why."""
RULE_GAIN: float = _core.RULE_GAIN
"""The gain of the hand rule where none is named, and of the ``bdp`` head; ``heads.hpp`` says why."""
INVALID_CAP_PKTS: int = _core.INVALID_CAP_PKTS
"""An agent returns this for a flow for which it computed no number at all (NaN or infinity)."""


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
    RTTs (``calm.hpp``). ``stats`` has the flows' records, FLOW_STATS_DTYPE (N,).

    A flow without a cap in force, one for which none is wanted (0) and any where ``calm_rtts`` is 0 get what is wanted.
    """
    caps_pkts = np.empty(len(stats), np.uint32)
    wanted = np.ascontiguousarray(wanted_pkts, np.uint32)
    _core.calm_caps(wanted, as_bytes(stats), calm_rtts, ceiling_pkts, caps_pkts)
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
        head_index(head), actions, as_bytes(stats), np.ascontiguousarray(rule_pkts, np.float32),
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
