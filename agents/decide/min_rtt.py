"""The look for a path's true minimum RTT: which long flows are held back for it, when, and how far.

A flow that began on a slow or stalled link has never seen its path without a queue, and uncapped it never will: its
target then seems out of reach for ever. Held below what the path can carry it drains its queue and sees the path as it
is, which is the idea of BBR's PROBE_RTT; what the kernel then calls its minimum RTT counts.

A look costs what the link could have carried meanwhile and until the window has grown back, and a short flow has
nothing to gain from it: it is over before a cap could serve it. So only a flow that has been busy for ``LOOK_AFTER_S``
is looked at, neither limited by its application nor idle for longer than an RTT since. And a look goes down step by
step, to ``HOLD_PER_PATH`` of what the path holds if the minimum RTT known so far is true. Where it is, nothing lower
shows, and the look has cost less than a loss; where it is not, the RTT falls, and the next step goes below that.

      first record        busy for LOOK_AFTER_S        nothing lower in a round trip, or LONGEST_STEP_ROUNDS
    -------------> waiting --------------------> held ----------------------------------------------------+
                      ^  ^                       ^ |  \\__ a lower RTT: next step, down to the target's reach |
                      |  +-------------------------+                                                      |
                      |     application-limited, or idle meanwhile                                        |
                      +----- LOOK_INTERVAL_S after the look's end, and busy again for LOOK_AFTER_S -------+
"""

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import CapArray, StatsArray
from reinet.core import MAX_CAP_PKTS, MIN_CAP_PKTS
from reinet.core.records import Flag

LOOK_AFTER_S = 10.0
"""BBR's window for its minimum RTT (bbr_min_rtt_win_sec of tcp_bbr.c): a flow that was busy for so long is a long one,
and BBR itself then thinks that a look is worth its cost."""
LOOK_INTERVAL_S = 60.0
"""The time from the end of a look, also of one broken off, to the flow's next one. In the simulator (131 s, so two
looks; target 50 ms, means of five buffers of 150 to 900 KB) looks then cost Cubic 0.2 % of its throughput at 12 Mbit/s
and 60 ms and at 24 Mbit/s and 150 ms; at 50 Mbit/s and 150 ms, where a window takes ten seconds to grow back, 1.2 %
(3.7 % at most) and Reno 2.5 % (5.9 % at most)."""
HOLD_PER_PATH = 0.75
"""About as much is taken as a loss takes from Cubic (0.7), and the window is soon back; a rate that was estimated a
third too high still lets the queue drain. At 100 Mbit/s and 60 ms two looks in 131 s cost Cubic 0.1 % of its throughput
with 0.75, 2 % with 0.5, and 7 % where the flow was held at 4 packets."""
FALLS_BELOW = 0.9
"""A minimum RTT below so much of the one before the step was a queue's; less is what late hosts and ACKs make of it."""
LONGEST_STEP_ROUNDS = 4
"""A step ends after so many of the round trips that it began with, whatever it saw. A queue drains in one of them, the
look at the path takes one at most; loss recovery, in which the window is not the cap's, may take two more."""

_NEVER_NS = -1
_FLOW_DTYPE = np.dtype(
    [
        ("cookie", np.uint64),  # 0 = nothing is known
        ("busy_ns", np.int64),  # since when the flow has been busy, of unbroken evidence
        ("until_ns", np.int64),  # when the step that is under way ends at the latest
        ("hold_pkts", np.uint32),  # what the flow may have in flight meanwhile
        ("known_us", np.uint32),  # its minimum RTT before the step
        ("drained_ns", np.int64),  # since when it has had no more than that in flight
        ("ended_ns", np.int64),  # when its latest look ended
    ]
)
_NEW = np.array((0, _NEVER_NS, _NEVER_NS, 0, 0, _NEVER_NS, _NEVER_NS), _FLOW_DTYPE)


