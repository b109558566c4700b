"""Which records of a program that nobody knows may be shown to a model."""

import numpy as np
import numpy.typing as npt

from reinet.core.records import Flag, FlowStatsArray

OLDEST_NS = 10_000_000_000
"""A record that waited longer answers nothing any more; so much a daemon may have been stopped."""
MOST = {
    "period_ns": 60_000_000_000,
    "delivery_rate_bytes_per_s": 125_000_000_000,  # a terabit per second
    "delivered_bytes": 1 << 43,  # that for a minute
    "lost_bytes": 1 << 43,
    "retrans_bytes": 1 << 43,
    "rtt_mean_us": 120_000_000,  # TCP's longest retransmission timeout
    "rtt_last_us": 120_000_000,
    "rtt_least_us": 120_000_000,
    "srtt_us": 120_000_000,
    "ack_wait_us": 120_000_000,
    "rtt_samples": 1 << 27,
    "cwnd_pkts": 1 << 24,
    "inflight_pkts": 1 << 24,
    "mss_bytes": 1 << 16,
    "cap_pkts": (1 << 20) - 1,  # what fits into a lease
}
"""Beyond these no flow is; what features and rewards make of values within them is finite."""
_FLAGS = sum(int(flag) for flag in Flag)


def checked(records: FlowStatsArray, now_ns: int, slots: int) -> npt.NDArray[np.bool_]:
    """Returns (N,) which records make sense: (N,) records of a process that has so many slots."""
    good = (records["slot"] < slots) & (records["cookie"] != 0) & ((records["flags"] & ~np.uint32(_FLAGS)) == 0)
    closed = (records["flags"] & Flag.CLOSED) != 0
    time_ns = records["time_ns"].astype(np.float64)  # differences of unsigned numbers have no sign
    fits = (time_ns <= now_ns) & (time_ns >= now_ns - OLDEST_NS) & (records["period_ns"] > 0)
    for name, most in MOST.items():
        fits &= records[name] <= most
    fits &= (records["mss_bytes"] > 0) & ((records["rtt_samples"] == 0) | (records["rtt_mean_us"] > 0))
    return np.asarray(good & (closed | fits), np.bool_)
