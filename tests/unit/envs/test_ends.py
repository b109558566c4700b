"""The simulated sender's, receiver's, delay's and application's answers, one by one."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.links import assert_conserved, constant
from reinet.core.records import Flag
from reinet.envs.sim import SimBatch
from reinet.envs.sim._driven import Ack, DrivenReceiver, DrivenSender, delay_line

MS = 1000
RTT_US = 20 * MS


def told(acks: list[Ack]) -> list[tuple[int, int, int]]:
    return [(ack.next_seq, ack.sack_begin, ack.sack_end) for ack in acks]


def delaying_receiver(pkts_per_ack: float = 2.0) -> DrivenReceiver:
    """Packets 0 to 15 have drawn the 16 quick ACKs of a new connection; 16 is next."""
    receiver = DrivenReceiver(pkts_per_ack)
    for seq in range(16):
        assert told(receiver.packet(seq * MS, seq, seq * MS)) == [(seq + 1, 0, 0)]
    return receiver


def test_acks_in_order_are_delayed() -> None:
    receiver = delaying_receiver()
    assert receiver.packet(16 * MS, 16, 10 * MS) == []
    acks = receiver.packet(17 * MS, 17, 11 * MS)
    assert told(acks) == [(18, 0, 0)]
    assert acks[0].echo_us == 10 * MS  # the first's, so that the sender's RTT counts the delay
    assert receiver.packet(20 * MS, 18, 12 * MS) == []
    assert receiver.advance(60 * MS - 1) == []
    assert told(receiver.advance(60 * MS)) == [(19, 0, 0)]


@pytest.mark.parametrize("pkts_per_ack", [2.0, 8.0])
def test_what_comes_out_of_order_draws_a_duplicate_ack_at_once(pkts_per_ack: float) -> None:
    receiver = delaying_receiver(pkts_per_ack)
    for seq in (18, 19, 22):
        acks = receiver.packet(seq * MS, seq, seq * MS)
        assert told(acks) == [(16, seq, seq + 1)]
        assert acks[0].echo_us == 15 * MS  # of the last that came in order


@pytest.mark.parametrize("pkts_per_ack", [2.0, 8.0])
def test_what_fills_a_hole_is_acknowledged_at_once(pkts_per_ack: float) -> None:
    receiver = delaying_receiver(pkts_per_ack)
    receiver.packet(20 * MS, 19, 19 * MS)
    for seq in (16, 17):  # a single packet, which would be too little for a delayed ACK
        acks = receiver.packet(30 * MS, seq, 29 * MS)
        assert told(acks) == [(seq + 1, 0, 0)]
        assert acks[0].echo_us == 29 * MS
    assert told(receiver.packet(30 * MS, 18, 29 * MS)) == [(20, 0, 0)]
    assert receiver.packet(31 * MS, 20, 30 * MS) == []  # nothing is missing any more


def test_after_three_duplicate_acks_one_a_millisecond_tells_of_all_that_came() -> None:
    receiver = delaying_receiver()
    for seq in (18, 19, 20):
        assert len(receiver.packet(18 * MS, seq, 17 * MS)) == 1
    for seq in (21, 22, 23):
        assert receiver.packet(19 * MS + seq, seq, 17 * MS) == []
    assert receiver.advance(20 * MS) == []
    assert told(receiver.advance(20 * MS + 21)) == [(16, 21, 24)]
    # An ACK tells of one range: what is waiting goes out before another begins.
    assert receiver.packet(21 * MS, 24, 20 * MS) == []
    assert told(receiver.packet(21 * MS, 30, 20 * MS)) == [(16, 24, 25)]
    assert told(receiver.packet(21 * MS, 16, 20 * MS)) == [(17, 30, 31)]


def test_while_the_window_opens_every_packet_is_acknowledged() -> None:
    """A sender that doubles its rate opens the window; else every second packet is acknowledged."""

    def acks_per_packet(rounds: list[int]) -> list[float]:
        receiver, seq, shares = DrivenReceiver(), 0, []
        for number, pkts in enumerate(rounds):
            acks = 0
            for i in range(pkts):
                now_us = number * RTT_US + i * RTT_US // pkts
                acks += len(receiver.advance(now_us)) + len(receiver.packet(now_us, seq, max(0, now_us - RTT_US)))
                seq += 1
            shares.append(acks / pkts)
        return shares

    assert min(acks_per_packet([10, 20, 40, 80, 160])[1:]) > 0.65
    assert max(acks_per_packet([10] * 20)[5:]) == pytest.approx(0.5, abs=0.1)
    assert max(acks_per_packet([10, 20, 40] + [40] * 20)[12:]) == pytest.approx(0.5, abs=0.1)  # in time it is open


def test_a_delay_counts_whole_milliseconds_and_sleeps_from_its_last_wake() -> None:
    # Alone: due at 10.000 ms, but the process fell asleep at 0.400 and wakes 0.1 ms late.
    assert delay_line([400], 10 * MS, 100) == [10_500]
    # What comes at 10.200 wakes it; that itself is due at 20.000 and nothing comes to wake it before 20.300.
    assert delay_line([400, 10_200], 10 * MS, 100) == [10_200, 20_300]
    # What came at 3.700 has moved the phase; two that are due in one millisecond leave one after the other.
    first, second, third = delay_line([400, 800, 3_700], 10 * MS, 100)
    assert (first, third) == (10_800, 13_905)
    assert 0 < second - first < 20
    assert delay_line([400, 800, 3_700], 10 * MS, 0) == [10_400, 10_800, 13_700]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60), st.integers(0, 5), st.sampled_from([0, 1, 100, 999]))
def test_a_delay_reorders_nothing_and_is_right_to_a_millisecond(
    gaps_us: list[int], delay_ms: int, late_us: int
) -> None:
    arrives_us = list(itertools.accumulate(gaps_us))
    leaves_us = delay_line(arrives_us, delay_ms * MS, late_us)
    assert all(a < b for a, b in itertools.pairwise(leaves_us))
    handling_us = 20 * len(gaps_us)  # at most, of those that leave before it at the same wake
    for arrives, leaves in zip(arrives_us, leaves_us, strict=True):
        assert (delay_ms - 1) * MS < leaves - arrives <= (delay_ms + 1) * MS + 2 * late_us + handling_us


def test_a_duplicate_is_acknowledged_at_once_and_so_is_what_follows() -> None:
    receiver = delaying_receiver()
    (again,) = receiver.packet(20 * MS, 3, 19 * MS)
    assert told([again]) == [(16, 0, 0)]
    assert again.duplicate_end == 4
    (following,) = receiver.packet(21 * MS, 16, 20 * MS)
    assert told([following]) == [(17, 0, 0)]
    assert following.duplicate_end == 0


def resent(sender: DrivenSender, until_us: int) -> tuple[int, int]:
    """When a segment is first sent once more after now, and which."""
    seen = {seq for _, seq in sender.take_sent()}
    sender.advance(until_us)
    return next((at_us, seq) for at_us, seq in sender.take_sent() if seq in seen)


def test_a_segment_that_may_be_late_is_waited_for_as_the_kernel_does() -> None:
    """A round trip, a quarter of the least one for reordering, and TCP_TIMEOUT_MIN_US of the timer."""
    sender = DrivenSender(100 * MS, RTT_US)
    sender.ack(100 * MS + RTT_US, 0, 100 * MS, 1, 2)
    assert resent(sender, 140 * MS) == (100 * MS + RTT_US + RTT_US // 4 + 2 * MS, 0)


def test_one_timer_waits_for_the_last_segment_that_may_be_late() -> None:
    """10 was sent at 120 ms, 12 at 121; of neither was heard when 13 has arrived."""
    sender = DrivenSender(100 * MS, RTT_US)
    sender.ack(120 * MS, 1, 100 * MS)
    sender.ack(121 * MS, 2, 100 * MS)
    sender.ack(141 * MS, 10, 101 * MS)
    sender.ack(142 * MS, 10, 101 * MS, 13, 14)
    assert resent(sender, 170 * MS) == (121 * MS + 21 * MS + RTT_US // 4 + 2 * MS, 10)


class Tail:
    """Ten segments of an object, all but the last acknowledged: a loss probe repeats that one."""

    def __init__(self) -> None:
        self.sender = DrivenSender(100 * MS, RTT_US, object_pkts=10, pause_us=MS)
        self.sender.ack(120 * MS, 9, 100 * MS)
        self.sender.take_sent()
        self.sender.advance(339 * MS)
        assert self.sender.take_sent() == [(320 * MS, 9)]
        self.before_pkts = self.sender.cwnd_pkts

    def next_object(self) -> tuple[int, int]:
        """Its first ACK, which acknowledges more than was out when the probe left: the window and ssthresh."""
        assert self.sender.cwnd_pkts >= self.before_pkts, "who only hears that all has arrived knows of no loss"
        self.sender.advance(350 * MS)  # what the application did not use is taken back as it sends again
        self.before_pkts = self.sender.cwnd_pkts
        self.sender.ack(365 * MS, 11, 345 * MS)
        return self.sender.cwnd_pkts, self.sender.ssthresh_pkts


def test_a_loss_that_a_probe_mends_reduces_the_window_as_others_do() -> None:
    """tcp_process_tlp_ack: more is acknowledged, and nobody said that the segment arrived twice."""
    tail = Tail()
    tail.sender.ack(340 * MS, 10, 320 * MS)
    assert tail.next_object() == (tail.before_pkts // 2, tail.before_pkts // 2)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_probe_that_repeated_what_was_only_late_reduces_nothing(at_once: bool) -> None:
    tail = Tail()
    if not at_once:  # the original's own ACK comes first
        tail.sender.ack(340 * MS, 10, 100 * MS)
    tail.sender.ack(342 * MS, 10, 100 * MS, duplicate_end=10)
    cwnd_pkts, ssthresh_pkts = tail.next_object()
    assert cwnd_pkts >= tail.before_pkts
    assert ssthresh_pkts > 1_000_000


def test_a_probe_of_a_new_segment_tells_of_no_loss() -> None:
    sender = DrivenSender(100 * MS, RTT_US)
    sender.advance(150 * MS)
    assert sender.take_sent()[10:] == [(142 * MS, 10)]
    sender.ack(162 * MS, 11, 142 * MS)
    sender.ack(182 * MS, 13, 162 * MS)
    assert sender.ssthresh_pkts > 1_000_000


class Silence:
    """A sender whose window and ssthresh an earlier loss has brought to 6 and 5, and whose flight then times out.

    ``first`` is the flight's first segment, ``end`` the one after all that were sent.
    """

    def __init__(self, timeouts: int = 1) -> None:
        self.sender = DrivenSender(100 * MS, RTT_US)
        self.sender.ack(120 * MS, 0, 100 * MS, 1, 10)  # the first of ten is missing
        self.first = max(seq for _, seq in self.sender.take_sent()) + 1
        self.sender.ack(140 * MS, self.first, 120 * MS)  # and here it is: recovery ends
        sent = self.sender.take_sent()
        assert sent == [(140 * MS, self.first + i) for i in range(6)]
        assert self.windows() == (6, 5)
        now_us = 140 * MS
        while sum(seq == self.first for _, seq in sent) < 1 + timeouts:
            now_us += MS
            self.sender.advance(now_us)
            sent += self.sender.take_sent()
        assert self.windows() == (1, 3)
        self.end = max(seq for _, seq in sent) + 1
        self.first_resent_us = next(us for us, seq in sent[6:] if seq == self.first)
        self.now_us = now_us

    def ack(self, next_seq: int, echo_us: int, sack_begin: int = 0, sack_end: int = 0) -> list[int]:
        """An ACK an RTT later; the segments that it lets go."""
        self.now_us += RTT_US
        self.sender.ack(self.now_us, next_seq, echo_us, sack_begin, sack_end)
        return [seq for _, seq in self.sender.take_sent()]

    def windows(self) -> tuple[int, int]:
        return self.sender.cwnd_pkts, self.sender.ssthresh_pkts


@pytest.mark.parametrize("timeouts", [1, 3])
def test_a_timeout_is_undone_when_the_ack_echoes_the_originals_timestamp(timeouts: int) -> None:
    flow = Silence(timeouts)
    sent = flow.ack(flow.first + 1, 140 * MS)  # Eifel
    assert flow.windows() == (6, 5)
    assert all(seq >= flow.end for seq in sent)  # nothing more is sent again


@pytest.mark.parametrize("timeouts", [1, 3])
def test_a_timeout_is_undone_when_a_segment_arrives_that_was_never_sent_again(timeouts: int) -> None:
    flow = Silence(timeouts)
    sent = flow.ack(flow.first, 120 * MS, flow.first + 1, flow.first + 2)  # F-RTO, by a selective ACK
    assert flow.windows() == (6, 5)
    assert all(seq >= flow.end for seq in sent)


def test_timeouts_in_a_recovery_are_undone_to_the_window_from_before_it() -> None:
    """As after an outage that began in a recovery: the second timeout looks whether it was a mistake (tcp_enter_loss),
    and what is restored is what the recovery has remembered (tcp_undo_cwnd_reduction)."""
    sender = DrivenSender(100 * MS, RTT_US)
    before = sender.cwnd_pkts, sender.ssthresh_pkts
    sender.ack(120 * MS, 0, 100 * MS, 1, 5)  # the first of ten is missing
    assert sender.ssthresh_pkts == 5
    sent, now_us = sender.take_sent(), 120 * MS
    while sum(seq == 0 for _, seq in sent) < 4:  # once at first, once in the recovery, and at each timeout
        now_us += MS
        sender.advance(now_us)
        sent += sender.take_sent()
    assert (sender.cwnd_pkts, sender.ssthresh_pkts) == (1, 5)
    sender.ack(now_us + RTT_US, 0, 100 * MS, 5, 6)
    assert (sender.cwnd_pkts, sender.ssthresh_pkts) == before


def test_after_a_timeout_two_new_segments_tell_whether_it_was_a_mistake() -> None:
    mistaken, right = Silence(), Silence()
    for flow in (mistaken, right):
        new = flow.ack(flow.first + 1, flow.first_resent_us)  # the retransmission has arrived
        assert new == [flow.end, flow.end + 1]
        assert flow.windows() == (2, 3)
    # The next original arrives too, told by an ACK whose timestamp says nothing: the timeout was a mistake.
    sent = mistaken.ack(mistaken.first + 2, mistaken.first_resent_us)
    assert mistaken.windows() == (6, 5)
    assert all(seq >= mistaken.end for seq in sent)
    # Only the new segment arrives: the flight is lost, and what repairs it undoes nothing.
    assert right.ack(right.first + 1, right.first_resent_us, right.end, right.end + 1)[0] == right.first + 1
    right.ack(right.end + 2, right.now_us)
    assert right.windows()[1] == 3


# ---- an application that writes objects with pauses

TIMEOUT_US = RTT_US + 200 * MS
"""Linux's least variation is 200 ms."""
SEGMENT_BYTES = 1448


