"""Modes on a simulated clock: shadow applies nothing, a hold-out stands down when capped flows fare worse, and a swap
goes by steps and back."""

from collections.abc import Callable

import numpy as np
import pytest
import structlog
from numpy.typing import NDArray

from helpers.period import SILENT
from helpers.population import GOOD_PKTS, WORSE_PKTS, Population
from reinet.agents.decide.baselines import FixedCap
from reinet.agents.decide.evidence import CAPPED, NEITHER, PLAIN, Evidence, Ratio, interval_factor
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.modes import Mode, PolicySpec, lots
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray
from reinet.agents.decide.swap import SHARE_NS, WATCH_NS
from reinet.agents.decide.verdicts import WORDS, Why, text
from reinet.core.errors import ConfigError, ModelError
from reinet.core.records import FLOW_STATS_DTYPE, FlowStatsArray
from reinet.core.states.caps import INVALID_CAP_PKTS
from reinet.core.target import Target

FLOWS = 200
RUNS = range(10)
GOOD = (0.75, 0.97)
"""A quarter off the RTT, for 3 % of the rate."""
WORSE = {"delay": (1.2, 1.0), "throughput": (1.0, 0.8)}
"""A fifth worse than plain, in one way or the other."""


def population(seed: int = 0, worse: tuple[float, float] = WORSE["delay"], flows: int = FLOWS) -> Population:
    return Population(flows, {GOOD_PKTS: GOOD, WORSE_PKTS: worse}, seed)


def loop_of(pop: Population, agent: Agent, mode: Mode = Mode.HOLD_OUT) -> ControlLoop:
    return ControlLoop(pop, agent, Target.parse("10x"), clock_ns=pop.clock_ns, mode=mode)


def run(pop: Population, loop: ControlLoop, seconds: float, until: Callable[[], object] = lambda: False) -> float:
    """Ticks for so long or until something holds; returns the seconds that it took."""
    start_ns = pop.now_ns
    while pop.now_ns - start_ns < seconds * 1e9 and not until():
        loop.tick()
    return (pop.now_ns - start_ns) / 1e9


# --- shadow ---


def test_shadow_decides_and_shows_and_applies_nothing() -> None:
    shown: set[int] = set()

    class Sink:
        def offer(self, records: FlowStatsArray, caps_pkts: CapArray) -> None:
            shown.update(caps_pkts.tolist())

    pop, sink = population(flows=20), Sink()
    written: list[object] = []
    pop.apply = lambda *written_now: written.append(written_now)  # type: ignore[method-assign]
    loop = ControlLoop(
        pop, FixedCap(GOOD_PKTS), Target.parse("10x"), sink=sink, clock_ns=pop.clock_ns, mode=Mode.SHADOW
    )
    run(pop, loop, 2.0)
    assert not written
    assert shown == {0, GOOD_PKTS}
    seen = loop.snapshot()
    assert not seen.caps_pkts.any()
    decided = f"shadow: a cap of {GOOD_PKTS} packets was decided and not applied"
    assert set(seen.reasons) <= {decided, WORDS[Why.NO_QUEUE]}
    assert seen.reasons.count(WORDS[Why.NO_QUEUE]) < 10
    status = loop.status()
    assert status.ok
    assert status.decisions >= 150
    assert status.policies[0].state == "shadow"


# --- hold-out ---


def test_lots_are_even_and_independent() -> None:
    cookies = np.arange(1, 100_001, dtype=np.uint64)
    first, second = lots(cookies, 0), lots(cookies, 1)
    counts = np.histogram(first, 10, (0, 1))[0]
    assert abs(counts - 10_000).max() < 400  # four standard deviations
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.015
    np.testing.assert_array_equal(first[5:8], lots(cookies[5:8], 0))


def test_a_share_of_flows_stays_plain_and_says_so() -> None:
    pop = population()
    loop = loop_of(pop, FixedCap(GOOD_PKTS))
    run(pop, loop, 5.0)
    seen = loop.snapshot()
    plain = lots(seen.stats["cookie"], 0) < 0.2
    assert 25 < plain.sum() < 60
    assert not seen.caps_pkts[plain].any()
    assert {why for why, held in zip(seen.reasons, plain, strict=True) if held} == {WORDS[Why.HELD_OUT]}
    others = {why for why, held in zip(seen.reasons, plain, strict=True) if not held}
    assert others <= {"", WORDS[Why.NO_QUEUE], WORDS[Why.NO_DECISION]}
    assert (seen.caps_pkts[~plain] != 0).mean() > 0.8


