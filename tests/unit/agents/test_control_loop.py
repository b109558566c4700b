"""The decision loop against a shim in memory: caps, leases, pauses and everything that must fail open."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import structlog

from helpers.loops import HEALTHY, LEASE_MS
from reinet.agents.decide.baselines import FixedCap, Rule
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray
from reinet.agents.decide.verdicts import WORDS, Why
from reinet.core.peers import peer_of
from reinet.core.records import Flag, FlowStatsArray
from reinet.core.states.caps import INVALID_CAP_PKTS
from reinet.core.target import Target
from reinet.kshim.fake import FakeShim

YOUNG = HEALTHY | {"rtt_least_us": 21_000}
"""The queue drains within the round trip: the gate stays closed."""


class ScriptedAgent(Agent):
    """Returns or raises what it is told."""

    def __init__(self, decide: Callable[[FlowStatsArray, FloatArray], CapArray]) -> None:
        super().__init__("scripted")
        self._decide = decide
        self.states: list[FloatArray] = []

    def reset(self) -> None:
        self.states.clear()

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        self.states.append(states.copy())
        return self._decide(stats, states)


class Sink:
    def __init__(self) -> None:
        self.points: list[tuple[int, int]] = []

    def offer(self, records: FlowStatsArray, caps_pkts: np.ndarray) -> None:
        self.points += [(int(r["cookie"]), int(c)) for r, c in zip(records, caps_pkts, strict=True)]


def make_loop(shim: FakeShim, agent: Agent, target: str = "50ms", sink: Sink | None = None) -> ControlLoop:
    return ControlLoop(shim, agent, Target.parse(target), LEASE_MS, sink=sink, clock_ns=lambda: shim.now_ns)


def started(agent: Agent, *cookies: int, target: str = "50ms") -> tuple[FakeShim, ControlLoop]:
    """A shim with these flows, 7 alone if none is named, and a loop that has decided on one healthy record of each."""
    shim = FakeShim()
    loop = make_loop(shim, agent, target)
    for cookie in cookies or (7,):
        shim.open_flow(cookie)
        shim.feed(cookie, **HEALTHY)
    loop.tick()
    return shim, loop


def reasons(loop: ControlLoop) -> dict[int, str]:
    seen = loop.snapshot()
    return dict(zip(seen.stats["cookie"].tolist(), seen.reasons, strict=True))


@pytest.mark.parametrize("shared_uplink", [False, True])
def test_flows_to_several_peers_know_of_each_other_where_they_share_an_uplink(shared_uplink: bool) -> None:
    shim = FakeShim()
    loop = ControlLoop(
        shim, FixedCap(10), Target.parse("50ms"), clock_ns=lambda: shim.now_ns, shared_uplink=shared_uplink
    )
    for cookie in (7, 8):
        shim.open_flow(cookie)
    for _ in range(5):
        shim.advance_ms(60)
        for cookie in (7, 8):
            shim.feed(cookie, **HEALTHY | {"peer": peer_of(f"198.51.100.{cookie}")})
        loop.tick()
    assert [bool(flags & Flag.COMPANY) for flags in loop.snapshot().stats["flags"]] == [shared_uplink] * 2


def test_a_record_leads_to_a_cap() -> None:
    shim, sink = FakeShim(), Sink()
    loop = make_loop(shim, Rule(1.5), sink=sink)
    shim.open_flow(7)
    shim.feed(7, **HEALTHY)
    loop.tick()
    assert shim.cap_pkts(7) == 30
    assert shim.target_us(7) == 50_000
    assert reasons(loop) == {7: ""}
    assert sink.points == [(7, 30)]
    status = loop.status()
    assert status.ok
    assert (status.decisions, status.records, status.flows) == (1, 1, 1)


def test_the_lease_is_renewed_without_any_event() -> None:
    shim, loop = started(FixedCap(10))
    for _ in range(60):  # 3 s of outage: no record at all
        shim.advance_ms(50)
        loop.tick()
        assert shim.cap_pkts(7) == 10


def test_the_cap_of_an_idle_flow_lapses_and_comes_again_with_its_next_decision() -> None:
    shim, loop = started(FixedCap(10), 7, 8)
    shim.set_outstanding(7, False)
    shim.set_outstanding(8, False)
    for _ in range(5):
        shim.advance_ms(200)
        shim.feed(8, flags=int(Flag.NO_SAMPLE), min_rtt_us=20_000)
        loop.tick()
    assert (shim.cap_pkts(7), shim.cap_pkts(8)) == (0, 10)
    assert reasons(loop) == {7: WORDS[Why.IDLE], 8: ""}
    assert loop.snapshot().caps_pkts.tolist() == [0, 10]
    shim.feed(7, **HEALTHY)
    loop.tick()
    assert shim.cap_pkts(7) == 10
    assert reasons(loop) == {7: "", 8: ""}


def test_a_flow_that_was_refused_keeps_its_reason_while_it_is_idle() -> None:
    shim, loop = started(FixedCap(3))
    shim.set_outstanding(7, False)
    for _ in range(5):
        shim.advance_ms(200)
        loop.tick()
    assert "a cap of 3 packets is outside" in reasons(loop)[7]


def test_silence_records_leave_cap_and_state_alone() -> None:
    agent = ScriptedAgent(lambda stats, states: np.full(len(stats), 10, np.uint32))
    shim, loop = started(agent)
    for _ in range(12):
        shim.advance_ms(250)
        shim.feed(7, flags=int(Flag.NO_SAMPLE), min_rtt_us=20_000)
        loop.tick()
        for _ in range(3):
            shim.advance_ms(50)
            loop.tick()
        assert shim.cap_pkts(7) == 10
    assert len(agent.states) == 1
    shim.feed(7, **HEALTHY)
    loop.tick()
    assert np.count_nonzero(agent.states[1].reshape(20, 5).any(axis=1)) == 2  # two observations, not fourteen


def test_caps_lapse_when_the_loop_stops_ticking() -> None:
    shim, loop = started(FixedCap(10))
    shim.advance_ms(LEASE_MS - 1)
    assert shim.cap_pkts(7) == 10
    shim.advance_ms(2)
    assert shim.cap_pkts(7) == 0
    status = loop.status()
    assert not status.ok
    assert "no tick completed for 0.5 s" in status.problem


def test_a_hanging_agent_loses_its_caps_within_a_lease() -> None:
    shim = FakeShim(time.monotonic_ns())
    go_on = threading.Event()
    calls = []

    def hang(stats: FlowStatsArray, states: FloatArray) -> CapArray:
        calls.append(1)
        if len(calls) > 1:
            go_on.wait(60)
        return np.full(len(stats), 10, np.uint32)

    loop = make_loop(shim, ScriptedAgent(hang))
    shim.open_flow(7)
    shim.feed(7, **HEALTHY)
    loop.tick()
    shim.feed(7, **HEALTHY)
    worker = threading.Thread(target=loop.tick)
    worker.start()
    while len(calls) < 2:
        time.sleep(0.001)
    assert shim.cap_pkts(7) == 10
    shim.advance_ms(LEASE_MS + 1)
    assert shim.cap_pkts(7) == 0
    assert not loop.status().ok  # others can still ask
    with pytest.raises(TimeoutError, match="did not answer"):
        loop.pause(timeout_s=0.05)
    go_on.set()
    worker.join(60)
    assert shim.cap_pkts(7) == 0  # the pause asked for meanwhile holds
    loop.tick()
    assert loop.status().ok
    assert loop.status().paused


def test_a_raising_agent_lifts_every_cap_and_may_recover() -> None:
    broken = []

    def decide(stats: FlowStatsArray, states: FloatArray) -> CapArray:
        if broken:
            raise RuntimeError("no such tensor")
        return np.full(len(stats), 10, np.uint32)

    shim, loop = started(ScriptedAgent(decide), 7, 8)
    assert shim.cap_pkts(8) == 10
    broken.append(1)
    shim.feed(7, **HEALTHY)
    loop.tick()
    assert (shim.cap_pkts(7), shim.cap_pkts(8)) == (0, 0)
    assert "no such tensor" in loop.status().problem
    assert "no such tensor" in reasons(loop)[8]
    shim.advance_ms(200)
    loop.tick()  # a tick without records does not make it well again
    assert not loop.status().ok
    assert shim.cap_pkts(8) == 0
    broken.clear()
    shim.feed(7, **HEALTHY)
    loop.tick()
    assert loop.status().ok
    assert (shim.cap_pkts(7), shim.cap_pkts(8)) == (10, 0)


@pytest.mark.parametrize(
    "answer",
    [np.zeros(3, np.uint32), np.array([np.nan]), np.array([-1]), None, np.zeros((1, 1), np.uint32)],
    ids=["count", "float", "signed", "none", "shape"],
)
def test_an_answer_of_the_wrong_kind_fails_open(answer: object) -> None:
    shim, loop = started(ScriptedAgent(lambda stats, states: answer))  # type: ignore[arg-type, return-value]
    assert shim.cap_pkts(7) == 0
    assert "1 caps as uint32 were due" in loop.status().problem


def test_a_number_that_is_none_uncaps_only_its_flow() -> None:
    answers = {7: INVALID_CAP_PKTS, 8: 12, 9: 3}
    agent = ScriptedAgent(lambda s, _: np.array([answers[int(c)] for c in s["cookie"]], np.uint32))
    shim, loop = started(agent, *answers)
    assert [shim.cap_pkts(cookie) for cookie in answers] == [0, 12, 0]
    assert "not a finite number" in reasons(loop)[7]
    assert "outside [4" in reasons(loop)[9]
    assert loop.status().ok


def test_a_target_below_the_path_leaves_the_flow_uncapped_and_says_so() -> None:
    shim = FakeShim()
    loop = make_loop(shim, FixedCap(10), target="20ms")
    shim.open_flow(7)
    shim.open_flow(8)
    shim.feed(7, **HEALTHY | {"min_rtt_us": 19_500})
    shim.feed(8, **HEALTHY | {"min_rtt_us": 18_000})
    loop.tick()
    assert (shim.cap_pkts(7), shim.cap_pkts(8)) == (0, 10)
    assert reasons(loop)[7].startswith("target 20.0 ms is below 1.1 x the path's minimum RTT (19.5 ms)")


def test_a_refusal_is_logged_once_per_flow() -> None:
    shim = FakeShim()
    loop = make_loop(shim, FixedCap(10), target="20ms")
    with structlog.testing.capture_logs() as seen:
        for cookie in (7, 8):
            shim.open_flow(cookie)
            for _ in range(3):
                shim.feed(cookie, **HEALTHY)
                loop.tick()
                shim.advance_ms(500)
    assert [(entry["event"], entry["cookie"]) for entry in seen] == [("flow refused", 7), ("flow refused", 8)]
    assert "is below 1.1 x the path's minimum RTT" in seen[0]["reason"]


def test_a_flow_without_a_queue_of_its_own_is_left_alone_and_nothing_is_logged() -> None:
    shim = FakeShim()
    loop = make_loop(shim, FixedCap(10))
    shim.open_flow(7)
    with structlog.testing.capture_logs() as seen:
        for _ in range(5):
            shim.feed(7, **YOUNG)
            loop.tick()
            assert shim.cap_pkts(7) == 0
            assert reasons(loop) == {7: WORDS[Why.NO_QUEUE]}
            shim.advance_ms(2000)
        shim.feed(7, **HEALTHY)
        loop.tick()
        assert shim.cap_pkts(7) == 10
        assert reasons(loop) == {7: ""}
        shim.feed(7, **YOUNG | {"flags": int(Flag.RESTARTED)})
        loop.tick()
    assert shim.cap_pkts(7) == 0
    assert reasons(loop) == {7: WORDS[Why.NO_QUEUE]}
    assert seen == []
    assert loop.status().ok


def test_a_refusal_after_the_gate_opened_is_logged() -> None:
    """To have had no queue is no refusal: the flow's first one is still to come."""
    shim = FakeShim()
    loop = make_loop(shim, ScriptedAgent(lambda stats, states: np.full(len(stats), 3, np.uint32)))
    shim.open_flow(7)
    with structlog.testing.capture_logs() as seen:
        for fields in (YOUNG, HEALTHY, HEALTHY):
            shim.feed(7, **fields)
            loop.tick()
            shim.advance_ms(2000)
    assert [entry["event"] for entry in seen] == ["flow refused"]
    assert "outside [4" in seen[0]["reason"]