class Server:
    """A driven sender of objects whose every round is acknowledged packet by packet, a round trip after it was sent."""

    def __init__(self, object_pkts: int, pause_us: int) -> None:
        self.now_us = 1_000_000
        self.sender = DrivenSender(self.now_us, RTT_US, object_pkts=object_pkts, pause_us=pause_us)
        self.next_seq = 0

    def until(self, segment: int) -> None:
        """All below that segment is acknowledged; nothing beyond it may have been sent by then."""
        while self.next_seq < segment:
            sent = self.sender.take_sent()
            assert sent
            self.now_us = sent[-1][0] + RTT_US
            for at_us, seq in sent:
                self.next_seq = seq + 1
                self.sender.ack(self.now_us, self.next_seq, at_us)


def window_after_idle(pause_us: int, object_pkts: int = 80) -> tuple[int, int]:
    """The window at the end of the first object, and as the second begins."""
    server = Server(object_pkts, pause_us)
    server.until(object_pkts)
    before = server.sender.cwnd_pkts
    server.sender.advance(server.now_us + pause_us)
    return before, server.sender.cwnd_pkts


def test_the_next_object_comes_a_pause_after_the_last_acknowledgement() -> None:
    server = Server(object_pkts=12, pause_us=70 * MS)
    server.until(12)
    server.sender.advance(server.now_us + 70 * MS - 1)
    assert server.sender.take_sent() == []
    server.sender.advance(server.now_us + 70 * MS)
    sent = server.sender.take_sent()
    assert [seq for _, seq in sent] == list(range(12, 24))
    assert {at_us for at_us, _ in sent} == {server.now_us + 70 * MS}


