"""Evolution: members side by side decide as each alone, a cost is what it says, and the strategy finds a minimum."""

from dataclasses import replace

import numpy as np
import pytest

from reinet.agents.decide.protocol import View
from reinet.agents.learn.config import EvolutionSection
from reinet.agents.learn.evolution import Evolution, Generation, cost, last_layer, with_last_layer
from reinet.agents.model.mlp import Folded, act
from reinet.core import FLOW_STATS_DTYPE, caps_from_actions
from reinet.envs.link.metrics import Metrics

SIZE, UNITS = 5, 7


def actor(seed: int = 0) -> Folded:
    rng = np.random.default_rng(seed)
    shapes = [(UNITS, SIZE), (1, UNITS)]
    return Folded(
        [(rng.normal(size=shape).astype(np.float32), rng.normal(size=shape[0]).astype(np.float32)) for shape in shapes]
    )


def test_a_member_is_the_last_layer_and_nothing_else() -> None:
    ours = actor()
    member = last_layer(ours)
    assert member.shape == (UNITS + 1,)
    other = with_last_layer(ours, 2 * member)
    np.testing.assert_array_equal(other.layers[0][0], ours.layers[0][0])
    np.testing.assert_array_equal(other.layers[1][0], 2 * ours.layers[1][0])
    np.testing.assert_array_equal(other.layers[1][1], 2 * ours.layers[1][1])


def test_members_side_by_side_decide_as_each_does_alone() -> None:
    ours, rng, flows = actor(), np.random.default_rng(1), 4
    members = np.stack([last_layer(ours) * factor for factor in (0.3, 0.0, -0.5)])
    states = rng.normal(size=(3 * flows, SIZE)).astype(np.float32)
    stats = np.zeros(3 * flows, FLOW_STATS_DTYPE)
    stats["cwnd_pkts"] = 50
    rule_pkts = rng.uniform(10, 100, 3 * flows).astype(np.float32)
    together = Generation(ours, members, flows, "bdp", View()).decide(stats, states, rule_pkts)
    for index, member in enumerate(members):
        rows = slice(index * flows, (index + 1) * flows)
        actions = act(with_last_layer(ours, member), states[rows])
        np.testing.assert_array_equal(
            together[rows], caps_from_actions("bdp", actions, stats["cwnd_pkts"][rows], rule_pkts[rows])
        )


def figures(throughput_mbps: float, mean_ms: float, p95_ms: float) -> Metrics:
    zero = Metrics(**dict.fromkeys(Metrics.__dataclass_fields__, 0.0))
    return replace(zero, throughput_mbps=throughput_mbps, qdelay_mean_ms=mean_ms, qdelay_p95_ms=p95_ms)


def test_a_cost_weighs_both_delays_and_what_is_lost_of_the_throughput() -> None:
    plain = figures(10.0, 100.0, 300.0)
    assert cost(figures(10.0, 19.0, 99.0), plain, 8.0) == pytest.approx((np.log(20) + np.log(100)) / 2)
    assert cost(figures(9.0, 19.0, 99.0), plain, 8.0) == pytest.approx((np.log(20) + np.log(100)) / 2 - 8 * np.log(0.9))
    assert cost(figures(11.0, 19.0, 99.0), plain, 8.0) == cost(figures(10.0, 19.0, 99.0), plain, 8.0)


def lowered(evolution: Evolution, best: np.ndarray, generations: int) -> None:
    for _ in range(generations):
        members = evolution.members()
        evolution.tell([float(np.square(member - best).sum()) for member in members[:-1]])


def test_it_finds_what_costs_least_and_goes_on_bit_for_bit_when_told_again() -> None:
    start = last_layer(actor())
    units = np.random.default_rng(2).normal(size=(200, UNITS)).astype(np.float32)
    best = start + 0.2
    section = EvolutionSection(generations=60, members=12)
    evolution = Evolution(section, 3, start, units)
    np.testing.assert_array_equal(evolution.mean(), start)
    lowered(evolution, best, 60)
    assert np.square(evolution.mean() - best).sum() < 0.05 * np.square(start - best).sum()

    again = Evolution(section, 3, start, units)
    for costs in evolution.told:
        again.members()
        again.tell(costs)
    np.testing.assert_array_equal(again.mean(), evolution.mean())
    np.testing.assert_array_equal(again.members(), evolution.members())


def test_a_unit_that_is_always_the_same_makes_no_step_endless() -> None:
    units = np.ones((50, UNITS), np.float32)
    units[:, 0] = np.random.default_rng(2).normal(size=50)
    evolution = Evolution(EvolutionSection(generations=1), 3, last_layer(actor()), units)
    assert np.isfinite(evolution.members()).all()
