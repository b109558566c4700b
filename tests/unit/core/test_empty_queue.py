"""A cap over an empty queue shortens nothing: it rises until there is one."""

from typing import Any

import numpy as np
import pytest

from helpers.links import constant
from helpers.places import ROOT
from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.batch import figures
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.guard import Guard
from reinet.core.records import Flag
from reinet.envs.link.spec import LinkSpec

MIN_RTT_US = 100_000
WANTED_PKTS = 100
RECORDS = 60
"""Of a tenth of a second each."""


def caps(count: int = RECORDS, aims_at_target: bool = True, **fields: Any) -> list[int]:
    """Returns the caps of one flow that wants the same each time, with all of its latest cap in flight.

    A field is a value for all records, or a list with one for each.
    """
    guard, found, in_force = Guard(), [], WANTED_PKTS
    for at in range(count):
        stats = np.zeros(1, FLOW_STATS_DTYPE)
        values = {
            "cookie": 7,
            "time_ns": 1_000_000_000 + at * 100_000_000,
            "period_ns": 100_000_000,
            "min_rtt_us": MIN_RTT_US,
            "rtt_mean_us": MIN_RTT_US + 2000,
            "rtt_least_us": MIN_RTT_US,
            "srtt_us": MIN_RTT_US,
            "target_us": MIN_RTT_US + 50_000,
            "mss_bytes": 1448,
            "inflight_pkts": in_force,
            "cap_pkts": in_force,
        } | {name: value[at] if isinstance(value, list) else value for name, value in fields.items()}
        for name, value in values.items():
            stats[name] = value
        wanted = np.array([WANTED_PKTS], np.uint32)
        (cap,), _ = guard.judge(stats, wanted, np.ones(1, np.bool_), aims_at_target)
        found.append(in_force := int(cap))
    return found


def test_a_cap_over_an_empty_queue_rises_after_five_round_trips_and_ever_faster() -> None:
    found = caps(20)
    assert found[:4] == [WANTED_PKTS] * 4
    assert found[4:7] == [104, 113, 128], "by a twenty-fifth, and each time by as much more"
    rises = np.divide(found[5:], found[4:-1])
    assert max(rises) == pytest.approx(1.5**0.5, abs=0.01), "twice in what the target leaves"


@pytest.mark.parametrize(
    "why",
    [
        {"rtt_mean_us": MIN_RTT_US + 7000},
        {"inflight_pkts": 60},
        {"flags": int(Flag.APP_LIMITED)},
        {"aims_at_target": False},
    ],
    ids=["a queue", "a cap that holds nobody back", "an application that does", "a cap that says what it is"],
)
def test_it_does_not_rise_with(why: dict[str, Any]) -> None:
    assert set(caps(**why)) == {WANTED_PKTS}


def test_once_there_is_a_queue_it_stays_and_falls_by_as_much_as_that_is_longer() -> None:
    empty, short, longer = MIN_RTT_US, MIN_RTT_US + 10_000, MIN_RTT_US + 20_000
    found = caps(rtt_mean_us=[empty] * 20 + [short] * 20 + [longer] + [short] * 19)
    assert found[20] > 130
    assert set(found[20:40]) == {found[19]}
    assert found[40] == pytest.approx(found[19] * (MIN_RTT_US + 6250) / longer, abs=1)
    assert set(found[40:]) == {found[40]}


@pytest.mark.parametrize(
    "what",
    [{"rtt_mean_us": 2 * MIN_RTT_US}, {"flags": int(Flag.RESTARTED)}, {"cap_pkts": 0}],
    ids=["a queue of another link", "an idle time", "a time without a cap"],
)
def test_it_ends_with(what: dict[str, int]) -> None:
    ((name, value),) = what.items()
    rtts_us = [MIN_RTT_US] * 18 + [MIN_RTT_US + 10_000] * 4
    fields = {"rtt_mean_us": rtts_us, "flags": [0] * 22, "cap_pkts": [WANTED_PKTS] * 22}
    fields[name][20] = value
    found = caps(22, **fields)
    assert found[19] > WANTED_PKTS
    assert found[20:] == [WANTED_PKTS] * 2


def test_a_long_queue_right_after_a_rise_is_of_that() -> None:
    found = caps(12, rtt_mean_us=[MIN_RTT_US] * 10 + [MIN_RTT_US + 40_000] + [MIN_RTT_US + 10_000])
    assert found[10] == pytest.approx(found[9] * (MIN_RTT_US + 6250) / (MIN_RTT_US + 40_000), abs=1)
    assert found[11] == found[10]


@pytest.mark.parametrize(("mrtt_ms", "mbps", "least"), [(100.0, 50.0, 0.97), (200.0, 20.0, 0.95)])
def test_over_a_long_path_the_shipped_model_keeps_the_rate_of_a_steady_link(
    mrtt_ms: float, mbps: float, least: float
) -> None:
    """Without it it has 0.86 and 0.85 of plain's."""
    buffer_bytes = round(mbps * mrtt_ms * 125)
    link = LinkSpec(constant(mbps), mrtt_ms=mrtt_ms, target_us=round(2500 * mrtt_ms), buffer_bytes=buffer_bytes)
    plain, capped = (figures(make_agent(name), [link], 25.0)[0] for name in ("none", str(ROOT / "checkpoints/default")))
    assert capped.throughput_mbps > least * plain.throughput_mbps
    assert capped.qdelay_mean_ms < 0.4 * plain.qdelay_mean_ms
