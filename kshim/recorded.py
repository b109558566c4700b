"""A flow as a daemon records it: what is kept of each of its records, and how its file begins.

A file is one flow: a line of JSON, then records of ``RECORD_DTYPE`` as they came, in little-endian bytes. A file that
breaks off, as when its writer was killed, is good up to its last whole record. ``envs/trace/flow_records.py`` reads it.

No payload, address, port or name of a host is in it, and no time of day: times count from the flow's first record, and
``flow`` is a keyed hash of the socket's cookie.
"""

import json

import numpy as np
from numpy.typing import NDArray

from reinet.core.records import FlowStatsArray

SUFFIX = ".flow"
VERSION = 2
COLUMNS = (
    "delivered_bytes", "rtt_samples", "rtt_mean_us", "rtt_least_us", "min_rtt_us", "inflight_pkts", "cwnd_pkts",
    "cap_pkts", "mss_bytes", "flags",
)  # fmt: skip
"""Fields of FlowStats (``core/flow_stats.h``), 32 bits each; ``rtt_least_us`` without what ACKs waited on their way
back, so that above the minimum RTT it tells of a queue of packets."""
RECORD_DTYPE = np.dtype([("time_us", "<u8"), ("period_us", "<u4"), *((name, "<u4") for name in COLUMNS)])
"""``time_us`` is the period's end, counted from that of the flow's first record, ``period_us`` its length."""
RecordArray = NDArray[np.void]

_MOST_U32 = np.iinfo(np.uint32).max


def header(flow: str) -> bytes:
    """Returns the first line of a flow's file."""
    return json.dumps({"reinet_flow": VERSION, "flow": flow}).encode() + b"\n"


def kept(stats: FlowStatsArray, first_ns: int) -> RecordArray:
    """Returns what is kept of N records of FLOW_STATS_DTYPE of a flow whose first record ended at ``first_ns``."""
    found = np.zeros(len(stats), RECORD_DTYPE)
    found["time_us"] = (np.maximum(stats["time_ns"], first_ns) - np.uint64(first_ns)) // np.uint64(1000)
    found["period_us"] = np.minimum(stats["period_ns"] // np.uint64(1000), _MOST_U32)
    for name in COLUMNS:
        found[name] = np.minimum(stats[name], _MOST_U32)
    queue_us = stats["rtt_least_us"].astype(np.float64) - stats["min_rtt_us"]
    found["rtt_least_us"] -= np.clip(queue_us, 0, stats["ack_wait_us"]).astype(np.uint32)
    return found