@pytest.mark.parametrize("kind", WORSE)
def test_a_hold_out_stands_down_within_a_minute_under_a_model_that_is_a_fifth_worse(kind: str) -> None:
    for seed in RUNS:
        pop = population(seed, WORSE[kind])
        loop = loop_of(pop, FixedCap(WORSE_PKTS))
        took_s = run(pop, loop, 60.0, lambda loop=loop: loop.status().policies[0].stood_down)
        assert took_s < 60.0, seed
        assert not pop.capped().any(), "every cap goes at once"
        status = loop.status()
        assert not status.ok
        assert "capped flows fared worse than plain ones" in status.problem
        assert {"delay": "delay is higher", "throughput": "throughput is lower"}[kind] in status.problem
        run(pop, loop, 1.0)
        assert not pop.capped().any()
        assert status.problem in loop.snapshot().reasons


@pytest.mark.parametrize("effect", [GOOD, (1.0, 1.0)], ids=["good", "without effect"])
def test_a_hold_out_does_not_stand_down_under_a_model_that_is_not_worse(effect: tuple[float, float]) -> None:
    for seed in RUNS:
        pop = Population(FLOWS, {GOOD_PKTS: effect}, seed)
        loop = loop_of(pop, FixedCap(GOOD_PKTS))
        run(pop, loop, 70.0)
        (policy,) = loop.status().policies
        assert not policy.stood_down, seed
        assert policy.comparison.delay.low < effect[0] < policy.comparison.delay.high, seed
        assert policy.comparison.throughput.low < effect[1] < policy.comparison.throughput.high, seed
        assert pop.capped().any()


def test_a_hold_out_that_stood_down_gets_another_chance_when_it_is_told_to_resume() -> None:
    pop = population()
    loop = loop_of(pop, FixedCap(WORSE_PKTS))
    run(pop, loop, 60.0, lambda: loop.status().policies[0].stood_down)
    with structlog.testing.capture_logs():
        loop.resume()
        run(pop, loop, 1.0)
    assert loop.status().ok
    assert pop.capped().any()


def test_flows_without_a_cap_prove_nothing_while_the_daemon_is_paused() -> None:
    pop = population()
    loop = loop_of(pop, FixedCap(GOOD_PKTS))
    run(pop, loop, 20.0)
    assert loop.status().policies[0].comparison.delay.capped_flows > 0
    loop._pause_wanted = True
    run(pop, loop, 5.0)
    assert loop.status().policies[0].comparison.delay.capped_flows == 0
    assert not pop.capped().any()


def test_a_sure_throughput_loss_counts_unless_delay_pays_for_it_up_to_a_third() -> None:
    from reinet.agents.decide.evidence import Comparison

    def of(ratio: float) -> Ratio:
        return Ratio(ratio, ratio * 0.97, ratio * 1.03, 100, 100)

    def harm(delay: float, throughput: float, completion: float = 1.0) -> str:
        return Comparison(of(delay), of(throughput), of(throughput / delay), of(completion)).harm

    assert harm(1.0, 1.0) == ""
    assert harm(1.12, 1.0).startswith("their delay is higher: 1.12 (1.09 to 1.15, 100 and 100 flows)")
    assert harm(1.06, 1.0) == "", "not surely more than 5 %"
    assert harm(1.0, 0.85).startswith("their throughput is lower, and no delay pays")
    assert harm(0.6, 0.85) == ""
    assert "by more than a third" in harm(0.3, 0.6)
    assert "longer to complete" in harm(0.6, 0.9, completion=1.2)
    assert harm(0.6, 0.9, completion=1.08) == ""
    assert Comparison().harm == ""