def test_an_earlier_cap_is_lifted_when_the_path_turns_out_longer_than_the_target() -> None:
    shim, loop = started(FixedCap(10), target="25ms")
    assert shim.cap_pkts(7) == 10
    shim.feed(7, **HEALTHY | {"min_rtt_us": 30_000})
    loop.tick()
    assert shim.cap_pkts(7) == 0
    assert "is below 1.1 x the path's minimum RTT (30.0 ms)" in reasons(loop)[7]


def test_no_cap_is_the_agents_right() -> None:
    shim = FakeShim()
    loop = make_loop(shim, Rule())
    shim.open_flow(7)
    shim.feed(7, **HEALTHY | {"delivery_rate_bytes_per_s": 0})
    loop.tick()
    assert shim.cap_pkts(7) == 0
    assert reasons(loop) == {7: WORDS[Why.AGENT_CHOSE_NONE]}


def run_in_background(loop: ControlLoop) -> tuple[threading.Thread, threading.Event]:
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():  # FakeShim's poll never waits
            loop.tick()
            time.sleep(0.002)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, stop


def test_pause_lifts_caps_until_resume() -> None:
    shim, loop = started(FixedCap(10), 7, 8)
    thread, stop = run_in_background(loop)
    try:
        assert loop.pause(timeout_s=60) == 2
        assert (shim.cap_pkts(7), shim.cap_pkts(8)) == (0, 0)
        assert reasons(loop) == {7: WORDS[Why.PAUSED], 8: WORDS[Why.PAUSED]}
        assert loop.pause(timeout_s=60) == 0
    finally:
        stop.set()
        thread.join()
    shim.feed(7, **HEALTHY)
    loop.tick()
    assert shim.cap_pkts(7) == 0
    assert loop.status().ok
    thread, stop = run_in_background(loop)
    try:
        loop.resume(timeout_s=60)
    finally:
        stop.set()
        thread.join()
    shim.feed(7, **HEALTHY)
    loop.tick()
    assert shim.cap_pkts(7) == 10
    assert shim.cap_pkts(8) == 0  # its next record decides
    assert "resumed" in reasons(loop)[8]


