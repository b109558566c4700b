"""One decider: the same records give the same caps wherever they are decided; what agents are asked; who is guarded."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.places import ROOT
from reinet.agents.decide.baselines import FixedCap, NoCap, RandomCap, Rule
from reinet.agents.decide.decider import Decider
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.policy import Policy
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray
from reinet.agents.decide.verdicts import Why, text
from reinet.agents.evaluation.run import Run, run
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.learn.actors import WALK, FoldedActor, NoisyActor, Walker
from reinet.agents.model.mlp import Folded, act
from reinet.core import FLOW_STATS_DTYPE, Flag, caps_from_actions
from reinet.core.guard import Guard
from reinet.core.records import FlowStatsArray
from reinet.core.target import Target
from reinet.envs.trace import Trace
from reinet.kshim.fake import FakeShim

MODEL = ROOT / "checkpoints" / "default"
COOKIE = 1  # what the simulator calls the first flow of its first link
OUTAGE = Trace(np.concatenate([np.arange(1, 3001), np.arange(4200, 6001)]).astype(np.uint32), "outage")
"""12 Mbit/s with 1.2 s of nothing in it: records without a sample come, and must not move the cap."""


def simulated(agent: Agent, **scenario: object) -> Run:
    return run(agent, Scenario.of(OUTAGE, **{"link": "sim", "seconds": 8.0, **scenario}))  # type: ignore[arg-type]


def decided_alone(agent: Agent, records: FlowStatsArray) -> list[int]:
    bank, decider, caps = agent.view.bank(1), Decider(agent, 1, Guard()), []
    for index in range(len(records)):
        record = records[index : index + 1]
        batch = bank.update([0], record)
        caps.append(int(decider.decide(record, batch.states, batch.rule_pkts, batch.decided, batch.may_cap)[0]))
    return caps


def decided_by_the_loop(agent: Agent, records: FlowStatsArray, target_us: int) -> list[int]:
    """A tick for each record; the caps that the shim was given."""
    shim = FakeShim(0)
    loop = ControlLoop(shim, agent, Target.parse(target_us / 1000), clock_ns=lambda: shim.now_ns)
    shim.open_flow(COOKIE)
    caps = []
    for record in records:
        shim.now_ns = int(record["time_ns"])
        names = FLOW_STATS_DTYPE.names or ()
        shim.feed(COOKIE, **{name: int(record[name]) for name in names if name not in ("slot", "cookie")})
        loop.tick()
        caps.append(shim.cap_pkts(COOKIE))
    return caps


@pytest.mark.parametrize(
    ("make", "scenario"),
    [
        (lambda: Policy.load(MODEL), {}),
        (Rule, {}),
        (lambda: RandomCap(seed=5), {}),
        (lambda: FixedCap(20), {"mrtt_ms": 60.0, "seconds": 23.0}),  # out of reach: the guard looks when it is long
        (NoCap, {}),
    ],
    ids=["model", "rule", "random", "refused", "none"],
)
def test_the_same_records_give_the_same_caps_everywhere(make: Callable[[], Agent], scenario: dict[str, object]) -> None:
    done = simulated(make(), **scenario)
    silent = (done.records["flags"] & Flag.NO_SAMPLE) != 0
    assert silent.sum() > 2
    assert (done.caps_pkts[1:][silent[1:]] == done.caps_pkts[:-1][silent[1:]]).all()
    expected = done.caps_pkts.tolist()
    assert decided_alone(make(), done.records) == expected
    assert decided_by_the_loop(make(), done.records, round(done.scenario.target_ms * 1000)) == expected
    assert bool(done.caps_pkts.any()) is make().sets_caps


class Scripted(Agent):
    """Gives the answers it is told, in turn, and remembers what it was shown."""

    def __init__(self, *answers: object) -> None:
        super().__init__("scripted")
        self._answers = list(answers)
        self.shown: list[int] = []

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        self.shown.append(len(stats))
        return self._answers.pop(0)  # type: ignore[return-value]


def caps(*values: int) -> CapArray:
    return np.array(values, np.uint32)


ALL = OPEN = np.ones(3, bool)
CLOSED = ~OPEN


def three(min_rtt_us: int = 20_000) -> tuple[FlowStatsArray, FloatArray, FloatArray]:
    stats = np.zeros(3, FLOW_STATS_DTYPE)
    stats["cookie"], stats["min_rtt_us"], stats["target_us"] = [1, 2, 3], min_rtt_us, 50_000
    return stats, np.zeros((3, 100), np.float32), np.zeros(3, np.float32)


def test_flows_without_a_sample_keep_their_caps_and_an_agent_is_not_asked_for_nothing() -> None:
    agent = Scripted(caps(10, 11, 12), caps(20, 21, 22))
    decider = Decider(agent, 3, Guard())
    assert decider.decide(*three(), np.array([True, True, True]), OPEN).tolist() == [10, 11, 12]
    assert decider.decide(*three(), np.array([False, False, False]), OPEN).tolist() == [10, 11, 12]
    assert decider.decide(*three(), np.array([True, False, True]), OPEN).tolist() == [20, 11, 22]
    assert agent.shown == [3, 3]  # all of them or none: some agents know flows by their place


def test_a_refusal_is_kept_until_the_next_decision() -> None:
    decider = Decider(Scripted(caps(3, 10, 0), caps(10, 10, 10)), 3, Guard())
    assert decider.decide(*three(), ALL, OPEN).tolist() == [0, 10, 0]
    assert "a cap of 3 packets is outside" in text(decider.verdicts[0])
    assert decider.verdicts["code"].tolist() == [Why.OUT_OF_RANGE, Why.CAPPED, Why.AGENT_CHOSE_NONE]
    decider.decide(*three(), np.array([False, True, True]), OPEN)
    assert decider.verdicts["code"].tolist() == [Why.OUT_OF_RANGE, Why.CAPPED, Why.CAPPED]
    assert decider.caps_pkts.tolist() == [0, 10, 10]


def test_asking_changes_nothing_in_force() -> None:
    decider = Decider(Scripted(caps(10, 11, 12), None), 3, Guard())
    decision = decider.ask(*three(), OPEN)
    assert decision.caps_pkts.tolist() == [10, 11, 12]
    assert not decider.caps_pkts.any()
    with pytest.raises(ValueError, match="3 caps as uint32 were due"):
        decider.ask(*three(), OPEN)


def test_a_cleared_row_has_no_cap_in_force() -> None:
    decider = Decider(Scripted(caps(10, 11, 12)), 3, Guard())
    decider.decide(*three(), ALL, OPEN)
    decider.clear(np.array([1]))
    assert decider.caps_pkts.tolist() == [10, 0, 12]


def test_rollouts_are_not_guarded() -> None:
    """A flow whose target is out of reach is left alone by the guard; an action's own cap must act in a rollout."""
    guarded, free = (Decider(Scripted(caps(30, 30, 30)), 3, guard) for guard in (Guard(), None))
    assert guarded.decide(*three(min_rtt_us=60_000), ALL, OPEN).tolist() == [0, 0, 0]
    assert free.decide(*three(min_rtt_us=60_000), ALL, OPEN).tolist() == [30, 30, 30]