def test_a_pause_shorter_than_the_timeout_leaves_the_window() -> None:
    before, after = window_after_idle(TIMEOUT_US - RTT_US - 2 * MS)  # idle since the last transmission, an RTT before
    assert after == before > 60


def test_a_window_halves_for_each_timeout_of_idleness() -> None:
    """tcp_cwnd_restart: (delta -= rto) > 0 halves once more, and the initial window is the floor."""
    before, once = window_after_idle(TIMEOUT_US)
    assert once == before // 2
    assert window_after_idle(2 * TIMEOUT_US) == (before, before // 4)
    assert window_after_idle(40 * TIMEOUT_US) == (before, 10)


def objects_of(**link: Any) -> tuple[SimBatch, np.ndarray, np.ndarray]:
    batch = SimBatch([{"trace": constant(12.0), "late_us": 0, "jitter_us": 0, **link}])
    batch.reset()
    while not batch.stats["flags"][0] & Flag.CLOSED:
        batch.step_caps([0])
    return batch, *batch.objects(0)


@pytest.mark.parametrize("cc", ["cubic", "bbr"])
def test_an_object_takes_the_path_and_its_transmission(cc: str) -> None:
    """Seven packets are within the first window: 10 ms there, and one opportunity of 1 ms for each of them."""
    batch, written_ms, received_ms = objects_of(cc=cc, object_bytes=10_000, pause_ms=50.0, flow_bytes=30_000)
    took_ms = received_ms - written_ms
    assert took_ms == pytest.approx([17.0] * 3, abs=2.0)
    assert_conserved(batch)


def test_the_pause_lies_between_the_last_acknowledgement_and_the_next_object() -> None:
    """The ACK of the last packet takes 10 ms back, 1 ms at the uplink, and up to 40 ms where it is delayed."""
    _, written_ms, received_ms = objects_of(object_bytes=20_000, pause_ms=500.0, flow_bytes=100_000)
    idle_ms = written_ms[1:] - received_ms[:-1]
    assert len(written_ms) == 5
    assert (idle_ms >= 510).all()
    assert (idle_ms <= 555).all()


def test_the_total_is_rounded_up_to_whole_objects_of_whole_segments() -> None:
    batch, written_ms, _ = objects_of(object_bytes=SEGMENT_BYTES + 1, pause_ms=5.0, flow_bytes=3 * SEGMENT_BYTES)
    assert len(written_ms) == 3  # two and a part
    assert batch.packets(0)["delivered_pkts"] == 3 * 2 + 1  # and the SYN-ACK


def test_a_lost_packet_delays_its_object_alone() -> None:
    """What the receiver has in order counts, not the last packet that came."""
    _, written_ms, received_ms = objects_of(object_bytes=100_000, pause_ms=20.0, flow_bytes=3_000_000, loss=0.02)
    took_ms = received_ms - written_ms
    assert len(took_ms) == 30
    assert (took_ms > 0).all()
    assert (written_ms[1:] >= received_ms[:-1]).all()


def test_a_stream_has_no_objects() -> None:
    batch, written_ms, received_ms = objects_of(flow_bytes=50_000)
    assert written_ms.size == received_ms.size == 0
    with pytest.raises(IndexError):
        batch.objects(0, 1)


def test_objects_of_a_further_flow_are_its_own() -> None:
    batch = SimBatch([{"trace": constant(12.0), "flows": [{"object_bytes": 20_000, "pause_ms": 100.0}]}])
    batch.reset()
    while batch.stats["time_ns"][0] < 3e9:
        batch.step_caps([0])
    assert batch.objects(0)[0].size == 0
    assert batch.objects(0, 1)[0].size > 3
