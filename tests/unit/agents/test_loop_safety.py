"""What the loop does when it was held up, when a model's outputs are bad, and what a tick costs."""

import time

import numpy as np
import pytest
import structlog

from helpers.loops import HEALTHY
from reinet.agents.decide.baselines import FixedCap
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.modes import Mode, PolicySpec, lots
from reinet.agents.decide.names import make_agent
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray
from reinet.agents.decide.quarantine import LEAST_DECISIONS, MOST_REFUSED, WINDOW_NS, Quarantine
from reinet.agents.decide.recent import RECORDS, RecentRecords
from reinet.agents.decide.verdicts import WORDS, Why
from reinet.core.records import FLOW_STATS_DTYPE, FlowStatsArray
from reinet.core.states.caps import INVALID_CAP_PKTS
from reinet.core.target import Target
from reinet.kshim.fake import FakeShim

COOKIES = range(1, 21)


class Share(Agent):
    """Gives no number for a share of the flows that it is asked about, by their cookies."""

    def __init__(self, bad: int, answer_pkts: int = 10) -> None:
        super().__init__("share")
        self.bad, self.answer_pkts = bad, answer_pkts
        self.asked = 0

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        self.asked += 1
        return np.where(stats["cookie"] <= self.bad, INVALID_CAP_PKTS, self.answer_pkts).astype(np.uint32)


class Broken(Agent):
    """Raises."""

    def __init__(self) -> None:
        super().__init__("broken")

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        raise RuntimeError("no such tensor")


def made(agent: Agent) -> tuple[FakeShim, ControlLoop]:
    shim = FakeShim()
    for cookie in COOKIES:
        shim.open_flow(cookie)
    return shim, ControlLoop(shim, agent, Target.parse("50ms"), clock_ns=lambda: shim.now_ns)


def tick(shim: FakeShim, loop: ControlLoop, times: int = 1) -> None:
    for _ in range(times):
        shim.advance_ms(20)
        for cookie in COOKIES:
            shim.feed(cookie, **HEALTHY)
        loop.tick()


# --- records that come late ---


def test_a_record_older_than_a_lease_is_not_decided_on_and_enters_the_history() -> None:
    """As after SIGSTOP and SIGCONT: the ring buffer gives the oldest records first."""
    agent = Share(bad=0)
    shim, loop = made(agent)
    shim.feed(7, **HEALTHY)
    shim.feed(8, **HEALTHY)
    shim.advance_ms(499)
    shim.feed(8, **HEALTHY)
    shim.advance_ms(2)
    loop.tick()
    assert (shim.cap_pkts(7), shim.cap_pkts(8)) == (0, 10)
    seen = loop.snapshot()
    assert dict(zip(seen.stats["cookie"].tolist(), seen.reasons, strict=True)) == {7: WORDS[Why.STALE], 8: ""}
    assert loop.status().stale == 1
    assert loop.status().decisions == 1


def test_caps_from_before_a_pause_of_the_process_are_not_renewed() -> None:
    shim, loop = made(FixedCap(10))
    tick(shim, loop)
    assert shim.cap_pkts(7) == 10
    shim.advance_ms(501)
    assert shim.cap_pkts(7) == 0
    shim.feed(8, **HEALTHY)
    loop.tick()
    assert (shim.cap_pkts(7), shim.cap_pkts(8)) == (0, 10)
    reasons = dict(zip(*(loop.snapshot().stats["cookie"].tolist(), loop.snapshot().reasons), strict=True))
    assert (reasons[7], reasons[8]) == (WORDS[Why.LAPSED], "")
    tick(shim, loop)
    assert shim.cap_pkts(7) == 10


# --- the bound on steps ---


@pytest.mark.parametrize(
    ("in_force_pkts", "cwnd_pkts", "wanted_pkts", "cap_pkts"),
    [
        (100, 100, 401, 400),
        (100, 300, 4000, 1200),  # the window may be above the cap: it was there before
        (100, 100, 4, 7),  # rounded up to what is allowed
        (0, 320, 5, 20),  # uncapped so far: from where the window is
        (0, 320, 0, 0),
        (100, 100, 0, 0),  # no cap is always right
        (100, 100, 7, 7),
        (4, 1, 8, 8),
    ],
)
def test_a_cap_stays_near_the_one_in_force(in_force_pkts: int, cwnd_pkts: int, wanted_pkts: int, cap_pkts: int) -> None:
    shim = FakeShim()
    loop = ControlLoop(
        shim, FixedCap(wanted_pkts), Target.parse("50ms"), clock_ns=lambda: shim.now_ns, bounds_steps=True
    )
    shim.open_flow(7)
    shim.feed(7, **HEALTHY | {"cap_pkts": in_force_pkts, "cwnd_pkts": cwnd_pkts})
    loop.tick()
    assert shim.cap_pkts(7) == cap_pkts


