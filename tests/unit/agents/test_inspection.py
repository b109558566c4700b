"""What a loop tells of itself: one flow's story, figures, targets set while it runs; looking changes nothing."""

import numpy as np
import pytest

from helpers.loops import HEALTHY, LEASE_MS, started
from reinet.agents.decide.baselines import FixedCap, NoCap, RandomCap, Rule
from reinet.agents.decide.inspection.facts import facts_of
from reinet.agents.decide.inspection.own_targets import MOST_OWN, OwnTargets
from reinet.agents.decide.names import make_agent
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.errors import ConfigError
from reinet.core.records import Flag
from reinet.core.states.flow_memory import KEPT_RECORDS, FlowMemory
from reinet.core.target import Target


def test_a_flows_story_has_records_state_answer_cap_and_lease() -> None:
    shim, made = started(Rule(1.5))
    for step in range(KEPT_RECORDS + 2):
        shim.advance_ms(10)
        shim.feed(7, **HEALTHY | {"cwnd_pkts": 61 + step})
        made.tick()
    shim.advance_ms(50)
    story = made.why(7)
    assert story is not None
    assert story.records["cwnd_pkts"].tolist() == [63, 64, 65, 66, 67]  # the latest, oldest first
    assert (story.cap_pkts, story.verdict, story.wanted_pkts, story.rule_pkts) == (30, "", 30, 20)
    assert story.lease_left_ms == LEASE_MS - 50
    assert (story.target, story.own_target) == ("50ms", False)
    assert story.state.shape == (20, len(story.features)) == (20, len(story.units))
    assert np.count_nonzero(story.state.any(axis=1)) == KEPT_RECORDS + 3
    assert story.now_ns - story.decided_ns == 50_000_000
    assert (story.head, story.action) == ("", None)


def test_a_models_story_has_its_action() -> None:
    agent = make_agent("checkpoints/default", link="kernel")
    shim, made = started(agent)
    for _ in range(20):
        shim.advance_ms(40)
        shim.feed(7, **HEALTHY | {"delivered_bytes": 57_920, "period_ns": 40_000_000})
        made.tick()
    story = made.why(7)
    assert story is not None
    assert story.action is not None
    assert -1 <= story.action <= 1
    assert story.head == facts_of(agent).head != ""
    assert story.wanted_pkts == story.cap_pkts > 0
    assert made.model().identity == agent.identity


def test_a_refused_flow_says_what_was_asked_for_and_why_not() -> None:
    _, made = started(FixedCap(3))
    story = made.why(7)
    assert story is not None
    assert (story.cap_pkts, story.wanted_pkts, story.lease_left_ms) == (0, 3, 0)
    assert "a cap of 3 packets is outside" in story.verdict


def test_looking_changes_nothing() -> None:
    shim, made = started(RandomCap(1))
    other_shim, other = started(RandomCap(1))
    for _ in range(3):
        story = made.why(7)
        assert story is not None
        assert story.wanted_pkts is not None
        assert story.action is None
        for one, its in ((shim, made), (other_shim, other)):
            one.advance_ms(10)
            one.feed(7, **HEALTHY)
            its.tick()
        assert made.snapshot().caps_pkts.tolist() == other.snapshot().caps_pkts.tolist()


def test_a_slots_next_owner_has_no_past() -> None:
    shim, made = started(FixedCap(10))
    shim.close_flow(7)
    shim.open_flow(8)
    shim.feed(8, flags=int(Flag.NO_SAMPLE), min_rtt_us=20_000)
    made.tick()
    assert made.why(7) is None
    story = made.why(8)
    assert story is not None
    assert (len(story.records), story.decided_ns, story.state.size, story.wanted_pkts) == (1, 0, 0, None)


def test_several_records_of_one_batch_are_all_kept_in_order() -> None:
    shim, made = started(FixedCap(10), 7, 8)
    for cwnd_pkts in (1, 2, 3):
        shim.feed(7, **HEALTHY | {"cwnd_pkts": cwnd_pkts})
    shim.feed(8, **HEALTHY | {"cwnd_pkts": 9})
    made.tick()
    kept = {cookie: made.why(cookie) for cookie in (7, 8)}
    assert [story.records["cwnd_pkts"].tolist() for story in kept.values() if story] == [[60, 1, 2, 3], [60, 9]]


def test_tables_grow_and_keep_what_they_hold() -> None:
    shim, made = started(FixedCap(10))
    for cookie in range(100, 300):
        shim.open_flow(cookie)
        shim.feed(cookie, **HEALTHY)
    made.tick()
    for cookie in (7, 299):
        story = made.why(cookie)
        assert story is not None
        assert (len(story.records), story.cap_pkts) == (1, 10)


def test_flows_are_told_of_page_by_page_whatever_comes_and_goes_meanwhile() -> None:
    shim, made = started(FixedCap(10))
    cookies = [*range(100, 200), 1 << 63, (1 << 64) - 1]
    for cookie in reversed(cookies):
        shim.open_flow(cookie)
        shim.feed(cookie, **HEALTHY | {"cwnd_pkts": cookie % 1000})
    made.tick()
    told, page = [], made.snapshot(most=30)
    assert page.live == 103
    shim.close_flow(100)  # it was told of; it takes none of the others along
    made.tick()
    while True:
        told += page.stats["cookie"].tolist()
        if not page.next:
            break
        page = made.snapshot(most=30, after=page.next)
    assert told == [7, *cookies]
    assert len(made.snapshot(most=30).reasons) == 30
    assert made.snapshot(most=2, order="cwnd").stats["cwnd_pkts"].tolist() == [(1 << 63) % 1000, ((1 << 64) - 1) % 1000]
    with pytest.raises(ConfigError, match="leave the order out"):
        made.snapshot(order="cwnd", after=7)


