"""Every congestion control of the simulator: its law step by step, and how it behaves on constant and varying links."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from helpers.links import Ms, assert_conserved, cellular, constant, run
from reinet.core import ConfigError, Flag
from reinet.envs.sim import SimBatch
from reinet.envs.sim._driven import DrivenControl
from reinet.envs.sim.options import SIM_CONGESTION_CONTROLS


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


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no congestion control 'brr'; did you mean 'bbr'"):
        SimBatch([{"trace": constant(12), "cc": "brr"}])
    with pytest.raises(ConfigError, match=", ".join(SIM_CONGESTION_CONTROLS)):
        SimBatch([{"trace": constant(12), "cc": "no such thing"}])


@pytest.mark.parametrize("cc", SIM_CONGESTION_CONTROLS)
class TestEveryControl:
    def test_uses_a_constant_link(self, cc: str) -> None:
        flow = Flow(cc, constant(12), 20.0)
        assert flow.mbps(since_s=10.0) > 0.85 * 12

    @pytest.mark.parametrize("seed", range(2))
    def test_lives_on_a_link_that_changes_and_stands_still(self, cc: str, seed: int) -> None:
        for buffer_bytes in (15_000, 150_000):
            flow = Flow(cc, cellular(seed), 20.0, buffer_bytes=buffer_bytes, late_us=100, jitter_us=400)
            assert_conserved(flow.batch)
            assert np.all(np.diff(flow.records["time_ns"].astype(np.int64)) > 0)
            assert np.all(flow.records["cwnd_pkts"] >= 1)
            assert len(flow.log["departure_ms"]) > 0.2 * len(flow.log["opportunity_ms"])

    def test_is_capped(self, cc: str) -> None:
        flow = Flow(cc, constant(12), 8.0, cap_pkts=10)
        assert np.all(flow.since(1.0)["cwnd_pkts"] <= 10)
        assert np.all(flow.since(1.0)["inflight_pkts"] <= 10)

    def test_gives_the_same_bytes_each_time(self, cc: str) -> None:
        first, second = (Flow(cc, cellular(5), 5.0, seed=3).records for _ in range(2))
        assert first.tobytes() == second.tobytes()

    def test_finishes_a_finite_flow_and_then_says_so(self, cc: str) -> None:
        # The tail is lost in a buffer of three packets now and then; the loss probe or a timeout mends it.
        for size_bytes in (1, 1448 * 25, 200_001):
            flow = Flow(cc, constant(12), 8.0, flow_bytes=size_bytes, buffer_bytes=6 * 1504)
            done = (flow.records["flags"] & Flag.CLOSED) != 0
            assert done[-1]
            assert not done[:-1][np.diff(done.astype(int)) < 0].any()
            p = flow.batch.packets(0)
            assert p["queued_pkts"] == p["on_path_pkts"] == 0
            assert p["delivered_pkts"] >= -(-size_bytes // 1448) + 1  # and the handshake's


def test_reno_adds_a_packet_per_window_and_halves_it() -> None:
    flow = Flow("reno", constant(12), 60.0)
    late = flow.since(30.0)
    calm = late[(late["flags"] & (Flag.IN_RECOVERY | Flag.SLOW_START)) == 0]["cwnd_pkts"].astype(int)
    steps = np.diff(calm)
    grown = steps[steps >= 0]
    assert np.count_nonzero(grown == 1) > 0.9 * len(grown)
    assert late["ssthresh_pkts"].max() <= late["cwnd_pkts"].max() // 2 + 1
    assert 0.45 <= calm.min() / calm.max() <= 0.55


def test_bbr_fills_the_pipe_drains_it_and_probes() -> None:
    flow = Flow("bbr", constant(12), 25.0, buffer_bytes=600_000)
    # Start-up doubles per round; then twice the BDP of 22 packets at most, and no standing queue.
    assert flow.records["cwnd_pkts"].max() < 250
    settled = flow.since(5.0)
    assert flow.qdelay_ms(since_s=5.0) < 15
    assert np.median(settled["cwnd_pkts"]) == pytest.approx(2 * 22 + 6, abs=12)
    # The gain cycle: paced at 5/4, 3/4 and 1 of 12 Mbit/s of 1504 bytes, of which 1448 are payload, and 1 % less.
    rate = 0.99 * 1448 * 1000
    paced = settled["pacing_rate_bytes_per_s"].astype(float)
    for gain in (1.25, 0.75, 1.0):
        assert np.count_nonzero(np.abs(paced / (gain * rate) - 1) < 0.02) > 20
    # After ten seconds the min RTT is measured anew, with four packets.
    probing = flow.records[flow.records["cwnd_pkts"] == 4]
    assert 10.0 <= probing["time_ns"].min() / 1e9 <= 11.0
    assert probing["inflight_pkts"].min() <= 4


def test_bbr_paces_within_its_rate() -> None:
    flow = Flow("bbr", constant(12), 5.0)
    sent_ms = flow.log["arrival_ms"][flow.log["arrival_ms"] > 2000]
    # No more than a burst of two and the gain's share in any millisecond.
    assert np.bincount(sent_ms.astype(int)).max() <= 4


def test_an_application_that_writes_slowly_is_what_limits_the_flow() -> None:
    for cc in SIM_CONGESTION_CONTROLS:
        flow = Flow(cc, constant(12), 6.0, app_mbps=3.0)
        assert flow.mbps(since_s=2.0) == pytest.approx(3.0 * 1504 / 1448, rel=0.05), cc
        assert flow.qdelay_ms(since_s=2.0) <= 2, cc
        assert np.mean((flow.since(2.0)["flags"] & Flag.APP_LIMITED) != 0) > 0.9, cc
    # A window that is not used does not grow.
    assert Flow("cubic", constant(12), 20.0, app_mbps=3.0).records["cwnd_pkts"].max() <= 40


# Laws, step by step: a control driven by hand.


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


def test_renos_law() -> None:
    control = DrivenControl("reno")
    control.ack(1000, 20_000, pkts=2)
    assert control.cwnd_pkts == 12  # slow start: as much as is delivered
    control.ssthresh_pkts = 13
    control.ack(2000, 20_000, pkts=3)
    assert control.cwnd_pkts == 13  # two are left for the increase
    for _ in range(11):
        control.ack(3000, 20_000)
    assert control.cwnd_pkts == 14
    control.loss()
    assert control.ssthresh_pkts == 7
    control.open()
    assert control.cwnd_pkts == 7
    control.cwnd_pkts = 3
    control.loss(timeout=True)
    assert control.ssthresh_pkts == 2


def test_cubics_law() -> None:
    control = avoiding("cubic", 100, rtt_us=200_000)
    control.loss()
    assert control.ssthresh_pkts == 100 * 717 // 1024
    control.open()
    # Back at the old maximum after K = cbrt(30 / 0.4) = 4.2 s, and slowest around it.
    now_us, seen = 1_000_000, {}
    while now_us < 6_000_000:
        control.ack(now_us, 200_000)
        now_us += 1000
        seen[now_us] = control.cwnd_pkts
    assert seen[4_000_000] in range(97, 101)
    assert seen[5_200_000] in range(99, 102)
    assert seen[2_000_000] == pytest.approx(100 - 0.4 * 3.2**3, abs=2)
    control.loss()
    control.open()
    before = control.cwnd_pkts
    control.loss()  # fast convergence: below the last maximum, the next one is lower still
    assert control.ssthresh_pkts == before * 717 // 1024


def test_westwoods_law() -> None:
    control = avoiding("westwood", 50)
    now_us = 20_000
    for _ in range(3000):
        now_us += 1000
        control.ack(now_us, 24_000)
    control.loss()
    assert control.ssthresh_pkts == control.cwnd_pkts // 2  # Reno's, until recovery ends
    control.open()
    # A packet per ms x 24 ms, six ticks; the filter comes up to it from below.
    assert control.cwnd_pkts == control.ssthresh_pkts == 23
    # A timeout forgets the minimum RTT; the next one is rounded up to 32 ms.
    for rtt_us, expected in ((30_000, 23), (30_000, 31)):
        for _ in range(1000):
            now_us += 1000
            control.ack(now_us, rtt_us)
        control.loss(timeout=True)
        assert control.ssthresh_pkts == expected
        control.open()


def test_westwoods_filters() -> None:
    control = avoiding("westwood", 50)
    # Windows of measurement of 14 ticks, each with one ACK, which counts in the next; the RTT is 13 ticks.
    windows = [56, 56, 112, 112]
    now_us, once, twice, held = 20_000, 0.0, 0.0, 0
    control.ack(now_us, 50_000, pkts=56)
    held = 56
    for pkts in windows:
        now_us += 14 * 4_000
        control.ack(now_us, 50_000, pkts=pkts)
        rate, held = held / 14, pkts
        if twice == 0.0:
            once = twice = rate
        else:
            once = (7 * once + rate) / 8
            twice = (7 * twice + once) / 8
    control.loss()
    control.open()
    assert control.cwnd_pkts == int(twice * 13) == 52


def test_illinois_law() -> None:
    control = avoiding("illinois", 40)
    rounds = Rounds(control)
    rounds(20_000)
    rounds(120_000)
    # Average queueing delay da = 50 ms of dm = 100 ms: alpha = 1280 (dm - 1) / (dm - 1 + (da - 1) (1280 - 38) / 38),
    # beta = an eighth to a half between a tenth and eight tenths.
    rounds(70_000)
    before = control.cwnd_pkts
    rounds(70_000)
    alpha = 99_000 * 1280 // (99_000 + 49_000 * 1242 // 38)
    assert alpha == 74
    # The window grows by one for cwnd / alpha deliveries, beginning at an ACK of that round.
    credit, expected = 0, before
    for _ in range(before):
        credit += 1
        if credit * alpha // 128 >= expected:
            expected += credit * alpha // 128 // expected
            credit = 0
    assert abs(control.cwnd_pkts - expected) <= 1
    beta = (8 * 80_000 - 32 * 10_000 + 24 * 50_000) // 70_000
    assert beta == 21
    cwnd = control.cwnd_pkts
    control.loss()
    assert control.ssthresh_pkts == cwnd - cwnd * beta // 64
    # A timeout makes it Reno.
    control.open()
    control.cwnd_pkts = 40
    control.loss(timeout=True)
    control.open()
    control.cwnd_pkts = 40
    control.loss()
    assert control.ssthresh_pkts == 20


def test_vegas_law() -> None:
    control = avoiding("vegas", 20)
    rounds = Rounds(control)
    rounds(20_000, pkts=5)
    # Fewer than 2 of 20 packets wait: one more per round. 2 to 4: as it is. More than 4: one less.
    assert rounds(20_000) == 21
    steps = []
    for rtt_us in (21_000, 21_000, 23_000, 23_000, 26_000, 26_000, 26_000):
        before = control.cwnd_pkts
        steps.append(rounds(rtt_us) - before)
    assert steps[1] == 1  # 21 x 1/20 = 1
    assert steps[3] == 0  # 23 x 3/20 = 3
    assert steps[5] == steps[6] == -1  # 23 x 6/20 = 6
    # Slow start ends when more than one packet waits.
    control = DrivenControl("vegas")
    rounds = Rounds(control)
    rounds(20_000)
    assert rounds(20_000) == 40
    assert rounds(24_000) == 80  # the round before is what counts
    assert rounds(24_000) == 80 * 20 // 24 + 1
    assert control.cwnd_pkts == control.ssthresh_pkts


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


def test_bbrs_law() -> None:
    control = DrivenControl("bbr")
    # Start-up: 2.885 x the initial window per RTT.
    assert control.pacing_bytes_per_s == pytest.approx(739 / 256 * 10 / 0.02 * 1448 * 0.99, rel=1e-3)
    now_us = 20_000

    def round_trip(pkts: int) -> None:
        """A round of so many packets at one per ms."""
        nonlocal now_us
        control.send(now_us, pkts)
        now_us += 20_000
        for _ in range(pkts):
            now_us += 1000
            control.ack(now_us, 20_000, rate_us=pkts * 1000 if _ == 0 else 0)

    rate = 0.99 * 1448 * 1000
    round_trip(20)
    assert control.pacing_bytes_per_s == pytest.approx(739 / 256 * rate, rel=1e-2)
    for _ in range(3):
        round_trip(20)
    # Three rounds without 25 % more: the pipe is full; it is empty between these rounds, so
    # drained at once.
    round_trip(20)
    assert (
        control.pacing_bytes_per_s / rate == pytest.approx(1.25, rel=0.02) or control.pacing_bytes_per_s <= 1.01 * rate
    )
    assert control.cwnd_pkts <= 2 * 20 + 3 * 2 + 2 + 20
    # A loss takes off what was lost, and nothing else.
    ssthresh = control.ssthresh_pkts
    control.loss()
    assert control.ssthresh_pkts == ssthresh


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
