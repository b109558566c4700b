"""What may follow an outage whatever the cap: the rule by itself, and in the simulator's sender."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.controls import RTT_US, slow_starting
from reinet.core.period import SILENCE_NS
from reinet.envs.sim._driven import Outage

SEQS = st.integers(0, 2**32 - 1)
OUTAGE_US = SILENCE_NS // 1000
CAP_PKTS = 12


def after_an_outage(next_seq: int, una_seq: int) -> Outage:
    """Forty packets were in flight; the first ACK has come."""
    outage = Outage()
    outage.on_ack(1_000_000, RTT_US, RTT_US, una_seq - 1, next_seq)
    outage.on_ack(1_000_000 + OUTAGE_US, RTT_US + OUTAGE_US, RTT_US, una_seq, next_seq)
    return outage


@given(SEQS, st.sampled_from([1, 1448]))
def test_three_packets_may_follow_one_by_one_also_where_sequences_wrap(next_seq: int, pkt_seq: int) -> None:
    outage = after_an_outage(next_seq, (next_seq - 39 * pkt_seq) % 2**32)
    for followed in range(3):
        assert outage.capped_pkts(CAP_PKTS, 39, (next_seq + followed * pkt_seq) % 2**32, pkt_seq) == 40
    assert outage.capped_pkts(CAP_PKTS, 39, (next_seq + 3 * pkt_seq) % 2**32, pkt_seq) == CAP_PKTS


def test_it_is_over_when_all_is_acknowledged_that_was_in_flight() -> None:
    outage = after_an_outage(next_seq=1000, una_seq=961)
    outage.on_ack(2_000_000, RTT_US, RTT_US, 999, 1001)
    assert outage.capped_pkts(CAP_PKTS, 39, 1001, 1) == 40
    outage.on_ack(2_000_000, RTT_US, RTT_US, 1000, 1001)
    assert outage.capped_pkts(CAP_PKTS, 39, 1001, 1) == CAP_PKTS


def test_below_the_cap_it_changes_nothing() -> None:
    assert after_an_outage(1000, 990).capped_pkts(CAP_PKTS, CAP_PKTS - 1, 1000, 1) == CAP_PKTS


@pytest.mark.parametrize(
    ("silent_us", "rtt_us"),
    [(OUTAGE_US - 1, 10 * OUTAGE_US), (10 * OUTAGE_US, RTT_US + OUTAGE_US - 1), (10 * OUTAGE_US, -1)],
    ids=["a gap", "an idle time", "a retransmission"],
)
def test_what_is_no_outage(silent_us: int, rtt_us: int) -> None:
    outage = Outage()
    outage.on_ack(1_000_000, RTT_US, RTT_US, 900, 1000)
    outage.on_ack(1_000_000 + silent_us, rtt_us, RTT_US, 961, 1000)
    assert outage.capped_pkts(CAP_PKTS, 39, 1000, 1) == CAP_PKTS


def test_a_flows_first_ack_and_an_unknown_minimum_are_no_outage() -> None:
    outage = Outage()
    outage.on_ack(1_000_000, 10 * OUTAGE_US, RTT_US, 961, 1000)
    assert outage.capped_pkts(CAP_PKTS, 39, 1000, 1) == CAP_PKTS
    outage.on_ack(2_000_000, 10 * OUTAGE_US, 2**32 - 1, 962, 1000)
    assert outage.capped_pkts(CAP_PKTS, 38, 1000, 1) == CAP_PKTS


def test_the_ack_of_a_retransmission_does_not_end_the_silence() -> None:
    outage = Outage()
    outage.on_ack(1_000_000, RTT_US, RTT_US, 900, 1000)
    outage.on_ack(1_000_000 + OUTAGE_US, -1, RTT_US, 961, 1000)
    outage.on_ack(1_000_001 + OUTAGE_US, RTT_US + OUTAGE_US, RTT_US, 962, 1000)
    assert outage.capped_pkts(CAP_PKTS, 38, 1000, 1) == 39


def test_the_loss_of_a_flights_end_is_found_within_a_round_trip_after_an_outage() -> None:
    """Of forty segments in flight the first twenty arrive when it is over, and the cap has fallen to twelve by then."""
    flow = slow_starting()
    flow.acknowledge(1, CAP_PKTS)
    flow.sender.take_sent()
    sent_us = flow.now_us
    flow.sender.advance(sent_us + OUTAGE_US)
    flow.sender.take_sent()  # loss probe and timeout, for which the link's buffer had no room either
    flow.now_us = sent_us + OUTAGE_US
    new = []
    for _ in range(20):
        flow.now_us += 100
        flow.una += 1
        flow.sender.ack(flow.now_us, flow.una, sent_us - RTT_US, cap_pkts=CAP_PKTS)
        new += flow.sender.take_sent()
    assert len(new) == 3