def test_rows_are_reclaimed_and_start_empty() -> None:
    shim = FakeShim()
    agent = ScriptedAgent(lambda stats, states: np.full(len(stats), 10, np.uint32))
    loop = make_loop(shim, agent)
    shim.open_flow(7)
    for _ in range(3):
        shim.feed(7, **HEALTHY)
    loop.tick()
    assert agent.states[0].reshape(20, 5).any(axis=1).sum() == 3
    shim.close_flow(7)
    assert shim.open_flow(8) == 0  # the same slot
    shim.feed(8, **HEALTHY)
    loop.tick()
    assert agent.states[1].reshape(20, 5).any(axis=1).sum() == 1
    assert list(reasons(loop)) == [8]
    assert shim.cap_pkts(8) == 10


def test_a_lost_closed_record_does_not_hand_a_flows_past_to_another() -> None:
    agent = ScriptedAgent(lambda stats, states: np.full(len(stats), 10, np.uint32))
    shim, loop = started(agent)
    shim.feed(7, **HEALTHY)  # both flows' records in one batch, the end of the first missing between them
    shim._slot_of.pop(7)
    shim._slots[0].cookie = 0
    shim.open_flow(8)
    shim.feed(8, **HEALTHY)
    loop.tick()
    assert agent.states[1].reshape(20, 5).any(axis=1).tolist() == [True] + 19 * [False]
    assert list(reasons(loop)) == [8]


