"""The look for a path's true minimum RTT: it never touches a young or short flow, finds what is there, costs little."""

from typing import Any

import numpy as np
import pytest

from reinet.agents.decide.baselines import FixedCap, NoCap
from reinet.agents.decide.verdicts import Why
from reinet.agents.evaluation.run import Run, run
from reinet.agents.evaluation.scenario import Scenario
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.guard import LOOK_AFTER_S, LOOK_EVERY_S, LOOK_LONGEST_ROUND_S, LOOK_REST_S, LOOK_STEP_ROUNDS, Guard
from reinet.core.records import Flag
from reinet.envs.trace import Trace

WANTED_PKTS = 30
REASON = "below 1.1 x the path's minimum RTT"


def records(count: int = 1, **fields: Any) -> Any:
    """40 packets in flight, half of them in the queue; the target is 50 ms and the minimum RTT known so far 60 ms."""
    stats = np.zeros(count, FLOW_STATS_DTYPE)
    values = {
        "min_rtt_us": 60_000,
        "rtt_mean_us": 120_000,
        "rtt_least_us": 110_000,
        "target_us": 50_000,
        "inflight_pkts": 40,
        "cookie": 7,
    }
    for name, value in {**values, **fields}.items():
        stats[name] = value
    return stats


class One:
    """A guard and one flow."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = guard or Guard()

    def at(self, time_s: float, wanted_pkts: int = WANTED_PKTS, **fields: Any) -> int:
        """Returns the cap after a record at that time; an uncapped flow has its reason."""
        stats = records(time_ns=round(time_s * 1e9), **fields)
        (cap,), (verdict,) = self.guard.judge(stats, np.array([wanted_pkts], np.uint32), np.ones(1, np.bool_))
        assert bool(verdict["code"] == 0) is bool(cap)
        assert verdict["code"] in (0, Why.TOO_TIGHT)
        return int(cap)

    def busy(self, until_s: float, since_s: float = 1.0, **fields: Any) -> list[int]:
        """Returns the caps after a record each 50 ms."""
        return [self.at(time_s, **fields) for time_s in np.arange(since_s, until_s - 0.025, 0.05)]


LOOK_S = LOOK_EVERY_S
"""When the look at a flow begins that has been busy since its first second."""
HELD_PKTS = 15
"""Three quarters of the 20 packets that a path of 60 ms holds."""
STEP_S = LOOK_STEP_ROUNDS * 0.12


def test_a_young_flow_is_left_alone_and_a_long_one_looked_at_until_two_round_trips_have_shown_nothing_lower() -> None:
    flow = One()
    assert set(flow.busy(LOOK_S)) == {0}
    assert set(flow.busy(LOOK_S + STEP_S, LOOK_S)) == {HELD_PKTS}
    assert flow.at(LOOK_S + STEP_S) == 0
    young = One()
    assert set(young.busy(2 * LOOK_S, LOOK_S - LOOK_AFTER_S + 0.1)) == {0}
    assert young.at(2 * LOOK_S) == HELD_PKTS


def test_a_flow_whose_target_stays_out_of_reach_rests() -> None:
    flow = One()
    flow.busy(LOOK_S + 1.0)
    due_s = LOOK_S + LOOK_REST_S + LOOK_EVERY_S
    assert set(flow.busy(due_s, LOOK_S + 1.0)) == {0}
    assert flow.at(due_s) == HELD_PKTS


def test_a_flow_within_reach_looks_each_time_and_is_never_held_above_its_own_cap() -> None:
    flow, small = One(), One()
    flow.busy(LOOK_S, min_rtt_us=30_000)
    for turn in (1, 2, 3):
        start_s = turn * LOOK_EVERY_S
        assert flow.at(start_s, min_rtt_us=30_000) == 7  # three quarters of a quarter of 40 packets
        assert flow.at(start_s + STEP_S, min_rtt_us=30_000) == WANTED_PKTS
        flow.busy(start_s + LOOK_EVERY_S, start_s + 0.3, min_rtt_us=30_000)
    small.busy(LOOK_S, min_rtt_us=30_000)
    assert small.at(LOOK_S, wanted_pkts=5, min_rtt_us=30_000) == 5


def test_a_flow_that_is_looked_at_is_held_below_the_ceiling_as_any_other() -> None:
    flow = One(Guard(ceiling_pkts=10))
    assert set(flow.busy(LOOK_S, wanted_pkts=10)) == {0}
    assert flow.at(LOOK_S, wanted_pkts=10) == 10


def test_a_flow_whose_queue_drained_by_itself_since_the_last_time_is_not_looked_at() -> None:
    flow = One()
    flow.busy(LOOK_S - 2.0)
    flow.at(LOOK_S - 2.0, rtt_least_us=66_000)
    flow.busy(LOOK_S, LOOK_S - 1.9)
    assert flow.at(LOOK_S) == 0
    assert set(flow.busy(2 * LOOK_S, LOOK_S + 0.1)) == {0}
    assert flow.at(2 * LOOK_S) == HELD_PKTS


def test_a_look_goes_on_downwards_while_the_rtt_falls() -> None:
    flow = One()
    flow.busy(LOOK_S)
    assert flow.at(LOOK_S) == HELD_PKTS
    assert flow.at(LOOK_S + 0.1, inflight_pkts=15, rtt_mean_us=60_000, min_rtt_us=50_000) == HELD_PKTS
    assert flow.at(LOOK_S + STEP_S, inflight_pkts=15, rtt_mean_us=48_000, min_rtt_us=48_000) == 11  # a step further
    assert flow.at(LOOK_S + STEP_S + 0.1, inflight_pkts=11, rtt_mean_us=40_000, min_rtt_us=47_000) == 0


def test_nobody_looks_just_after_an_outage_and_one_within_a_look_does_not_prolong_it() -> None:
    flow, caught = One(), One()
    flow.busy(LOOK_S)
    assert flow.at(LOOK_S, rtt_mean_us=3_000_000) == 0
    assert set(flow.busy(2 * LOOK_S, LOOK_S + 0.1)) == {0}
    assert flow.at(2 * LOOK_S, rtt_mean_us=200_000)  # a queue
    caught.busy(LOOK_S)
    assert caught.at(LOOK_S, rtt_mean_us=300_000)
    assert caught.at(LOOK_S + LOOK_STEP_ROUNDS * LOOK_LONGEST_ROUND_S, rtt_mean_us=3_000_000) == 0


@pytest.mark.parametrize("flag", [Flag.APP_LIMITED, Flag.RESTARTED])
def test_evidence_of_an_idle_application_makes_a_flow_wait_anew_and_ends_a_look(flag: Flag) -> None:
    waiting, looked_at = One(), One()
    waiting.busy(6.0)
    assert waiting.at(6.0, flags=int(flag)) == 0
    assert set(waiting.busy(2 * LOOK_S, 6.1)) == {0}
    assert waiting.at(2 * LOOK_S) == HELD_PKTS

    looked_at.busy(LOOK_S)
    assert looked_at.at(LOOK_S) == HELD_PKTS
    assert looked_at.at(LOOK_S + 0.1, flags=int(flag)) == 0
    assert set(looked_at.busy(2 * LOOK_S, LOOK_S + 0.2)) == {0}
    assert looked_at.at(2 * LOOK_S) == HELD_PKTS


def test_flows_that_nobody_would_cap_and_slots_next_owners_are_not_looked_at() -> None:
    flow = One()
    flow.busy(LOOK_S)
    assert flow.at(LOOK_S, wanted_pkts=0) == 0
    flow = One()
    flow.busy(LOOK_S)
    assert flow.at(LOOK_S, cookie=8) == 0, "another flow in the slot is young"
    flow = One()
    flow.busy(LOOK_S)
    flow.guard.forget(np.array([0]), np.array([7], np.uint64))
    assert flow.at(LOOK_S) == 0, "another flow with the cookie is young"


def test_many_flows_are_looked_at_together_however_long_they_have_been_there() -> None:
    guard, count = Guard(), 300
    own = records(count, cookie=np.arange(1, count + 1), slot=np.arange(count)[::-1])
    first_s = np.linspace(0.5, LOOK_S, count)
    seen_s = np.full(count, np.inf)
    for time_s in np.arange(0.5, 2 * LOOK_S + 1.0, 0.25):
        there = np.flatnonzero(first_s <= time_s)
        own["time_ns"] = round(time_s * 1e9)
        caps, _ = guard.judge(own[there], np.full(len(there), WANTED_PKTS, np.uint32), np.ones(len(there), np.bool_))
        held = there[caps == HELD_PKTS]
        seen_s[held] = np.minimum(seen_s[held], time_s)
    old = first_s <= LOOK_S - LOOK_AFTER_S - 0.25
    assert set(seen_s[old]) == {LOOK_S}
    assert set(seen_s[first_s > LOOK_S - LOOK_AFTER_S]) == {2 * LOOK_S}


# --- in the simulator ---


def simulated(trace: Trace, capped: bool, seconds: float, **scenario: Any) -> Run:
    agent = FixedCap(WANTED_PKTS) if capped else NoCap()
    return run(agent, Scenario.of(trace, **{"link": "sim", "seconds": seconds, "target_ms": 50.0, **scenario}))


def test_a_flow_of_ten_seconds_with_a_target_out_of_reach_is_as_fast_as_a_plain_one() -> None:
    plain, watched = (simulated(Trace.constant(12, 1), capped, 10.0, mrtt_ms=60.0) for capped in (False, True))
    assert REASON in str(watched.uncapped_reason)
    np.testing.assert_array_equal(watched.records, plain.records)


BUFFERS_BYTES = (150_000, 300_000, 450_000, 600_000, 900_000)
"""A look costs more or less by where in Cubic's cycle it falls: 0.1 to 0.8 % at 12 Mbit/s. Its mean is what counts."""