def test_no_such_flow() -> None:
    _, made = started(FixedCap(10))
    assert made.why(8) is None
    assert made.why(0) is None
    assert made.why((1 << 64) - 1) is None


def test_figures_count_ticks_flows_refusals_and_delays() -> None:
    shim, made = started(Rule(1.5), 7, 8)
    shim.advance_ms(3)
    shim.feed(7, **HEALTHY)
    shim.now_ns += 1_500_000  # the record waits for 1.5 ms
    shim.feed(8, flags=int(Flag.NO_SAMPLE), min_rtt_us=20_000)
    shim.open_flow(9)
    shim.feed(9, **HEALTHY | {"min_rtt_us": 60_000, "rtt_mean_us": 70_000})
    made.tick()
    figures = made.figures()
    assert figures.ticks == made.ticks() == 2
    assert {kind: count for kind, count in figures.flows.items() if count} == {"capped": 2, "too_tight": 1}
    assert {kind: count for kind, count in figures.verdicts.items() if count} == {"capped": 3, "too_tight": 1}
    latency = figures.decision_latency_s
    assert latency.counts.sum() == 4
    assert latency.counts[latency.bounds.index(2e-3)] == 1
    assert latency.total == pytest.approx(1.5e-3)
    assert figures.rtt_s.total == pytest.approx(3 * 0.040 + 0.070)  # a record without a sample has no RTT
    assert figures.queueing_delay_s.total == pytest.approx(3 * 0.020 + 0.010)
    assert figures.delivery_rate_bytes_per_s.counts.sum() == 4
    assert figures.shim["flows_chosen"] == 2


def test_the_shims_counters_are_read_once_a_second_in_the_loops_thread() -> None:
    shim, made = started(FixedCap(10))
    reads = []
    shim.counters = lambda: reads.append(1) or {"records_lost": len(reads)}  # type: ignore[attr-defined]
    for _ in range(10):
        shim.advance_ms(250)
        made.tick()
        made.figures()
    assert made.figures().shim == {"records_lost": 2}


def test_a_value_on_a_bound_lies_below_it() -> None:
    memory = FlowMemory(1, [], [1.0, 2.0], [])
    records = np.zeros(5, FLOW_STATS_DTYPE)
    records["rtt_samples"], records["delivery_rate_bytes_per_s"] = 1, [0, 1, 2, 2, 99]
    memory.record(np.zeros(5, np.intp), records)
    assert memory.counts()["rate"] == ([2, 2, 1], 104.0)
    with pytest.raises(ValueError, match="outside the table"):
        memory.record(np.array([1]), records[:1])


def test_a_target_set_for_one_flow_holds_for_it_alone_and_goes_with_it() -> None:
    shim, made = started(FixedCap(10), 7, 8)
    made.set_target(7, "21ms")
    for cookie in (7, 8):
        shim.feed(cookie, **HEALTHY)
    made.tick()
    assert made.snapshot().stats["target_us"].tolist() == [21_000, 50_000]
    assert made.snapshot().caps_pkts.tolist() == [0, 10]  # 21 ms is below 1.1 x the path
    story = made.why(7)
    assert story is not None
    assert (story.target, story.own_target) == ("21ms", True)
    made.set_target(7, "")
    story = made.why(7)
    assert story is not None
    assert (story.target, story.own_target) == ("50ms", False)
    made.set_target(7, "25ms")
    shim.close_flow(7)
    made.tick()
    shim.open_flow(7)
    shim.feed(7, **HEALTHY)
    made.tick()
    assert made.snapshot().stats["target_us"].tolist() == [50_000, 50_000]


def test_a_socket_that_connects_anew_has_a_story_of_its_own() -> None:
    shim, made = started(FixedCap(10))
    shim.close_flow(7)
    made.tick()
    shim.open_flow(7)
    shim.feed(7, **HEALTHY | {"rtt_samples": 0, "flags": int(Flag.NO_SAMPLE)})
    made.tick()
    story = made.why(7)
    assert story is not None
    assert (len(story.records), story.decided_ns) == (1, 0)


def test_the_common_target_holds_for_every_flow_without_its_own() -> None:
    shim, made = started(FixedCap(10), 7, 8)
    made.set_target(7, "2.5x")
    assert made.set_target(0, "+10ms") == "+10ms"
    for cookie in (7, 8):
        shim.feed(cookie, **HEALTHY)
    made.tick()
    assert made.snapshot().stats["target_us"].tolist() == [50_000, 30_000]
    assert made.status().target == "+10ms"
    assert made.set_target(7, "") == "+10ms"


@pytest.mark.parametrize(
    ("cookie", "target", "error"),
    [(7, "fast", ConfigError), (0, "", ConfigError), (0, "1e9", ConfigError), (9, "50ms", LookupError)],
)
def test_a_target_that_cannot_be_changes_nothing(cookie: int, target: str, error: type[Exception]) -> None:
    _, made = started(FixedCap(10))
    with pytest.raises(error):
        made.set_target(cookie, target)
    assert made.status().target == "50ms"
    story = made.why(7)
    assert story is not None
    assert not story.own_target


def test_the_number_of_own_targets_is_bounded() -> None:
    targets = OwnTargets()
    for cookie in range(1, MOST_OWN + 1):
        targets.set(cookie, Target.parse("40ms"))
    with pytest.raises(ValueError, match="take some back first"):
        targets.set(MOST_OWN + 1, Target.parse("40ms"))
    targets.set(1, Target.parse("30ms"))  # one that has its own may change it
    assert str(targets.of(1)) == "30ms"


def test_agents_that_are_no_models_have_facts_too() -> None:
    facts = facts_of(NoCap())
    assert (facts.name, facts.identity, facts.head, facts.seed) == ("none", "none", "", None)