@pytest.mark.parametrize("in_force_pkts", [0, 640])
def test_a_cap_that_may_not_fall_so_far_stays_below_the_ceiling_all_the_same(in_force_pkts: int) -> None:
    """A sixteenth of what is in force is twice the ceiling."""
    shim = FakeShim()
    loop = ControlLoop(
        shim, FixedCap(10), Target.parse("50ms"), ceiling_pkts=20, clock_ns=lambda: shim.now_ns, bounds_steps=True
    )
    shim.open_flow(7)
    shim.feed(7, **HEALTHY | {"cap_pkts": in_force_pkts, "cwnd_pkts": 640})
    loop.tick()
    assert shim.cap_pkts(7) == 20


def test_a_bounded_cap_gets_where_the_agent_wants_it_within_a_few_decisions() -> None:
    shim = FakeShim()
    loop = ControlLoop(shim, FixedCap(4), Target.parse("50ms"), clock_ns=lambda: shim.now_ns, bounds_steps=True)
    shim.open_flow(7)
    caps = []
    for _ in range(4):
        shim.advance_ms(20)
        shim.feed(7, **HEALTHY | {"cwnd_pkts": caps[-1] if caps else 40_000})
        loop.tick()
        caps.append(shim.cap_pkts(7))
    assert caps == [2500, 157, 10, 4]


# --- quarantine ---


def test_a_model_whose_outputs_are_refused_too_often_gives_way_to_the_hand_rule() -> None:
    agent = Share(bad=3)  # of 20
    shim, loop = made(agent)
    with structlog.testing.capture_logs() as seen:
        tick(shim, loop, 2)
        assert shim.cap_pkts(7) == 10
        assert loop.status().ok
        tick(shim, loop, 200)
    asked = agent.asked
    tick(shim, loop)
    assert agent.asked == asked, "a model in quarantine is not asked"
    assert [shim.cap_pkts(cookie) for cookie in COOKIES] == [30] * 20
    status = loop.status()
    assert not status.ok
    assert status.problem.startswith("the agent share is in quarantine, rule:1.5 caps in its place: ")
    assert "9 of its 60 decisions in the last 10 s were refused" in status.problem
    assert [entry["event"] for entry in seen].count("agent in quarantine") == 1


def test_a_model_that_seldom_gives_no_number_keeps_its_office() -> None:
    shim, loop = made(Share(bad=1))
    tick(shim, loop, 200)
    assert [shim.cap_pkts(cookie) for cookie in (1, 2)] == [0, 10]
    assert loop.status().ok


def test_a_model_that_always_raises_is_quarantined_too() -> None:
    shim, loop = made(Broken())
    tick(shim, loop)
    assert [shim.cap_pkts(cookie) for cookie in COOKIES] == [0] * 20
    assert "no such tensor" in loop.status().problem
    tick(shim, loop, 3)
    assert [shim.cap_pkts(cookie) for cookie in COOKIES] == [30] * 20
    assert "in quarantine" in loop.status().problem


def test_what_the_flow_or_the_target_is_refused_for_is_not_the_models_fault() -> None:
    shim = FakeShim()
    loop = ControlLoop(shim, FixedCap(10), Target.parse("20ms"), clock_ns=lambda: shim.now_ns)
    shim.open_flow(7)
    for _ in range(3 * LEAST_DECISIONS):
        shim.advance_ms(20)
        shim.feed(7, **HEALTHY)
        loop.tick()
    assert "is below 1.1 x" in loop.snapshot().reasons[0]
    assert loop.status().ok


