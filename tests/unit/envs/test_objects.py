"""Applications that write objects with pauses: when, what the window does meanwhile, and how long each takes."""

from typing import Any

import numpy as np
import pytest

from helpers.links import assert_conserved, constant
from reinet.core.records import Flag
from reinet.envs.sim import SimBatch
from reinet.envs.sim._driven import DrivenSender

MS = 1000
RTT_US = 20 * MS
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
