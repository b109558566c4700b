"""The ACKs' direction with a trace of its own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.links import constant
from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.batch import figures
from reinet.core import FLOW_STATS_DTYPE, ConfigError
from reinet.envs.link.spec import LinkSpec
from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace, generate

EVERY_10_MS, EVERY_50_MS = np.array([10], np.uint32), np.array([50], np.uint32)
IDEAL: dict[str, Any] = {"late_us": 0, "jitter_us": 0}


def records(link: LinkSpec, seconds: float, cap_pkts: int = 0) -> np.ndarray[Any, Any]:
    """The first flow's records under one cap."""
    batch = SimBatch([link])
    batch.reset()
    taken = []
    while batch.stats["time_ns"][0] < seconds * 1e9:
        taken.append(batch.stats[0].copy())
        batch.step_caps([cap_pkts])
    return np.array(taken, FLOW_STATS_DTYPE)


def rate_mbps(link: LinkSpec, seconds: float = 20.0, cap_pkts: int = 0) -> float:
    return float(records(link, seconds, cap_pkts)["delivered_bytes"].sum()) * 8 / seconds / 1e6


def test_acks_leave_at_the_uplinks_opportunities_alone() -> None:
    """Every RTT sample ends 10 ms, the way back, after one of the times 10, 20, 30, ... ms."""
    s = records(LinkSpec(constant(12.0), uplink=EVERY_10_MS, **IDEAL), 5.0)
    came_ms = s["time_ns"][s["rtt_samples"] > 0] / 1e6
    assert len(came_ms) > 30
    assert came_ms % 10 == pytest.approx(np.zeros(len(came_ms)), abs=1.0), "ACKs of one opportunity come 5 us apart"


def test_an_ack_of_the_millisecond_of_an_opportunity_has_missed_it() -> None:
    """As in mm-link: 10 ms there and an opportunity each ms, so the SYN-ACK's ACK is sent at 11 ms."""
    missed, caught = (
        records(LinkSpec(constant(12.0), uplink=np.array([ms, 1000], np.uint32), **IDEAL), 3.0)[0]["min_rtt_us"] / 1000
        for ms in (11, 12)
    )
    assert caught == 22
    assert missed > 900


def test_a_wide_uplink_is_as_good_as_none() -> None:
    link = LinkSpec(constant(12.0), **IDEAL)
    wide = replace(link, uplink=Trace.constant(48.0, 1.0))
    own, none = records(wide, 5.0), records(link, 5.0)
    assert np.array_equal(own["delivered_bytes"], none["delivered_bytes"])
    assert np.array_equal(own["rtt_mean_us"], none["rtt_mean_us"])


def test_acks_share_an_opportunity_by_their_bytes() -> None:
    """An opportunity of 1504 bytes carries 26.9 ACKs of 56, each of the two packets of a ms: 54 packets each 50 ms."""
    link = LinkSpec(constant(24.0), uplink=EVERY_50_MS, **IDEAL)
    assert rate_mbps(link) == pytest.approx(1504 / 56 * 2 * 1448 * 8 / 50e-3 / 1e6, rel=0.05)


def test_records_tell_how_long_acks_wait_for_it() -> None:
    """A packet each 11.6 ms finds no queue, so that all of an RTT above the least is that."""
    for uplink in (EVERY_50_MS, None):
        s = records(LinkSpec(constant(12.0), uplink=uplink, app_mbps=1.0, **IDEAL), 20.0)[60:]
        s = s[s["rtt_samples"] > 0]
        above_ms = (s["rtt_mean_us"].astype(np.float64) - s["min_rtt_us"]) / 1000
        assert s["ack_wait_us"] / 1000 == pytest.approx(above_ms, abs=2.5), "the receiver's clock ticks in ms"
        assert (s["ack_wait_us"].mean() > 10_000) == (uplink is not None)


def test_caps_leave_a_flow_whose_acks_wait_most_of_its_throughput() -> None:
    """Beside an uplink of 1 Mbit/s; while ACKs' waits were not told from packets' it had 0.93 of plain's here."""
    links = [
        LinkSpec(generate("lte-walking", 60, seed), uplink=generate("umts-driving", 60, 100 + seed).opportunities_ms)
        for seed in (9001, 9002, 9003)
    ]
    plain, capped = (figures(make_agent(name), links, 60.0) for name in ("none", "checkpoints/default"))
    shares = [own.throughput_mbps / other.throughput_mbps for own, other in zip(capped, plain, strict=True)]
    assert np.mean(shares) > 0.96, shares


def test_all_flows_share_it() -> None:
    link = LinkSpec(constant(24.0), uplink=EVERY_50_MS, flows=[{"stepped": False}], **IDEAL)
    batch = SimBatch([link], record_log=True)
    batch.reset()
    while batch.stats["time_ns"][0] < 20e9:
        batch.step_caps([0])
    log = batch.log(0)
    both_mbps = log["departure_bytes"].sum() * 8 / 20e6
    assert set(log["departure_flow"]) == {0, 1}
    assert both_mbps < 0.8 * 24, "with an uplink each they would fill the link, of which one has half"


def test_a_run_with_an_uplink_is_the_same_again_and_loses_no_packet() -> None:
    link = LinkSpec(constant(12.0), uplink=Trace.constant(0.3, 1.0), loss=0.01, seed=4)
    assert np.array_equal(records(link, 5.0), records(link, 5.0))
    batch = SimBatch([link])
    batch.reset()
    for _ in range(500):
        batch.step_caps([0])
    counts = batch.packets(0)
    assert counts["sent_pkts"] == sum(n for name, n in counts.items() if name != "sent_pkts")


def test_an_uplink_that_makes_rtts_vary_is_no_queue_of_the_flows_own() -> None:
    """A cap of the path's packets takes what the uplink's wait takes; the flow without a cap fills the link."""
    jittery = np.array([3, 4, 9, 10, 30], np.uint32)
    link = LinkSpec(constant(12.0), uplink=jittery)
    assert rate_mbps(link) > 0.93 * 12
    assert rate_mbps(link, cap_pkts=21) < 0.93 * 12


@pytest.mark.parametrize("uplink", [[], [0], [5, 4]])
def test_an_uplink_is_a_trace(uplink: list[int]) -> None:
    with pytest.raises((ConfigError, ValueError), match=r"trace's|uplink: holds no opportunity"):
        SimBatch([LinkSpec(constant(12.0), uplink=np.array(uplink, np.uint32))])