def test_the_window_of_the_quarantine_slides() -> None:
    quarantine = Quarantine()
    bad = round(MOST_REFUSED * 1000)
    assert not quarantine.note(1000, bad, 0)
    assert quarantine.note(10, 10, WINDOW_NS // 2), "both are in the window"
    later = Quarantine()
    later.note(1000, 1000, 0)
    assert not later.note(LEAST_DECISIONS, 0, 2 * WINDOW_NS), "what was long ago does not count"
    assert not Quarantine().note(LEAST_DECISIONS - 1, LEAST_DECISIONS - 1, 0)


# --- what a tick costs ---


def test_a_tick_costs_little_python_however_many_flows_there_are() -> None:
    """Counts calls of Python functions, which no load of the host changes; a walk over flows would make thousands."""
    import sys

    def calls(flows: int) -> int:
        shim = ArrayShim(flows)
        loop = ControlLoop(shim, FixedCap(10), Target.parse("20ms"))  # out of reach: every flow is refused
        loop.tick()
        shim.closing = flows // 2
        counted = [0]

        def count(*_: object) -> None:
            counted[0] += 1

        loop.figures()  # works off what the first tick noted
        sys.setprofile(count)
        try:
            loop.tick()
            loop.figures()
        finally:
            sys.setprofile(None)
        return counted[0]

    assert calls(2000) <= calls(20) + 20


class ArrayShim(FakeShim):
    """As many flows as one likes at the cost of one; half of them end in the second batch."""

    def __init__(self, flows: int) -> None:
        super().__init__(time.monotonic_ns())
        shim = FakeShim()
        shim.open_flow(1)
        shim.feed(1, **HEALTHY)
        self._batch = np.repeat(shim.poll(0), flows)
        self._batch["cookie"], self._batch["slot"] = np.arange(1, flows + 1), np.arange(flows)
        self.closing = 0

    def poll(self, timeout_ms: int) -> np.ndarray:
        batch = self._batch.copy()
        batch["time_ns"] = time.monotonic_ns()
        batch["flags"][: self.closing] = 0x10
        return batch

    def apply(self, *_: object, **__: object) -> None:
        pass

    def release(self, *_: object) -> None:
        pass


# --- several records of a flow at once ---


class Aiming(FixedCap):
    """One whose flows' queues are asked whether they are others'."""

    aims_at_target = True


@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.HOLD_OUT])
@pytest.mark.parametrize("together", [1, 5])
def test_the_guard_misses_no_record_of_those_that_come_at_once(together: int, mode: Mode) -> None:
    """A loop that is busy finds several records of a flow in a tick: its queue was asked so many times as late."""
    shim = FakeShim(now_ns=23 * 10**9)
    loop = ControlLoop(shim, Aiming(10), Target.parse("50ms"), clock_ns=lambda: shim.now_ns, mode=mode)
    capped = next(cookie for cookie in COOKIES if lots(np.array([cookie], np.uint64), 0)[0] > 0.5)
    shim.open_flow(capped)
    asked_s = 0.0
    for number in range(1, 4001):
        shim.now_ns += 5_000_000
        seconds = 0.005 * number
        fast = seconds <= 5
        shim.feed(
            capped, period_ns=5_000_000, delivered_bytes=7500 if fast else 1000,
            delivery_rate_bytes_per_s=1_500_000 if fast else 200_000, srtt_us=80_000,
            rtt_mean_us=30_000 if fast else 80_000, rtt_least_us=25_000 if fast else 70_000,
            rtt_last_us=80_000, rtt_samples=4, min_rtt_us=20_000, mss_bytes=1448, cwnd_pkts=40, inflight_pkts=10,
        )  # fmt: skip
        if number % together == 0:
            loop.tick()
            if shim.cap_pkts(capped) > 10:
                asked_s = seconds - 5
                break
    assert asked_s == pytest.approx(2.55, abs=0.05)


# --- the ceiling ---


@pytest.mark.parametrize("name", ["rule:1.2", "fixed:300", "random"])
def test_an_agent_that_wants_more_than_the_ceiling_gets_that_and_is_not_at_fault(name: str) -> None:
    shim = FakeShim()
    loop = ControlLoop(shim, make_agent(name), Target.parse("50ms"), ceiling_pkts=15, clock_ns=lambda: shim.now_ns)
    for cookie in COOKIES:
        shim.open_flow(cookie)
    tick(shim, loop, LEAST_DECISIONS)
    caps_pkts = {shim.cap_pkts(cookie) for cookie in COOKIES}
    assert caps_pkts <= {15} if name != "random" else max(caps_pkts) == 15
    assert loop.status().problem == ""


# --- what is kept for a model that is to take over ---


def test_the_latest_records_are_kept_in_order_and_no_more_of_them() -> None:
    recent = RecentRecords(records=5)
    assert len(recent.all()) == 0
    for first, count in ((1, 3), (4, 1), (5, 4)):
        batch = np.zeros(count, FLOW_STATS_DTYPE)
        batch["cookie"] = np.arange(first, first + count)
        recent.add(batch)
    assert recent.all()["cookie"].tolist() == [4, 5, 6, 7, 8]
    assert recent._kept == 5


def test_records_that_came_one_by_one_are_copied_nearly_as_fast_as_those_of_many() -> None:
    """The loop waits for the copy when a swap begins; it took 50 times as long, and caps lapsed on a busy host."""
    one = np.zeros(1, FLOW_STATS_DTYPE)
    singly, at_once = RecentRecords(), RecentRecords()
    for _ in range(RECORDS):
        singly.add(one)
    at_once.add(np.repeat(one, RECORDS))
    took_s = {}
    for recent in (singly, at_once):
        for _ in range(5):
            start_s = time.thread_time()
            assert len(recent.all()) == RECORDS
            took_s[recent] = min(time.thread_time() - start_s, took_s.get(recent, np.inf))
    assert took_s[singly] < 0.1 + 5 * took_s[at_once]


def test_however_many_policies_swap_at_once_what_was_recorded_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hundred policies the tick that began their swaps took three seconds, and every cap lapsed."""
    shim, loop = made(FixedCap(10))

    def specs(cap_pkts: int) -> list[PolicySpec]:
        target = Target.parse("50ms")
        return [PolicySpec(FixedCap(cap_pkts), target, name=name) for name in ("default", *map(str, range(20)))]

    loop.command(specs(10))
    tick(shim, loop, 3)
    loop.command(specs(20))
    copies = []
    all_of = RecentRecords.all
    monkeypatch.setattr(RecentRecords, "all", lambda recent: copies.append(recent) or all_of(recent))
    tick(shim, loop)
    assert len(copies) == 1
    assert [policy.swap for policy in loop.status().policies] == ["share: fixed:20"] * 21
