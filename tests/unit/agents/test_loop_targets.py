"""What the decision loop makes of a target: resolved for every flow and record, whatever the kernel says of it."""

import re

import numpy as np
import pytest

from reinet.agents.decide.baselines import FixedCap
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray
from reinet.agents.decide.verdicts import target_too_tight
from reinet.core.records import Flag, FlowStatsArray
from reinet.core.target import LEAST_TARGET_PER_RTT, UNKNOWN_RTT_US, Target
from reinet.kshim.fake import FakeShim

HEALTHY = {
    "rtt_mean_us": 40_000, "rtt_least_us": 39_000, "rtt_last_us": 40_000, "rtt_samples": 20, "min_rtt_us": 20_000,
    "srtt_us": 40_000, "cwnd_pkts": 60, "mss_bytes": 1448, "delivery_rate_bytes_per_s": 1_448_000,
    "period_ns": 1_000_000_000,
}  # fmt: skip
"""A round trip in which the flow's own queue stood: its gate opens."""


class Shown(Agent):
    """A fixed cap that remembers the states that it was shown."""

    def __init__(self) -> None:
        super().__init__("shown")
        self.states: list[FloatArray] = []

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        self.states.append(states.copy())
        return np.full(len(stats), 10, np.uint32)


class Sink:
    """Remembers the targets of the records that it was offered."""

    def __init__(self) -> None:
        self.targets_us: list[int] = []

    def offer(self, records: FlowStatsArray, caps_pkts: np.ndarray) -> None:
        self.targets_us += records["target_us"].tolist()


def make_loop(shim: FakeShim, target: str, agent: Agent | None = None, sink: Sink | None = None) -> ControlLoop:
    return ControlLoop(shim, agent or FixedCap(10), Target.parse(target), sink=sink, clock_ns=lambda: shim.now_ns)


def reasons(loop: ControlLoop) -> list[str]:
    return loop.snapshot().reasons


def test_a_relative_target_follows_the_flows_minimum_rtt() -> None:
    """Whatever a record says of its target, which the kernel has from its default or from the decision before."""
    shim, sink = FakeShim(), Sink()
    loop = make_loop(shim, "+30ms", sink=sink)
    shim.open_flow(7)
    for min_rtt_us, said_us in ((40_000, 50_000), (40_000, None), (20_000, None), (20_000, 1)):
        shim.feed(7, **HEALTHY | {"min_rtt_us": min_rtt_us} | ({} if said_us is None else {"target_us": said_us}))
        loop.tick()
    assert sink.targets_us == [70_000, 70_000, 50_000, 50_000]
    assert shim.target_us(7) == 50_000
    assert loop.snapshot().stats["target_us"].tolist() == [50_000]
    assert loop.status().target == "+30ms"


@pytest.mark.parametrize(("common", "own"), [("+30ms", "25ms"), ("50ms", "2.5x")])
def test_a_record_says_whether_its_target_grows_with_the_path(common: str, own: str) -> None:
    shim, sink = FakeShim(), Sink()
    loop = make_loop(shim, common, sink=sink)
    for cookie in (7, 8):
        shim.open_flow(cookie)
        shim.feed(cookie, **HEALTHY | {"flags": int(Flag.RELATIVE)})  # whoever made the record is not to say so
    loop.tick()
    loop.set_target(8, own)
    for cookie in (7, 8):
        shim.feed(cookie, **HEALTHY)
    loop.tick()
    relative = [bool(flags & Flag.RELATIVE) for flags in loop.snapshot().stats["flags"]]
    assert relative == [Target.parse(text).is_relative for text in (common, own)]


def test_flows_of_one_batch_have_targets_of_their_own_before_their_states_are_made() -> None:
    def states_of(target: str, least_us: dict[int, int]) -> FloatArray:
        shim = FakeShim()
        agent = Shown()
        loop = make_loop(shim, target, agent)
        for cookie, min_rtt_us in least_us.items():
            shim.open_flow(cookie)
            shim.feed(cookie, **HEALTHY | {"min_rtt_us": min_rtt_us})
        loop.tick()
        assert loop.snapshot().stats["target_us"].tolist() == [
            int(Target.parse(target).resolve_ms(us / 1000) * 1000) for us in least_us.values()
        ]
        return agent.states[0]

    multiple = states_of("2.5x", {7: 20_000, 8: 30_000})
    assert (multiple[0] == states_of("50ms", {7: 20_000})[0]).all()
    assert (multiple[1] == states_of("75ms", {8: 30_000})[0]).all()
    assert (multiple[1] != states_of("50ms", {8: 30_000})[0]).any()


@pytest.mark.parametrize("min_rtt_us", [0, UNKNOWN_RTT_US])
def test_a_flow_whose_minimum_rtt_is_unknown_stays_uncapped_and_has_no_relative_target(min_rtt_us: int) -> None:
    shim = FakeShim()
    loop = make_loop(shim, "2.5x")
    shim.open_flow(7)
    shim.feed(7, **HEALTHY | {"min_rtt_us": min_rtt_us, "target_us": 50_000})
    loop.tick()
    assert shim.cap_pkts(7) == 0
    assert loop.snapshot().stats["target_us"].tolist() == [0]
    assert reasons(loop)[0].startswith("no RTT measured yet")
    shim.feed(7, **HEALTHY)
    loop.tick()
    assert shim.cap_pkts(7) == 10


def test_a_flows_own_target_goes_with_it_also_where_nothing_told_its_end() -> None:
    shim = FakeShim()
    loop = make_loop(shim, "+30ms")
    shim.open_flow(7)
    shim.feed(7, **HEALTHY)
    loop.tick()
    loop.set_target(7, "25ms")
    shim.close_flow(7)
    shim.poll(0)  # the CLOSED record is lost
    shim.open_flow(8)
    shim.feed(8, **HEALTHY)
    loop.tick()
    assert loop.snapshot().stats["cookie"].tolist() == [8]
    assert not loop._flows.own_targets.any()  # while any flow has one, each record goes through the interpreter


def test_a_relative_target_that_a_long_path_cannot_keep_says_which_would_do() -> None:
    shim = FakeShim()
    loop = make_loop(shim, "+30ms")
    shim.open_flow(7)
    for _ in range(4):  # the guard first looks whether that is the path or the flow's own queue
        shim.feed(7, **HEALTHY | {"min_rtt_us": 350_000, "inflight_pkts": 4})
        loop.tick()
    assert shim.cap_pkts(7) == 0
    assert reasons(loop)[0] == (
        "target 380.0 ms is below 1.1 x the path's minimum RTT (350.0 ms): flow stays uncapped; "
        "raise the target above 385.1 ms (+35.1ms)"
    )


@pytest.mark.parametrize("min_rtt_us", [1009, 20_180, 20_000, 239_900, 350_000])
def test_either_target_that_a_refusal_names_is_enough(min_rtt_us: int) -> None:
    said = re.search(r"above (.+) ms \((.+ms)\)", target_too_tight(min_rtt_us, min_rtt_us))
    assert said
    for target in (f"{said[1]}ms", said[2]):
        asked_us = Target.parse(target).resolve_us(np.array([min_rtt_us], np.uint32))
        assert asked_us[0] >= LEAST_TARGET_PER_RTT * min_rtt_us, target
