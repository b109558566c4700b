"""The window that a cap withholds, and what a pause leaves of it: the rule by itself, and in the simulator's sender."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reinet.envs.sim._driven import DrivenSender, cwnd_after_idle_pkts

MS = 1000
RTT_US = 20 * MS
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


class Capped:
    """A driven sender under Reno that writes objects of 150 segments, each a pause after the last one's end."""

    def __init__(self, pause_ms: float) -> None:
        self.sender = DrivenSender(100 * MS, RTT_US, object_pkts=OBJECT_PKTS, pause_us=int(pause_ms * MS))
        self.now_us = 100 * MS
        self.una = 0

    def acknowledge_to(self, una: int, cap_pkts: int) -> None:
        while self.una < una:
            self.now_us += MS // 10
            self.una += 1
            self.sender.ack(self.now_us, self.una, self.now_us - RTT_US, cap_pkts=cap_pkts)

    def one_object(self, capped_from: int) -> int:
        """Carries the first object, capped from that segment on; returns the window before."""
        self.acknowledge_to(capped_from, 0)
        own_pkts = self.sender.cwnd_pkts
        self.acknowledge_to(OBJECT_PKTS, CAP_PKTS)
        return own_pkts

    def sent_after(self, pause_ms: int) -> int:
        """Returns how many segments go out when the next object is written."""
        self.sender.take_sent()
        self.sender.advance(self.now_us + pause_ms * MS)
        return len(self.sender.take_sent())


def test_after_a_pause_the_window_is_the_one_before_the_cap() -> None:
    flow = Capped(pause_ms=100)
    own_pkts = flow.one_object(capped_from=60)
    assert own_pkts == 70
    assert flow.sender.cwnd_pkts == CAP_PKTS
    assert flow.sent_after(101) == own_pkts + 1  # the ACK that met the cap let it grow once more


@pytest.mark.parametrize(("pause_ms", "halvings"), [(190, 0), (350, 1), (550, 2), (3000, 16)])
def test_it_is_halved_for_each_timeout_in_the_pause(pause_ms: int, halvings: int) -> None:
    flow = Capped(pause_ms)  # a timeout is 220 ms here, Linux's least
    own_pkts = flow.one_object(capped_from=60)
    assert flow.sent_after(pause_ms + 1) == max((own_pkts + 1) >> halvings, 10)


def test_nothing_is_given_back_when_the_sender_hardly_paused() -> None:
    flow = Capped(pause_ms=0.1)  # far less than a quarter of the round trip
    flow.one_object(capped_from=60)
    assert flow.sent_after(1) <= CAP_PKTS + 1


def test_nothing_is_given_back_once_the_cap_has_gone() -> None:
    flow = Capped(pause_ms=100)
    flow.one_object(capped_from=60)
    uncapped = Capped(pause_ms=100)
    uncapped.acknowledge_to(60, 0)
    uncapped.acknowledge_to(OBJECT_PKTS - 1, CAP_PKTS)
    uncapped.acknowledge_to(OBJECT_PKTS, 0)  # the last ACK meets none: slow start goes on from the capped window
    assert uncapped.sent_after(101) == uncapped.sender.cwnd_pkts <= CAP_PKTS + 1 < flow.sent_after(101)


def test_nothing_is_given_back_after_a_loss_under_the_cap() -> None:
    flow = Capped(pause_ms=100)
    flow.acknowledge_to(60, 0)
    flow.acknowledge_to(135, CAP_PKTS)
    flow.now_us += MS
    flow.sender.ack(flow.now_us, 135, flow.now_us - RTT_US, 136, 140, CAP_PKTS)  # one is missing
    flow.sender.advance(flow.now_us + RTT_US)
    flow.acknowledge_to(OBJECT_PKTS, CAP_PKTS)
    assert flow.sent_after(101) <= CAP_PKTS
