"""Every congestion control of the simulator: its law step by step, and how it behaves on constant and varying links."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from reinet.core import ConfigError, Flag, SimBatch
from reinet.core.sim import SIM_CONGESTION_CONTROLS

Ms = npt.NDArray[np.uint32]


def constant(mbps: float, seconds: float = 10.0) -> Ms:
    count = round(mbps * 1e6 * seconds / 12_000)
    return np.ceil(np.arange(1, count + 1) * seconds * 1000 / count).astype(np.uint32)


def cellular(seed: int, seconds: float = 20.0) -> Ms:
    """Rates that change every 100 ms, with outages."""
    rng = np.random.default_rng(seed)
    rates = rng.gamma(1.5, 0.4, int(seconds * 10)) * (rng.random(int(seconds * 10)) > 0.1)
    counts = rng.poisson(np.repeat(rates, 100))
    times = np.repeat(np.arange(1, len(counts) + 1), counts)
    return np.append(times, int(seconds * 1000)).astype(np.uint32)


class Flow:
    """One flow, run for some seconds under a fixed cap (0 = none)."""

    def __init__(self, cc: str, trace: Ms, seconds: float, cap_pkts: int = 0, **link: Any) -> None:
        self.batch = SimBatch([{"trace": trace, "cc": cc, "jitter_us": 0, **link}], record_log=True)
        self.batch.reset()
        records = [self.batch.stats.copy()]
        while self.batch.stats["time_ns"][0] < seconds * 1e9:
            self.batch.step_caps([cap_pkts])
            records.append(self.batch.stats.copy())
        self.records = np.concatenate(records)
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
            flow = Flow(cc, cellular(seed), 20.0, buffer_bytes=buffer_bytes, jitter_us=400)
            p = flow.batch.packets(0)
            assert p["sent_pkts"] == p["dropped_pkts"] + p["on_path_pkts"] + p["queued_pkts"] + p["delivered_pkts"]
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


def windows(flow: Flow) -> list[int]:
    return flow.records["cwnd_pkts"].astype(int).tolist()


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
