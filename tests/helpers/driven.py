"""A simulated sender under Reno that a test acknowledges segment by segment, under a cap or none."""

from reinet.envs.sim._driven import DrivenSender

MS = 1000
RTT_US = 20 * MS


class DrivenFlow:
    """A bulk flow in slow start, or one that writes objects, each a pause after the last one's end."""

    def __init__(self, object_pkts: int = 0, pause_ms: float = 0) -> None:
        self.now_us = 100 * MS
        self.una = 0
        self.sender = DrivenSender(self.now_us, RTT_US, object_pkts=object_pkts, pause_us=int(pause_ms * MS))

    def acknowledge(self, segments: int, cap_pkts: int = 0) -> None:
        """So many further segments are acknowledged, each by an ACK of its own, 0.1 ms apart."""
        for _ in range(segments):
            self.now_us += MS // 10
            self.una += 1
            self.sender.ack(self.now_us, self.una, self.now_us - RTT_US, cap_pkts=cap_pkts)

    def lose_one(self, cap_pkts: int) -> None:
        """The next segment is missing and the four after it arrive, a millisecond later; a round trip goes by."""
        self.now_us += MS
        first = self.una + 1
        self.sender.ack(self.now_us, self.una, self.now_us - RTT_US, first, first + 4, cap_pkts)
        self.sender.advance(self.now_us + RTT_US)

    def sent_after(self, pause_ms: int) -> int:
        """Returns how many segments go out in that time from now on."""
        self.sender.take_sent()
        self.sender.advance(self.now_us + pause_ms * MS)
        return len(self.sender.take_sent())
