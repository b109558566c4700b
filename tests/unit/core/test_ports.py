"""Copa, Sprout and Verus against faults that their ports once had; each test is of one of them."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from helpers.controls import Flow
from helpers.links import constant
from reinet.envs.sim._driven import DrivenControl, DrivenReceiver

MS = 1000


def with_gap(begin_s: float, end_s: float, seconds: float = 30.0, pkts_per_s: float = 0.0) -> npt.NDArray[np.uint32]:
    """12 Mbit/s, but in between only so many packets a second."""
    times_ms = np.arange(1, round(seconds * 1000) + 1)
    left = (times_ms < begin_s * 1000) | (times_ms >= end_s * 1000)
    if pkts_per_s:
        left |= times_ms % round(1000 / pkts_per_s) == 0
    return times_ms[left].astype(np.uint32)


# ---- what their transports have in common


def test_every_packet_has_an_ack_of_its_own_at_once() -> None:
    receiver = DrivenReceiver(2.0, singly=True)
    for seq in range(40):  # more than the quick ACKs of a new connection
        (ack,) = receiver.packet(seq * MS + 10 * MS, seq, seq * MS)
        assert (ack.next_seq, ack.echo_us) == (seq + 1, seq * MS)
    for seq in (42, 44, 45, 46, 47, 48):  # nor are those beyond a hole told together
        (ack,) = receiver.packet(50 * MS, seq, 40 * MS)
        assert (ack.next_seq, ack.sack_begin, ack.sack_end) == (40, seq, seq + 1)
    assert receiver.advance(1000 * MS) == []


@pytest.mark.parametrize(("cc", "ip_bytes"), [("copa", 1468), ("verus", 1478), ("sprout", 1500), ("cubic", 1500)])
def test_packets_are_as_large_as_their_implementations(cc: str, ip_bytes: int) -> None:
    flow = Flow(cc, constant(12), 2.0)
    assert flow.log["departure_bytes"].max() == ip_bytes + 4
    small = Flow(cc, constant(12), 2.0, mss_bytes=1000)
    assert small.log["departure_bytes"].max() == 1000 + 52 + 4


def used(flow: Flow, begin_s: float, end_s: float) -> float:
    """The share of the opportunities in that time that the flow used."""
    departures, opportunities = flow.log["departure_ms"], flow.log["opportunity_ms"]
    left = np.count_nonzero((departures >= begin_s * 1000) & (departures < end_s * 1000))
    return left / np.count_nonzero((opportunities >= begin_s * 1000) & (opportunities < end_s * 1000))


# ---- Sprout


def test_sprout_recovers_from_a_deep_fade() -> None:
    # One packet is all that it dares to send then; an ACK 40 ms late would tell it of 25 packets a second for ever.
    flow = Flow("sprout", with_gap(5.0, 9.0, pkts_per_s=20.0), 20.0)
    assert used(flow, 12.0, 20.0) > 0.9


def test_a_flight_that_is_over_is_no_outage_to_sprout() -> None:
    def window_after(silence_ms: int) -> int:
        control = DrivenControl("sprout", rtt_us=20_000)
        now_us = 20_000
        for _ in range(50):
            control.send(now_us, 10)
            sent_us, now_us = now_us, now_us + 20_000
            control.ack(now_us, 20_000, pkts=10, sent_us=sent_us)  # all of a flight, its last packet too
        before = control.cwnd_pkts
        for _ in range(silence_ms // 20):
            now_us += 20_000
            control.advance(now_us)
        return control.cwnd_pkts * 100 // before

    assert window_after(40) > 70  # percent: the rate may have wandered
    assert window_after(200) < 20


# ---- Verus


def test_verus_does_not_back_off() -> None:
    # TCP's timeout doubles through the gap, and then waits for three seconds more; Verus's is a second at most.
    flow = Flow("verus", with_gap(5.0, 7.0), 12.0, late_us=100, jitter_us=1000)
    assert used(flow, 8.0, 10.0) > 0.7


def test_verus_does_not_flood_a_dead_link() -> None:
    # All that it takes for lost leaves the pipe empty in its eyes, but not a budget for every epoch.
    flow = Flow("verus", with_gap(5.0, 14.0), 20.0)
    assert len(flow.log["drop_ms"]) < len(flow.log["departure_ms"])


def test_verus_fills_a_deep_buffer_once() -> None:
    flow = Flow("verus", constant(12), 30.0, buffer_bytes=300_000)
    assert np.all(flow.log["drop_ms"] < 2000)  # slow start's
    assert used(flow, 5.0, 30.0) > 0.95
    assert flow.qdelay_ms(5.0) < 6 * 20


# ---- Copa


class CopaFlow:
    """A Copa driven by hand, one ACK a millisecond, past its slow start."""

    def __init__(self, name: str) -> None:
        self.control, self.now_us = DrivenControl(name, rtt_us=20_000), 100_000
        self.control.send(self.now_us, 1_000_000)
        self.ack(20_000, 20)
        for _ in range(30):
            self.ack(40_000)

    def ack(self, rtt_us: int, pkts: int = 1, lost_pkts: int = 0) -> int:
        self.now_us += 1000
        for _ in range(pkts):
            self.control.ack(self.now_us, rtt_us, lost_pkts=lost_pkts)
        return self.control.cwnd_pkts


def test_copas_velocity_doubles_each_round_that_the_direction_holds() -> None:
    flow = CopaFlow("copa-default")
    flow.control.cwnd_pkts = 100  # the target is 40 / (0.5 x 20) = 4 packets
    falls = []
    for _ in range(6):  # rounds of 40 ms and the ACK that is past them
        before = flow.control.cwnd_pkts
        for _ in range(41):
            flow.ack(40_000)
        falls.append(before - flow.control.cwnd_pkts)
    assert all(later >= 1.5 * earlier for earlier, later in itertools.pairwise(falls[1:])), falls


def test_one_rtt_near_the_least_in_four_smoothed_ones_keeps_copa_in_default_mode() -> None:
    flow = CopaFlow("copa")
    # Four smoothed RTTs are 155 to 160 ms; after the short one the target of 4 packets is more for half of one.
    windows = [flow.ack(20_500 if ms % 150 == 0 else 40_000) for ms in range(2000)]
    assert np.mean(windows[1000:]) < 7
    # None any more: after these 160 ms the mode is competitive, and 1 / delta rises by one each 40 ms.
    windows = [flow.ack(40_000) for _ in range(400)]
    assert max(windows[20:150]) <= 6
    assert windows[-1] > 12
    # Another, and it is its default self at once: above its target of 4.
    flow.ack(20_500)
    windows = [flow.ack(40_000) for _ in range(200)]
    assert max(windows[-50:]) <= 6


def test_losses_halve_what_competitive_copa_takes() -> None:
    flow = CopaFlow("copa")
    rising = [flow.ack(40_000) for _ in range(1000)]
    assert rising[-1] > 30
    for _ in range(6):  # each tells of a loss
        flow.ack(40_000, lost_pkts=1)
    falling = [flow.ack(40_000) for _ in range(200)]
    assert falling[-1] < rising[-1] - 5


def test_copa_starts_anew_after_two_seconds_of_silence() -> None:
    flow = CopaFlow("copa-default")
    flow.control.cwnd_pkts = 100
    flow.ack(40_000)
    flow.control.loss(timeout=True)
    assert flow.control.cwnd_pkts == 10
    # It has forgotten the least RTT too: what is 40 ms away now has no queue, and slow start goes on.
    assert flow.ack(40_000, 40) > 25
    gap = Flow("copa", with_gap(5.0, 14.0), 20.0)
    assert used(gap, 17.0, 20.0) > 0.7
