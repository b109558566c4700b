"""Evaluation on a live link goes through the daemon's control loop; here with a link and a shim in memory."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from helpers import loops
from reinet.agents.decide import loop as loop_module
from reinet.agents.decide.baselines import FixedCap, NoCap, Rule
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray
from reinet.agents.evaluation import cost, gated, live
from reinet.agents.evaluation.run import Run, live_run, run
from reinet.agents.evaluation.scenario import Scenario
from reinet.core import LinkError
from reinet.core.records import FlowStatsArray
from reinet.envs.flow_shim import FlowShim
from reinet.envs.link.metrics import LinkLog, compute
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun
from reinet.envs.trace import Trace
from reinet.kshim.fake import FakeShim

COOKIE = 7
PERIOD_MS = 20
HEALTHY = loops.HEALTHY | {"inflight_pkts": 4}


class LiveShim(FakeShim):
    """A period later and one more record at every poll; remembers what was in force at each."""

    def __init__(self) -> None:
        super().__init__()
        self.in_force: list[int] = []
        self.fields = dict(HEALTHY)

    def poll(self, timeout_ms: int) -> FlowStatsArray:
        self.advance_ms(min(timeout_ms, PERIOD_MS))
        self.in_force.append(self.cap_pkts(COOKIE))
        self.feed(COOKIE, **self.fields)
        return super().poll(timeout_ms)


class Link:
    """A ``LiveLink`` without packets."""

    def __init__(self) -> None:
        self.fake = LiveShim()
        self.shim = FlowShim(self.fake, self.check, lambda: self.fake.now_ns)
        self.dead = False
        self.started_ns = 0
        self.stops = 0

    def check(self) -> None:
        if self.dead:
            raise LinkError("the sender ended with status -9")

    def start(self) -> None:
        self.fake.open_flow(COOKIE)
        self.shim.follow(COOKIE)
        self.started_ns = self.fake.now_ns

    def stop(self) -> LinkRun:
        self.stops += 1
        lapse = self.shim.end()
        times_ms = np.arange(1, 300)
        log = LinkLog(
            arrival_ms=times_ms, arrival_bytes=np.full(299, 1504), opportunity_ms=times_ms, opportunity_bytes=1504,
            departure_ms=times_ms, departure_bytes=np.full(299, 1504), departure_delay_ms=np.zeros(299),
        )  # fmt: skip
        return LinkRun(log, compute(log, 20, 300), lapse, self.started_ns, 1, 300)


def evaluate(agent: Agent, link: Link, seconds: float = 1.0, target: str | None = None) -> Run:
    scenario = Scenario.of(Trace.constant(12, 1), "mahimahi", seconds=seconds, target=target)
    return live_run(link, agent, scenario, clock_ns=lambda: link.fake.now_ns)


class GatedLink(Link):
    """A link whose sender is under the gate and wrote these records, which count from the link's start."""

    ZERO_NS = 3 * 10**9

    def __init__(self, records: FlowStatsArray) -> None:
        super().__init__()
        self._records = records.copy()
        self._records["time_ns"] += np.uint64(self.ZERO_NS)

    def __call__(self, path: LinkSpec, sender_variables: object) -> "GatedLink":
        return self

    def __enter__(self) -> "GatedLink":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def go_on(self, seconds: float, progress: object) -> None:
        pass

    def stop(self) -> LinkRun:
        return replace(super().stop(), zero_ns=self.ZERO_NS)

    def read_file(self, name: str) -> bytes:
        return self._records.tobytes()


def through_the_gate(
    monkeypatch: pytest.MonkeyPatch, agent: Agent, target: str | None = None, seen: slice = slice(None)
) -> Run:
    """Returns a run through the gate, which made some of a simulated flow's records."""
    asked = partial(Scenario.of, Trace.constant(12, 10), seconds=10.0, target=target)
    records = run(agent, asked("sim")).records[seen]
    monkeypatch.setattr(gated, "MahimahiLink", GatedLink(records))
    done = run(agent, asked("mahimahi", actuator="app"))
    np.testing.assert_array_equal(done.records, records)
    return done


def test_a_live_run_is_the_daemons_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[ControlLoop] = []

    class Watched(ControlLoop):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type]
            loops.append(self)

    assert live.ControlLoop is loop_module.ControlLoop
    monkeypatch.setattr(live, "ControlLoop", Watched)
    link = Link()
    done = evaluate(Rule(1.5), link)
    (loop,) = loops
    assert loop.status().decisions == len(done.records) == 50
    assert set(done.caps_pkts.tolist()) == {30}
    assert set(link.fake.in_force[1:]) == {30}  # it was in the shim, not only in the table
    assert (done.records["target_us"] == 50_000).all()
    assert (done.records["time_ns"][0], done.records["time_ns"][-1]) == (20_000_000, 1_000_000_000)  # of the link
    assert (done.invalid_reason, done.uncapped_reason) == (None, None)
    assert done.row()["decisions"] == len(done.records)
    assert link.stops == 1
    assert link.fake.cap_pkts(COOKIE) == 0  # lifted at the end