def test_an_interval_holds_however_often_it_is_looked_at() -> None:
    """Of two groups that do not differ one in a hundred may ever seem to; here a look after every flow."""
    rng = np.random.default_rng(0)
    wrong = 0
    counts = np.arange(10, 2000)
    factors = np.array([interval_factor(count / 2, alpha=0.05) for count in counts])
    for _ in range(400):
        difference = np.cumsum(rng.normal(size=2000) - rng.normal(size=2000))[counts - 1] / counts
        wrong += bool((abs(difference) > factors * np.sqrt(2 / counts)).any())
    assert wrong <= 0.05 * 400
    assert interval_factor(1e9) > interval_factor(50) > 1.96


# --- swap ---


def test_a_swap_goes_from_a_share_to_all_flows_and_ends() -> None:
    pop = population(flows=100)
    loop = loop_of(pop, FixedCap(50), Mode.ENFORCE)
    run(pop, loop, 2.0)
    with structlog.testing.capture_logs() as seen:
        found = loop.swap(FixedCap(GOOD_PKTS))
        assert found.states > 100
        run(pop, loop, 1.0)
        assert 1 <= (pop.caps_pkts == GOOD_PKTS).sum() <= 25
        assert loop.status().policies[0].swap == f"share: fixed:{GOOD_PKTS}"
        run(pop, loop, SHARE_NS / 1e9 + 40, lambda: loop.status().policies[0].swap.startswith("watch"))
        run(pop, loop, 1.0)
        assert set(pop.caps_pkts[pop.capped()].tolist()) == {GOOD_PKTS}
        run(pop, loop, WATCH_NS / 1e9)
    (policy,) = loop.status().policies
    assert (policy.model, policy.swap, policy.latest_swap) == (f"fixed:{GOOD_PKTS}", "", f"fixed:{GOOD_PKTS}: done")
    assert [entry["event"] for entry in seen] == ["swap begins", "swap goes on to all flows", "swap ends"]


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_a_step_of_a_swap_begins_anew_after_a_pause_in_which_nothing_was_in_force(share: float) -> None:
    pop = population(flows=30)
    loop = loop_of(pop, FixedCap(50), Mode.ENFORCE)
    run(pop, loop, 2.0)
    loop._pause_wanted = True
    loop.swap(FixedCap(GOOD_PKTS), share=share)
    run(pop, loop, WATCH_NS / 1e9 + 30)
    loop._pause_wanted = False
    run(pop, loop, SHARE_NS / 1e9 - 1)
    assert loop.status().policies[0].swap == f"{'share' if share < 1 else 'watch'}: fixed:{GOOD_PKTS}"
    assert 1 <= (pop.caps_pkts == GOOD_PKTS).sum() <= (10 if share < 1 else 30)


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_a_worse_model_that_is_swapped_in_goes_again_within_a_minute(share: float) -> None:
    for seed in RUNS:
        pop = population(seed)
        loop = loop_of(pop, FixedCap(GOOD_PKTS))
        run(pop, loop, 10.0)
        loop.swap(FixedCap(WORSE_PKTS), share=share)
        loop.tick()
        assert loop.status().policies[0].swap
        took_s = run(pop, loop, 90.0, lambda loop=loop: not loop.status().policies[0].swap)
        (policy,) = loop.status().policies
        assert "rolled back" in policy.latest_swap, (seed, policy)
        assert took_s < 60.0, seed
        assert policy.model == f"fixed:{GOOD_PKTS}"
        run(pop, loop, 2.0)
        assert set(pop.caps_pkts[pop.capped()].tolist()) == {GOOD_PKTS}


def test_a_good_model_that_is_swapped_in_stays() -> None:
    for seed in RUNS:
        pop = population(seed, worse=(0.7, 0.98))
        loop = loop_of(pop, FixedCap(GOOD_PKTS))
        run(pop, loop, 10.0)
        loop.swap(FixedCap(WORSE_PKTS))
        run(pop, loop, 95.0)
        (policy,) = loop.status().policies
        assert (policy.model, policy.latest_swap) == (f"fixed:{WORSE_PKTS}", f"fixed:{WORSE_PKTS}: done"), seed
        assert not policy.stood_down


