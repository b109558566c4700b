"""ROCCET's rule as an agent: when its window falls, how far, and how it grows again."""

import numpy as np
import pytest

from reinet.agents.decide.names import make_agent
from reinet.agents.decide.roccet import BETA, Roccet
from reinet.agents.evaluation.batch import figures
from reinet.core import FLOW_STATS_DTYPE, Flag
from reinet.envs.link.spec import LinkSpec
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

NO_STATES, NO_RULE = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)


def told(agent: Roccet, at_ms: float, rtt_ms: float, cwnd_pkts: int = 100, cookie: int = 1) -> int:
    """The cap after a record at that time: 10 ms of 10 packets, with 5 RTT samples over a path of 20 ms."""
    record = np.zeros(1, FLOW_STATS_DTYPE)
    record["cookie"], record["time_ns"], record["period_ns"] = cookie, at_ms * 1e6, 10e6
    record["rtt_mean_us"], record["min_rtt_us"], record["rtt_samples"] = rtt_ms * 1000, 20_000, 5
    record["mss_bytes"], record["delivered_bytes"], record["cwnd_pkts"] = 1448, 14_480, cwnd_pkts
    return int(agent.decide(record, NO_STATES, NO_RULE)[0])


def test_launch_ends_at_half_the_window_once_the_rtt_has_doubled_and_arrivals_no_longer_rise() -> None:
    short, long = Roccet(), Roccet()
    assert {told(short, 10 * step, 39.0) for step in range(100)} == {0}
    caps = [told(long, 10 * step, 60.0) for step in range(40)]
    first = next(place for place, cap in enumerate(caps) if cap)
    assert caps[first] == 50
    assert first >= 20  # two intervals of 100 ms tell of a plateau


def test_the_window_rests_grows_and_falls_to_seven_tenths_while_the_rtt_stays_long() -> None:
    agent = Roccet()
    caps = [told(agent, 10 * step, 60.0) for step in range(21)]
    caps += [told(agent, 10 * step, 60.0) for step in range(21, 200)]
    start = next(place for place, cap in enumerate(caps) if cap)
    assert set(caps[start : start + 10]) == {50}
    falls = [place for place in range(start + 1, 200) if caps[place] < caps[place - 1]]
    assert falls
    assert caps[falls[0]] == pytest.approx(BETA * caps[falls[0] - 1], abs=1.5)
    assert falls[1] - falls[0] >= 30  # five round trips of 60 ms
    calm = [told(agent, 2000 + 10 * step, 25.0) for step in range(200)]
    assert calm == sorted(calm)
    assert calm[-1] > calm[0] + 10


def test_an_rtt_that_jumps_is_jitter_and_a_new_flow_begins_anew() -> None:
    agent = Roccet()
    for step in range(40):
        told(agent, 10 * step, 60.0)
    before = told(agent, 395, 60.0)
    assert told(agent, 400, 60.0, cookie=2) == 0
    assert before > 0


def test_a_silence_is_not_heard_and_what_runs_beside_changes_nothing() -> None:
    """A flow alone is not shown the records of its silences; beside others it is, and they repeat what was told."""
    quiet, loud = Roccet(), Roccet()
    for step in range(200):
        caps = [told(agent, 10 * step, 60.0) for agent in (quiet, loud)]
        silence = np.zeros(1, FLOW_STATS_DTYPE)
        silence["cookie"], silence["time_ns"], silence["flags"] = 1, (10 * step + 5) * 1e6, int(Flag.NO_SAMPLE)
        silence["rtt_samples"], silence["mss_bytes"], silence["delivered_bytes"] = 9, 1448, 1_000_000
        assert loud.decide(silence, NO_STATES, NO_RULE).tolist() == [0]
        assert caps[0] == caps[1]
    links = [LinkSpec(generate(preset, 40.0, 4)) for preset in ("evdo-driving", "lte-driving")]
    assert figures(Roccet(), links, 40.0) == [figures(Roccet(), [link], 40.0)[0] for link in links]


def test_it_lowers_the_delay_of_cubic_in_a_deep_buffer() -> None:
    link = LinkSpec(Trace.constant(12, 10), buffer_bytes=600_000)
    plain, capped = (figures(make_agent(name), [link], 20.0)[0] for name in ("none", "roccet"))
    assert capped.qdelay_mean_ms < 0.4 * plain.qdelay_mean_ms
    assert capped.utilization > 0.9
