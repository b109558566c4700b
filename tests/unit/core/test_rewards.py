"""Rewards: regret against a plain NumPy reading, and no byte counted twice; the paper's is tested with its state."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from helpers.period import SILENT
from reinet.core import (
    DELAY_WEIGHT,
    FLOW_STATS_DTYPE,
    HEADER_BYTES,
    OPPORTUNITY_BYTES,
    REWARDS,
    ConfigError,
    Flag,
    Normaliser,
    Offers,
    StateBank,
    delay_ratios,
)
from reinet.core.rewards import offer

Stats = npt.NDArray[np.void]
MSS = 1448


def regret_of(stats: Stats, offered_bytes: list[float], unit_bytes: float, delay_weight: float) -> list[float]:
    bank, n = StateBank(1, reward="regret", delay_weight=delay_weight), len(stats)
    offers = Offers(np.array(offered_bytes, np.float64), np.full(n, unit_bytes))
    return bank.update(np.zeros(n, np.int32), stats, offers).rewards.tolist()


def told_bytes(stats: Stats) -> list[int]:
    """What each record is the first to tell of: regret without delay, on a link that offers nothing."""
    unit_bytes = 1e12  # far from the limit
    earned = regret_of(stats, [0.0] * len(stats), unit_bytes, 0.0)
    return [round(r * unit_bytes * MSS / (MSS + HEADER_BYTES)) for r in earned]


def records(*rows: tuple[int, int, int, int, int]) -> Stats:
    """(end in ms, period in ms, packets delivered, RTT samples, flags) each."""
    s = np.zeros(len(rows), FLOW_STATS_DTYPE)
    for record, (end_ms, period_ms, pkts, samples, flags) in zip(s, rows, strict=True):
        record["time_ns"], record["period_ns"] = end_ms * 1_000_000, period_ms * 1_000_000
        record["delivered_bytes"], record["rtt_samples"], record["flags"] = pkts * MSS, samples, flags
    s["mss_bytes"], s["min_rtt_us"], s["target_us"], s["rtt_mean_us"] = MSS, 20_000, 50_000, 35_000
    return s


UNSAMPLED = int(Flag.NO_SAMPLE)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        # a silence that has samples, a longer one, and the record that closes their period
        ([(100, 40, 9, 3, 0), (360, 260, 5, 2, SILENT), (610, 510, 7, 2, SILENT), (700, 600, 8, 3, 0)], [0, 5, 2, 1]),
        # the same without samples
        ([(100, 40, 9, 3, 0), (360, 260, 5, 0, SILENT), (610, 510, 7, 0, SILENT), (700, 600, 8, 3, 0)], [0, 5, 2, 1]),
        # a period that ends without a sample ends all the same: the next one starts with it
        ([(100, 40, 9, 3, 0), (140, 40, 5, 0, UNSAMPLED), (180, 40, 8, 3, 0)], [0, 5, 8]),
        # an idle time has moved the period's start beyond the silence
        ([(100, 40, 9, 3, 0), (360, 260, 5, 0, SILENT), (1900, 400, 8, 3, 0)], [0, 5, 3]),
        # SACK reneging: a period that tells of less than its silence did
        ([(100, 40, 9, 3, 0), (360, 260, 5, 2, SILENT), (700, 600, 4, 3, 0), (740, 40, 6, 3, 0)], [0, 5, 0, 6]),
        # the first record is a silence
        ([(250, 250, 5, 2, SILENT), (300, 300, 7, 3, 0), (340, 40, 4, 3, 0)], [0, 2, 4]),
        # the flow has ended: nothing more is told
        ([(100, 40, 9, 3, 0), (360, 260, 5, 2, SILENT), (400, 0, 0, 0, UNSAMPLED | int(Flag.CLOSED))], [0, 5, 0]),
    ],
)
def test_no_delivered_byte_counts_twice(rows: list[Any], told: list[int]) -> None:
    assert told_bytes(records(*rows)) == [MSS * pkts for pkts in told]


def test_regret_is_unused_capacity_plus_delay() -> None:
    """12 Mbit/s for 1 s in 10 records, three quarters of it used at half the delay that the target allows."""
    stats = records(*[(110 + 100 * i, 100, 75, 20, 0) for i in range(11)])
    per_record = 100 * OPPORTUNITY_BYTES
    unit_bytes = float(offer(0, 2000, 2000).unit_bytes[0])
    assert unit_bytes == 20 * OPPORTUNITY_BYTES
    earned = regret_of(stats, [per_record * i for i in range(11)], unit_bytes, 0.2)
    assert earned[0] == 0
    # 1 s is 50 of the paper's periods: 1/4 unused, and 3/4 at half the delay that the target allows
    assert sum(earned) == pytest.approx(-50 * (0.25 + 0.75 * 0.2 * np.log(3) / np.log(5)), rel=1e-5)


def test_regret_is_limited_from_one_decision_to_the_next() -> None:
    """Silences in between lose 8 units each: 10 of 24 count, in steps that sum up to that."""
    stats = records((100, 40, 0, 3, 0), *[(350 + 250 * i, 250, 0, 0, SILENT) for i in range(2)], (700, 600, 0, 3, 0),
                    (740, 40, 0, 3, 0))  # fmt: skip
    assert regret_of(stats, [0, 8, 16, 24, 32], 1.0, DELAY_WEIGHT) == [0, -8, -2, 0, -8]
    gained = records((100, 40, 0, 3, 0), (140, 40, 1, 3, 0))
    assert regret_of(gained, [0, 0], 1.0, 0.0) == [0, 10]


def test_the_least_unit_is_a_packet() -> None:
    assert offer(7, 1, 1000).unit_bytes[0] == OPPORTUNITY_BYTES
    assert offer(7, 1, 1000).bytes[0] == 7 * OPPORTUNITY_BYTES


def test_delay_ratios_have_a_guard() -> None:
    stats = records((100, 40, 0, 3, 0), (140, 40, 0, 3, 0), (180, 40, 0, 3, 0))
    stats["target_us"] = [50_000, 21_000, 0]
    assert delay_ratios(stats) == pytest.approx([0.5, 7.5, 7.5])


def test_the_papers_reward_takes_typical_statistics_where_the_set_has_none() -> None:
    stats = records(*[(100 + 40 * i, 40, 20, 10, 0) for i in range(5)])
    stats["delivery_rate_bytes_per_s"], stats["cwnd_pkts"] = 700_000, 40
    rows = np.zeros(5, np.int32)
    expected = StateBank(1, normaliser=Normaliser.reference()).update(rows, stats).rewards
    assert np.abs(expected).min() > 0
    assert np.array_equal(StateBank(1, "scalefree-5x20").update(rows, stats).rewards, expected)


def test_the_papers_reward_is_the_same_whatever_of_its_inputs_a_set_shows() -> None:
    """Beside deepcc-4x20 it took the typical statistics, so that trainings without the filter had another reward."""
    stats = records(*[(100 + 40 * i, 40, 20, 10 + i, 0) for i in range(5)])
    stats["rtt_mean_us"] = 30_000 + 2000 * np.arange(5)
    stats["delivery_rate_bytes_per_s"], stats["cwnd_pkts"] = 700_000 + 1000 * np.arange(5), 40 + np.arange(5)
    earned = []
    for name in ("deepcc-5x20", "deepcc-5x1", "deepcc-4x20"):
        normaliser = Normaliser(name)
        normaliser.observe(stats)
        earned.append(StateBank(1, name, normaliser).update(np.zeros(5, np.int32), stats).rewards)
    assert np.abs(earned[0]).max() > 0
    assert np.array_equal(earned, [earned[0]] * 3)


def test_rewards_are_chosen_by_name() -> None:
    assert REWARDS == ("deepcc", "regret", "regret-linear")
    with pytest.raises(ConfigError, match="there is no reward 'profit'; choose one of deepcc, regret, regret-linear"):
        StateBank(1, reward="profit")
    for weight in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="delay_weight"):
            StateBank(1, reward="regret", delay_weight=weight)


def test_regret_needs_to_know_what_the_link_offered() -> None:
    stats = records((100, 40, 0, 3, 0))
    with pytest.raises(ValueError, match="needs one offer of the link for each record"):
        StateBank(1, reward="regret").update([0], stats)
    with pytest.raises(ValueError, match="no other reward takes any"):
        StateBank(1).update([0], stats, offer(0, 1, 1))
