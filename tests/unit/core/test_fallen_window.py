"""What a loss makes of a window that a cap has just lowered: the rule by itself, and in the simulator's sender."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.controls import RTT_US, slow_starting
from reinet.envs.sim._driven import FallenWindow

SEQS = st.integers(0, 2**32 - 1)
PKTS = st.integers(1, 5000)


@given(PKTS, PKTS)
def test_without_a_fall_the_algorithm_answers_for_itself(cwnd_pkts: int, ssthresh_pkts: int) -> None:
    fallen = FallenWindow()
    assert fallen.shown_pkts(cwnd_pkts) == cwnd_pkts
    assert fallen.ssthresh_pkts(cwnd_pkts, ssthresh_pkts) == ssthresh_pkts


@given(PKTS, PKTS, PKTS, SEQS)
def test_a_loss_never_raises_the_present_window(before: int, present: int, answer: int, next_seq: int) -> None:
    fallen = FallenWindow()
    fallen.on_cap(before, next_seq)
    assert fallen.shown_pkts(present) == max(before, present)
    if before > present:
        assert fallen.ssthresh_pkts(present, answer) == min(answer, max(present, 2))
    else:
        assert fallen.ssthresh_pkts(present, answer) == answer


@given(SEQS, st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_it_counts_until_what_was_outstanding_is_acknowledged_also_where_sequences_wrap(
    una_seq: int, outstanding: int, further: int
) -> None:
    fallen = FallenWindow()
    next_seq = (una_seq + outstanding) % 2**32
    fallen.on_cap(80, next_seq)
    fallen.on_ack(una_seq)
    fallen.on_ack((next_seq - 1) % 2**32)
    assert fallen.shown_pkts(10) == 80
    fallen.on_ack((next_seq + further) % 2**32)
    assert fallen.shown_pkts(10) == 10


def test_of_several_falls_the_highest_counts_and_a_later_one_as_high_prolongs_it() -> None:
    fallen = FallenWindow()
    fallen.on_cap(80, 1000)
    fallen.on_cap(21, 1010)  # a cap of 20 after one of 21
    fallen.on_ack(999)
    assert fallen.shown_pkts(20) == 80
    fallen.on_ack(1000)
    assert fallen.shown_pkts(20) == 20
    fallen.on_cap(80, 2000)
    fallen.on_cap(80, 2100)
    fallen.on_ack(2000)
    assert fallen.shown_pkts(20) == 80


def test_a_fall_from_nearly_as_high_prolongs_it_too() -> None:
    fallen = FallenWindow()
    fallen.on_cap(182, 1000)  # a cap of 181 after one of 182
    fallen.on_cap(180, 1100)  # and one that falls deep, before what was sent under the earlier one is acknowledged
    fallen.on_cap(150, 1100)
    fallen.on_ack(1000)
    assert fallen.shown_pkts(100) == 182
    fallen.on_ack(1100)
    assert fallen.shown_pkts(100) == 100


def test_a_loss_of_what_was_sent_before_the_fall_is_not_charged_to_the_cap() -> None:
    flow = slow_starting()
    flow.acknowledge(1, cap_pkts=12)
    assert flow.sender.cwnd_pkts == 12
    flow.lose_one(cap_pkts=12)
    assert flow.sender.ssthresh_pkts == 12  # half of 41 is more than the cap left


@pytest.mark.parametrize(("cap_pkts", "ssthresh_pkts"), [(30, 20), (20, 20), (19, 19), (4, 4)])
def test_it_is_the_algorithms_share_of_the_earlier_window_where_the_cap_took_less(
    cap_pkts: int, ssthresh_pkts: int
) -> None:
    flow = slow_starting()
    flow.acknowledge(1, cap_pkts)
    flow.lose_one(cap_pkts)
    assert flow.sender.ssthresh_pkts == ssthresh_pkts


def test_a_loss_of_what_was_sent_under_the_cap_is() -> None:
    flow = slow_starting()
    flow.acknowledge(45, cap_pkts=12)  # past all that was outstanding at the fall
    assert flow.sender.cwnd_pkts == 12
    flow.lose_one(cap_pkts=12)
    assert flow.sender.ssthresh_pkts == 6


def test_what_an_ack_lets_the_window_grow_to_under_a_cap_hides_no_loss() -> None:
    """Nothing is ever sent under it; and an ACK may be for half a window, as where a link delivers in bursts."""
    flow = slow_starting()
    flow.acknowledge(45, cap_pkts=12)
    flow.una += 6
    flow.now_us += 1000
    flow.sender.ack(flow.now_us, flow.una, flow.now_us - RTT_US, cap_pkts=12)
    flow.lose_one(cap_pkts=12)
    assert flow.sender.ssthresh_pkts == 6


def test_a_cap_that_waits_for_the_end_of_a_recovery_takes_the_window_of_what_was_sent_in_it() -> None:
    """Until it ends, the window is the recovery's own; what was sent under it may still be lost."""
    flow = slow_starting()
    recovery_end = max(segment for _, segment in flow.sender.take_sent()) + 1
    flow.lose_one(cap_pkts=8)
    flow.sender.ack(flow.now_us, flow.una, flow.now_us - RTT_US, flow.una + 5, recovery_end, 8)
    flow.now_us += RTT_US
    flow.una = recovery_end
    flow.sender.ack(flow.now_us, flow.una, flow.now_us - RTT_US, cap_pkts=8)
    assert (flow.sender.ssthresh_pkts, flow.sender.cwnd_pkts) == (20, 8)
    flow.lose_one(cap_pkts=8)
    assert flow.sender.ssthresh_pkts == 8