@pytest.mark.parametrize(("mbps", "mrtt_ms", "most"), [(12, 60.0, 0.005), (24, 150.0, 0.01)])
def test_looks_at_a_path_that_is_too_long_cost_less_than_a_percent(mbps: int, mrtt_ms: float, most: float) -> None:
    """A look a minute, where the queue stands: Cubic's own drains now and then on the longer path."""
    costs, looks_s = [], []
    for buffer_bytes in BUFFERS_BYTES:
        path = {"mrtt_ms": mrtt_ms, "buffer_bytes": buffer_bytes}
        plain, watched = (simulated(Trace.constant(mbps, 1), capped, 131.0, **path) for capped in (False, True))
        looks_s.extend(watched.records["time_ns"][watched.caps_pkts > 0] / 1e9)
        costs.append(1 - watched.metrics.throughput_mbps / plain.metrics.throughput_mbps)
    assert min(looks_s) > LOOK_AFTER_S
    assert max(looks_s) > 60, "there was a second look"
    assert max(costs) < 0.01
    assert np.mean(costs) < most


def test_a_flow_that_began_on_a_stalled_link_is_found_to_be_in_reach() -> None:
    """For 6 s a packet takes 100 ms; then Reno keeps a queue of 200 ms and more on a path of 20 ms."""
    times_ms = np.concatenate([np.arange(1, 61) * 100, np.arange(6001, 36_001)])
    trace = Trace(times_ms.astype(np.uint32), "stalled")
    path = {"cc": "reno", "mrtt_ms": 20.0, "buffer_bytes": 600_000}
    plain, watched = (simulated(trace, capped, 23.0, **path) for capped in (False, True))
    assert plain.records["min_rtt_us"][-1] > 60_000
    assert watched.records["min_rtt_us"][-1] < 35_000
    assert watched.caps_pkts[-1] == WANTED_PKTS
    assert watched.records["rtt_mean_us"][-1] < 50_000
