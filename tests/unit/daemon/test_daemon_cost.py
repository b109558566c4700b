"""What the daemon's benchmarks make of their pairs of runs, and what one leaves that is killed."""

import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from reinet.daemon.benches import load, served
from reinet.daemon.benches.busy import Busy, Window, busy, median_interval, paired
from reinet.envs.mahimahi.namespace import own_cgroup


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


def window(machine_s: float, own_s: float) -> Window:
    """Returns ten seconds in which so much was spent."""
    return Window(Busy(5.0, 7.0, 1.0), Busy(15.0, 7.0 + machine_s, 1.0 + own_s))


def test_ratios_are_of_busy_time_per_byte_without_the_idle_machines_and_of_pairs_that_sent_the_same() -> None:
    plain = [(window(5.0, 1.0), 100.0)] * 3
    capped = [(window(6.0, 2.0), 100.0), (window(7.0, 3.0), 100.5), (window(90.0, 90.0), 80.0)]
    told = paired(plain, capped, (0.1, 0.1))
    assert (told["pairs"], told["pairs_valid"], told["quiet"]) == (3, 2, False)
    assert told["cpu_ratio_vs_plain"] == pytest.approx(np.median([0.5 / 0.4, 0.6 / 0.4 / 1.005]))
    assert told["own_ratio"] == pytest.approx(np.median([2.0, 3.0 / 1.005]))
    assert (told["plain_percent"], told["capped_percent"]) == pytest.approx((40.0, 55.0))
    assert math.isnan(told["cpu_ratio_low"])
    assert told["own_plain_percent"] == pytest.approx(10.0)
    nothing = paired(plain[:1], capped[2:], (0.01,))
    assert nothing["quiet"]
    assert math.isnan(nothing["cpu_ratio_vs_plain"])
    assert nothing["pairs_valid"] == 0


def test_a_pair_of_unequal_throughput_is_told_of_by_the_throughput_alone() -> None:
    equal = (window(5.0, 1.0), 100.0), (window(6.0, 2.0), 100.0)
    unequal = (window(20.0, 9.0), 100.0), (window(90.0, 90.0), 70.0)
    alone, beside = (paired(*zip(*pairs, strict=True), (0.01,)) for pairs in ([equal], [equal, unequal]))
    assert (beside.pop("pairs"), beside["pairs_valid"]) == (alone.pop("pairs") + 1, 1)
    assert (alone.pop("throughput_ratio"), beside.pop("throughput_ratio")) == pytest.approx((1.0, 0.85))
    np.testing.assert_equal(beside, alone)  # NaN, of too few pairs for an interval, is equal to itself there
    assert beside["plain_percent"] == pytest.approx(49.0)


def test_on_a_machine_without_an_idle_moment_only_the_own_ratio_says_something() -> None:
    told = paired([(window(20.0, 1.0), 100.0)], [(window(20.0, 2.0), 100.0)], (2.0, 2.0))
    assert (told["own_ratio"], told["quiet"]) == (2.0, False)
    assert math.isnan(told["cpu_ratio_vs_plain"])


def test_the_cgroup_of_a_benchmark_that_was_killed_is_removed_by_whoever_makes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "cgroup2_mount", lambda: tmp_path)
    monkeypatch.setattr(load, "leftovers", list)
    monkeypatch.setattr(load, "ServedDaemon", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    if not (pid := os.fork()):
        try:
            load.measure(held_sockets=2, per_s=1, seconds=1.0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    own_cgroup(tmp_path)
    assert not list(tmp_path.iterdir())
