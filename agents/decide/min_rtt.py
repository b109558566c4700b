"""The look for a path's true minimum RTT: which long flows are held back for it, when, and how far.

A flow that began while a queue stood has never seen its path without one: behind the flows of a shared bottleneck, or
on a slow or stalled link. Uncapped it never will, and capped no sooner, where others are capped as well and keep the
queue at their target. It takes that queue for the path, so its target seems out of reach, or leaves it more room than
the others, and it takes their share. Held below what the path can carry all of them drain the queue and see the path as
it is, which is the idea of BBR's PROBE_RTT; what the kernel then calls a flow's minimum RTT counts.

One flow alone drains no queue that several keep. So looks begin at fixed times, the multiples of ``LOOK_EVERY_S`` of
the clock of the records, CLOCK_MONOTONIC, and flows of one host hold back together without having to know of each
other. (Flows of two hosts do not. BBR's find each other because a drained queue is news to all of them.)

A look costs what the link could have carried meanwhile and until the window has grown back. It is not for a short flow,
which is over before a cap could serve it, and not for one whose RTT came near its minimum since the last such time: its
queue drains by itself, as it does on nearly every cellular recording. So only a flow takes part that somebody would
cap, that has been busy for ``LOOK_AFTER_S``, neither limited by its application nor idle for longer than an RTT since,
and whose queue stood all the time. A look goes down step by step: where the RTT falls, the next step goes below that.

    first record       busy for LOOK_AFTER_S, queue stood      STEP_ROUNDS, nothing lower
    -----------> waiting ------------------------------> held ---------------------------+
                 ^  ^    at a multiple of LOOK_EVERY_S   ^ |                             |
                 |  |                                    +-+ a lower RTT: the next step  |
                 |  +--- application-limited, or idle, meanwhile                         |
                 +-----------------------------------------------------------------------+
"""

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import CapArray, StatsArray
from reinet.core import MAX_CAP_PKTS, MIN_CAP_PKTS
from reinet.core.records import Flag

LOOK_AFTER_S = 5.0
"""A flow that was busy for so long is a long one. The longer it waits, the longer it takes more than its share."""
LOOK_EVERY_S = 10.0
"""BBR's window for its minimum RTT (bbr_min_rtt_win_sec of tcp_bbr.c)."""
REST_S = 60.0
"""A flow whose target stays out of reach after a look runs uncapped, helps nobody by looking, and rests so long."""
HOLD_PER_PATH = 0.75
"""About as much is taken as a loss takes from Cubic (0.7), and the window is soon back; a rate that was estimated a
third too high still lets the queue drain."""
FALLS_BELOW = 0.9
"""A minimum RTT below so much of the one before the step was a queue's; less is what late hosts and ACKs make of it."""
NEAR_MINIMUM = 1.1
"""An RTT up to so many times the minimum shows a queue that drains by itself."""
STEP_ROUNDS = 2
"""A queue drains in one round trip, the look at the path takes another."""
OUTAGE_RTTS = 4
"""Above so many times the minimum, and above ``LONGEST_ROUND_NS``, the RTT says how long an outage was, and in flight /
RTT is not the path's rate: nobody looks then. A queue that a flow builds behind an inflated minimum is less."""
LONGEST_ROUND_NS = 300_000_000
"""A round trip counts so long at most, lest an outage during a look make it last as long."""

_NEVER_NS = -1
_LOOK_EVERY_NS = round(LOOK_EVERY_S * 1e9)
_PAUSES = int(Flag.APP_LIMITED | Flag.RESTARTED)  # Python 3.11 takes long to join members
_FLOW_DTYPE = np.dtype(
    [
        ("cookie", np.uint64),  # 0 = nothing is known
        ("busy_ns", np.int64),  # since when the flow has been busy, of unbroken evidence
        ("turn", np.int64),  # how many times for a look had passed at the latest record
        ("stands", np.bool_),  # no RTT near the minimum was seen since the latest of them
        ("until_ns", np.int64),  # when the step that is under way ends
        ("hold_pkts", np.uint32),  # what the flow may have in flight meanwhile
        ("known_us", np.uint32),  # its minimum RTT before the step
        ("rests_ns", np.int64),  # no look before
    ]
)
_NEW = np.array((0, _NEVER_NS, _NEVER_NS, False, _NEVER_NS, 0, 0, _NEVER_NS), _FLOW_DTYPE)


