"""The published congestion controls: each law step by step, a control driven by hand."""

import numpy as np
import pytest

from reinet.envs.sim._driven import DelayProfile, DrivenControl


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
    control = DrivenControl("copa-default", rtt_us=20_000)
    # The window of 10 stays for 19 ACKs. No queue: a target without bound, and the window doubles per round.
    now_us = 20_000
    control.send(now_us, 200)
    for _ in range(19):
        control.ack(now_us, 20_000)
    assert control.cwnd_pkts == 10
    for _ in range(10):
        control.ack(now_us, 20_000)
    assert control.cwnd_pkts == 20
    assert control.pacing_bytes_per_s == pytest.approx(2 * 20 * 1448 / 0.02)
    # 4 ms of queue: the target is 24 / (0.5 x 4) = 12 packets. Slow start ends, and 21 must fall, by 2 / (0.5 x 21) per
    # ACK: the first round counts as one that kept the direction.
    now_us += 20_000
    control.ack(now_us, 24_000)
    window = 21.0
    for _ in range(10):
        control.ack(now_us, 24_000)
        window -= 2 / (0.5 * window)
    assert control.cwnd_pkts == int(window)
    assert control.pacing_bytes_per_s == pytest.approx(2 * window * 1448 / 0.024)
    # Below the target of 12 it rises again; the round before fell, so that the velocity is 1 from the next round on.
    control.cwnd_pkts, window = 8, 8.0
    now_us += 25_000
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


class VerusLink:
    """A path on which a packet takes 20 ms and 0.5 ms more for each that is in flight, one at a time."""

    def __init__(self) -> None:
        self.control, self.now_us = DrivenControl("verus", rtt_us=20_000), 20_000
        self.flying: list[tuple[int, int]] = []

    def run(self, ms: int, added_us: int = 0) -> list[int]:
        """Returns the window of every ms: what may be in flight."""
        windows = []
        for _ in range(ms):
            self.now_us += 1000
            while self.flying and self.flying[0][0] <= self.now_us:
                _, sent_us = self.flying.pop(0)
                self.control.ack(self.now_us, self.now_us - sent_us, sent_us=sent_us)
            self.control.advance(self.now_us)
            sent = max(0, self.control.cwnd_pkts - len(self.flying))
            for _ in range(sent):
                arrives_us = self.now_us + 20_000 + added_us + 500 * len(self.flying)
                self.flying.append((max(arrives_us, self.flying[-1][0] if self.flying else 0), self.now_us))
            self.control.send(self.now_us, sent)
            windows.append(len(self.flying))
        return windows


def test_verus_starts_with_one_packet_and_doubles() -> None:
    windows = VerusLink().run(120)
    assert windows[10] == 1
    assert 2 <= windows[25] <= 3
    assert max(windows) >= 16


def test_veruss_profile_is_a_smooth_curve_read_backwards() -> None:
    profile = DelayProfile()
    rng = np.random.Generator(np.random.PCG64(1))
    for window in range(1, 201):
        for _ in range(20):
            profile.add(window, 20 + 0.5 * window + rng.uniform(-4, 4))
    assert profile.fit(1000)
    for delay_ms in (45.0, 70.0, 95.0):
        assert profile.window_pkts(delay_ms) == pytest.approx((delay_ms - 20) / 0.5, abs=5)
    # Beyond its points it is a straight line.
    assert profile.window_pkts(170.0) == pytest.approx(300, rel=0.1)
    assert profile.delay_ms(300.0) == pytest.approx(170, rel=0.06)
    # Points of windows from there on are forgotten, and four points make no curve.
    assert profile.fit(101)
    assert not profile.fit(5)


def test_verus_aims_at_less_delay_above_six_times_the_least() -> None:
    link = VerusLink()
    link.run(150)
    link.control.ack(link.now_us, 30_000, pkts=0, lost_pkts=1, sent_us=link.now_us - 5_000)
    link.run(3000)  # a packet is missing for 150 ms: slow start ends, the delay goes up until it is six times the least
    steady = link.run(500)
    assert 4.0 * 20 <= 20 + 0.5 * np.mean(steady) <= 6.5 * 20
    falling = link.run(1000, added_us=60_000)
    assert np.mean(falling[-200:]) < np.mean(steady) - 60


def test_sprout_forecasts_what_the_link_surely_delivers() -> None:
    def after(pkts_per_tick: int, seconds: float) -> int:
        control = DrivenControl("sprout", rtt_us=20_000)
        now_us = 21_000
        control.send(now_us - 20_000, 1)
        control.ack(now_us, 20_000, pkts=1, sent_us=now_us - 20_000)  # silence before the first ACK is no outage
        for _ in range(round(seconds / 0.02)):
            now_us += 20_000
            if pkts_per_tick:
                control.send(now_us - 20_000, pkts_per_tick)
                control.ack(now_us, 20_000, pkts=pkts_per_tick, sent_us=now_us - 20_000)
            else:
                control.advance(now_us)
        control.advance(now_us + 21_000)
        return control.cwnd_pkts

    # 100 ms at 500 packets/s bring 50; 120 ms less the first 20 are a little more cautious than Poisson's 39.
    assert 28 <= after(10, 2.0) <= 42
    assert after(20, 2.0) > 1.5 * after(10, 2.0)
    # Silence is an outage, and one packet looks whether it is over.
    assert after(0, 2.0) == 1


def test_sprouts_belief_survives_a_count_beyond_every_rate() -> None:
    control = DrivenControl("sprout", rtt_us=20_000)
    control.send(20_000, 3000)
    control.ack(30_000, 20_000, pkts=3000, sent_us=20_000)
    control.advance(100_000)
    assert 60 <= control.cwnd_pkts <= 130  # the fastest rate brings 100 packets in 100 ms
