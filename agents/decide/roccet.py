"""ROCCET's rule as caps over Cubic: the window falls when the RTT is long for a while, not only when a packet is lost.

Source: L. Prause, M. Akselrod, "TCP ROCCET", arXiv 2510.25281, and the constants of its kernel module.

    x      = (RTT - min RTT) / min RTT
    srRTT  = 0.8 srRTT + 0.2 x, at each RTT sample

      LAUNCH    no cap     srRTT > 1 and the ACKs of 100 ms are not 10 more than those of the 100 ms before:
                           window = half of it (10 at least)
         |
         v
      ORBITER   every five RTTs: srRTT > 1 + jitter, the change of the RTT / min RTT: window = 0.7 x window
                           after either the window stays for 100 ms, then it grows as Cubic's does:
                           W(t) = 0.4 (t - K)^3 + W_max, or as Reno's would where that is more, and up to
                           the first such fall by a packet for 20 that arrived

The module is a congestion control and sees every ACK; here the window is a cap, Cubic goes on below it (so a loss is
Cubic's business) and what is seen is a record: srRTT takes a record's mean RTT as often as it has samples.
"""

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import Agent, CapArray, FloatArray
from reinet.core import MAX_CAP_PKTS, MIN_CAP_PKTS, Flag, round_caps
from reinet.core.records import FlowStatsArray

ALPHA = 0.2
THRESHOLD = 1.0
"""Of srRTT: the RTT is twice the least."""
PLATEAU_PKTS = 10.0
ACK_INTERVAL_NS = 100_000_000
DRAIN_NS = 100_000_000
EVALUATE_RTTS = 5
LAUNCH_SHARE = 0.5
LEAST_LAUNCH_PKTS = 10.0
"""The initial window."""
BETA = 0.7
CUBIC_C = 0.4
"""Cubic's constants, packets per second cubed."""
FRIENDLY = 3 * (1 - BETA) / (1 + BETA)
"""Packets a round trip that make a flow with this BETA as fast as Reno (RFC 9438, section 4.3)."""
FIRST_EPOCH_PKTS = 20.0
"""Cubic without a known maximum grows by a packet for so many at least (tcp_cubic.c, bictcp_update)."""

_FLOW_DTYPE = np.dtype([
    ("cookie", "u8"), ("srrtt", "f8"), ("last_rtt_us", "f8"), ("interval_ns", "i8"), ("acked_pkts", "f8"),
    ("before_pkts", "f8"), ("latest_pkts", "f8"), ("intervals", "i8"), ("check_ns", "i8"), ("event_ns", "i8"),
    ("window_pkts", "f8"), ("most_pkts", "f8"), ("friendly_pkts", "f8"), ("first", "?"),
])  # fmt: skip


