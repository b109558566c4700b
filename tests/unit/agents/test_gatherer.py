"""Experience: returns over several steps, noise that lasts, and fragments that end where the gate closes."""

import numpy as np
import pytest

from reinet.agents.learn.config import DdpgSection
from reinet.agents.learn.gatherer import _stretches, correlate, returns

TIMES_NS = np.cumsum([0, 5, 5, 7, 40, 5, 300, 5, 5]).astype(np.uint64) * np.uint64(1_000_000) + np.uint64(10**12)
REWARDS = np.random.default_rng(0).normal(size=len(TIMES_NS) - 1)


@pytest.mark.parametrize("steps", [1, 3, 8, 100])
@pytest.mark.parametrize("horizon_ms", [None, 50.0])
def test_returns_are_a_plain_loops(steps: int, horizon_ms: float | None) -> None:
    config = DdpgSection(steps=steps, horizon_ms=horizon_ms, gamma=0.9)
    sums, discounts, spans = returns(REWARDS, TIMES_NS, config)
    count = len(REWARDS)
    for first in range(count):
        total, discount, end = 0.0, 1.0, first
        while end < min(first + steps, count):
            total += discount * REWARDS[end]
            lasting_ms = float(TIMES_NS[end + 1] - TIMES_NS[end]) / 1e6
            discount *= 0.9 if horizon_ms is None else np.exp(-lasting_ms / horizon_ms)
            end += 1
        assert spans[first] == end - first
        assert sums[first] == pytest.approx(total, rel=1e-5, abs=1e-6)
        assert discounts[first] == pytest.approx(discount, rel=1e-5)


def test_the_same_time_is_discounted_alike_at_any_cadence() -> None:
    config = DdpgSection(steps=256, horizon_ms=100.0)
    fine, coarse = (np.arange(0, 201, step).astype(np.uint64) * np.uint64(1_000_000) for step in (5, 20))
    (_, at_5, _), (_, at_20, _) = (returns(np.zeros(len(t) - 1), t, config) for t in (fine, coarse))
    assert at_5[0] == pytest.approx(at_20[0]) == pytest.approx(np.exp(-2))


def test_correlated_noise_keeps_its_spread() -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.3, (4000, 50))
    correlate(noise, 0.8)
    assert noise.std() == pytest.approx(0.3, rel=0.03)
    assert noise[:20].std() == pytest.approx(0.3, rel=0.1)  # from the first decision on
    for apart in (1, 3):
        assert np.mean(noise[apart:] * noise[:-apart]) / 0.09 == pytest.approx(0.8**apart, abs=0.05)


def test_stretches_end_where_the_gate_closes_and_leave_silences_out() -> None:
    decided = np.array([1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1], bool)
    may_cap = np.array([0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 1, 1], bool)
    # Row 9 is alone: no transition starts and ends in it.
    assert [rows.tolist() for rows in _stretches(decided, may_cap)] == [[2, 4, 5], [11, 12]]
    assert list(_stretches(decided, np.zeros(13, bool))) == []
    assert [len(rows) for rows in _stretches(decided, np.ones(13, bool))] == [11]
    assert list(_stretches(np.zeros(13, bool), may_cap)) == []
