"""Flows of one congestion control, run over a link or driven by hand."""

from typing import Any

import numpy as np
import numpy.typing as npt

from helpers.links import Ms, run
from reinet.envs.sim._driven import DrivenControl, DrivenSender

MS = 1000
RTT_US = 20 * MS


class Flow:
    """One flow, run for some seconds under a fixed cap (0 = none)."""

    def __init__(self, cc: str, trace: Ms, seconds: float, cap_pkts: int = 0, **link: Any) -> None:
        self.batch, self.records = run(trace, seconds, cap_pkts, **{"cc": cc, "late_us": 0, "jitter_us": 0, **link})
        self.log = self.batch.log(0)

    def since(self, second: float) -> npt.NDArray[np.void]:
        return self.records[self.records["time_ns"] >= second * 1e9]

    def mbps(self, since_s: float = 0.0) -> float:
        late = self.log["departure_ms"] >= since_s * 1000
        return float(self.log["departure_bytes"][late].sum() * 8e-3 / (self.log["end_ms"] - since_s * 1000))

    def qdelay_ms(self, since_s: float = 0.0) -> float:
        return float(self.log["departure_delay_ms"][self.log["departure_ms"] >= since_s * 1000].mean())


def avoiding(name: str, cwnd_pkts: int, rtt_us: int = 20_000) -> DrivenControl:
    """A control past its slow start."""
    control = DrivenControl(name, rtt_us=rtt_us)
    control.cwnd_pkts = control.ssthresh_pkts = cwnd_pkts
    return control


class Rounds:
    """Acknowledges windowfuls, one packet per ACK, each round at one RTT."""

    def __init__(self, control: DrivenControl) -> None:
        self.control, self.now_us = control, 100_000

    def __call__(self, rtt_us: int, pkts: int | None = None) -> int:
        count = self.control.cwnd_pkts if pkts is None else pkts
        self.control.send(self.now_us, count)
        self.now_us += rtt_us
        for _ in range(count):
            self.control.ack(self.now_us, rtt_us)
        return self.control.cwnd_pkts


class DrivenFlow:
    """A simulated sender under Reno that a test acknowledges segment by segment, under a cap or none: a bulk flow in
    slow start, or one that writes objects, each a pause after the last one's end."""

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


def slow_starting() -> DrivenFlow:
    """A flow whose window and flight are 40 segments, before any cap."""
    flow = DrivenFlow()
    while flow.sender.cwnd_pkts < 40:
        flow.acknowledge(1)
    return flow