class Roccet(Agent):
    """``roccet``: ROCCET's window as a cap; it reads no target and holds a little of every flow."""

    def __init__(self) -> None:
        super().__init__("roccet")
        self.reset()

    def reset(self) -> None:
        """Forgets every flow."""
        self._flows = np.zeros(0, _FLOW_DTYPE)

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns the window of each flow (N,), 0 until LAUNCH ends, and for a record without an RTT sample.

        Such a record is shown only where others beside it ask for a decision, and the next one tells of the same bytes
        and samples again: taken in, it would count them twice, and a flow's window would hang on who is beside it.
        """
        heard = (stats["flags"] & int(Flag.NO_SAMPLE)) == 0
        caps_pkts = np.zeros(len(stats), np.uint32)
        caps_pkts[heard] = self._windows_pkts(stats[heard])
        return caps_pkts

    def _windows_pkts(self, stats: FlowStatsArray) -> CapArray:
        slots = stats["slot"].astype(np.intp)
        if (missing := int(slots.max(initial=-1)) + 1 - self._flows.size) > 0:
            self._flows = np.concatenate([self._flows, np.zeros(missing, _FLOW_DTYPE)])
        flows = self._flows[slots]
        fresh = flows["cookie"] != stats["cookie"]
        flows[fresh] = np.zeros(1, _FLOW_DTYPE)
        for name in ("interval_ns", "check_ns"):
            flows[name][fresh] = stats["time_ns"][fresh]
        flows["cookie"] = stats["cookie"]
        _advance(flows, stats)
        self._flows[slots] = flows
        window_pkts = _grown(flows, stats["time_ns"].astype(np.int64))
        return np.where(flows["most_pkts"] > 0, round_caps(window_pkts, self.ceiling_pkts), 0).astype(np.uint32)


def _advance(flows: NDArray[np.void], stats: FlowStatsArray) -> None:
    """Takes one record of each flow into ``flows``, in place."""
    now_ns = stats["time_ns"].astype(np.int64)
    rtt_us, min_us = stats["rtt_mean_us"].astype(np.float64), np.maximum(stats["min_rtt_us"], 1).astype(np.float64)
    sampled = stats["rtt_samples"] > 0
    kept = (1 - ALPHA) ** stats["rtt_samples"]
    flows["srrtt"] = kept * flows["srrtt"] + (1 - kept) * np.maximum(rtt_us / min_us - 1, 0)
    acked_pkts = stats["delivered_bytes"] / np.maximum(stats["mss_bytes"], 1)
    _count_acks(flows, acked_pkts, now_ns)

    rested = now_ns - flows["event_ns"] > DRAIN_NS
    launched = flows["most_pkts"] > 0
    per_pkt = np.maximum(FRIENDLY / np.maximum(flows["friendly_pkts"], 1), flows["first"] / FIRST_EPOCH_PKTS)
    flows["friendly_pkts"] += np.where(launched & rested, per_pkt * acked_pkts, 0)
    plateau = (flows["intervals"] >= 2) & (flows["latest_pkts"] - flows["before_pkts"] <= PLATEAU_PKTS)
    ends_launch = sampled & ~launched & plateau & (flows["srrtt"] > THRESHOLD)
    due = sampled & launched & rested & (now_ns >= flows["check_ns"])
    jitter = np.abs(rtt_us - flows["last_rtt_us"]) / min_us
    falls = due & (flows["srrtt"] > THRESHOLD + jitter)

    # Cubic may have taken its window below the cap since: it is the window in force that falls.
    in_force = np.minimum(stats["cwnd_pkts"], np.where(launched, _grown(flows, now_ns), np.inf))
    halved = np.maximum(LAUNCH_SHARE * in_force, LEAST_LAUNCH_PKTS)
    flows["window_pkts"][ends_launch] = halved[ends_launch]
    flows["most_pkts"][ends_launch] = halved[ends_launch]  # Cubic's first epoch begins at its own origin
    flows["most_pkts"][falls] = in_force[falls]
    flows["window_pkts"][falls] = np.maximum(BETA * in_force, MIN_CAP_PKTS)[falls]
    flows["first"][ends_launch] = True
    flows["first"][falls] = False
    flows["friendly_pkts"][ends_launch | falls] = flows["window_pkts"][ends_launch | falls]
    flows["event_ns"][ends_launch | falls] = now_ns[ends_launch | falls]
    flows["check_ns"][due | ends_launch] = (now_ns + EVALUATE_RTTS * (rtt_us * 1000).astype(np.int64))[
        due | ends_launch
    ]
    flows["last_rtt_us"][sampled] = rtt_us[sampled]


def _count_acks(flows: NDArray[np.void], acked_pkts: NDArray[np.float64], now_ns: NDArray[np.int64]) -> None:
    flows["acked_pkts"] += acked_pkts
    over = now_ns - flows["interval_ns"] >= ACK_INTERVAL_NS
    flows["before_pkts"][over] = flows["latest_pkts"][over]
    flows["latest_pkts"][over] = flows["acked_pkts"][over]
    flows["intervals"][over] += 1
    flows["acked_pkts"][over] = 0
    flows["interval_ns"][over] = now_ns[over]


def _grown(flows: NDArray[np.void], now_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns Cubic's curve since the latest event and its rest, or Reno's; W_max is ``most_pkts``."""
    since_s = np.maximum(now_ns - flows["event_ns"] - DRAIN_NS, 0) / 1e9
    k_s = np.cbrt(np.maximum(flows["most_pkts"] - flows["window_pkts"], 0) / CUBIC_C)
    curve = CUBIC_C * (since_s - k_s) ** 3 + flows["most_pkts"]
    window_pkts = np.maximum(curve, flows["friendly_pkts"])
    return np.asarray(np.clip(window_pkts, MIN_CAP_PKTS, MAX_CAP_PKTS), np.float64)
