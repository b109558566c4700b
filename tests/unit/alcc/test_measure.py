"""Records made of looks at a connection: what a look sees at once came one by one.

And the window that a record tells of: that of the simulator's Cubic, which heard the same ACKs.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reinet.alcc.launch import find_preload
from reinet.core import FLOW_STATS_DTYPE
from reinet.envs.sim._driven import cubic_side_by_side

LOOK = np.dtype([("now_ns", "<u8"), ("acked_bytes", "<u8"), ("sent_bytes", "<u8"), ("segments_in", "<u4"),
                 ("rtt_us", "<u4"), ("min_rtt_us", "<u4"), ("unused", "<u4")])  # fmt: skip
NO_LOSS = 1_000_000
"""Packets that a buffer holds."""


def _records(looks: list[tuple[float, int, int]], rtts_us: Sequence[int] = (), min_rtt_us: int = 20_000) -> np.ndarray:
    """Of (ms, packets acknowledged, packets sent); each ACK acknowledges one. Smoothed RTTs: 20 ms unless given."""
    seen = np.zeros(len(looks), LOOK)
    for look, (ms, acked_pkts, sent_pkts) in zip(seen, looks, strict=True):
        look["now_ns"], look["acked_bytes"], look["sent_bytes"] = (1000 + ms) * 1e6, acked_pkts * 1000, sent_pkts * 1000
        look["segments_in"] = acked_pkts
    seen["rtt_us"], seen["min_rtt_us"] = rtts_us or 20_000, min_rtt_us
    records = np.zeros(len(looks), FLOW_STATS_DTYPE)
    count = ctypes.CDLL(str(find_preload())).reinet_alcc_measure(
        seen.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(seen)), records.ctypes.data_as(ctypes.c_void_p)
    )
    return records[:count]


def _smoothed(groups: list[list[int]]) -> list[int]:
    """The kernel's smoothed RTT after each group of samples (tcp_rtt_estimator), kept in eighths of a microsecond."""
    eighths, told = 8 * groups[0][0], []
    for group in groups:
        for sample in group:
            eighths += sample - eighths // 8
        told.append(eighths // 8)
    return told


def _one_record_a_look(groups: list[list[int]]) -> np.ndarray:
    """Records of looks of which each but the first two, which only begin, ends a round; each sees a group of ACKs."""
    acked = np.cumsum([len(group) for group in groups]).tolist()
    looks = [(20.0 * i, pkts, pkts) for i, pkts in enumerate(acked)]
    return _records(looks, _smoothed(groups), min_rtt_us=1)


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
        sent = np.maximum.accumulate(acked + rng.integers(1, 40, 100))
        # Three packets one after the other end the last round without a rest.
        acked = np.append(acked, sent[-1] + np.arange(4))
        sent = np.append(sent, sent[-1] + np.arange(4))
        ms = np.append(3 * np.arange(100), 300 + 100 * np.arange(1, 5))
        records = _records([(float(t), int(a), int(s)) for t, a, s in zip(ms, acked, sent, strict=True)])
        came = int(acked[-1] - acked[np.flatnonzero(np.diff(acked))[0] + 1])  # the first look with an ACK only begins
        assert int(records["delivered_bytes"].sum()) == 1000 * came
        assert int(records["rtt_samples"].sum()) == came + 1  # and counts once


RTT_US = st.integers(5_000, 400_000)


@given(st.lists(st.tuples(RTT_US, st.integers(1, 40)), min_size=4, max_size=12))
def test_an_rtt_that_changes_is_told_at_once_and_not_smoothed(steps: list[tuple[int, int]]) -> None:
    """Rounding of the smoothed RTT, a microsecond before and one after, counts up to 15 times where one ACK came."""
    records = _one_record_a_look([[rtt_us] * acks for rtt_us, acks in steps])
    assert len(records) == len(steps) - 2
    np.testing.assert_allclose(records["rtt_last_us"], [rtt_us for rtt_us, _ in steps[2:]], atol=16)


@given(st.lists(st.lists(RTT_US, min_size=1, max_size=40), min_size=4, max_size=12))
def test_of_a_looks_samples_the_later_ones_count_more(groups: list[list[int]]) -> None:
    """As the kernel weighs them, 7/8 for each that came after; what was before the look does not count at all."""
    records = _one_record_a_look(groups)
    weighted = [np.average(group, weights=(7 / 8) ** np.arange(len(group))[::-1]) for group in groups[2:]]
    np.testing.assert_allclose(records["rtt_last_us"], weighted, atol=16)


def test_a_periods_mean_is_of_all_its_looks_each_as_often_as_it_had_samples() -> None:
    groups = [[20_000], [20_000], [30_000] * 2, [90_000] * 6, [60_000]]
    acked = np.cumsum([len(group) for group in groups]).tolist()
    looks = [(5.0 * i, pkts, acked[-1] - 1) for i, pkts in enumerate(acked)]
    (record,) = _records(looks, _smoothed(groups), min_rtt_us=1)
    assert record["rtt_samples"] == 10
    mean_us = (20_000 + 2 * 30_000 + 6 * 90_000 + 60_000) / 10
    assert abs(int(record["rtt_mean_us"]) - mean_us) < 16
    assert abs(int(record["rtt_least_us"]) - 20_000) < 16


def test_no_mean_is_below_the_least_that_was_ever_seen() -> None:
    """Rounding alone would take it there."""
    groups = [[20_007], [20_007], [20_000], [20_000], [20_000]]
    acked = list(range(1, 6))
    records = _records([(20.0 * i, pkts, pkts) for i, pkts in enumerate(acked)], _smoothed(groups), min_rtt_us=20_000)
    assert len(records) == 3
    assert (records["rtt_least_us"] >= 20_000).all()


@pytest.mark.parametrize("cap_pkts", [0, 30])
def test_without_losses_the_virtual_window_is_the_simulators(cap_pkts: int) -> None:
    windows = np.array(cubic_side_by_side(10.0, NO_LOSS, cap_pkts))
    assert len(windows) > 5000
    assert len(set(windows[:, 0].tolist())) > 15, "the window was to move"
    np.testing.assert_array_equal(windows[:, 2:4], windows[:, 0:2])


def test_below_a_cap_that_allows_no_loss_the_virtual_window_is_the_simulators() -> None:
    windows = np.array(cubic_side_by_side(20.0, 60, 50))
    assert not windows[:, 4].any()
    np.testing.assert_array_equal(windows[:, 2], windows[:, 0])


def test_a_loss_leads_the_virtual_window_to_the_simulators_window_and_it_grows_as_that_does() -> None:
    """While a loss is mended the simulator goes down by steps (PRR), and the virtual one is there at once."""
    windows = np.array(cubic_side_by_side(20.0, 60))
    simulated, virtual, mending = windows[:, 0], windows[:, 2], windows[:, 4].astype(bool)
    assert mending.any()
    began = np.flatnonzero(mending[1:] & ~mending[:-1]) + 1
    assert len(began) >= 3
    np.testing.assert_allclose(virtual[began], windows[began, 1], rtol=0.02)
    assert (virtual[began] < 0.75 * virtual[began - 1]).all()
    off = np.abs(virtual - simulated)[~mending] / simulated[~mending]
    assert np.quantile(off, 0.99) < 0.03