class MinRttLook:
    """Says how far flows are held back. A flow is named by cookie and slot; a slot has one flow at a time."""

    def __init__(self) -> None:
        self._flows = np.zeros(0, _FLOW_DTYPE)  # by slot

    def forget(self, slots: NDArray[np.intp], cookies: NDArray[np.uint64]) -> None:
        """Drops what is known of flows that ended."""
        known = slots < self._flows.size
        slots, cookies = slots[known], cookies[known]
        self._flows[slots[self._flows["cookie"][slots] == cookies]] = _NEW

    def hold_pkts(self, stats: StatsArray, out_of_reach: NDArray[np.bool_], capped: NDArray[np.bool_]) -> CapArray:
        """Returns (N,) the caps of flows that are looked at, 0 for the others, after one record of each with a sample.

        ``capped`` (N,) are those that the agent would cap: others are not looked at. ``out_of_reach`` (N,) are those
        whose target cannot be kept by what is known of their minimum RTT.
        """
        slots = stats["slot"].astype(np.intp)
        self._grow(int(slots.max(initial=-1)) + 1)
        flows = self._flows[slots]
        flows[flows["cookie"] != stats["cookie"]] = _NEW
        flows["cookie"] = stats["cookie"]
        _advance(flows, stats, capped, out_of_reach)
        self._flows[slots] = flows
        return np.where(flows["until_ns"] != _NEVER_NS, flows["hold_pkts"], 0).astype(np.uint32)

    def _grow(self, slots: int) -> None:
        missing = slots - self._flows.size
        if missing > 0:
            self._flows = np.concatenate([self._flows, np.full(missing, _NEW)])


def _advance(
    flows: NDArray[np.void], stats: StatsArray, capped: NDArray[np.bool_], out_of_reach: NDArray[np.bool_]
) -> None:
    """Takes the records into ``flows``, in place."""
    now_ns = stats["time_ns"].astype(np.int64)
    busy = (stats["flags"] & _PAUSES) == 0
    begins = busy & (flows["busy_ns"] == _NEVER_NS)
    if begins.any():
        flows["busy_ns"][begins] = now_ns[begins]
    if not busy.all():
        flows["busy_ns"][~busy] = _NEVER_NS
        flows["until_ns"][~busy] = _NEVER_NS
    flows["stands"] &= stats["rtt_least_us"] > NEAR_MINIMUM * stats["min_rtt_us"]

    # Most records find their flow neither held nor at the time of a look; then there is nothing to step to.
    turn = now_ns // _LOOK_EVERY_NS
    held, due = flows["until_ns"] != _NEVER_NS, turn != flows["turn"]
    if not held.any() and not due.any():
        return
    rtt_ns = stats["rtt_mean_us"].astype(np.int64) * 1000
    over = held & (now_ns >= flows["until_ns"])
    fell = over & (stats["min_rtt_us"] < FALLS_BELOW * flows["known_us"])
    flows["until_ns"][over] = _NEVER_NS
    rests = over & ~fell & out_of_reach
    flows["rests_ns"][rests] = (now_ns + round(REST_S * 1e9))[rests]

    long = busy & (now_ns - flows["busy_ns"] >= LOOK_AFTER_S * 1e9)
    sane = rtt_ns <= np.maximum(OUTAGE_RTTS * 1000 * stats["min_rtt_us"].astype(np.int64), LONGEST_ROUND_NS)
    starts = due & long & ~held & capped & sane & flows["stands"] & (now_ns >= flows["rests_ns"])
    flows["stands"][due] = True
    flows["turn"] = turn

    steps = starts | fell
    flows["until_ns"][steps] = (now_ns + STEP_ROUNDS * np.minimum(rtt_ns, LONGEST_ROUND_NS))[steps]
    flows["known_us"][steps] = stats["min_rtt_us"][steps]
    flows["hold_pkts"][steps] = _step_pkts(stats[steps])


def _step_pkts(stats: StatsArray) -> CapArray:
    """Returns (N,) a share of what the path holds: in flight / RTT is the rate, and that x min RTT is what it holds."""
    queueless = stats["min_rtt_us"] / np.maximum(stats["rtt_mean_us"], 1)
    hold_pkts = np.clip(HOLD_PER_PATH * queueless * stats["inflight_pkts"], MIN_CAP_PKTS, MAX_CAP_PKTS)
    return np.asarray(hold_pkts, np.uint32)