def test_what_a_flow_goes_through_under_a_model_on_trial_is_not_held_against_the_old_one() -> None:
    evidence, rows = Evidence(60), np.arange(60)
    plain = np.where(rows < 20, PLAIN, CAPPED).astype(np.int8)
    tried = np.where(rows >= 40, NEITHER, plain).astype(np.int8)
    for second in range(1, 61):
        records = np.zeros(60, FLOW_STATS_DTYPE)
        records["cookie"], records["time_ns"], records["period_ns"] = rows + 1, 10**12 + second * 10**9, 10**9
        records["rtt_samples"], records["min_rtt_us"], records["delivered_bytes"] = 20, 20_000, 10**6
        records["delivery_rate_bytes_per_s"] = 10**6
        groups = plain if second <= 20 else tried
        records["rtt_mean_us"] = np.where(groups == NEITHER, 400_000, 40_000 + 10 * rows)
        evidence.take(records, rows, groups, np.ones(60, np.bool_))
    assert evidence.compare().delay.ratio == pytest.approx(1.0, abs=0.05)


class Odd(Agent):
    """Goes wrong from a moment on."""

    def __init__(self, answer: Callable[[int], CapArray]) -> None:
        super().__init__("odd")
        self.answer: Callable[[int], CapArray] = lambda count: np.full(count, 77, np.uint32)
        self.later = answer

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        return self.answer(len(stats))


def nan(count: int) -> CapArray:
    return np.full(count, INVALID_CAP_PKTS, np.uint32)


def broken(count: int) -> CapArray:
    raise RuntimeError("no such tensor")


@pytest.mark.parametrize("answer", [nan, broken])
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_a_new_model_that_fails_or_is_refused_goes_again_and_the_old_one_knows_its_flows(
    answer: Callable[[int], CapArray], share: float
) -> None:
    pop = population(flows=100)
    loop = loop_of(pop, FixedCap(50), Mode.ENFORCE)
    run(pop, loop, 2.0)
    agent = Odd(answer)
    loop.swap(agent, share=share)
    run(pop, loop, 2.0)
    assert (pop.caps_pkts == 77).any()
    agent.answer = agent.later
    run(pop, loop, 5.0)
    (policy,) = loop.status().policies
    assert policy.latest_swap.startswith("rolled back from odd to fixed:50: the agent odd ")
    assert loop.status().ok
    run(pop, loop, 1.0)
    assert set(pop.caps_pkts[pop.capped()].tolist()) == {50}


def test_the_canary_keeps_a_bad_model_away_from_flows() -> None:
    pop = population(flows=50)
    loop = loop_of(pop, FixedCap(50), Mode.ENFORCE)
    run(pop, loop, 2.0)
    for answer, why in (
        (nan, "are no valid caps"),
        (broken, "failed on recorded states"),
        (lambda count: np.zeros(count), "failed on recorded states"),
    ):
        agent = Odd(answer)
        agent.answer = answer
        with pytest.raises(ModelError, match=why):
            loop.swap(agent)
    run(pop, loop, 1.0)
    assert set(pop.caps_pkts[pop.capped()].tolist()) == {50}
    with pytest.raises(ConfigError, match="there is no policy 'web'; there are default"):
        loop.swap(FixedCap(20), "web")


def test_a_target_that_is_set_while_the_file_is_taken_up_takes_nothing_of_it_back() -> None:
    pop = population(flows=5)
    loop = loop_of(pop, FixedCap(50), Mode.ENFORCE)
    loop.tick()
    loop.command([PolicySpec(FixedCap(50), Target.parse("10x"), Mode.SHADOW)])
    loop.set_target(0, "9x")  # before the loop's thread has come to the other
    loop.tick()
    policy = loop.status().policies[0]
    assert (policy.mode, policy.target) == ("shadow", "9x")


def test_every_verdict_has_its_words() -> None:
    from reinet.core.guard import VERDICT_DTYPE

    verdict = np.zeros(1, VERDICT_DTYPE)
    for code in Why:
        verdict["code"] = code
        assert bool(text(verdict[0])) is (code is not Why.CAPPED)


_SECOND_NS = 1_000_000_000


