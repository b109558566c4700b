"""What ``reinet bench daemon`` makes of its pairs of runs."""

import math

import numpy as np
import pytest

from reinet.daemon.benches.cost import busy, median_interval


def test_the_interval_of_a_median_is_of_the_values_themselves() -> None:
    values = np.arange(10, 0, -1) / 10
    assert median_interval(values) == (0.2, 0.9)  # the second from either end: 97.9 %; the third would be 89 %
    assert all(map(math.isnan, median_interval(values[:5])))
    assert all(map(math.isnan, median_interval(values[:0])))


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = [low <= 0 <= high for low, high in (median_interval(rng.normal(size=12)) for _ in range(1000))]
    assert np.mean(held) == pytest.approx(0.961, abs=0.02)


def test_a_machine_is_busy_for_no_longer_than_its_processors_allow() -> None:
    before = busy()
    sum(range(1_000_000))
    after = busy()
    assert after.at_s > before.at_s
    assert after.machine_s >= before.machine_s - 0.05
