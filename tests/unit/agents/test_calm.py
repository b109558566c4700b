"""Calm: how fast a cap follows what the network wants, and that rounding keeps none of it back."""

import numpy as np
import pytest

from reinet.agents.decide.protocol import Agent, View
from reinet.agents.learn.actors import FoldedActor, NoisyActor, Walker
from reinet.agents.learn.evolution import Generation, last_layer
from reinet.agents.model.mlp import Folded
from reinet.core import FLOW_STATS_DTYPE, MIN_CAP_PKTS, calm_caps


def records(count: int, cap_pkts: int, min_rtt_ms: float, period_ms: float = 5.0) -> np.ndarray:
    stats = np.zeros(count, FLOW_STATS_DTYPE)
    stats["cap_pkts"], stats["min_rtt_us"] = cap_pkts, round(1000 * min_rtt_ms)
    stats["period_ns"] = round(1e6 * period_ms)
    stats["time_ns"] = 10**9 + np.arange(count) * 5_000_000
    return stats


def pkts(count: int, value: int) -> np.ndarray:
    return np.full(count, value, np.uint32)


def followed(start_pkts: int, wanted_pkts: int, min_rtt_ms: float, decisions: int) -> int:
    cap_pkts = start_pkts
    for decision in range(decisions):
        record = records(decision + 1, cap_pkts, min_rtt_ms)[-1:]
        (cap_pkts,) = calm_caps(pkts(1, wanted_pkts), record, 1.0)
    return int(cap_pkts)


@pytest.mark.parametrize(("min_rtt_ms", "decisions"), [(20.0, 4), (100.0, 20), (5.0, 1)])
def test_it_goes_a_share_of_the_way_in_a_round_trip_whatever_the_path(min_rtt_ms: float, decisions: int) -> None:
    left = np.log(followed(1000, 250, min_rtt_ms, decisions) / 250) / np.log(1000 / 250)
    assert left == pytest.approx(np.exp(-1), abs=0.01)


@pytest.mark.parametrize("wanted_pkts", [9, 11])
def test_steps_of_less_than_a_packet_add_up(wanted_pkts: int) -> None:
    """Ten packets on a path of 100 ms, where a decision's step is a twentieth of one."""
    late = [followed(10, wanted_pkts, 100.0, decisions) for decisions in range(60, 160, 5)]
    assert np.mean(late) == pytest.approx(wanted_pkts, abs=0.4)


def test_rounding_leans_to_neither_side() -> None:
    stats = records(4000, 10, 20.0)
    wanted = np.exp(np.log(10) * np.exp(-0.25) + np.log(13) * (1 - np.exp(-0.25)))
    assert np.mean(calm_caps(pkts(4000, 13), stats, 1.0)) == pytest.approx(wanted, abs=0.03)


def test_a_cap_that_is_where_it_should_be_stays() -> None:
    for cap_pkts in (4, 7, 20, 333):
        assert np.mean(calm_caps(pkts(500, cap_pkts), records(500, cap_pkts, 20.0), 1.0) == cap_pkts) > 0.99


def test_the_first_cap_and_no_cap_come_at_once_and_so_does_all_without_calm() -> None:
    stats = records(3, 0, 20.0)
    np.testing.assert_array_equal(calm_caps(pkts(3, 40), stats, 1.0), [40, 40, 40])
    np.testing.assert_array_equal(calm_caps(pkts(3, 0), records(3, 50, 20.0), 1.0), [0, 0, 0])
    np.testing.assert_array_equal(calm_caps(pkts(3, 40), records(3, 80, 20.0), 0.0), [40, 40, 40])


def test_limits_hold_also_for_a_ceiling_that_was_lowered() -> None:
    assert calm_caps(pkts(1, 200), records(1, 400, 100.0), 1.0, ceiling_pkts=250).tolist() == [250]
    assert calm_caps(pkts(1, MIN_CAP_PKTS), records(1, MIN_CAP_PKTS, 1.0), 1.0).tolist() == [MIN_CAP_PKTS]


def test_a_path_whose_minimum_is_unknown_gets_what_is_wanted() -> None:
    stats = records(1, 50, 0.0)
    assert calm_caps(pkts(1, 20), stats, 1.0).tolist() == [20]


@pytest.mark.parametrize("kind", ["actor", "noisy", "walker", "generation"])
def test_training_is_as_calm_as_what_it_trains(kind: str) -> None:
    """Each of the agents that gather, evaluate or evolve."""
    first = (np.zeros((4, 100), np.float32), np.ones(4, np.float32))
    actor = Folded([first, (np.ones((1, 4), np.float32), np.zeros(1, np.float32))])
    view, stats = View(), records(3, 400, 20.0)

    def made(calm_rtts: float) -> Agent:
        if kind == "actor":
            return FoldedActor(actor, "bdp", view, calm_rtts)
        if kind == "noisy":
            return NoisyActor(actor, np.zeros((1, 3), np.float32), "bdp", view, calm_rtts)
        if kind == "walker":
            return Walker(np.arange(3), 1, "bdp", view, calm_rtts)
        return Generation(actor, last_layer(actor)[None], 3, "bdp", view, calm_rtts)

    shown = (stats, np.zeros((3, 100), np.float32), np.full(3, 20, np.float32))
    wanted = made(0.0).decide(*shown)
    calm = made(1.0).decide(*shown)
    np.testing.assert_array_equal(calm, calm_caps(wanted, stats, 1.0))
    assert np.all(calm > wanted)
