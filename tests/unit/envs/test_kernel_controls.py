"""The kernel's congestion controls: each law step by step, a control driven by hand, and its shape on a link."""

import numpy as np
import pytest

from helpers.controls import Flow, Rounds, avoiding
from helpers.links import constant
from reinet.core import Flag
from reinet.envs.sim._driven import DrivenControl


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
