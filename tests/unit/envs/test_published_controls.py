"""The published congestion controls: each law step by step, a control driven by hand."""

import numpy as np
import pytest

from reinet.envs.sim._driven import DrivenControl


def test_ledbats_law() -> None:
    control = DrivenControl("ledbat")
    assert control.cwnd_pkts == 2
    control.cwnd_pkts = 10
    for _ in range(4):
        control.send(0, 10)
        control.ack(50_000, 20_000, pkts=0)
    control.cwnd_pkts = 10
    for _ in range(4):
        control.ack(60_000, 70_000, pkts=0)  # the filter forgets the base
    control.send(60_000, 100)
    # Half way to the target: half of Reno's increase.
    window = 10.0
    for _ in range(100):
        control.ack(70_000, 70_000)
        window += 0.5 / window
        assert control.cwnd_pkts == int(window)
    # Above the target it falls as fast.
    for _ in range(4):
        control.ack(80_000, 170_000, pkts=0)
    control.send(80_000, 100)
    for _ in range(40):
        control.ack(80_000, 170_000)
        window -= 0.5 / window
    assert control.cwnd_pkts == int(window)
    control.loss()
    assert control.ssthresh_pkts == control.cwnd_pkts // 2


def test_c2tcps_law() -> None:
    control = DrivenControl("c2tcp", target_us=50_000)
    control.cwnd_pkts = control.ssthresh_pkts = 40
    # Bad for less than 100 ms: nothing happens.
    control.ack(1_000_000, 60_000)
    control.ack(1_099_000, 60_000)
    assert control.cwnd_pkts >= 40
    control.ack(1_100_000, 60_000)
    assert control.cwnd_pkts == 1
    assert control.ssthresh_pkts == 40 * 717 // 1024
    # Still bad: again after 100 ms / sqrt(1), then 100 ms / sqrt(2).
    for at_ms, restarts in ((1_199, False), (1_200, True), (1_270, False), (1_271, True)):
        control.cwnd_pkts = 30
        control.ack(at_ms * 1000, 60_000)
        assert (control.cwnd_pkts == 1) == restarts, at_ms
    # Good: Reno's increase on top of Cubic's, and the count starts anew.
    control.cwnd_pkts = control.ssthresh_pkts = 20
    for _ in range(20):
        control.ack(1_300_000, 30_000)
    assert control.cwnd_pkts > 20
    control.cwnd_pkts = 30
    control.ack(1_310_000, 60_000)
    control.ack(1_400_000, 60_000)
    assert control.cwnd_pkts >= 30
    control.ack(1_410_000, 60_000)
    assert control.cwnd_pkts == 1


def test_copas_law() -> None:
    control = DrivenControl("copa", rtt_us=20_000)
    # No queue: a target without bound, and the window doubles per round.
    now_us = 20_000
    control.send(now_us, 200)
    for _ in range(10):
        control.ack(now_us, 20_000)
    assert control.cwnd_pkts == 20
    assert control.pacing_bytes_per_s == pytest.approx(2 * 20 * 1448 / 0.02)
    # 4 ms of queue: the target is 24 / (0.5 x 4) = 12 packets, so that 20 must fall, by 1 / (0.5 x 20) per ACK.
    now_us += 20_000
    window = 20.0
    for _ in range(10):
        control.ack(now_us, 24_000)
        window -= 1 / (0.5 * window)
    assert control.cwnd_pkts == int(window)
    assert control.pacing_bytes_per_s == pytest.approx(2 * control.cwnd_pkts * 1448 / 0.024)
    # Below the target of 12 it rises again.
    control.cwnd_pkts, window = 8, 8.0
    for _ in range(8):
        control.ack(now_us, 24_000)
        window += 1 / (0.5 * window)
    assert control.cwnd_pkts == int(window)


