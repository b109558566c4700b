"""The window that a cap withholds, and what a pause leaves of it: the rule by itself, and in the simulator's sender."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.controls import DrivenFlow
from reinet.envs.sim._driven import cwnd_after_idle_pkts

OBJECT_PKTS = 150
CAP_PKTS = 12


@given(st.integers(1, 500_000), st.integers(0, 10_000), st.integers(1, 1000))
def test_an_idle_time_halves_a_window_for_each_timeout_down_to_the_initial_one(
    cwnd_pkts: int, idle: int, timeout: int
) -> None:
    left_pkts, delta = cwnd_pkts, idle  # tcp_slow_start_after_idle_check and tcp_cwnd_restart
    if delta > timeout:
        restart_pkts = min(10, cwnd_pkts)
        while (delta := delta - timeout) > 0 and left_pkts > restart_pkts:
            left_pkts >>= 1
        left_pkts = max(left_pkts, restart_pkts)
    assert cwnd_after_idle_pkts(cwnd_pkts, idle, timeout) == left_pkts


def writing(pause_ms: float) -> DrivenFlow:
    return DrivenFlow(OBJECT_PKTS, pause_ms)


def one_object(flow: DrivenFlow, capped_from: int) -> int:
    """Carries the first object, capped from that segment on; returns the window before."""
    flow.acknowledge(capped_from)
    own_pkts = flow.sender.cwnd_pkts
    flow.acknowledge(OBJECT_PKTS - capped_from, CAP_PKTS)
    return own_pkts


def test_after_a_pause_the_window_is_the_one_before_the_cap() -> None:
    flow = writing(pause_ms=100)
    own_pkts = one_object(flow, capped_from=60)
    assert own_pkts == 70
    assert flow.sender.cwnd_pkts == CAP_PKTS
    assert flow.sent_after(101) == own_pkts


@pytest.mark.parametrize(("pause_ms", "halvings"), [(190, 0), (350, 1), (550, 2), (3000, 16)])
def test_it_is_halved_for_each_timeout_in_the_pause(pause_ms: int, halvings: int) -> None:
    flow = writing(pause_ms)  # a timeout is 220 ms here, Linux's least
    own_pkts = one_object(flow, capped_from=60)
    assert flow.sent_after(pause_ms + 1) == max(own_pkts >> halvings, 10)


def test_nothing_is_given_back_when_the_sender_hardly_paused() -> None:
    flow = writing(pause_ms=0.1)  # far less than a quarter of the round trip
    one_object(flow, capped_from=60)
    assert flow.sent_after(1) <= CAP_PKTS + 1


def test_nothing_is_given_back_once_the_cap_has_gone() -> None:
    flow = writing(pause_ms=100)
    one_object(flow, capped_from=60)
    uncapped = writing(pause_ms=100)
    uncapped.acknowledge(60)
    uncapped.acknowledge(OBJECT_PKTS - 61, CAP_PKTS)
    uncapped.acknowledge(1)  # the last ACK meets none: slow start goes on from the capped window
    assert uncapped.sent_after(101) == uncapped.sender.cwnd_pkts <= CAP_PKTS + 1 < flow.sent_after(101)


def test_nothing_is_given_back_after_a_loss_under_the_cap() -> None:
    flow = writing(pause_ms=100)
    flow.acknowledge(60)
    flow.acknowledge(75, CAP_PKTS)
    flow.lose_one(CAP_PKTS)
    flow.acknowledge(OBJECT_PKTS - flow.una, CAP_PKTS)
    assert flow.sent_after(101) <= CAP_PKTS
