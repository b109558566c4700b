"""How long ACKs wait on their way back, by their timestamps, and what a flow's state makes of it."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from helpers.period import PeriodTracker
from reinet.core import ACK_DTYPE, FLOW_STATS_DTYPE, StateBank

MS = 1_000_000
WAY_MS = 10.0
FLOW_STARTS_MS = 10**9
"""Clocks of hosts that have been up for days."""
Waits = Callable[[float], float]
"""What an ACK waits, in ms, by when it was sent, in ms since the flow's first."""


def acks(
    seconds: float,
    wait_ms: Waits,
    tick_ms: float = 1.0,
    drift: float = 0.0,
    peer_ms: int = 123_456,
    every_ms: float = 5,
) -> npt.NDArray[np.void]:
    """ACKs of a peer whose clock ticks so, and is slower by ``drift``; none overtakes another."""
    sent_ms = np.arange(0.0, seconds * 1000, every_ms) + 0.3
    a = np.zeros(len(sent_ms), ACK_DTYPE)
    came_ms = np.maximum.accumulate(sent_ms + WAY_MS + [wait_ms(at) for at in sent_ms])
    a["time_ns"] = (FLOW_STARTS_MS + came_ms) * MS
    a["newest_acked_sent_ns"] = a["time_ns"] - 30 * MS
    a["peer_ms"] = (peer_ms + np.floor(sent_ms * (1 - drift) / tick_ms)).astype(np.int64) % 2**32
    a["rtt_us"], a["mss_bytes"], a["srtt_us"], a["min_rtt_us"] = 30_000, 1448, 30_000, 20_000
    return a


def waits_ms(a: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """(records,), what the records of these ACKs say."""
    return np.asarray(PeriodTracker().on_acks(a)["ack_wait_us"] / 1000.0)


def late(at_ms: float) -> float:
    """For 300 ms of each second ACKs wait for 40 ms."""
    return 40.0 if at_ms % 1000 > 700 else 0.0


def test_what_acks_wait_is_known_from_the_second_second_on() -> None:
    a = acks(20, late)
    records = PeriodTracker().on_acks(a)
    at_ms = records["time_ns"] / MS - FLOW_STARTS_MS
    wait = records["ack_wait_us"] / 1000.0
    assert not wait[at_ms < 1000].any()
    inside = (at_ms > 1100) & (at_ms % 1000 > 800)  # periods of 30 ms wholly in such a stretch
    assert wait[inside] == pytest.approx(np.full(inside.sum(), 40.0), abs=1.5), "the peer's clock ticks in ms"
    before = (at_ms > 1100) & (at_ms % 1000 > 100) & (at_ms % 1000 < 690)
    assert wait[before].max() < 1.5
    assert before.sum() > 100
    assert inside.sum() > 50


def test_the_mean_is_that_of_the_periods_acks_alone() -> None:
    a = acks(5, lambda at: 30.0 * (at > 3000))
    found = waits_ms(a)
    assert np.median(found[-10:]) == pytest.approx(30.0, abs=1.0)
    a["peer_ms"][-40:] = 0  # those of the last periods have no timestamp
    assert waits_ms(a)[-3:].tolist() == [0.0] * 3


@pytest.mark.parametrize("tick_ms", [0.001, 0.5, 4.0, 10.0, 500.0])
def test_of_a_peer_with_other_ticks_no_wait_is_known(tick_ms: float) -> None:
    assert not waits_ms(acks(60, late, tick_ms)).any()


def test_of_a_peer_without_timestamps_no_wait_is_known() -> None:
    a = acks(10, late)
    a["peer_ms"] = 0
    assert not waits_ms(a).any()


def test_timestamps_may_begin_anew_at_zero() -> None:
    anew = waits_ms(acks(20, late, peer_ms=2**32 - 9_000))
    assert anew == pytest.approx(waits_ms(acks(20, late)), abs=1.0), "the one that is 0 counts as none"


def test_an_ack_that_another_one_overtook_tells_nothing() -> None:
    a = acks(10, late)
    disordered = a.copy()
    disordered["peer_ms"][500] = a["peer_ms"][500] - 5000
    found, whole = waits_ms(disordered), waits_ms(a)
    assert np.abs(found - whole).max() < 10, "one sample of a period is missing"
    np.testing.assert_array_equal(np.delete(found, np.abs(found - whole).argmax()),
                                  np.delete(whole, np.abs(found - whole).argmax()))  # fmt: skip


@pytest.mark.parametrize("drift", [50e-6, -50e-6])
def test_clocks_that_drift_make_no_wait_that_counts(drift: float) -> None:
    assert waits_ms(acks(400, lambda at: 0.0, drift=drift)).max() < 4.0
    assert waits_ms(acks(400, late, drift=drift)).max() < 45.0


def test_after_an_hour_without_acks_the_clocks_are_compared_anew() -> None:
    a = acks(20, lambda at: 0.0)
    a["time_ns"][2000:] += 3600 * 10**9
    a["peer_ms"][2000:] += 3600_000 - 360  # 100 ppm
    assert waits_ms(a).max() < 1.5


def test_a_queue_of_acks_that_stands_for_a_minute_is_taken_for_the_way() -> None:
    a = acks(120, lambda at: 50.0 * (at > 20_000))
    records = PeriodTracker().on_acks(a)
    at_s = (records["time_ns"] / MS - FLOW_STARTS_MS) / 1000
    wait = records["ack_wait_us"] / 1000.0
    assert wait[(at_s > 21) & (at_s < 49)].min() > 48
    assert wait[at_s > 81].max() < 1.5


# --- in the state ---

SET = "timescales-24x1"


def stats(count: int = 60, **fields: float) -> npt.NDArray[np.void]:
    s = np.zeros(count, FLOW_STATS_DTYPE)
    s["period_ns"] = 50 * MS
    s["time_ns"] = 10**12 + np.cumsum(s["period_ns"])
    s["min_rtt_us"], s["target_us"], s["rtt_samples"], s["mss_bytes"] = 20_000, 50_000, 5, 1448
    s["rtt_least_us"] = s["rtt_mean_us"] = s["rtt_last_us"] = s["srtt_us"] = 65_000
    s["delivered_bytes"], s["inflight_pkts"], s["delivery_rate_bytes_per_s"] = 150_000, 60, 3_000_000
    for name, value in fields.items():
        s[name] = value
    return s


def seen(s: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], list[bool]]:
    done = StateBank(1, SET).update(np.zeros(len(s)), s)
    return done.states, done.rule_pkts, done.may_cap.tolist()


