"""Metrics of a link's log, by hand."""

import numpy as np
import pytest

from reinet.core.errors import LinkError
from reinet.envs.link.metrics import LinkLog, compute, first_data_ms, frontier_ratio, rate_mbps, syn_ack_ms


def log(**changes: object) -> LinkLog:
    """A SYN-ACK at 10 ms, data packets at 100, 100 and 110 ms; an opportunity every 20 ms from 0 to 200."""
    arrays: dict[str, object] = {
        "arrival_ms": [10, 100, 100, 110],
        "arrival_bytes": [64, 1504, 1504, 1504],
        "opportunity_ms": list(range(0, 201, 20)),
        "departure_ms": [20, 100, 120, 140],
        "departure_bytes": [64, 1504, 1504, 1504],
        "departure_delay_ms": [10, 0, 20, 30],
    }
    return LinkLog(**(arrays | changes))  # type: ignore[arg-type]


def test_by_hand() -> None:
    metrics = compute(log(), path_rtt_ms=20, end_ms=200)
    # From 100 ms (the first data packet, not the SYN-ACK) up to, not including, 200: opportunities at 100, 120 .. 180.
    assert metrics.interval_s == 0.1
    assert metrics.packets == 3
    assert metrics.throughput_mbps == pytest.approx(3 * 1504 * 8 / 0.1 / 1e6)
    assert metrics.capacity_mbps == pytest.approx(5 * 1504 * 8 / 0.1 / 1e6)
    assert metrics.utilization == pytest.approx(3 / 5)
    assert metrics.qdelay_mean_ms == pytest.approx(50 / 3)
    assert (metrics.qdelay_p95_ms, metrics.qdelay_max_ms) == (30, 30)  # sorted[int(0.95 * 3)] = sorted[2]
    assert metrics.delay_mean_ms == pytest.approx(50 / 3 + 20)
    assert metrics.delay_p95_ms == 50
    assert metrics.longest_stall_ms == 60  # from 140 to the end


def test_percentile_is_the_sorted_value_at_int_95_n() -> None:
    count = 100
    departures = {
        "departure_ms": np.arange(count) + 100.0,
        "departure_bytes": np.full(count, 1504),
        "departure_delay_ms": np.arange(count)[::-1].astype(float),
    }
    assert compute(log(**departures), 0, 200).qdelay_p95_ms == 95  # of 0 .. 99; interpolation would give 94.05
    metrics = compute(log(**departures), 0, 119)  # 19 packets with delays 99 .. 81; int(18.05) = 18, the largest
    assert (metrics.packets, metrics.qdelay_p95_ms) == (19, 99)


def test_warm_up_is_cut_only_when_asked_for() -> None:
    metrics = compute(log(), 20, 200, warmup_ms=15)
    assert metrics.interval_s == pytest.approx(0.085)
    assert metrics.packets == 2
    assert metrics.utilization == pytest.approx(2 / 4)


def test_opportunities_of_different_sizes() -> None:
    sizes = np.full(11, 1504)
    sizes[5] = 3008  # at 100 ms
    assert compute(log(opportunity_bytes=sizes), 20, 200).utilization == pytest.approx(3 / 6)


def test_utilization_never_exceeds_one_when_every_opportunity_is_used() -> None:
    every = list(range(0, 201, 20))
    full = log(departure_ms=every, departure_bytes=[1504] * 11, departure_delay_ms=[0] * 11)
    assert compute(full, 20, 200).utilization == 1.0


def test_refuses_what_has_no_meaning() -> None:
    with pytest.raises(LinkError, match="no data packet"):
        first_data_ms(log(arrival_bytes=[64, 64, 64, 64]))
    with pytest.raises(LinkError, match="interval is empty"):
        compute(log(), 20, 100)
    with pytest.raises(LinkError, match="nothing left the link"):
        compute(log(departure_ms=[20, 20, 20, 20]), 20, 200)
    with pytest.raises(LinkError, match="differ in length"):
        log(arrival_bytes=[64])
    for bad in (-1.0, float("nan")):
        with pytest.raises(LinkError, match="before it arrived"):
            log(departure_delay_ms=[10, 0, bad, 3])


def test_the_sender_answered_the_syn_with_the_packet_before_its_first_data() -> None:
    assert syn_ack_ms(log()) == 10
    assert syn_ack_ms(log(arrival_bytes=[64, 64, 1504, 1504])) == 100
    assert syn_ack_ms(log(arrival_bytes=[1504] * 4)) == 10, "a log without it begins with the data"


def test_a_flows_log_has_its_own_packets_and_every_opportunity() -> None:
    whole = {f"arrival_{name}": getattr(log(), f"arrival_{name}") for name in ("ms", "bytes")}
    whole |= {f"departure_{name}": getattr(log(), f"departure_{name}") for name in ("ms", "bytes", "delay_ms")}
    whole |= {"opportunity_ms": log().opportunity_ms, "arrival_flow": np.array([0, 0, 1, 1])}
    whole |= {"departure_flow": np.array([0, 1, 1, 0])}
    own = LinkLog.of_flow(whole, 1)
    assert own.arrival_ms.tolist() == [100, 110]
    assert own.departure_ms.tolist() == [100, 120]
    assert own.departure_delay_ms.tolist() == [0, 20]
    assert own.opportunity_ms.tolist() == log().opportunity_ms.tolist()


def test_rate_over_time() -> None:
    times_ms = np.array([0.0, 50, 100, 199, 200])
    assert rate_mbps(times_ms, 1250, 0, 250, 100).tolist() == pytest.approx([0.2, 0.2])
    assert rate_mbps(times_ms, np.array([0, 0, 1250, 0, 0]), 100, 200, 100).tolist() == pytest.approx([0.1])


def test_frontier_ratio_by_hand() -> None:
    # (0.8, 30) loses to (0.9, 20) in both, so the envelope is 10 at 0.5, 20 at 0.9, 60 at 1.0.
    use, delay_ms = [0.5, 0.8, 0.9, 1.0], [10.0, 30.0, 20.0, 60.0]
    assert frontier_ratio(0.7, 15.0, use, delay_ms) == pytest.approx(1.0)
    assert frontier_ratio(0.95, 20.0, use, delay_ms) == pytest.approx(0.5)
    assert frontier_ratio(0.2, 5.0, use, delay_ms) == pytest.approx(0.5)  # beyond the end: the end's delay
    assert frontier_ratio(1.0, 120.0, use, delay_ms) == pytest.approx(2.0)
    with pytest.raises(LinkError):
        frontier_ratio(0.5, 1.0, [], [])
    with pytest.raises(LinkError):
        frontier_ratio(0.5, 1.0, [0.5], [0.0])