# --- the gate ---


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "rollout"])
def test_a_flow_whose_gate_is_closed_gets_no_cap(guarded: bool) -> None:
    decider = Decider(Scripted(caps(10, 11, 0), caps(10, 11, 0)), 3, Guard() if guarded else None)
    assert decider.decide(*three(), ALL, np.array([False, True, False])).tolist() == [0, 11, 0]
    assert decider.verdicts["code"].tolist() == [Why.NO_QUEUE, Why.CAPPED, Why.AGENT_CHOSE_NONE]
    assert decider.decide(*three(), ALL, OPEN).tolist() == [10, 11, 0]
    assert decider.verdicts["code"].tolist() == [Why.CAPPED, Why.CAPPED, Why.AGENT_CHOSE_NONE]


def test_a_gate_that_closes_lifts_the_cap_with_the_next_decision() -> None:
    decider = Decider(Scripted(caps(10, 10, 10), caps(10, 10, 10)), 3, Guard())
    decider.decide(*three(), ALL, OPEN)
    assert decider.decide(*three(), ~ALL, CLOSED).tolist() == [10, 10, 10]  # nothing was decided
    assert decider.decide(*three(), np.array([True, False, True]), CLOSED).tolist() == [0, 10, 0]
    assert decider.verdicts["code"].tolist() == [Why.NO_QUEUE, Why.CAPPED, Why.NO_QUEUE]


