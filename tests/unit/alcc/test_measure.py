"""Records made of looks at a connection: what a look sees at once came one by one.

And the window that a record tells of: that of the simulator's Cubic, which heard the same ACKs.
"""

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reinet.alcc.launch import find_preload
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.records import Flag
from reinet.envs.sim._driven import cubic_side_by_side

LOOK = np.dtype([*((name, "<u8") for name in ("now_ns", "acked_bytes", "sent_bytes", "restarted_ns")),
                 *((name, "<u4") for name in ("segments_in", "rtt_us", "min_rtt_us", "app_limited"))])  # fmt: skip
NO_LOSS = 1_000_000
"""Packets that a buffer holds."""


def _records(
    looks: list[tuple[float, int, int]], rtts_us: Sequence[int] = (), min_rtt_us: int = 20_000,
    limited: Sequence[int] = (), restarts_ms: Mapping[int, float] = {},
) -> np.ndarray:  # fmt: skip
    """Of (ms, packets acknowledged, packets sent); each ACK acknowledges one. Smoothed RTTs: 20 ms unless given.

    ``limited``: the looks at which nobody waited to send. ``restarts_ms``: when data went out again, by the look that
    came then.
    """
    seen = np.zeros(len(looks), LOOK)
    for look, (ms, acked_pkts, sent_pkts) in zip(seen, looks, strict=True):
        look["now_ns"], look["acked_bytes"], look["sent_bytes"] = (1000 + ms) * 1e6, acked_pkts * 1000, sent_pkts * 1000
        look["segments_in"] = acked_pkts
    seen["rtt_us"], seen["min_rtt_us"] = rtts_us or 20_000, min_rtt_us
    seen["app_limited"][list(limited)] = 1
    for look, ms in restarts_ms.items():
        seen["restarted_ns"][look] = (1000 + ms) * 1e6
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


GAP = [(float(ms), 18, 37) for ms in range(30, 120, 10)]
"""Looks while nothing comes, until a burst."""
BURST = [(0, 0, 20), (20, 1, 20), *GAP, (120, 37, 56)]


def test_a_burst_that_the_next_round_begins_with_is_the_next_rounds() -> None:
    """The kernel ends a round at the first ACK of a packet sent in it, in the midst of what comes after a gap."""
    first, second = _records([*BURST, (130, 37, 56), (140, 57, 76)])
    assert (first["delivered_bytes"], first["rtt_samples"]) == (17_000, 18)  # the first sample was before it
    assert (first["time_ns"], first["period_ns"]) == (1_110_000_000, 90_000_000), "until the look before the burst"
    assert (second["delivered_bytes"], second["rtt_samples"]) == (19_000, 19)
    assert second["delivery_rate_bytes_per_s"] == 950_000, "of the burst, in the 20 ms since the look before it"


def test_a_burst_of_which_most_ends_a_round_is_that_rounds() -> None:
    (first,) = _records([(0, 0, 40), (20, 1, 40), *((ms, 18, 57) for ms, *_ in GAP), (120, 48, 87)])
    assert (first["delivered_bytes"], first["rtt_samples"]) == (47_000, 48)
    assert (first["time_ns"], first["period_ns"]) == (1_120_000_000, 100_000_000)


def test_a_round_of_which_nothing_had_come_ends_with_the_burst() -> None:
    (record,) = _records([(0, 0, 3), (20, 1, 3), *((ms, 1, 3) for ms, *_ in GAP), (120, 30, 32)])
    assert (record["time_ns"], record["delivered_bytes"]) == (1_120_000_000, 29_000)


def test_a_round_without_a_burst_is_whole() -> None:
    looks = [(ms, ms, ms + 20) for ms in range(0, 200, 1)]
    records = _records(looks)
    assert len(records) >= 8
    np.testing.assert_array_equal(records["delivered_bytes"], 21_000)
    np.testing.assert_array_equal(records["rtt_samples"][1:], 21)  # the first look of all counts to the first


