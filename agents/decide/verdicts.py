"""Why a flow is capped or not: one small record for each flow, which becomes a sentence only when somebody asks.

A loop decides tens of thousands of times a second, and most flows are uncapped for most of their lives; so a tick
writes numbers, for all flows at once, and ``text`` makes words of them later.
"""

import math
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.core import MAX_CAP_PKTS, MIN_CAP_PKTS
from reinet.core.target import LEAST_TARGET_PER_RTT


class Why(IntEnum):
    """The reasons, by number."""

    CAPPED = 0
    AGENT_CHOSE_NONE = 1
    # What gate and guard refuse, from here ...
    NO_QUEUE = 2
    UNMEASURED = 3
    NO_TARGET = 4
    TOO_TIGHT = 5
    NOT_FINITE = 6
    OUT_OF_RANGE = 7
    # ... to here, and OTHERS_QUEUE. The rest is the loop's.
    NO_DECISION = 8
    PAUSED = 9
    RESUMED = 10
    IDLE = 11
    STALE = 12
    LAPSED = 13
    AGENT_FAILED = 14
    CHANGED = 15
    SHADOW = 16
    HELD_OUT = 17
    STOOD_DOWN = 18
    UNPLACED = 19
    OTHERS_QUEUE = 20


Verdicts = NDArray[np.void]
"""An array of VERDICT_DTYPE, one element for each flow."""
Codes = NDArray[np.uint8]

_FIRST_REFUSAL, _LAST_REFUSAL = int(Why.NO_QUEUE), int(Why.OUT_OF_RANGE)
_FIRST_FAULT = int(Why.NOT_FINITE)  # plain numbers: a tick cannot afford to look members up

WORDS = {
    Why.CAPPED: "",
    Why.AGENT_CHOSE_NONE: "the agent set no cap",
    # The usual state of young and short flows, nothing to warn of.
    Why.NO_QUEUE: "the flow has shown no queue of its own: left to its congestion control",
    Why.UNMEASURED: "no RTT measured yet: flow stays uncapped until the first sample",
    Why.NO_TARGET: "no target delay is set: flow stays uncapped; set one (target)",
    Why.NOT_FINITE: "the model's output was not a finite number: flow stays uncapped; replace the model",
    Why.NO_DECISION: "no RTT sample yet: flow stays uncapped until the first",
    Why.PAUSED: "paused: no caps until `reinet ctl resume`",
    Why.RESUMED: "resumed: a cap comes with the flow's next RTT sample",
    Why.IDLE: "idle: its cap has lapsed; the flow's next records decide anew",
    Why.STALE: "its latest record came more than a lease late: too old to decide on; the flow's next records decide",
    Why.LAPSED: "the daemon was held up for longer than a lease: its cap has lapsed; "
    "the flow's next records decide anew",
    Why.AGENT_FAILED: "the agent failed: all flows are uncapped",
    Why.CHANGED: "model or policy were changed: the flow's next records decide anew",
    Why.HELD_OUT: "held out: the flow stays plain, to be compared with those that are capped",
    Why.STOOD_DOWN: "stood down: capped flows fared worse than plain ones",
    Why.UNPLACED: "which policy the flow is under is not known yet",
    Why.OTHERS_QUEUE: "no cap shortens its wait, which is for others' packets or for the link's next turn: "
    "left to its congestion control for a while",
}
"""The reasons as sentences; those that tell numbers are ``text``'s."""


def text(verdict: Any, ceiling_pkts: int = MAX_CAP_PKTS) -> str:
    """Returns one verdict as a sentence, empty for a flow that is capped."""
    code = Why(int(verdict["code"]))
    if code is Why.TOO_TIGHT:
        return target_too_tight(int(verdict["target_us"]), int(verdict["min_rtt_us"]))
    if code is Why.OUT_OF_RANGE:
        cure = "the agent or raise the ceiling" if verdict["wanted_pkts"] > ceiling_pkts else "the agent"
        return (
            f"a cap of {verdict['wanted_pkts']} packets is outside [{MIN_CAP_PKTS}, {ceiling_pkts}]: flow stays "
            f"uncapped; check {cure}"
        )
    if code is Why.SHADOW:
        return f"shadow: a cap of {verdict['allowed_pkts']} packets was decided and not applied"
    return WORDS[code]


def refused(codes: Codes) -> NDArray[np.bool_]:
    """Returns where gate or guard left a flow uncapped."""
    return np.asarray((codes >= _FIRST_REFUSAL) & (codes <= _LAST_REFUSAL), np.bool_)


def faults(codes: Codes) -> int:
    """Returns how many refusals the agent has to answer for; the others tell of the flow or of the target."""
    return int(np.count_nonzero((codes >= _FIRST_FAULT) & (codes <= _LAST_REFUSAL)))


def target_too_tight(target_us: int, min_rtt_us: int) -> str:
    """Returns why a flow with this target stays uncapped, and what target would do."""
    # Each rounded up for itself, so that doing as told is enough.
    least_ms = math.ceil(LEAST_TARGET_PER_RTT * min_rtt_us / 100) / 10
    above_ms = math.ceil((LEAST_TARGET_PER_RTT - 1) * min_rtt_us / 100) / 10
    return (
        f"target {target_us / 1e3:.1f} ms is below {LEAST_TARGET_PER_RTT} x the path's minimum RTT "
        f"({min_rtt_us / 1e3:.1f} ms): flow stays uncapped; raise the target above {least_ms:.1f} ms "
        f"(+{above_ms:.1f}ms)"
    )