def test_a_flow_that_opens_and_closes_within_one_batch_leaves_nothing() -> None:
    shim, sink = FakeShim(), Sink()
    loop = make_loop(shim, FixedCap(10), sink=sink)
    shim.open_flow(7)
    shim.feed(7, **HEALTHY)
    shim.close_flow(7)
    loop.tick()
    assert reasons(loop) == {}
    assert loop.status().flows == 0


def test_a_flow_that_ended_is_not_renewed() -> None:
    shim, loop = started(FixedCap(10))
    shim.close_flow(7)
    loop.tick()
    applied: list[int] = []
    shim.apply = lambda cookies, *_: applied.extend(cookies)  # type: ignore[method-assign]
    for _ in range(10):
        shim.advance_ms(100)
        loop.tick()
    assert applied == []


def test_tables_grow_with_the_flows() -> None:
    cookies = range(1, 1001)
    shim, loop = started(FixedCap(10), *cookies)
    assert all(shim.cap_pkts(cookie) == 10 for cookie in cookies)
    assert loop.status().flows == 1000


def test_of_several_records_the_last_decides_and_all_enter_the_history() -> None:
    shim = FakeShim()
    agent = ScriptedAgent(lambda stats, states: stats["cwnd_pkts"].astype(np.uint32))
    loop = make_loop(shim, agent)
    for cookie in (7, 8):
        shim.open_flow(cookie)
    for cwnd_pkts in (50, 51, 52):
        for cookie in (7, 8):
            shim.feed(cookie, **HEALTHY | {"cwnd_pkts": cwnd_pkts + cookie})
    shim.feed(8, flags=int(Flag.NO_SAMPLE), min_rtt_us=20_000)
    loop.tick()
    assert (shim.cap_pkts(7), shim.cap_pkts(8)) == (59, 60)
    assert agent.states[0].reshape(2, 20, 5).any(axis=2).sum(axis=1).tolist() == [3, 3]


def test_run_lifts_every_cap_at_its_end_even_when_the_shim_breaks() -> None:
    shim, loop = started(FixedCap(10))
    shim.poll = lambda timeout_ms: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(ZeroDivisionError):
        loop.run(threading.Event())
    assert shim.cap_pkts(7) == 0