def test_a_flow_whose_acks_wait_is_seen_as_on_a_path_that_is_longer_by_that() -> None:
    waits, longer = seen(stats(ack_wait_us=30_000)), seen(stats(min_rtt_us=50_000, target_us=80_000))
    for own, other in zip(waits, longer, strict=True):
        np.testing.assert_array_equal(own, other)
    assert seen(stats())[1][-1] == pytest.approx(waits[1][-1] * 20 / 50), "more packets are to be in flight"


def test_a_wait_that_clocks_may_have_made_up_changes_nothing() -> None:
    np.testing.assert_array_equal(seen(stats(ack_wait_us=3_999))[0], seen(stats())[0])


def test_no_wait_is_longer_than_what_the_rtt_is_above_its_minimum() -> None:
    """Also one that a program made up: records of processes are believed as little as others."""
    for wait_us in (45_000, 10**7, 2**64 - 1):
        found = seen(stats(ack_wait_us=wait_us))
        np.testing.assert_array_equal(found[0], seen(stats(ack_wait_us=45_000))[0])
        assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(
        seen(stats(ack_wait_us=10**6, min_rtt_us=70_000))[0], seen(stats(min_rtt_us=70_000))[0]
    )


def test_no_target_stays_none_and_the_longest_stays_within_its_bits() -> None:
    np.testing.assert_array_equal(
        seen(stats(ack_wait_us=30_000, target_us=0))[0], seen(stats(min_rtt_us=50_000, target_us=0))[0]
    )
    seen_longest = seen(stats(ack_wait_us=30_000, target_us=2**32 - 1))
    np.testing.assert_array_equal(seen_longest[0], seen(stats(min_rtt_us=50_000, target_us=2**32 - 1))[0])


def test_a_queue_of_acks_opens_no_gate() -> None:
    assert not any(seen(stats(ack_wait_us=45_000))[2])
    assert seen(stats())[2][-1]
