"""What the gate lets through for what is missing between its looks."""

from collections import deque

import pytest

from reinet.envs.sim._driven import Missing

MSS_BYTES = 1448
RTT_MS = 20.0
STEP_MS = 0.05


class Gated:
    """A path that holds the cap 1.3 times; the gate looks every ``look_ms``, who was refused writes later."""

    def __init__(self, cap_pkts: int, look_ms: float, writes_after_ms: float, makes_up: bool = True) -> None:
        self.cap_pkts, self.look_ms, self.writes_after_ms, self.makes_up = cap_pkts, look_ms, writes_after_ms, makes_up
        self.missing = Missing()
        self.missing.begin(int(1e6))
        self.in_flight: deque[float] = deque()  # when each is acknowledged, in ms
        self.sent_ms = 0.0  # when the link is through with the newest
        self.delivers = True
        self.now_ms = 0.0

    def _room_pkts(self) -> int:
        room = max(self.cap_pkts + min(self.missing.pkts, self.cap_pkts // 4) - len(self.in_flight), 0)
        self.missing.look(int((self.now_ms + 1) * 1e6), room * MSS_BYTES)
        return room

    def run(self, ms: float) -> float:
        """Returns the mean in flight over the last half of so much time."""
        end_ms, look_at, write_at = self.now_ms + ms, self.now_ms, float("inf")
        summed, steps, heard = 0, 0, False
        while self.now_ms < end_ms:
            while self.delivers and self.in_flight and self.in_flight[0] <= self.now_ms:
                self.in_flight.popleft()
                heard = True
            if self.now_ms >= look_at:
                look_at += self.look_ms
                self._room_pkts()
                if self.makes_up:
                    self.missing.make_up(int((self.now_ms + 1) * 1e6), int(RTT_MS * 1000), MSS_BYTES, heard)
                heard = False
                if self._room_pkts():
                    write_at = min(write_at, self.now_ms + self.writes_after_ms)
            if self.now_ms >= write_at:
                write_at = float("inf")
                pkts = self._room_pkts()
                for _ in range(pkts):
                    self.sent_ms = max(self.sent_ms, self.now_ms) + RTT_MS / (1.3 * self.cap_pkts)
                    self.in_flight.append(self.sent_ms + RTT_MS)
                self.missing.send(pkts * MSS_BYTES)
            if self.now_ms > end_ms - ms / 2:
                summed, steps = summed + len(self.in_flight), steps + 1
            self.now_ms += STEP_MS
        return summed / steps


@pytest.mark.parametrize("cap_pkts", [12, 40, 250])
@pytest.mark.parametrize("look_ms", [1.0, 2.5, 5.0])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_the_mean_in_flight_is_the_cap_however_seldom_looks_are_and_late_writes_come(
    cap_pkts: int, look_ms: float, share: float
) -> None:
    late_ms = share * look_ms
    without = Gated(cap_pkts, look_ms, late_ms, makes_up=False).run(2000)
    made_up = Gated(cap_pkts, look_ms, late_ms).run(2000)
    assert without < 0.985 * cap_pkts, "nothing to make up here"
    assert abs(made_up - cap_pkts) < 0.02 * cap_pkts


def test_an_outage_lets_nothing_more_through_and_owes_nothing_for_long() -> None:
    gated = Gated(20, 2.5, 0.5)
    gated.run(500)
    gated.delivers = False
    gated.run(50)
    stuck = len(gated.in_flight)
    assert stuck <= 25
    gated.run(5000)
    assert len(gated.in_flight) == stuck
    gated.in_flight.clear()
    gated.delivers = True
    assert abs(gated.run(200) - 20) < 1


def test_nothing_is_missing_of_a_window_that_nobody_wants() -> None:
    """An application that writes seldom leaves most of its window empty, and gets no more than the cap for it."""
    missing = Missing()
    missing.look(1_000_000, 20 * MSS_BYTES)
    missing.look(900_000_000, 20 * MSS_BYTES)
    missing.begin(901_000_000)  # now it writes all it can, and is refused
    missing.look(904_000_000, 0)
    missing.make_up(904_000_000, int(RTT_MS * 1000), MSS_BYTES, heard=True)
    assert missing.pkts == 0
    missing.look(906_000_000, 20 * MSS_BYTES)  # what came since then is missing
    missing.make_up(906_000_000, int(RTT_MS * 1000), MSS_BYTES, heard=True)
    assert missing.pkts > 0
    missing.end()
    assert missing.pkts == 0
