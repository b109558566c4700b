"""A queue of others: a flow is left alone where no cap shortens what it waits in, and only there."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from reinet.agents.decide.names import make_agent
from reinet.agents.decide.policy import Policy
from reinet.agents.decide.protocol import Agent
from reinet.agents.decide.verdicts import Why
from reinet.agents.evaluation.batch import figures
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.guard import ASK_ROUNDS, FOREIGN_ROUNDS, LEAST_YIELD_S, Guard
from reinet.core.records import Flag
from reinet.envs.link.spec import FurtherFlow, LinkSpec
from reinet.envs.trace import Trace

PERIOD_S, RTT_MS = 0.05, 80
FAST, SLOW = 1_500_000, 200_000  # bytes/s
BETWEEN_S = 23.0
"""So long after a multiple of LEAST_YIELD_S everything begins here."""


class One:
    """A guard and one flow, whose target of 50 ms leaves 30 for the queue."""

    def __init__(self, aims: bool = True) -> None:
        self._guard, self._aims, self.now_s = Guard(), aims, BETWEEN_S
        self.caps: list[int] = []

    def passes(self, seconds: float, rate: int, least_ms: float, cap_pkts: int = 10, **fields: Any) -> list[int]:
        """Returns what was said of each record of this time."""
        codes = []
        for _ in range(round(seconds / PERIOD_S)):
            self.now_s += PERIOD_S
            stats = np.zeros(1, FLOW_STATS_DTYPE)
            rtt_ms = RTT_MS if least_ms > 38 else 30  # where the queue drains, its mean is short, too
            values = {
                "cookie": 7, "time_ns": round(self.now_s * 1e9), "period_ns": round(PERIOD_S * 1e9),
                "delivered_bytes": round(rate * PERIOD_S), "srtt_us": RTT_MS * 1000, "rtt_mean_us": rtt_ms * 1000,
                "rtt_least_us": round(least_ms * 1000), "min_rtt_us": 20_000, "target_us": 50_000,
                "cap_pkts": cap_pkts,
            } | fields  # fmt: skip
            for name, value in values.items():
                stats[name] = value
            wanted_pkts, may_cap = np.array([cap_pkts or 30], np.uint32), np.ones(1, np.bool_)
            (cap,), (verdict,) = self._guard.judge(stats, wanted_pkts, may_cap, self._aims)
            assert bool(cap) is bool(verdict["code"] == 0)
            codes.append(int(verdict["code"]))
            self.caps.append(int(cap))
        return codes


def left_alone() -> One:
    """Returns a flow that has waited for 60 ms, whatever its cap was, until it was left alone."""
    flow = One()
    flow.passes(5.0, FAST, 25)
    while flow.passes(PERIOD_S, SLOW, 70) == [0]:
        assert flow.now_s < BETWEEN_S + 10
    return flow


def rounds(records: int) -> float:
    return records * PERIOD_S * 1000 / RTT_MS


def ended(aims: bool = True, last_s: float = PERIOD_S, **last: Any) -> Sequence[int]:
    """What is said after 5 s at full rate, 2.5 s in which ``last`` was otherwise for ``last_s``, and 2.4 s like those
    before it."""
    flow = One(aims)
    flow.passes(5.0, FAST, 25)
    usual = {"rate": SLOW, "least_ms": 70}
    return flow.passes(2.5, **usual) + flow.passes(last_s, **usual | last) + flow.passes(2.4, **usual)


def test_a_flow_that_waits_for_others_is_left_alone_until_a_common_time() -> None:
    flow = One()
    assert set(flow.passes(5.0, FAST, 25)) == {0}
    said = flow.passes(4.0, SLOW, 70)
    stretch = said.index(Why.OTHERS_QUEUE)
    assert rounds(stretch) == pytest.approx(FOREIGN_ROUNDS + 2 * ASK_ROUNDS, abs=1)
    raised = np.flatnonzero(np.array(flow.caps[100 : 100 + stretch]) == 20)
    assert rounds(len(raised)) == pytest.approx(ASK_ROUNDS, abs=1), "twice the cap of 10"
    assert rounds(raised[0]) == pytest.approx(FOREIGN_ROUNDS, abs=1)
    assert raised[-1] - raised[0] == len(raised) - 1, "once, and then the usual cap again"
    assert set(said[stretch:]) == {Why.OTHERS_QUEUE}
    plain = flow.passes(4 * LEAST_YIELD_S - flow.now_s - 2 * PERIOD_S, FAST, 70, cap_pkts=0)
    assert set(plain) == {Why.OTHERS_QUEUE}
    assert set(flow.passes(1.0, FAST, 70)[2:]) == {0}, "then it is capped again"


def test_who_is_seen_beside_others_again_soon_is_left_alone_for_longer_until_common_times() -> None:
    flow = One()
    flow.passes(5.0, FAST, 25)
    ends_s = []
    for _ in range(5):
        said = flow.passes(4.0, SLOW, 70)
        assert Why.OTHERS_QUEUE in said
        while flow.passes(PERIOD_S, FAST, 70, cap_pkts=0) == [Why.OTHERS_QUEUE]:
            pass
        ends_s.append(round(flow.now_s))
    assert ends_s == [40, 60, 80, 160, 240], "the next multiples of 10, 20, 40, 80 and 80"
    flow.passes(11.0, FAST, 25)
    assert Why.OTHERS_QUEUE in flow.passes(4.0, SLOW, 70)
    while flow.passes(PERIOD_S, FAST, 70, cap_pkts=0) == [Why.OTHERS_QUEUE]:
        pass
    assert round(flow.now_s) == 260, "after a while without it begins with the shortest"


def test_a_link_that_became_slower_while_the_cap_was_taken_back_is_no_others_queue() -> None:
    """The flow got more under twice the cap, as beside others, and then less, as beside others; but it waited for half
    as long when it sent more."""
    flow = One()
    flow.passes(5.0, FAST, 25)
    said = []
    for _ in range(round(10.0 / PERIOD_S)):
        raised = flow.caps[-1] == 20
        wait_ms = 20 if raised else 60
        rate = 2 * SLOW if raised else SLOW
        said += flow.passes(PERIOD_S, rate, 70, rtt_mean_us=(20 + wait_ms) * 1000)
    assert 20 in flow.caps
    assert set(said) == {0}


def test_a_link_that_became_faster_while_the_queue_was_asked_is_no_others_queue() -> None:
    """As a recording of Verizon's did: 1.2 Mbit/s and 89 ms before, 2.9 Mbit/s and 86 ms under twice the cap."""
    flow = One()
    flow.passes(5.0, FAST, 25)
    faster, said = False, []
    for _ in range(round(10.0 / PERIOD_S)):
        faster = faster or flow.caps[-1] == 20
        least_ms = 25 if faster and flow.caps[-1] == 10 else 70
        said += flow.passes(PERIOD_S, 2 * SLOW if faster else SLOW, least_ms)
    assert faster
    assert set(said) == {0}


