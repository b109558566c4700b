"""The frontier: a knob's points, what a policy's delay is divided by, and what judges a policy in training."""

import pytest

from helpers.links import constant
from reinet.agents.evaluation.batch import MOST_ROWS
from reinet.agents.evaluation.frontier import (
    FIXED_CAPS_PKTS,
    RULE_GAINS,
    Baseline,
    Point,
    baselines,
    ratio,
    sweep,
)
from reinet.agents.learn.train import judged
from reinet.core import PeriodConfig
from reinet.envs.link.spec import LinkSpec

KNOB = [Point(0.8, 10.0, 20.0), Point(0.9, 20.0, 50.0), Point(0.99, 100.0, 200.0)]
LINKS = [LinkSpec.from_mapping({"trace": constant(mbps, 3.0), "mrtt_ms": 20.0}) for mbps in (6.0, 12.0)]


def test_a_setting_stands_against_its_knob_at_one() -> None:
    for point in KNOB:
        standing = ratio(point, KNOB)
        assert (standing.mean, standing.p95) == pytest.approx((1.0, 1.0))


def test_half_the_delay_at_the_same_utilisation_is_half_and_each_delay_is_judged_by_its_own() -> None:
    standing = ratio(Point(0.9, 10.0, 100.0), KNOB)
    assert (standing.mean, standing.p95) == pytest.approx((0.5, 2.0))


def test_a_sweep_has_every_setting_at_every_cadence_for_each_link_in_order() -> None:
    assert MOST_ROWS // len(FIXED_CAPS_PKTS) >= 1
    fixed = sweep(LINKS, 2.0, rule="fixed")
    assert [len(points) for points in fixed] == [len(FIXED_CAPS_PKTS)] * 2
    for points in fixed:  # a larger cap never carries less, and where the link is busy it has a longer queue
        assert [round(p.utilization, 2) for p in points] == sorted(round(p.utilization, 2) for p in points)
        busy = [p.qdelay_mean_ms for p in points if p.utilization > 0.98]
        assert len(busy) >= 7
        assert busy == sorted(busy)
    assert fixed[0][5].utilization > fixed[1][5].utilization  # 16 packets do more on the slower link


def test_baselines_have_the_rule_at_both_cadences_and_plain_congestion_control() -> None:
    every_5_ms = PeriodConfig(5_000_000, packet_timed=False)
    (one,) = baselines(LINKS[:1], 2.0, every_5_ms)
    assert len(one.rule) == 2 * len(RULE_GAINS)
    assert one.plain.qdelay_mean_ms > 2 * min(p.qdelay_mean_ms for p in one.rule)
    (same,) = baselines(LINKS[:1], 2.0, PeriodConfig())
    assert same.rule == one.rule[: len(RULE_GAINS)]  # the rule's own cadence once, not twice


def test_a_policy_is_judged_by_ratios_its_worst_link_and_what_throughput_it_gives_up() -> None:
    plain = Point(1.0, 200.0, 300.0)
    both = [Baseline(KNOB, plain), Baseline(KNOB, plain)]
    seen = judged([KNOB[2], KNOB[2]], both)
    assert seen["score"] == pytest.approx(-1.0 - 0.1)
    assert (seen["frontier_mean"], seen["frontier_p95"], seen["throughput_ratio"]) == pytest.approx((1.0, 1.0, 0.99))
    assert seen["qdelay_ratio"] == pytest.approx(0.5)
    slow = judged([KNOB[1], KNOB[1]], both)
    assert slow["score"] == pytest.approx(-1.1 - 4 * (0.965 - 0.9))
    uneven = judged([Point(0.99, 50.0, 100.0), Point(0.99, 150.0, 300.0)], both)
    assert uneven["score"] == pytest.approx(-1.0 - 0.1 * 1.5)
    assert uneven["frontier_worst"] == pytest.approx(1.5)


def test_links_of_which_there_are_many_do_not_outvote_the_others() -> None:
    plain = Point(1.0, 200.0, 300.0)
    four = [Baseline(KNOB, plain)] * 4
    points = [Point(0.99, 50.0, 100.0)] * 3 + [Point(0.99, 150.0, 300.0)]
    strata = ["fast_steady"] * 3 + ["slow_outages"]
    seen = judged(points, four, strata)
    assert seen["frontier_mean"] == pytest.approx(0.75)
    assert (seen["stratum_fast_steady"], seen["stratum_slow_outages"]) == pytest.approx((0.5, 1.5))
    assert seen["score"] == pytest.approx(-1.0 - 0.1 * 1.5)
    assert judged(points, four)["score"] == pytest.approx(-0.75 - 0.1 * 1.5)
