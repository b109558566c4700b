"""Experience: returns over several steps, noise that lasts, fragments that end where the gate closes, and links that a
curriculum seeks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from helpers.trainer import TINY
from reinet.agents.learn.config import DdpgSection, TrainConfig
from reinet.agents.learn.ddpg import Ddpg
from reinet.agents.learn.evolution import last_layer
from reinet.agents.learn.gatherer import Experience, Gatherer, _stretches, _summary, correlate, returns
from reinet.agents.learn.links import training_traces
from reinet.agents.learn.train import Run
from reinet.agents.learn.workers import RayGatherers
from reinet.core import FEATURE_SETS, FLOW_STATS_DTYPE, Normaliser
from reinet.envs.link.spec import LinkSpec
from reinet.envs.trace import Trace

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


def test_the_reward_from_one_decision_to_the_next_holds_that_of_the_silences_between() -> None:
    """Eight records, of which four had an RTT sample: a mean over all of them would be half of what decisions earn."""
    told = _summary(np.zeros(4, FLOW_STATS_DTYPE), np.ones((4, 2)))
    assert told["charts/reward_per_period"] == 2.0


def test_stretches_end_where_the_gate_closes_and_leave_silences_out() -> None:
    decided = np.array([1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1], bool)
    may_cap = np.array([0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 1, 1], bool)
    # Row 9 is alone: no transition starts and ends in it.
    assert [rows.tolist() for rows in _stretches(decided, may_cap)] == [[2, 4, 5], [11, 12]]
    assert list(_stretches(decided, np.zeros(13, bool))) == []
    assert [len(rows) for rows in _stretches(decided, np.ones(13, bool))] == [11]
    assert list(_stretches(np.zeros(13, bool), may_cap)) == []


# --- a curriculum ---


CONFIG = {**TINY, "feature_set": "scalefree-5x20"}
TRACES = training_traces(TrainConfig.model_validate(CONFIG))


def gatherer(**curriculum: float) -> Gatherer:
    return Gatherer(TrainConfig.model_validate({**CONFIG, "curriculum": curriculum}), TRACES, 0)


def seeds(links: Sequence[LinkSpec]) -> list[int]:
    return [link.seed for link in links]  # one of two billion each


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


ACTOR = Ddpg(DdpgSection(hidden=[8]), FEATURE_SETS["scalefree-5x20"].state_size, seed=1).actor.eval().folded()
NONE = Normaliser("scalefree-5x20")


def test_without_a_curriculum_or_an_actor_links_are_taken_as_they_are_drawn() -> None:
    plain, *_ = gatherer()._links(ACTOR, NONE, rng())
    assert len(plain) == TINY["rollout"]["links"]
    walking, told, periods = gatherer(share=1.0, seconds=2.0)._links(None, NONE, rng())
    assert (seeds(walking), told, periods) == (seeds(plain), {}, 0)


def test_a_curriculum_keeps_the_links_where_the_policy_stands_worst_beside_the_rule() -> None:
    """Those before them are the first that are drawn: a curriculum moves no other link."""
    plain, *_ = gatherer()._links(ACTOR, NONE, rng())
    ours = gatherer(share=0.4, candidates=8, seconds=2.0)
    links, told, periods = ours._links(ACTOR, NONE, rng())
    assert seeds(links)[:2] == seeds(plain)[:2]
    drawn = rng()
    tried = [gatherer()._links(ACTOR, NONE, drawn)[0] for _ in range(4)]
    tried_links = [link for some in tried for link in some][2:10]
    behind, ranked_periods = ours.behind_rule(ACTOR, NONE, tried_links)
    assert periods == ranked_periods
    assert seeds(links)[2:] == [tried_links[int(np.argmax(behind))].seed]
    assert np.isfinite(behind).all()
    assert told == {"curriculum/behind_rule": behind.max(), "curriculum/behind_rule_all": behind.mean()}
    assert behind.max() > behind.mean()


def test_a_small_share_still_seeks_one_link_and_the_same_one_each_time() -> None:
    ours = gatherer(share=0.01, candidates=4, seconds=2.0)
    (first, told, periods), again = (ours._links(ACTOR, NONE, rng()) for _ in range(2))
    assert (seeds(again[0]), *again[1:]) == (seeds(first), told, periods)
    assert len(first) == TINY["rollout"]["links"]
    experience, alone = ours.gather(ACTOR, NONE, 3), gatherer().gather(ACTOR, NONE, 3)
    assert experience.periods > alone.periods + 4 * 3 * 5, "what the curriculum simulated to rank links counts"
    assert {"curriculum/behind_rule", "curriculum/behind_rule_all"} <= experience.summary.keys()


def test_a_link_that_carries_nothing_is_neither_kept_nor_an_error() -> None:
    """Nor does it stop evolution: it costs every member the same."""
    outage = Trace(np.array([*range(1, 20), *range(9_000, 9_500)], np.uint32), "outage", None)
    sections = {
        "curriculum": {"share": 1.0, "candidates": 2, "seconds": 2.0},
        "evolution": {"links": 4, "seconds": 2.0},
    }
    config = TrainConfig.model_validate({**CONFIG, **sections})
    alive = training_traces(config)[0]
    links = [LinkSpec(trace=trace, start_offset_ms=100, target_us=50_000) for trace in (outage, alive)]
    behind, _ = Gatherer(config, [alive], 0).behind_rule(ACTOR, NONE, links)
    assert behind[0] == -np.inf
    assert np.isfinite(behind[1])
    stuck = Gatherer(config, [outage], 0)
    assert len(stuck.gather(ACTOR, NONE, 1).summary) > 0
    members = np.stack([last_layer(ACTOR)] * 2)
    costs, periods = stuck.costs(ACTOR, members, NONE, 1)
    assert (costs == 0).any()
    assert periods > 0


# --- targets as they are ---


def test_nothing_is_learned_from_more_room_than_targets_leave() -> None:
    """What is judged sees it: there the network is told what it will be told when it serves."""
    links = {"mrtt_ms": [100, 200], "queueing_target_ms": [10, 20]}
    told, asked = (
        TrainConfig.model_validate({**CONFIG, "links": links, "room_beyond_ms": beyond}) for beyond in (20, None)
    )
    own, other = (Gatherer(config, TRACES, 0).gather(ACTOR, NONE, 1) for config in (told, asked))
    assert own.fragments
    for one, two in zip(own.fragments, other.fragments, strict=True):
        np.testing.assert_array_equal(one.frames, two.frames)
        np.testing.assert_array_equal(one.rewards, two.rewards)
    assert (told.view(NONE).room_beyond_ms, asked.view(NONE).room_beyond_ms) == (20, None)


class _Workers:
    """Two workers' flows, gathered in this process."""

    def __init__(self, config: TrainConfig) -> None:
        self._each = [Gatherer(config, training_traces(config), number) for number in range(2)]
        self.silent: list[bool] = []

    def gather(self, *arguments: Any) -> list[Experience]:
        found = [gatherer.gather(*arguments) for gatherer in self._each]
        self.silent += [not experience.summary for experience in found]
        return found


def test_a_worker_whose_flows_were_all_over_at_once_ends_no_training(tmp_path: Path) -> None:
    """It has nothing to tell of them, and the training ended with a KeyError where the other worker had."""
    changes = {
        "feature_set": "timescales-24x1", "rollout": {"workers": 2, "links": 1, "periods": 40},
        "links": {"short_share": 0.6, "short_bytes": [1000, 5000]},
    }  # fmt: skip
    config = TrainConfig.model_validate({**TINY, **changes})
    workers = _Workers(config)
    run = Run(config, tmp_path, cast(RayGatherers, workers))
    told = [run.iterate() for _ in range(2)]
    assert set(workers.silent) == {True, False}
    assert any("charts/reward_per_period" in scalars for scalars in told)
