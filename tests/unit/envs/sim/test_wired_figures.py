"""Figures of a path with a wired bottleneck: both queues' delays, and the smaller link's capacity."""

import numpy as np
import pytest

from helpers.links import assert_conserved, cellular, constant, run
from reinet.envs.link.metrics import LinkLog, Metrics, compute
from reinet.envs.link.tandem import carried_bytes, longest_pause_ms
from reinet.envs.sim import SimBatch


def figures(batch: SimBatch, end_ms: float) -> Metrics:
    return compute(LinkLog.of_flow(batch.log(0)), 20.0, end_ms)


def test_the_queue_before_a_wired_link_is_in_the_delay_and_its_rate_is_the_capacity() -> None:
    batch, records = run(constant(48), 10.0, wired_mbps=((0.0, 10.0),))
    metrics = figures(batch, 10_000.0)
    rtt_ms = np.average(records["rtt_mean_us"], weights=records["rtt_samples"]) / 1000
    # What the sender measures is the fixed delays, up to 4 ms of clocks and delayed ACKs, and the queue.
    assert metrics.delay_mean_ms == pytest.approx(rtt_ms, abs=5)
    assert metrics.qdelay_mean_ms > 60
    assert metrics.qdelay_max_ms == pytest.approx(150_000 * 8 / 10e3, abs=5)
    assert metrics.capacity_mbps == pytest.approx(10.0, rel=0.01)
    assert 0.95 < metrics.utilization <= 1.0


def test_a_wired_link_that_is_never_in_the_way_changes_no_figure_by_more_than_its_own_time() -> None:
    plain, behind = (
        figures(run(cellular(2), 10.0, late_us=0, jitter_us=0, **wired)[0], 10_000.0)
        for wired in ({}, {"wired_mbps": ((0.0, 100_000.0),)})
    )
    assert behind.capacity_mbps == plain.capacity_mbps
    assert behind.utilization == pytest.approx(plain.utilization, abs=0.01)
    assert behind.qdelay_mean_ms == pytest.approx(plain.qdelay_mean_ms, rel=0.05)


@pytest.mark.parametrize("queue", ["droptail", "drophead", "codel", "pie"])
def test_delays_stay_each_packets_own_whatever_is_lost_dropped_or_beside_it(queue: str) -> None:
    steps = ((0.0, 8.0), (2000.0, 0.0), (2600.0, 4.0))
    batch, _ = run(
        cellular(4), 8.0, queue=queue, buffer_bytes=30_000, wired_mbps=steps, loss=0.02, forward_jitter_us=3000,
        flows=[{"cc": "bbr", "mrtt_ms": 60.0, "start_ms": 500.0}],
    )  # fmt: skip
    assert_conserved(batch)
    log = batch.log(0)
    assert len(log["drop_ms"]) > 0
    own = log["departure_flow"] == 0
    # None overtakes another of its flow: sent = left - both delays (whole ms at the queue) - 10 ms of the way there.
    sent_ms = log["departure_ms"][own] - log["departure_delay_ms"][own]
    assert np.all(np.diff(sent_ms) >= -5)
    assert log["departure_delay_ms"].min() >= 0
    assert log["departure_delay_ms"].max() > 600  # the wired link's pause
    metrics = figures(batch, 8000.0)
    assert metrics.utilization <= 1.0


def test_a_rows_next_link_is_not_the_one_that_its_log_tells_of() -> None:
    batch = SimBatch([{"trace": constant(24), "wired_mbps": ((0.0, 6.0),)}], record_log=True)
    batch.reset()
    batch.set_link(0, {"trace": constant(24)})
    assert "opportunity_bytes" in batch.log(0)
    batch.reset()
    assert "opportunity_bytes" not in batch.log(0)
    batch.set_link(0, {"trace": constant(24), "wired_mbps": ((0.0, 6.0),)})
    assert "opportunity_bytes" not in batch.log(0)
    batch.reset([0])
    assert "opportunity_bytes" in batch.log(0)


def test_what_an_opportunity_carries_by_hand() -> None:
    # 12.032 Mbit/s are a packet a millisecond, from 100 ms on; then nothing for 3 ms, then half as much.
    wired = ((0.0, 12.032), (3.0, 0.0), (6.0, 6.016))
    at_ms = np.array([101, 101, 102, 104, 105, 106, 107, 108], np.float64)
    assert carried_bytes(at_ms, wired, 100.0, 1e9).tolist() == [1504, 0, 1504, 1504, 0, 0, 752, 752]
    # Ten milliseconds at once: the queue has room for two packets beside the one that is being sent.
    late_ms = np.array([110.0] * 6)
    assert carried_bytes(late_ms, ((0.0, 12.032),), 100.0, 2 * 1504).tolist() == [1504] * 3 + [0] * 3
    assert carried_bytes(np.zeros(0), wired, 100.0, 1e9).size == 0


def test_a_wired_links_longest_pause_is_found() -> None:
    assert longest_pause_ms(()) == 0
    assert longest_pause_ms(((0.0, 5.0), (10.0, 6.0))) == 0
    assert longest_pause_ms(((0.0, 0.0), (300.0, 6.0), (400.0, 0.0), (450.0, 0.0), (900.0, 1.0))) == 500