@pytest.mark.parametrize("tick_ms", [4, 7, 10])
def test_rounds_are_as_long_as_round_trips_whatever_looks_are_apart(tick_ms: int) -> None:
    """A window of 100 packets that comes around in 100 ms, and looks that come a half earlier or later than asked."""
    ms = np.cumsum(np.random.default_rng(7).uniform(0.5, 1.5, 60_000 // tick_ms) * tick_ms)
    records = _records([(float(t), int(t), int(t) + 100) for t in ms], min_rtt_us=1)
    lengths_ms = records["period_ns"][1:] / 1e6
    assert len(lengths_ms) > 550
    assert abs(lengths_ms.mean() / 100 - 1) < 0.01
    assert np.abs(lengths_ms - 100).max() < 0.75 * tick_ms + 2, (
        "the nearer look, of two that are 1.5 times as far apart"
    )
    assert np.abs(records["delivered_bytes"][1:] / 1000 - lengths_ms).max() < 1.01, "what came, when it came"


def test_a_record_is_never_older_than_the_silence_before_it() -> None:
    looks = [(0, 0, 20), (20, 1, 20), (30, 18, 37), *((ms, 18, 37) for ms in range(40, 290, 10)), (290, 37, 56)]
    silence, round_ = _records(looks)
    assert (silence["flags"] & Flag.NO_SAMPLE, round_["flags"] & Flag.NO_SAMPLE) == (Flag.NO_SAMPLE, 0)
    assert (silence["time_ns"], round_["time_ns"]) == (1_280_000_000, 1_290_000_000)
    assert round_["delivered_bytes"] == 36_000


def test_a_period_is_marked_for_an_application_that_limited_its_own_looks() -> None:
    looks = [*BURST, (130, 37, 56), (140, 57, 76), (170, 77, 96)]
    marks = [[bool(r["flags"] & Flag.APP_LIMITED) for r in _records(looks, limited=[look])]
             for look in (2, BURST.index((120, 37, 56)))]  # fmt: skip
    assert [found[:2] for found in marks] == [[True, False], [False, True]]


def test_a_round_that_ended_with_a_pause_is_not_shortened_by_it() -> None:
    (record,) = _records([(0, 0, 20), (20, 1, 20), (45, 20, 20), (70, 40, 41)], restarts_ms={3: 50.0})
    assert (record["time_ns"], record["period_ns"]) == (1_050_000_000, 25_000_000), "idle from 45 to 50 ms"
    assert record["delivered_bytes"] == 19_000


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
        ends_ns = records["time_ns"].astype(np.int64)
        np.testing.assert_array_equal(ends_ns[1:] - records["period_ns"][1:].astype(np.int64), ends_ns[:-1])


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


@pytest.mark.parametrize("buffer_pkts", [NO_LOSS, 60])
def test_a_look_that_saw_five_acks_counts_as_five(buffer_pkts: int) -> None:
    """As one ACK, they had HyStart leave slow start so late that the window became more than twice the simulator's."""
    windows = np.array(cubic_side_by_side(20.0, buffer_pkts, acks_per_look=5))
    ratio = (windows[:, 2] / windows[:, 0])[windows[:, 4] == 0]
    assert np.median(ratio) < 1.1
    assert (np.quantile(ratio, 0.01) > 0.95) & (np.quantile(ratio, 0.99) < 1.2)


def test_until_a_cap_was_in_force_the_window_is_the_senders_own_and_then_it_goes_on_from_there() -> None:
    windows = np.array(cubic_side_by_side(20.0, 60, acks_per_look=5, uncapped_seconds=5.0))
    own, later = np.split(windows, [len(windows) // 5])
    assert own[:, 4].any(), "a loss was to be among them"
    np.testing.assert_array_equal(own[:, 2:4], own[:, 0:2])
    off = np.abs(later[:, 2] / later[:, 0] - 1)[later[:, 4] == 0]
    assert off.max() > 0, "it was to be computed"
    assert np.quantile(off, 0.99) < 0.03


@pytest.mark.parametrize("tick_us", [1000, 6000, 40_000])
def test_looks_that_are_due_about_the_same_time_come_at_one_moment(tick_us: int) -> None:
    """Each woke the gate's thread, and often the program, for itself."""
    moment = ctypes.CDLL(str(find_preload())).reinet_alcc_moment
    moment.restype = ctypes.c_uint64
    tick_ns = 1000 * tick_us
    due_ns = 10**15 + np.arange(100) * tick_ns // 100
    moments = np.array([moment(ctypes.c_uint64(int(due)), ctypes.c_uint64(tick_ns)) for due in due_ns], np.int64)
    assert np.abs(moments - due_ns).max() <= tick_ns / 8
    assert len(set(moments)) <= max(tick_us / 1000, 8) + 1
