"""Records made of looks at a connection: what a look sees at once came one by one."""

import ctypes

import numpy as np

from reinet.alcc.launch import find_preload
from reinet.core import FLOW_STATS_DTYPE

LOOK = np.dtype([("now_ns", "<u8"), ("acked_bytes", "<u8"), ("sent_bytes", "<u8"), ("segments_in", "<u4"),
                 ("rtt_us", "<u4")])  # fmt: skip


def _records(looks: list[tuple[float, int, int]]) -> np.ndarray:
    """Of (ms, packets acknowledged, packets sent); each ACK acknowledges one."""
    seen = np.zeros(len(looks), LOOK)
    for look, (ms, acked_pkts, sent_pkts) in zip(seen, looks, strict=True):
        look["now_ns"], look["acked_bytes"], look["sent_bytes"] = (1000 + ms) * 1e6, acked_pkts * 1000, sent_pkts * 1000
        look["segments_in"], look["rtt_us"] = acked_pkts, 20_000
    records = np.zeros(len(looks), FLOW_STATS_DTYPE)
    count = ctypes.CDLL(str(find_preload())).reinet_alcc_measure(
        seen.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(seen)), records.ctypes.data_as(ctypes.c_void_p)
    )
    return records[:count]


def test_the_rest_of_a_burst_is_the_next_rounds() -> None:
    """The kernel ends a round at the first ACK of a packet sent in it, in the midst of what comes after a gap."""
    first, second = _records([(0, 0, 10), (20, 1, 10), (120, 20, 20), (140, 21, 30)])
    assert (first["delivered_bytes"], first["rtt_samples"]) == (10_000, 11)  # the first sample was before it
    assert (second["delivered_bytes"], second["rtt_samples"]) == (10_000, 10)
    assert second["delivery_rate_bytes_per_s"] == 500_000, "and not 50 000, of the packet after the burst alone"


def test_a_round_without_a_burst_is_whole() -> None:
    looks = [(ms, ms, ms + 20) for ms in range(0, 200, 1)]
    records = _records(looks)
    assert len(records) >= 8
    np.testing.assert_array_equal(records["delivered_bytes"], 21_000)
    np.testing.assert_array_equal(records["rtt_samples"][1:], 21)  # the first look of all counts to the first


def test_nothing_is_counted_twice_or_lost() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        acked = np.cumsum(rng.integers(0, 30, 100) * (rng.random(100) < 0.3))
        looks = [(3 * i, int(a), int(a) + int(rng.integers(1, 40))) for i, a in enumerate(acked)]
        sent = np.maximum.accumulate([look[2] for look in looks])
        records = _records([(ms, a, int(s)) for (ms, a, _), s in zip(looks, sent, strict=True)])
        heard = acked[np.flatnonzero(np.diff(acked))[0] + 1] if len(records) else 0  # the first look only begins
        total = int(records["delivered_bytes"].sum())
        assert 0 <= total <= (acked[-1] - heard) * 1000 + 1000
        assert int(records["rtt_samples"].sum()) <= acked[-1]
