"""The period rule on hand-made ACKs; that simulator, kernel and BPF share it is proved with the shim."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from helpers.period import SILENT, PeriodTracker
from reinet.core import ACK_DTYPE, ConfigError, Flag, PeriodConfig

MS = 1_000_000


def ack(time_ms: float, sent_ms: float, rtt_us: int = 20_000, **fields: int) -> npt.NDArray[np.void]:
    """One ACK at a time, of a newest packet sent at another."""
    a = np.zeros(1, ACK_DTYPE)
    a["time_ns"], a["newest_acked_sent_ns"], a["rtt_us"] = time_ms * MS, sent_ms * MS, rtt_us
    a["mss_bytes"], a["cwnd_pkts"] = 1000, 10
    for name, value in fields.items():
        a[name] = value
    return a


def feed(tracker: PeriodTracker, *acks: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    return tracker.on_acks(np.concatenate(acks))


def test_a_period_ends_with_the_first_ack_of_a_packet_sent_in_it() -> None:
    tracker = PeriodTracker()
    records = feed(
        tracker,
        ack(100, 80, 20_000, delivered_bytes=1000),
        ack(110, 90, 30_000, delivered_bytes=3000),  # long enough, but sent before the period
        ack(119, 99.9, -1, delivered_bytes=4000),  # no sample
        ack(120, 100, 40_000, delivered_bytes=6000, lost_bytes=2000, cwnd_pkts=12),
    )
    assert len(records) == 1
    r = records[0]
    assert (r["time_ns"], r["period_ns"]) == (120 * MS, 20 * MS)
    assert (r["rtt_samples"], r["rtt_mean_us"]) == (3, 30_000)
    assert (r["delivered_bytes"], r["delivery_rate_bytes_per_s"], r["lost_bytes"]) == (5000, 250_000, 2000)
    assert (r["cwnd_pkts"], r["mss_bytes"], r["flags"]) == (12, 1000, 0)
    # The ACK that ended it began the next one, whose samples start from none.
    (r,) = feed(tracker, ack(141, 120, 22_000, delivered_bytes=7000))
    assert (r["rtt_samples"], r["rtt_mean_us"], r["delivered_bytes"], r["period_ns"]) == (1, 22_000, 1000, 21 * MS)


def test_the_latest_and_the_smallest_sample_are_those_of_the_period() -> None:
    tracker = PeriodTracker()
    records = feed(
        tracker,
        ack(100, 80, 30_000),
        ack(110, 90, 25_000),
        ack(115, 95, 45_000),
        ack(118, 98, -1),  # no sample
        ack(120, 100, 40_000),
        ack(130, 110, 50_000),
        ack(140, 120, 60_000),
        ack(160, 140, -1),
    )
    assert records["rtt_last_us"].tolist() == [40_000, 60_000, 0]
    assert records["rtt_least_us"].tolist() == [25_000, 50_000, 0]  # the first period's is forgotten
    assert records["flags"].tolist() == [0, 0, Flag.NO_SAMPLE]


def test_no_period_is_shorter_than_the_minimum() -> None:
    short_paths = [ack(100 + t, 99 + t, 1000) for t in range(25)]
    assert [r["time_ns"] / MS for r in feed(PeriodTracker(), *short_paths)] == [110, 120]
    config = PeriodConfig(min_period_ns=5 * MS)
    assert [r["time_ns"] / MS for r in feed(PeriodTracker(config), *short_paths)] == [105, 110, 115, 120]


def test_a_period_that_makes_no_sense_is_refused() -> None:
    for bad_ns in (-1, 61 * 10**9):
        with pytest.raises(ConfigError, match="min_period_ns"):
            PeriodConfig(min_period_ns=bad_ns)


def test_a_fixed_period_does_not_wait_for_its_own_packets() -> None:
    late = [ack(100 + t, 10, 90_000) for t in range(0, 61, 5)]
    fixed = PeriodTracker(PeriodConfig(20 * MS, packet_timed=False))
    assert [r["time_ns"] / MS for r in feed(fixed, *late)] == [120, 140, 160]
    assert len(feed(PeriodTracker(), *late)) == 0


def test_a_period_without_a_sample_says_so() -> None:
    (r,) = feed(PeriodTracker(), ack(100, 80, -1), ack(121, 101, -1))
    assert r["flags"] == Flag.NO_SAMPLE
    assert (r["rtt_samples"], r["rtt_mean_us"]) == (0, 0)


def test_flags_stand_for_the_end_but_app_limited_for_the_whole_period() -> None:
    (r,) = feed(
        PeriodTracker(),
        ack(100, 80, flags=int(Flag.APP_LIMITED | Flag.SLOW_START)),
        ack(121, 101, flags=int(Flag.IN_RECOVERY)),
    )
    assert r["flags"] == Flag.APP_LIMITED | Flag.IN_RECOVERY


def test_a_silence_is_reported_every_250_ms_while_data_is_outstanding() -> None:
    tracker = PeriodTracker()
    assert not len(tracker.on_tick(10**9, True))  # nothing was ever acknowledged
    feed(tracker, ack(100, 80, delivered_bytes=1000), ack(105, 85, delivered_bytes=2000))

    def ticks(*at_ms: float, outstanding: bool = True) -> list[Any]:
        return [t for t in at_ms if len(tracker.on_tick(int(t * MS), outstanding))]

    assert ticks(300, 354.9, outstanding=True) == []
    assert ticks(355, outstanding=False) == []
    (r,) = tracker.on_tick(355 * MS, True)
    assert r["flags"] == SILENT
    assert (r["time_ns"], r["delivered_bytes"]) == (355 * MS, 1000)
    assert ticks(600, 605, 850, 855) == [605, 855]
    # It ended no period: the samples before it count in the one that ends now.
    (r,) = feed(tracker, ack(900, 110))
    assert (r["rtt_samples"], r["period_ns"], r["flags"]) == (3, 800 * MS, 0)


def test_an_idle_time_counts_neither_as_silence_nor_in_the_rate() -> None:
    tracker = PeriodTracker()
    feed(tracker, ack(100, 80, delivered_bytes=1000))
    tracker.on_restart(5000 * MS)
    assert not len(tracker.on_tick(5200 * MS, True))
    (r,) = feed(tracker, ack(5020, 5000, delivered_bytes=2000))
    assert (r["period_ns"], r["delivery_rate_bytes_per_s"]) == (20 * MS, 50_000)


@pytest.mark.parametrize(("idle_ms", "told"), [(7, False), (8, True), (31, True), (5000, True)])
def test_an_idle_time_above_the_smoothed_rtt_is_told_of_in_its_period_alone(idle_ms: int, told: bool) -> None:
    tracker = PeriodTracker()
    feed(tracker, ack(100, 80, srtt_us=30_000))
    tracker.on_restart((100 + idle_ms) * MS)
    (r,) = feed(tracker, ack(120 + idle_ms, 100 + idle_ms, srtt_us=30_000))
    assert bool(r["flags"] & Flag.RESTARTED) is told
    (r,) = feed(tracker, ack(141 + idle_ms, 120 + idle_ms, srtt_us=30_000))
    assert not r["flags"] & Flag.RESTARTED


def test_a_restart_before_anything_was_acknowledged_is_none() -> None:
    tracker = PeriodTracker()
    tracker.on_restart(5000 * MS)
    (r,) = feed(tracker, ack(5020, 5000), ack(5041, 5021))
    assert not r["flags"] & Flag.RESTARTED


def test_a_silence_tells_of_the_restart_before_it_and_so_does_the_period() -> None:
    tracker = PeriodTracker()
    feed(tracker, ack(100, 80, srtt_us=30_000))
    tracker.on_restart(1000 * MS)
    (r,) = tracker.on_tick(1250 * MS, True)
    assert r["flags"] == SILENT | Flag.RESTARTED
    (r,) = feed(tracker, ack(1300, 1000, srtt_us=30_000))
    assert r["flags"] == Flag.RESTARTED


def test_counters_that_run_backwards_do_not_wrap() -> None:
    (r,) = feed(PeriodTracker(), ack(100, 80, delivered_bytes=5000), ack(121, 101, delivered_bytes=4000))
    assert (r["delivered_bytes"], r["delivery_rate_bytes_per_s"]) == (0, 0)
