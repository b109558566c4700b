"""A reflex answers records without the interpreter: caps, verdicts and tables of a loop that decides itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.loops import HEALTHY, LEASE_MS, QUIET
from helpers.places import ROOT
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.modes import Mode, PolicySpec
from reinet.agents.decide.names import make_agent
from reinet.agents.decide.policy import Policy
from reinet.agents.decide.verdicts import Why
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.guard import VERDICT_BYTES, VERDICT_DTYPE, Guard
from reinet.core.records import Flag, FlowStatsArray
from reinet.core.states.reflex import ANSWER_CLOSED, ANSWER_DECIDED, ANSWER_NONE, ANSWER_STALE, Answered, Reflex
from reinet.core.target import Target
from reinet.kshim.fake import FakeShim
from reinet.kshim.leases import RENEWALS_PER_LEASE
from reinet.kshim.shim import Answering

FLOWS = 6
STEPS = 400


class AnsweringFake(FakeShim):
    """A shim in memory that lets a reflex answer, as ``MappedShim`` does."""

    answered = 0
    hold_ms = -1
    """For how long the latest answers were to go on."""

    def answer(self, reflex: Reflex, timeout_ms: int, hold_ms: int, rest_us: int, most: int) -> Answered:
        self.hold_ms = hold_ms
        done = reflex.answer(np.array(self.poll(timeout_ms)), self.now_ns)
        self.answered += len(done.records)
        chosen = done.answers != ANSWER_NONE
        records = done.records[chosen]
        caps_pkts = done.verdicts[chosen]["allowed_pkts"]
        expires_ns = self.now_ns + LEASE_MS * 1_000_000
        self.apply(records["cookie"], records["slot"], caps_pkts, expires_ns, records["target_us"])
        return done


@pytest.fixture(scope="module")
def shipped() -> Policy:
    return Policy.load(ROOT / "checkpoints" / "default")


def looped(
    shim: FakeShim, agent: Policy, target: str = "+30ms", lease_ms: int = LEASE_MS, **options: Any
) -> ControlLoop:
    return ControlLoop(
        shim,
        agent,
        Target.parse(target),
        lease_ms,
        clock_ns=lambda: shim.now_ns,
        log=QUIET,
        bounds_steps=True,
        **options,
    )


def fields(rng: np.random.Generator, step: int) -> dict[str, int]:
    """A record of a flow whose queue comes and goes, now and then idle, silent, or before its first RTT."""
    rtt_us = 20_000 + abs(int(30_000 * np.sin(step / 40) + rng.normal(0, 8_000)))
    cwnd_pkts = int(rng.integers(4, 120))
    values = dict(HEALTHY) | {
        "rtt_mean_us": rtt_us + 2000, "rtt_least_us": rtt_us, "rtt_last_us": rtt_us, "srtt_us": rtt_us,
        "rtt_samples": int(rng.integers(1, 20)), "cwnd_pkts": cwnd_pkts, "inflight_pkts": cwnd_pkts,
        "delivery_rate_bytes_per_s": int(rng.integers(200_000, 1_500_000)),
        "delivered_bytes": int(rng.integers(1, 90_000)),
        "period_ns": 60_000_000, "min_rtt_us": 20_000 if step > 3 else 0xFFFF_FFFF,
    }  # fmt: skip
    draw = rng.random()
    if draw < 0.03:
        values |= {"flags": int(Flag.NO_SAMPLE), "rtt_samples": 0}
    elif draw < 0.05:
        values |= {"flags": int(Flag.APP_LIMITED)}
    return values


def drive(
    shim: FakeShim, loop: ControlLoop, seed: int, at: Callable[[int], None] = lambda _: None
) -> list[list[tuple[int, int]]]:
    """Feeds flows for a while, some of which end and begin anew, half of them on the same socket; returns the caps in
    force after each tick, and the targets of these."""
    rng = np.random.default_rng(seed)
    cookies = list(range(1, FLOWS + 1))
    for cookie in cookies:
        shim.open_flow(cookie)
    caps = []
    for step in range(STEPS):
        shim.advance_ms(60)
        at(step)
        for place, cookie in enumerate(cookies):
            if step and step % 90 == 15 * place:
                shim.close_flow(cookie)
                cookies[place] = cookie + 100 * (place % 2)
                shim.open_flow(cookies[place])
            for _ in range(int(rng.integers(0, 3))):
                shim.feed(cookies[place], **fields(rng, step % 90))
        loop.tick()
        caps.append([(shim.cap_pkts(cookie), shim.target_us(cookie)) for cookie in cookies])
    return caps


def same(one: ControlLoop, other: ControlLoop) -> None:
    mine, yours = one.snapshot(), other.snapshot()
    for name in ("cookie", "target_us", "time_ns"):
        np.testing.assert_array_equal(mine.stats[name], yours.stats[name])
    np.testing.assert_array_equal(mine.verdicts["code"], yours.verdicts["code"])
    np.testing.assert_allclose(mine.caps_pkts.astype(float), yours.caps_pkts, atol=1)


@pytest.mark.parametrize("target", ["+30ms", "50ms", "2.5x"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_caps_are_those_of_a_loop_that_decides_itself(shipped: Policy, target: str, seed: int) -> None:
    """A cap may differ by a packet where a sum of floats differs in its last bits. Where a longer path is found between
    two records of a tick, it is for another target: a loop resolves those of all of them by the path known before."""
    answering, plain = AnsweringFake(), FakeShim()
    assert isinstance(answering, Answering)
    assert not isinstance(plain, Answering)
    one, other = looped(answering, shipped, target), looped(plain, shipped, target)
    caps, targets = np.moveaxis(drive(answering, one, seed), -1, 0)
    expected, of_loop = np.moveaxis(drive(plain, other, seed), -1, 0)
    np.testing.assert_array_equal(caps == 0, expected == 0)
    assert np.count_nonzero(targets != of_loop) <= 1
    assert np.abs(caps - expected)[targets == of_loop].max() <= 1
    assert np.mean(caps == expected) > 0.99
    assert 0.1 < np.mean(caps > 0) < 0.99
    same(one, other)
    assert answering.answered > STEPS
    mine, yours = one.status(), other.status()
    assert (mine.records, mine.flows, mine.stale) == (yours.records, yours.flows, yours.stale)
    assert mine.decisions == yours.decisions
    codes = one.figures().verdicts, other.figures().verdicts
    assert codes[0] == codes[1]


def test_what_a_flow_was_shown_is_told(shipped: Policy) -> None:
    answering, plain = AnsweringFake(), FakeShim()
    one, other = looped(answering, shipped), looped(plain, shipped)
    drive(answering, one, 3)
    drive(plain, other, 3)
    cookie = int(one.snapshot().stats["cookie"][0])
    mine, yours = one.why(cookie), other.why(cookie)
    assert mine is not None
    assert yours is not None
    np.testing.assert_array_equal(mine.state, yours.state)
    assert (mine.rule_pkts, mine.verdict, mine.decided_ns) == (yours.rule_pkts, yours.verdict, yours.decided_ns)
    assert mine.action == pytest.approx(yours.action)


def test_who_ended_takes_nothing_from_who_has_the_same_socket_in_the_same_batch(shipped: Policy) -> None:
    """A guard that loses the first second of the new flow never knows that it once had a higher rate, and so none of
    the others in its queue."""
    fast = dict(HEALTHY) | {
        "period_ns": 60_000_000, "delivered_bytes": 90_000, "srtt_us": 80_000, "rtt_mean_us": 30_000,
        "rtt_least_us": 25_000, "min_rtt_us": 20_000, "cap_pkts": 10,
    }  # fmt: skip
    slow = fast | {"delivered_bytes": 12_000, "rtt_mean_us": 80_000, "rtt_least_us": 70_000}
    for shim in (AnsweringFake(now_ns=23 * 10**9), FakeShim(now_ns=23 * 10**9)):
        loop = looped(shim, shipped, "50ms", lease_ms=1000)
        shim.open_flow(1)
        shim.feed(1, **HEALTHY)
        loop.tick()
        shim.close_flow(1)
        shim.open_flow(1)
        for _ in range(20):
            shim.advance_ms(45)
            shim.feed(1, **fast)
        loop.tick()
        codes = set()
        for _ in range(80):
            shim.advance_ms(60)
            shim.feed(1, **slow)
            loop.tick()
            codes |= set(loop.snapshot().verdicts["code"].tolist())
        assert Why.OTHERS_QUEUE in codes, type(shim)


def test_a_pause_lifts_what_the_reflex_capped_and_nothing_is_answered_in_it(shipped: Policy) -> None:
    shim = AnsweringFake()
    loop = looped(shim, shipped)
    drive(shim, loop, 4)
    assert loop.snapshot().caps_pkts.any()
    with pytest.raises(TimeoutError):
        loop.pause(timeout_s=0.0)
    before = shim.answered
    loop.tick()
    cookies = [int(cookie) for cookie in loop.snapshot().stats["cookie"]]
    for cookie in cookies:
        shim.feed(cookie, **HEALTHY)
    loop.tick()
    assert shim.answered == before
    assert not any(shim.cap_pkts(cookie) for cookie in cookies)
    assert set(loop.snapshot().verdicts["code"]) == {Why.PAUSED}


@pytest.mark.parametrize(("lease_ms", "timeout_ms"), [(500, 50), (1000, 50), (300, 50), (90, 30), (60, 30)])
def test_answers_go_on_no_longer_than_renewals_may_wait(shipped: Policy, lease_ms: int, timeout_ms: int) -> None:
    shim = AnsweringFake()
    looped(shim, shipped, lease_ms=lease_ms).tick(timeout_ms)
    assert 0 <= shim.hold_ms <= max(lease_ms // RENEWALS_PER_LEASE - timeout_ms, 0)
    assert shim.hold_ms > 0 or lease_ms // RENEWALS_PER_LEASE <= timeout_ms


def test_the_loop_decides_itself_where_it_has_to_look_at_each_flow(shipped: Policy) -> None:
    """Own targets, shadow, hold-out, several policies and agents without layers; the states go on."""
    shim = AnsweringFake()
    loop = looped(shim, shipped)
    plain = FakeShim()
    other = looped(plain, shipped)

    def own(made: ControlLoop) -> Callable[[int], None]:
        def at(step: int) -> None:
            if step in (100, 200):
                cookie = int(made.snapshot().stats["cookie"][0])
                made.set_target(cookie, "60ms" if step == 100 else "")

        return at

    caps, expected = drive(shim, loop, 5, own(loop)), drive(plain, other, 5, own(other))
    np.testing.assert_allclose(np.array(caps, float), np.array(expected), atol=1)
    assert 0 < shim.answered < loop.status().records
    for options in ({"mode": Mode.SHADOW}, {"mode": Mode.HOLD_OUT}):
        shim = AnsweringFake()
        drive(shim, looped(shim, shipped, **options), 6)
        assert shim.answered == 0, options
    shim = AnsweringFake()
    drive(shim, looped(shim, make_agent("rule")), 6)  # type: ignore[arg-type]
    assert shim.answered == 0


def test_a_swap_takes_the_flows_back_until_it_is_over_and_a_new_target_holds_at_once(shipped: Policy) -> None:
    shim = AnsweringFake()
    loop = looped(shim, shipped)
    drive(shim, loop, 7)
    before = shim.answered
    loop.swap(Policy.load(ROOT / "checkpoints" / "default"), share=0.5)
    cookies = [int(cookie) for cookie in loop.snapshot().stats["cookie"]]
    for _ in range(3):
        shim.advance_ms(60)
        for cookie in cookies:
            shim.feed(cookie, **HEALTHY)
        loop.tick()
    assert shim.answered <= before + len(cookies), "from the tick after the swap on the loop decides"
    shim = AnsweringFake()
    loop = looped(shim, shipped)
    drive(shim, loop, 7)
    loop.command([PolicySpec(shipped, Target.parse("+60ms"))])
    for _ in range(2):
        shim.advance_ms(60)
        for cookie in cookies:
            shim.feed(cookie, **HEALTHY)
        loop.tick()
    assert set(loop.snapshot().stats["target_us"]) == {80_000}


def test_each_record_is_shown_with_the_cap_that_was_in_force_after_it(shipped: Policy) -> None:
    """A batch may hold several records of a flow; a silent one among them has no cap of its own."""

    class Sink:
        def __init__(self) -> None:
            self.caps: list[tuple[int, int, int]] = []

        def offer(self, records: FlowStatsArray, caps_pkts: np.ndarray) -> None:
            self.caps += zip(records["cookie"].tolist(), records["time_ns"].tolist(), caps_pkts.tolist(), strict=True)

    told = []
    for ticks_after in (1, 4):  # records of each flow
        shim, sink = AnsweringFake(), Sink()
        loop = looped(shim, shipped, sink=sink)
        for cookie in (7, 8):
            shim.open_flow(cookie)
        rng = np.random.default_rng(1)
        for step in range(80):
            shim.advance_ms(60)
            for cookie in (7, 8):
                values = fields(rng, step) | {"cap_pkts": 30, "flags": 0, "rtt_samples": 5}
                if rng.random() < 0.4:
                    values |= {"flags": int(Flag.NO_SAMPLE), "rtt_samples": 0}
                shim.feed(cookie, **values)
            if (step + 1) % ticks_after == 0:
                loop.tick()
        told.append(sorted(sink.caps))
    assert told[0] == told[1]
    assert len({cap_pkts for _, _, cap_pkts in told[0]}) > 2


def test_old_records_are_not_decided_on_and_lift_the_cap(shipped: Policy) -> None:
    shim = AnsweringFake()
    loop = looped(shim, shipped)
    drive(shim, loop, 8)
    cookies = [int(cookie) for cookie in loop.snapshot().stats["cookie"]]
    for cookie in cookies:
        shim.feed(cookie, **HEALTHY)
    shim.advance_ms(LEASE_MS + 100)
    loop.tick()
    assert loop.status().stale == len(cookies)
    assert set(loop.snapshot().verdicts["code"]) == {Why.STALE}
    assert not any(shim.cap_pkts(cookie) for cookie in cookies)


def records(count: int, **values: Any) -> FlowStatsArray:
    made = np.zeros(count, FLOW_STATS_DTYPE)
    for name, value in (HEALTHY | {"cookie": 7, "time_ns": 2_000_000_000} | values).items():
        made[name] = value
    return made


def test_the_layouts_and_the_errors_of_a_reflex(shipped: Policy) -> None:
    assert VERDICT_DTYPE.itemsize == VERDICT_BYTES
    network, bank, guard = shipped.network(), shipped.view.bank(2), Guard()
    assert network is not None
    reflex = Reflex(bank, guard, network.layers, network.head, network.calm_rtts, 40_000, 500_000_000)
    reflex.set_target(1.0, 30_000)
    done = reflex.answer(records(3, slot=[0, 1, 9], cookie=[7, 8, 9]), 2_000_000_000)
    assert set(done.answers) <= {ANSWER_DECIDED, ANSWER_CLOSED}
    verdicts = done.verdicts
    assert verdicts["target_us"].tolist() == [50_000] * 3
    assert verdicts["min_rtt_us"].tolist() == [20_000] * 3
    late = reflex.answer(records(1), 2_500_000_001)
    assert late.answers.tolist() == [ANSWER_STALE]
    assert reflex.answer(records(1, flags=int(Flag.CLOSED)), 2_000_000_000).answers.tolist() == [ANSWER_NONE]
    assert bank.capacity >= 10, "it grows with the slots"
    with pytest.raises(IndexError, match="no such slot"):
        reflex.show(10_000)
    layers = list(network.layers)
    for wrong in ([], layers[:-1], layers[1:], [*layers[:-1], (layers[-1][0][:, :-1], layers[-1][1])]):
        with pytest.raises(ValueError, match=r"layer|states|number"):
            Reflex(bank, guard, wrong, network.head, 1.0, 40_000, 1)