def records_of(
    flows: NDArray[np.int64], time_ns: int, period_ns: int, delivered_bytes: NDArray[np.int64], flag: int = 0
) -> FlowStatsArray:
    made = np.zeros(len(flows), FLOW_STATS_DTYPE)
    made["cookie"], made["time_ns"], made["period_ns"] = flows + 1, time_ns, period_ns
    made["delivered_bytes"], made["flags"] = delivered_bytes, flag
    made["rtt_mean_us"], made["min_rtt_us"], made["rtt_samples"] = 40_000, 20_000, 20
    made["delivery_rate_bytes_per_s"] = 1_000_000
    return made


def halves() -> tuple[Evidence, NDArray[np.int64], NDArray[np.int8], NDArray[np.int64], Callable[..., None]]:
    """Evidence on flows of which every other one is capped, what each delivers, and who takes rows' records into it."""
    evidence = Evidence(FLOWS)
    flows = np.arange(FLOWS)
    groups = np.where(flows % 2 == 0, PLAIN, CAPPED).astype(np.int8)

    def take(rows: NDArray[np.int64], records: FlowStatsArray) -> None:
        evidence.take(records, rows, groups[rows], np.ones(len(rows), np.bool_))

    return evidence, flows, groups, 100_000 + 1000 * (flows // 2), take


@pytest.mark.parametrize("at_once", [False, True], ids=["tick by tick", "in one batch"])
def test_a_silence_counts_once(at_once: bool) -> None:
    """Its records tell of a period that goes on, and the one that ends the period tells of all of it again."""
    evidence, flows, groups, total_bytes, take = halves()

    take(flows, records_of(flows, _SECOND_NS, _SECOND_NS, total_bytes))
    silent = flows[groups == CAPPED]
    for second in range(1, 6):
        start_ns = second * _SECOND_NS
        parts = [
            records_of(silent, start_ns + after_ms * 1_000_000, after_ms * 1_000_000, total_bytes[silent] * 2 // 5,
                       SILENT)
            for after_ms in (250, 500, 750)
        ]  # fmt: skip
        ends = records_of(flows, start_ns + _SECOND_NS, _SECOND_NS, total_bytes)
        if at_once:
            take(np.concatenate([silent, silent, silent, flows]), np.concatenate([*parts, ends]))
        else:
            for part in parts:
                take(silent, part)
            take(flows, ends)
    assert evidence.compare().throughput.ratio == pytest.approx(1.0, abs=1e-9)


def test_a_silence_delivers_nothing() -> None:
    """What a flow got before its last silence is told again in every record of it, and is no later for that."""
    evidence, flows, groups, total_bytes, take = halves()

    for second in range(1, 7):
        take(flows, records_of(flows, second * _SECOND_NS, _SECOND_NS, total_bytes))
    for quarter in range(1, 20):
        rows = flows if quarter == 1 else flows[groups == CAPPED]
        after_ns = quarter * _SECOND_NS // 4
        take(rows, records_of(rows, 6 * _SECOND_NS + after_ns, after_ns, total_bytes[rows] // 5, SILENT))
    evidence.close(flows, flows.astype(np.uint64) + 1)
    assert evidence.compare().completion.ratio == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("at_once", [False, True], ids=["tick by tick", "in one batch"])
def test_a_silence_counts_once_across_an_idle_time(at_once: bool) -> None:
    """The idle time moves the period's start beyond the silence."""
    evidence, flows, groups, total_bytes, take = halves()

    take(flows, records_of(flows, _SECOND_NS, _SECOND_NS, total_bytes))
    silent = flows[groups == CAPPED]
    for second in range(1, 20, 3):
        start_ns, idle_ns = second * _SECOND_NS, 2 * _SECOND_NS
        part = records_of(silent, start_ns + 300_000_000, 300_000_000, total_bytes[silent] // 2, SILENT)
        ends = records_of(flows, start_ns + _SECOND_NS + idle_ns, _SECOND_NS, total_bytes)
        if at_once:
            take(np.concatenate([silent, flows]), np.concatenate([part, ends]))
        else:
            take(silent, part)
            take(flows, ends)
    assert evidence.compare().throughput.ratio == pytest.approx(1.0, abs=1e-9)