class PccLink:
    """Sends what a PCC control asks for through a link of some rate without a queue, 20 ms away; the rest is lost."""

    def __init__(self, name: str, mbps: float) -> None:
        self.control = DrivenControl(name, rtt_us=20_000, seed=1)
        self.now_us, self.capacity = 20_000.0, mbps * 125_000
        self.rates: list[float] = []

    def run(self, seconds: float) -> None:
        end_us, flying, credit, last_us = self.now_us + seconds * 1e6, [], 0.0, self.now_us
        while self.now_us < end_us:
            self.control.send(int(self.now_us), 1)
            credit = min(credit + (self.now_us - last_us) * 1e-6 * self.capacity / 1448, 2.0)
            last_us = self.now_us
            flying.append((self.now_us, credit >= 1))
            credit -= credit >= 1
            rate = self.control.pacing_bytes_per_s
            self.rates.append(rate * 8e-6)
            self.now_us += 1448e6 / rate
            while flying and flying[0][0] + 20_000 <= self.now_us:
                sent_us, arrived = flying.pop(0)
                self.control.ack(int(sent_us) + 20_000, 20_000, int(arrived), int(not arrived), 20_000, int(sent_us))


@pytest.mark.parametrize("name", ["allegro", "vivace"])
def test_pcc_doubles_then_climbs_to_the_links_rate(name: str) -> None:
    link = PccLink(name, 10.0)
    link.run(30.0)
    steps = list(dict.fromkeys(link.rates))
    first = 10 * 1448 * 8e-6 / 0.02  # the initial window per RTT
    assert steps[:2] == pytest.approx([first, 2 * first])
    assert 0.9 * 10 <= np.mean(link.rates[len(link.rates) // 2 :]) <= 1.08 * 10


def test_veruss_law() -> None:
    control = DrivenControl("verus", rtt_us=20_000)
    # Slow start teaches the profile: 20 ms at a window of 10, 30 ms at one of 40.
    now_us = 1_000_001
    control.send(now_us, 30)
    control.ack(now_us, 20_000, pkts=30, sent_us=now_us - 20_000)
    assert control.cwnd_pkts == 40
    now_us += 40_000
    control.send(now_us, 2)
    control.ack(now_us, 30_000, pkts=1, lost_pkts=1, sent_us=now_us - 30_000)  # a loss ends it
    control.ack(now_us, 30_000, pkts=1, sent_us=now_us - 30_000)  # and all is acknowledged

    def epochs(rtt_us: int, count: int) -> list[int]:
        nonlocal now_us
        windows = []
        for _ in range(count):
            control.send(now_us, 1)
            now_us += 5_000
            control.ack(now_us, rtt_us, pkts=1, sent_us=now_us - rtt_us)
            windows.append(control.cwnd_pkts)
        return windows

    # The delay does not rise: its target does, by 2 ms per epoch, and the window along the profile by 30 / 10 ms.
    rising = np.diff(epochs(30_000, 10)[1:])
    assert np.all(np.abs(rising - 6) <= 1)
    # It has risen above six times the least delay: the target falls as fast.
    falling = np.diff(epochs(160_000, 8)[1:])
    assert np.all(np.abs(falling + 6) <= 1)


def test_sprout_forecasts_what_the_link_surely_delivers() -> None:
    def after(pkts_per_tick: int, seconds: float) -> int:
        control = DrivenControl("sprout", rtt_us=20_000)
        control.send(20_000, 1000)
        now_us = 21_000
        for _ in range(round(seconds / 0.02)):
            now_us += 20_000
            control.send(now_us, pkts_per_tick)
            if pkts_per_tick:
                control.ack(now_us, 80_000, pkts=pkts_per_tick)
            else:
                control.advance(now_us)
        return control.cwnd_pkts

    # 100 ms at 500 packets/s bring 50; their fifth percentile by Poisson alone is 39, and the rate may fall meanwhile.
    assert 28 <= after(10, 2.0) <= 39
    assert after(20, 2.0) > 1.5 * after(10, 2.0)
    # Silence with packets out is an outage.
    assert after(0, 2.0) == 1


def test_only_deliveries_of_a_busy_link_bound_sprouts_belief() -> None:
    control = DrivenControl("sprout", rtt_us=20_000)
    now_us = 20_000
    for _ in range(100):
        now_us += 20_000
        control.send(now_us - 20_000, 2)
        control.ack(now_us, 20_000, pkts=2)
    # Two packets per tick that never wait: the link can do more than that.
    assert control.cwnd_pkts > 2 * 5
