"""What a loss makes of a window that a cap holds down: the rule by itself, and in the simulator's sender."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.controls import RTT_US, DrivenFlow, slow_starting
from reinet.envs.sim._driven import WithheldWindow, blamed_ssthresh_pkts

TOTALS = st.integers(0, 2**32 - 1)
PKTS = st.integers(1, 5000)
CAP_PKTS = 12


@given(PKTS, PKTS)
def test_without_a_cap_the_algorithm_answers_for_itself(cwnd_pkts: int, ssthresh_pkts: int) -> None:
    assert WithheldWindow().blamed_pkts(cwnd_pkts) == cwnd_pkts
    assert blamed_ssthresh_pkts(cwnd_pkts, cwnd_pkts, ssthresh_pkts) == ssthresh_pkts


@given(PKTS, PKTS, PKTS, PKTS)
def test_a_loss_never_raises_the_present_window(before: int, cap_pkts: int, present: int, answer: int) -> None:
    withheld = WithheldWindow()
    withheld.on_cap(before, cap_pkts, 0)
    blamed_pkts = withheld.blamed_pkts(present)
    assert blamed_pkts == max(before, cap_pkts, present)
    if blamed_pkts > present:
        assert blamed_ssthresh_pkts(blamed_pkts, present, answer) == min(answer, max(present, 2))


def test_one_loss_forgets_it() -> None:
    withheld = WithheldWindow()
    withheld.on_cap(80, 40, 0)
    assert withheld.blamed_pkts(40) == 80
    assert withheld.blamed_pkts(40) == 40


@given(TOTALS)
def test_under_a_cap_it_grows_by_a_packet_for_each_window_delivered_also_where_the_total_wraps(total: int) -> None:
    withheld = WithheldWindow()
    for acked in range(CAP_PKTS + (CAP_PKTS + 1)):
        withheld.on_cap(CAP_PKTS, CAP_PKTS, (total + acked) % 2**32)
        assert withheld.cwnd_pkts == CAP_PKTS + (acked >= CAP_PKTS)
    withheld.on_cap(CAP_PKTS, CAP_PKTS, (total + acked + 1) % 2**32)
    assert withheld.cwnd_pkts == CAP_PKTS + 2


def test_it_grows_to_twice_the_cap_and_no_further() -> None:
    withheld = WithheldWindow()
    for windows in range(3 * CAP_PKTS):
        withheld.on_cap(CAP_PKTS, CAP_PKTS, windows * 1000)
    assert withheld.cwnd_pkts == 2 * CAP_PKTS


def test_of_several_falls_the_highest_counts() -> None:
    withheld = WithheldWindow()
    withheld.on_cap(80, 60, 0)
    withheld.on_cap(60, 50, 10)
    assert withheld.cwnd_pkts == 80


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


def recovered() -> DrivenFlow:
    """Returns a flow whose first loss under a cap is over and has made it forget the window of its slow start."""
    flow = slow_starting()
    flow.acknowledge(45, CAP_PKTS)  # past all that was outstanding at the fall
    flow.lose_one(CAP_PKTS)
    flow.una = max(segment for _, segment in flow.sender.take_sent()) + 1
    flow.now_us += RTT_US
    flow.sender.ack(flow.now_us, flow.una, flow.now_us - RTT_US, cap_pkts=CAP_PKTS)
    return flow


def test_a_loss_counts_against_the_window_from_before_the_cap_until_one_has() -> None:
    flow = recovered()
    assert flow.sender.ssthresh_pkts == CAP_PKTS  # half of 41 is more than the cap
    flow.lose_one(CAP_PKTS)
    assert flow.sender.ssthresh_pkts == CAP_PKTS // 2


def test_it_counts_against_the_window_that_reno_would_have_come_to() -> None:
    flow = recovered()
    flow.acknowledge(CAP_PKTS + (CAP_PKTS + 1) + (CAP_PKTS + 2) + (CAP_PKTS + 3) + 1, CAP_PKTS)
    flow.lose_one(CAP_PKTS)
    assert flow.sender.ssthresh_pkts == (CAP_PKTS + 4) // 2


def test_what_an_ack_lets_the_window_grow_to_under_a_cap_hides_no_loss() -> None:
    """Nothing is ever sent under it; and an ACK may be for half a window, as where a link delivers in bursts."""
    flow = recovered()
    flow.una += 6
    flow.now_us += 1000
    flow.sender.ack(flow.now_us, flow.una, flow.now_us - RTT_US, cap_pkts=CAP_PKTS)
    flow.lose_one(CAP_PKTS)
    assert flow.sender.ssthresh_pkts == CAP_PKTS // 2


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