def test_the_guards_reason_goes_before_the_gates() -> None:
    """What somebody can mend is told first."""
    decider = Decider(Scripted(caps(10, 10, 10)), 3, Guard())
    stats, states, rule_pkts = three()
    stats["min_rtt_us"], stats["target_us"] = [20_000, 60_000, 0xFFFF_FFFF], [0, 50_000, 50_000]
    assert decider.decide(stats, states, rule_pkts, ALL, CLOSED).tolist() == [0, 0, 0]
    assert decider.verdicts["code"].tolist() == [Why.NO_TARGET, Why.TOO_TIGHT, Why.UNMEASURED]


def test_a_closed_flow_is_not_held_at_the_floor_to_look_for_its_path() -> None:
    decider = Decider(Scripted(*[caps(30, 30, 30)] * 5), 3, Guard())
    for _ in range(5):
        assert not decider.decide(*three(min_rtt_us=60_000), ALL, CLOSED).any()


# --- the agents of training ---


def folded() -> Folded:
    rng = np.random.default_rng(0)
    sizes = [(8, 100), (1, 8)]
    return Folded([(rng.normal(0, 0.3, size).astype(np.float32), np.zeros(size[0], np.float32)) for size in sizes])


def test_a_folded_actor_is_an_agent_and_noise_moves_its_actions() -> None:
    view = NoCap().view
    stats, _, rule_pkts = three()
    stats["cwnd_pkts"] = 100
    states = np.random.default_rng(1).normal(size=(3, 100)).astype(np.float32)
    actions = act(folded(), states)
    plain = FoldedActor(folded(), "cwnd", view).decide(stats, states, rule_pkts)
    np.testing.assert_array_equal(plain, caps_from_actions("cwnd", actions, stats["cwnd_pkts"], rule_pkts))
    noise = np.array([[0, 0, 0], [0.1, -0.1, 5]], np.float32)
    noisy = NoisyActor(folded(), noise, "cwnd", view)
    np.testing.assert_array_equal(noisy.decide(stats, states, rule_pkts), plain)
    noisy.period = 1
    noisy.decide(stats, states, rule_pkts)
    np.testing.assert_array_equal(noisy.actions[1], np.clip(actions + noise[1], -1, 1))


def test_the_walk_goes_down_once_from_each_flows_own_start() -> None:
    walker = Walker(np.array([0, 8]), 16, "cwnd", NoCap().view)
    stats, states, rule_pkts = three()
    for walker.period in range(16):
        walker.decide(stats[:2], states[:2], rule_pkts[:2])
    np.testing.assert_array_equal(walker.actions[:, 0], WALK)
    np.testing.assert_array_equal(walker.actions[:, 1], np.roll(WALK, -8))


# --- what a caller may ask of any agent ---


def test_a_model_tells_of_itself_what_a_baseline_need_not() -> None:
    model, rule = Policy.load(MODEL), Rule()
    assert model.trace_uses
    assert model.target_range_ms == model.manifest.target_range_ms
    assert model.queueing_target_range_ms == (15.0, 80.0)
    assert model.congestion_controls == ["cubic", "bbr", "reno", "westwood", "illinois"]
    assert model.called == f"{MODEL} (schema {model.manifest.schema_.hash})"
    assert rule.queueing_target_range_ms is None
    assert (rule.trace_uses, rule.target_range_ms, rule.congestion_controls, rule.called) == (
        (),
        None,
        None,
        "rule:1.5",
    )


def test_nobody_asks_what_class_an_agent_is() -> None:
    sources = [path for room in ("agents", "daemon", "cli", "envs") for path in (ROOT / room).rglob("*.py")]
    assert len(sources) > 60

    def asks(path: Path) -> bool:
        text = path.read_text()
        return "hasattr(" in text or "isinstance(agent" in text or "isinstance(self._agent" in text

    assert [str(path) for path in sources if asks(path)] == []
