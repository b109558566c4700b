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


class Flow:
    """The rule beside a flow with 40 packets in flight, from ``una_seq`` on, whose latest ACK has just come."""

    def __init__(self, una_seq: int = 960) -> None:
        self.outage = Outage()
        self.now_us, self.una_seq, self.sent_pkts = 1_000_000, una_seq, 40
        self.ack(0)

    def ack(self, after_us: int, rtt_us: int = RTT_US, pkts: int = 0, min_rtt_us: int = RTT_US) -> None:
        """An ACK of so many packets, so long after the one before."""
        self.now_us += after_us
        self.una_seq = (self.una_seq + pkts) % 2**32
        self.sent_pkts -= pkts
        self.outage.on_ack(self.now_us, rtt_us, min_rtt_us, self.una_seq, self.next_seq)

    @property
    def next_seq(self) -> int:
        return (self.una_seq + self.sent_pkts) % 2**32

    def may_send(self, cap_pkts: int = CAP_PKTS) -> bool:
        window_pkts = self.outage.capped_pkts(cap_pkts, self.sent_pkts, self.una_seq, self.next_seq)
        assert window_pkts in (cap_pkts, self.sent_pkts + 1)
        return window_pkts > self.sent_pkts


@given(SEQS)
def test_one_packet_may_follow_also_where_sequences_wrap(una_seq: int) -> None:
    flow = Flow(una_seq)
    assert not flow.may_send()
    flow.ack(OUTAGE_US, RTT_US + OUTAGE_US, 1)
    assert flow.may_send()
    flow.ack(1000, RTT_US + OUTAGE_US, 1)
    assert flow.may_send(), "it has not been sent"
    flow.sent_pkts += 1
    assert not flow.may_send()
    flow.ack(1000, RTT_US, 38)
    assert not flow.may_send(cap_pkts=1), "all is settled that was in flight"


def test_below_the_cap_it_changes_nothing() -> None:
    flow = Flow()
    flow.ack(OUTAGE_US, RTT_US + OUTAGE_US, 30)
    assert flow.outage.capped_pkts(CAP_PKTS, flow.sent_pkts, flow.una_seq, flow.next_seq) == CAP_PKTS


def test_with_nothing_in_flight_it_is_over() -> None:
    flow = Flow()
    flow.ack(OUTAGE_US, RTT_US + OUTAGE_US, 40)
    assert flow.outage.capped_pkts(CAP_PKTS, CAP_PKTS, flow.una_seq, flow.next_seq) == CAP_PKTS


@pytest.mark.parametrize(
    ("silent_us", "rtt_us"),
    [(OUTAGE_US - 1, 10 * OUTAGE_US), (10 * OUTAGE_US, RTT_US + OUTAGE_US - 1), (10 * OUTAGE_US, -1)],
    ids=["a gap", "an idle time", "a retransmission"],
)
def test_what_is_no_outage(silent_us: int, rtt_us: int) -> None:
    flow = Flow()
    flow.ack(silent_us, rtt_us, 1)
    assert not flow.may_send()


def test_an_unknown_minimum_is_no_outage() -> None:
    flow = Flow()
    flow.ack(10 * OUTAGE_US, 10 * OUTAGE_US, 1, min_rtt_us=2**32 - 1)
    assert not flow.may_send()


def test_the_ack_of_a_retransmission_does_not_end_the_silence() -> None:
    flow = Flow()
    flow.ack(OUTAGE_US - 1, -1, 1)
    flow.ack(1, RTT_US + OUTAGE_US, 1)
    assert flow.may_send()


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
    assert len(new) == 1