@pytest.mark.parametrize(
    ("rtt_ms", "rate", "expected"), [(140, SLOW, 0), (140, 2 * SLOW, Why.OTHERS_QUEUE), (90, SLOW, Why.OTHERS_QUEUE)]
)
def test_who_waits_twice_as_long_under_twice_the_cap_and_gets_no_more_is_alone(
    rtt_ms: int, rate: int, expected: int
) -> None:
    flow = One()
    flow.passes(5.0, FAST, 25)
    said = []
    while (flow.now_s - BETWEEN_S) < 9.0 and Why.OTHERS_QUEUE not in said:
        asked = flow.caps[-1] == 20
        times = {"rtt_mean_us": rtt_ms * 1000 if asked else RTT_MS * 1000}
        said += flow.passes(PERIOD_S, rate if asked else SLOW, 70, cap_pkts=20 if asked else 10, **times)
    assert 20 in flow.caps
    assert said[-1] == expected


@pytest.mark.parametrize(
    ("rtt_ms", "rate", "capped_again"),
    [(220, SLOW, True), (180, SLOW, False), (220, 2 * SLOW, False), (220, SLOW // 2, True)],
)
def test_who_waits_three_times_as_long_without_a_cap_and_gets_no_more_was_alone(
    rtt_ms: int, rate: int, capped_again: bool
) -> None:
    flow = left_alone()
    longer = {"cap_pkts": 0, "rtt_mean_us": rtt_ms * 1000, "srtt_us": rtt_ms * 1000}
    said = flow.passes(3 * rtt_ms / 1000, rate, 70, **longer)
    assert said[0] == Why.OTHERS_QUEUE
    assert (said[-1] == 0) is capped_again
    if capped_again:
        assert set(flow.passes(2.5, SLOW, 70)) == {0}, "and all of the evidence is needed again"


@pytest.mark.parametrize(("plain_ms", "is_asked"), [(RTT_MS, False), (50, True)], ids=["as long", "half as long"])
def test_who_waits_as_long_under_the_cap_that_came_back_is_left_alone_unasked(plain_ms: int, is_asked: bool) -> None:
    """Who waits twice as long under it may be on a link that became slower just then."""
    flow = left_alone()
    while flow.passes(PERIOD_S, FAST, 70, cap_pkts=0, rtt_mean_us=plain_ms * 1000) == [Why.OTHERS_QUEUE]:
        pass
    capped = len(flow.caps)
    assert Why.OTHERS_QUEUE in flow.passes(4.0, SLOW, 70)
    assert (20 in flow.caps[capped:]) is is_asked


def test_who_won_little_back_while_it_was_left_alone_is_asked_by_what_it_had_before() -> None:
    """As a BBR beside others, whose model of the path has become that of its cap."""
    flow = left_alone()
    while flow.passes(PERIOD_S, 2 * SLOW, 70, cap_pkts=0) == [Why.OTHERS_QUEUE]:
        pass
    assert Why.OTHERS_QUEUE in flow.passes(4.0, SLOW, 70)


def test_who_is_left_alone_again_soon_stays_so_however_long_it_waits() -> None:
    flow = left_alone()
    while flow.passes(PERIOD_S, FAST, 70, cap_pkts=0) == [Why.OTHERS_QUEUE]:
        pass
    assert Why.OTHERS_QUEUE in flow.passes(4.0, SLOW, 70)
    longer = {"cap_pkts": 0, "rtt_mean_us": 500_000, "srtt_us": 500_000}
    assert set(flow.passes(3.0, SLOW, 70, **longer)) == {Why.OTHERS_QUEUE}


def test_the_stretch_has_no_gap() -> None:
    assert Why.OTHERS_QUEUE in ended()
    assert set(ended(least_ms=37)) == {0}, "three fifths of what the target leaves above the minimum are 18 ms"
    assert Why.OTHERS_QUEUE in ended(least_ms=39)
    assert set(ended(flags=int(Flag.RESTARTED))) == {0}
    assert set(ended(aims=False)) == {0}


@pytest.mark.parametrize("pause", [{"cap_pkts": 0}, {"flags": int(Flag.APP_LIMITED)}], ids=["no cap", "no data"])
def test_a_pause_in_the_stretch_does_not_end_it_unless_it_is_long(pause: dict[str, int]) -> None:
    """A question about the path takes up to 3 s, BBR's PROBE_RTT less."""
    assert Why.OTHERS_QUEUE in ended(last_s=3.0, **pause)
    assert set(ended(last_s=5.0, **pause)) == {0}
    assert set(ended(last_s=3.0, least_ms=37, **pause)) == {0}, "the queue drained meanwhile"


def test_a_slow_link_is_no_others_queue() -> None:
    """A cap leaves four packets at least, which take 70 ms there."""
    flow = One()
    assert set(flow.passes(30.0, SLOW, 70)) == {0}


def turns(flow: One, seconds: float, raised_rate: int, raised_ms: float) -> set[int]:
    """What is said where each turn drains the queue, and what twice the cap of 10 makes of rate and mean RTT."""
    said = set()
    for _ in range(round(seconds / PERIOD_S)):
        raised = bool(flow.caps) and flow.caps[-1] == 20
        rtt_us = round(1000 * (raised_ms if raised else RTT_MS))
        said |= set(flow.passes(PERIOD_S, raised_rate if raised else FAST // 2, 25, rtt_mean_us=rtt_us))
    return said


@pytest.mark.parametrize(
    ("raised_rate", "raised_ms", "expected"),
    [
        (FAST, RTT_MS, {0, Why.OTHERS_QUEUE}),
        (FAST, RTT_MS / 2, {0, Why.OTHERS_QUEUE}),
        (FAST // 2, RTT_MS, {0}),
        (FAST, 2 * RTT_MS, {0}),
    ],
    ids=["twice as much", "and waits less", "no more", "waits longer"],
)
def test_a_link_in_turns_gives_twice_as_much_under_twice_the_cap_and_makes_nobody_wait_longer(
    raised_rate: int, raised_ms: float, expected: set[int]
) -> None:
    flow = One()
    flow.passes(5.0, FAST, 25)
    assert turns(flow, 10.0, raised_rate, raised_ms) == expected


def test_who_waits_in_turn_and_gets_as_much_as_before_is_not_asked() -> None:
    flow = One()
    flow.passes(5.0, FAST, 25)
    assert set(flow.passes(30.0, round(0.81 * FAST), 25, rtt_mean_us=RTT_MS * 1000)) == {0}
    assert 20 not in flow.caps


def test_whose_mean_rtt_changes_is_not_asked() -> None:
    flow = One()
    flow.passes(5.0, FAST, 25)
    for seconds in range(30):
        flow.passes(1.0, SLOW, 25, rtt_mean_us=(60 if seconds % 2 else 90) * 1000)
    assert 20 not in flow.caps


def test_who_turned_out_to_be_alone_is_not_asked_again_for_half_a_minute() -> None:
    flow = One()
    flow.passes(5.0, FAST, 25)
    turns(flow, 80.0, FAST // 2, RTT_MS)
    began = [at for at in range(1, len(flow.caps)) if flow.caps[at] == 20 != flow.caps[at - 1]]
    assert len(began) == 3
    assert min(np.diff(began)) * PERIOD_S > 30


def test_what_is_known_of_a_flow_is_forgotten_with_it() -> None:
    flow = One()
    flow.passes(5.0, FAST, 25)
    assert set(flow.passes(2.5, SLOW, 70)) == {0}
    assert set(flow.passes(2.5, SLOW, 70, cookie=8)) == {0}


def test_a_model_aims_at_the_target_and_a_fixed_cap_at_nothing() -> None:
    assert Policy.aims_at_target
    assert not any(make_agent(name).aims_at_target for name in ("none", "rule", "fixed:10"))


@pytest.fixture(scope="module")
def shipped() -> Policy:
    return Policy.load("checkpoints/default")


@pytest.mark.parametrize("cc", ["cubic", "bbr"])
def test_beside_a_plain_flow_the_shipped_model_keeps_most_of_its_share(shipped: Policy, cc: str) -> None:
    """In the median of ten: beside a Cubic one draw lies anywhere between a half and four fifths.

    Always capped it keeps 0.16 and 0.37. The question whether the path became longer (gate.hpp) helps here too, so that
    without the rule of others it keeps 0.76 and 0.60 or more: the rule's own tests are below.
    """
    links = [LinkSpec(Trace.constant(24, 60), seed=seed, flows=(FurtherFlow(cc=cc),)) for seed in range(1, 11)]

    def mbps(agent: Agent) -> Any:
        return np.array([found.throughput_mbps for found in figures(agent, links, 60.0, threads=2)])

    plain, capped = mbps(make_agent("none")), mbps(shipped)
    assert np.median(capped / plain) > 0.6


@pytest.mark.parametrize(("cc", "least"), [("cubic", 0.75), ("bbr", 0.6)])
def test_over_a_link_in_turns_the_shipped_model_keeps_most_of_the_throughput(
    shipped: Policy, cc: str, least: float
) -> None:
    """20 of each 80 ms; without the question it keeps 0.45 and 0.2."""
    times_ms = [cycle + at for cycle in range(0, 60_000, 80) for at in range(20) for _ in range(3)]
    trace = Trace(np.array([*times_ms, 60_000], np.uint32), "turns")
    links = [LinkSpec(trace, cc=cc, seed=seed) for seed in range(1, 6)]
    plain, capped = (
        np.array([found.throughput_mbps for found in figures(agent, links, 60.0, threads=2)])
        for agent in (make_agent("none"), shipped)
    )
    assert np.median(capped / plain) > least


@pytest.mark.parametrize("mrtt_ms", [20, 60])
@pytest.mark.parametrize(("before_mbps", "after_mbps"), [(12, 1), (24, 1), (6, 0.5)])
def test_a_link_that_becomes_slow_is_asked_and_keeps_its_cap(
    shipped: Policy, before_mbps: float, after_mbps: float, mrtt_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a rate at which four packets take half of the room; let go, its queue would be several times as long."""
    steps = np.concatenate([np.arange(0, 10_000, 12 / before_mbps), np.arange(10_000, 30_000, 12 / after_mbps)])
    link = LinkSpec(Trace(steps.astype(np.uint32), "steps"), mrtt_ms=mrtt_ms, target_us=(mrtt_ms + 30) * 1000)
    (asked,) = figures(shipped, [link], 30.0)
    monkeypatch.setattr(Policy, "aims_at_target", False)
    (never,) = figures(shipped, [link], 30.0)
    assert asked.qdelay_mean_ms < 1.2 * never.qdelay_mean_ms


def test_a_flow_that_is_alone_never_yields(shipped: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [Trace.constant(mbps, 20) for mbps in (0.3, 1.0, 4.0, 24.0)]
    steps = Trace(np.concatenate([np.arange(10_000), np.arange(10_000, 40_000, 3)]).astype(np.uint32), "steps")
    links = [
        LinkSpec(trace, mrtt_ms=mrtt_ms, target_us=(mrtt_ms + 30) * 1000)
        for trace in (*rates, steps)
        for mrtt_ms in (20, 60)
    ]
    asked = figures(shipped, links, 30.0)
    monkeypatch.setattr(Policy, "aims_at_target", False)
    for found, never in zip(asked, figures(shipped, links, 30.0), strict=True):  # an answer takes some round trips
        assert found.qdelay_mean_ms < 1.1 * never.qdelay_mean_ms