def test_what_a_flow_costs_is_told_of_both_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    used_s, link = [0.0], Link()

    def poll(timeout_ms: int) -> FlowStatsArray:
        used_s[0] += 0.002
        return LiveShim.poll(link.fake, timeout_ms)

    monkeypatch.setattr(link.fake, "poll", poll)
    monkeypatch.setattr(cost.time, "process_time", lambda: used_s[0])
    monkeypatch.setattr(cost.time, "monotonic", lambda: link.fake.now_ns / 1e9)
    monkeypatch.setattr(cost, "drive", partial(live.drive, clock_ns=lambda: link.fake.now_ns))
    done = cost.measured(link, Rule(1.5), Scenario.of(Trace.constant(12, 1), "mahimahi", seconds=1.0))
    assert done.row()["deciding_percent"] == pytest.approx(10.0, rel=0.01)  # 2 ms of every 20 ms
    sent = replace(done, run=replace(done.run, link=replace(done.run.link, sender_cpu_us=2_990)))
    assert sent.row()["sender_percent"] == pytest.approx(1.0)
    assert sent.row()["sender_ms_per_mb"] == pytest.approx(2.99 / (done.row()["throughput_mbps"] * 0.299 / 8))


def test_a_relative_target_is_resolved_from_what_the_flow_measures() -> None:
    link = Link()
    link.fake.fields["min_rtt_us"] = 21_700
    done = evaluate(Rule(1.5), link, target="2.5x")
    assert (done.records["target_us"] == 54_250).all()
    assert (done.row()["target"], done.row()["target_ms"]) == ("2.5x", 50.0)  # the latter from the path's 20 ms


def test_without_caps_there_are_records_all_the_same() -> None:
    done = evaluate(NoCap(), Link())
    assert done.records.size == 50
    assert not done.caps_pkts.any()
    assert done.uncapped_reason is None


def test_a_flow_that_cannot_be_observed_runs_without_records() -> None:
    link = Link()
    link.shim = FlowShim(None, lambda: link.fake.advance_ms(50))
    done = evaluate(NoCap(), link)
    assert done.records.size == done.caps_pkts.size == 0
    assert done.invalid_reason is None
    assert done.row()["decisions"] == 0


def test_a_refused_flow_says_why() -> None:
    link = Link()
    link.fake.fields["min_rtt_us"] = 60_000
    done = evaluate(FixedCap(20), link)
    assert "below 1.1 x the path's minimum RTT" in str(done.uncapped_reason)
    assert done.invalid_reason is None  # refusing is the guard's right


def test_a_flow_that_was_refused_through_the_gate_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process writes no reasons: they are found in its records."""
    refused = through_the_gate(monkeypatch, Rule(1.5), target="21ms")
    assert "target 21.0 ms is below 1.1 x the path's minimum RTT" in str(refused.row()["uncapped_reason"])
    assert refused.invalid_reason is None
    capped = through_the_gate(monkeypatch, Rule(1.5))
    assert capped.caps_pkts[-1] > 0
    assert capped.uncapped_reason is None
    assert through_the_gate(monkeypatch, NoCap(), target="21ms").uncapped_reason is None


def test_a_flow_of_which_the_gate_made_no_record_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    unseen = through_the_gate(monkeypatch, Rule(1.5), seen=slice(0))
    assert str(unseen.uncapped_reason).startswith(
        "the gate made no record with an RTT sample, so no cap came: flow ran uncapped"
    )
    assert through_the_gate(monkeypatch, NoCap(), seen=slice(0)).uncapped_reason is None


class Failing(Agent):
    """Caps at 20 packets, but raises at its calls of these numbers."""

    def __init__(self, fails: Callable[[int], bool]) -> None:
        super().__init__("failing")
        self._fails = fails
        self.calls = 0

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        self.calls += 1
        if self._fails(self.calls):
            raise RuntimeError("no such tensor")
        return np.full(len(stats), 20, np.uint32)


@pytest.mark.parametrize("fails", [lambda call: True, lambda call: call == 3], ids=["always", "once"])
def test_an_agent_that_raises_makes_the_run_invalid_and_leaves_the_flow_uncapped(
    fails: Callable[[int], bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """As under the daemon the flow goes on without its cap; a row of it must not be read as the agent's."""
    link = Link()
    done = evaluate(Failing(fails), link)
    assert done.invalid_reason == ("the agent failing failed: RuntimeError: no such tensor; all flows are uncapped")
    assert done.row()["valid"] is False
    assert 0 in link.fake.in_force[3:]
    said = capsys.readouterr()
    assert said.out == ""  # where `--json -` writes its rows
    assert "no such tensor" in said.err
    assert said.err.count("\n") < 40  # where it was raised, not all that the loop knew


def test_an_agent_that_hangs_lets_its_cap_lapse_and_the_run_says_so() -> None:
    class Slow(FixedCap):
        calls = 0

        def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
            self.calls += 1
            if self.calls == 3:
                link.fake.advance_ms(600)  # longer than a lease
            return super().decide(stats, states, rule_pkts)

    link = Link()
    done = evaluate(Slow(20), link)
    assert "the loop lagged: the cap lapsed" in str(done.invalid_reason)


def test_a_link_that_dies_is_an_error() -> None:
    link = Link()
    link.dead = True
    link.fake.poll = lambda timeout_ms: FakeShim.poll(link.fake, timeout_ms)  # type: ignore[method-assign]  # silent
    with pytest.raises(LinkError, match="sender ended"):
        evaluate(NoCap(), link)
