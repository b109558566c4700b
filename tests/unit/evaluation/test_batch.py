"""Many links at once: several flows on one, each with caps of its own; a plain flow that nobody watches."""

import numpy as np
import pytest

from reinet.agents.decide.baselines import NoCap, Rule
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray, View
from reinet.agents.evaluation.batch import figures, logs
from reinet.agents.evaluation.objects import UNWATCHED
from reinet.agents.evaluation.run import simulate
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.evaluation.suites.measure import measure
from reinet.core.records import FlowStatsArray
from reinet.envs.link.metrics import LinkLog, compute, first_data_ms
from reinet.envs.link.spec import LinkSpec
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate


class ByFlow(Agent):
    """Caps the first flow of each link at 6 packets, the second at 12; remembers the slots that it was shown."""

    def __init__(self) -> None:
        super().__init__("by-flow")
        self.slots: set[tuple[int, int]] = set()

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        self.slots |= set(zip(stats["cookie"].tolist(), stats["slot"].tolist(), strict=True))
        return np.where(stats["cookie"] >> np.uint64(32), 12, 6).astype(np.uint32)


def test_every_flow_of_a_link_keeps_the_cap_that_it_got_itself() -> None:
    """Its records come between those of the others, and some of them have no sample and get no decision."""
    agent = ByFlow()
    # The buffer of five packets lets the gate see a queue; then 6 and 12 packets of 20 and 20 ms share the link 1 : 2.
    link = LinkSpec(Trace.constant(6, 10), flows=[{"stepped": True}])
    two, other = logs(agent, [link, link], 20.0)
    found = measure(two, [20.0, 20.0], [0, 1], 0.0, 0.0, 20_000.0)
    assert found["flows_mbps"][1] / found["flows_mbps"][0] == pytest.approx(2, rel=0.1)
    assert np.array_equal(two["departure_ms"], other["departure_ms"])
    cookies, slots = zip(*sorted(agent.slots), strict=True)
    assert len(set(cookies)) == len(set(slots)) == 4  # what remembers flows by their slot tells them apart


def test_a_plain_flow_goes_its_way_whether_it_is_watched_or_not() -> None:
    links = [LinkSpec(generate("lte-driving", 10, 5), cc=cc, seed=3) for cc in ("cubic", "bbr", "copa")]
    assert figures(NoCap(), links, 5.0) == figures(NoCap(View(period=UNWATCHED)), links, 5.0)


def test_decisions_are_those_of_the_run_and_not_of_the_wait_for_others() -> None:
    """A row goes on until the slowest one is through: with long records it is far ahead in time by then."""
    links = [LinkSpec(generate(preset, 20.0, 5)) for preset in ("evdo-driving", "lte-stationary")]
    beside = [run["decisions"] for run in logs(Rule(), links, 8.0)]
    alone = [logs(Rule(), [link], 8.0)[0]["decisions"] for link in links]
    assert beside == alone
    assert beside[0] < beside[1]


def test_a_log_has_no_opportunities_of_the_years_that_a_silent_flow_was_stepped_over() -> None:
    """An application that pauses for long, or a slow uplink: their billions of opportunities took all memory."""
    link = LinkSpec(Trace.constant(12, 10), object_bytes=1000, pause_ms=2e6)
    (log,) = logs(NoCap(), [link], 3.0)
    assert log["end_ms"] > 1e6
    (run,) = simulate(NoCap(), [Scenario.of(Trace.constant(12, 10), "sim", seconds=3.0,
                                            link_options={"object_bytes": 1000, "pause_ms": 2e6})])  # fmt: skip
    for opportunity_ms in (log["opportunity_ms"], run.log.opportunity_ms):
        assert opportunity_ms[-1] == 3000
        assert np.all(np.diff(opportunity_ms) == 1)


def test_own_flows_and_the_one_beside_them_are_told_apart() -> None:
    link = LinkSpec(Trace.constant(12, 10), flows=[{"start_ms": 1000.0, "cc": "cubic"}])
    (log,) = logs(NoCap(), [link], 6.0)
    found = measure(log, [20.0, 20.0], [0], 0.0, 1000.0, 6000.0)
    assert found["throughput_mbps"] + found["beside_mbps"] == pytest.approx(12, rel=0.02)
    assert found["share"] == pytest.approx(found["throughput_mbps"] / 12, abs=0.02)
    assert "jain" not in found
    alone = measure(log, [20.0, 20.0], [0, 1], 0.0, 1000.0, 6000.0)
    assert 0.5 <= alone["jain"] <= 1
    assert alone["throughput_mbps"] == pytest.approx(12, rel=0.02)


def test_each_packets_delay_has_the_fixed_round_trip_of_its_own_flow() -> None:
    """The mean over two flows' packets is that of either flow's mean, weighted by its packets."""
    link = LinkSpec(Trace.constant(24, 10), flows=[{"stepped": True, "mrtt_ms": 80.0}])
    (log,) = logs(NoCap(), [link], 6.0)
    found = measure(log, [20.0, 80.0], [0, 1], 0.0, 1000.0, 6000.0)
    each = [compute(own, mrtt_ms, 6000.0, 1000.0 - first_data_ms(own))
            for own, mrtt_ms in ((LinkLog.of_flow(log, 0), 20.0), (LinkLog.of_flow(log, 1), 80.0))]  # fmt: skip
    mean_ms = np.average([one.delay_mean_ms for one in each], weights=[one.packets for one in each])
    assert found["delay_mean_ms"] == pytest.approx(mean_ms)
    assert 20.5 < found["delay_mean_ms"] - found["qdelay_mean_ms"] < 79.5
    second = measure(log, [20.0, 80.0], [1], 0.0, 1000.0, 6000.0)
    assert second["delay_mean_ms"] == pytest.approx(second["qdelay_mean_ms"] + 80.0)