class MinRttLook:
    """Says how far flows are held back. A flow is named by cookie and slot; a slot has one flow at a time."""

    def __init__(self) -> None:
        self._flows = np.zeros(0, _FLOW_DTYPE)  # by slot; only flows whose target is out of reach so far

    def forget(self, slots: NDArray[np.intp], cookies: NDArray[np.uint64]) -> None:
        """Drops what is known of flows that ended."""
        known = slots < self._flows.size
        slots, cookies = slots[known], cookies[known]
        self._flows[slots[self._flows["cookie"][slots] == cookies]] = _NEW

    def hold_pkts(
        self, stats: StatsArray, out_of_reach: NDArray[np.bool_], capped: NDArray[np.bool_]
    ) -> CapArray | None:
        """Returns (N,) the caps of flows that are looked at, 0 for the others, after one record of each with a sample.

        ``out_of_reach`` (N,) are those whose target cannot be kept by what is known of their minimum RTT, ``capped``
        (N,) those that the agent would cap: others are not looked at. None stands for zeros: no flow was ever one.
        """
        if not self._flows.size and not out_of_reach.any():
            return None
        slots = stats["slot"].astype(np.intp)
        self._grow(int(slots.max()) + 1)
        flows = self._flows[slots]
        flows[(flows["cookie"] != stats["cookie"]) | ~out_of_reach] = _NEW
        flows["cookie"] = np.where(out_of_reach, stats["cookie"], 0)
        _advance(flows, stats, out_of_reach & capped)
        self._flows[slots] = flows
        return np.where(flows["until_ns"] != _NEVER_NS, flows["hold_pkts"], 0).astype(np.uint32)

    def _grow(self, slots: int) -> None:
        missing = slots - self._flows.size
        if missing > 0:
            self._flows = np.concatenate([self._flows, np.full(missing, _NEW)])


def _advance(flows: NDArray[np.void], stats: StatsArray, wanted: NDArray[np.bool_]) -> None:
    """Takes the records into ``flows``, in place; ``wanted`` (N,): may be looked at."""
    now_ns, rtt_ns = stats["time_ns"].astype(np.int64), stats["rtt_mean_us"].astype(np.int64) * 1000
    busy = wanted & ((stats["flags"] & (Flag.APP_LIMITED | Flag.RESTARTED)) == 0)
    broken_off = ~busy & (flows["until_ns"] != _NEVER_NS)
    flows["ended_ns"][broken_off] = now_ns[broken_off]
    for name in ("busy_ns", "until_ns", "drained_ns"):
        flows[name][~busy] = _NEVER_NS
    begins = busy & (flows["busy_ns"] == _NEVER_NS)
    flows["busy_ns"][begins] = now_ns[begins]

    held = flows["until_ns"] != _NEVER_NS
    drains = held & (flows["drained_ns"] == _NEVER_NS) & (stats["inflight_pkts"] <= flows["hold_pkts"])
    flows["drained_ns"][drains] = now_ns[drains]
    # What is acknowledged a round trip later was sent since, and met what is held, no more.
    looked = held & (flows["drained_ns"] != _NEVER_NS) & (now_ns - flows["drained_ns"] >= rtt_ns)
    fell = looked & (stats["min_rtt_us"] < FALLS_BELOW * flows["known_us"])
    ends = (looked | (held & (now_ns >= flows["until_ns"]))) & ~fell
    flows["ended_ns"][ends] = now_ns[ends]
    flows["until_ns"][ends] = _NEVER_NS

    rested = (flows["ended_ns"] == _NEVER_NS) | (now_ns - flows["ended_ns"] >= LOOK_INTERVAL_S * 1e9)
    starts = busy & ~held & rested & (now_ns - flows["busy_ns"] >= LOOK_AFTER_S * 1e9)
    steps = starts | fell
    flows["until_ns"][steps] = (now_ns + LONGEST_STEP_ROUNDS * rtt_ns)[steps]
    flows["drained_ns"][steps | ends] = _NEVER_NS
    flows["known_us"][steps] = stats["min_rtt_us"][steps]
    flows["hold_pkts"][steps] = _step_pkts(stats[steps])


def _step_pkts(stats: StatsArray) -> CapArray:
    """Returns (N,) a share of what the path holds: in flight / RTT is the rate, and that x min RTT is what it holds."""
    queueless = stats["min_rtt_us"] / np.maximum(stats["rtt_mean_us"], 1)
    hold_pkts = np.clip(HOLD_PER_PATH * queueless * stats["inflight_pkts"], MIN_CAP_PKTS, MAX_CAP_PKTS)
    return np.asarray(hold_pkts, np.uint32)
