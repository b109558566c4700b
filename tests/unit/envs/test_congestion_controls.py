"""Every congestion control of the simulator: how it behaves on constant and varying links."""

import numpy as np
import pytest

from helpers.controls import Flow
from helpers.links import assert_conserved, cellular, constant
from helpers.places import ROOT
from reinet.core import ConfigError, Flag
from reinet.envs.sim import SimBatch
from reinet.envs.sim.options import SIM_CONGESTION_CONTROLS


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no congestion control 'brr'; did you mean 'bbr'"):
        SimBatch([{"trace": constant(12), "cc": "brr"}])
    with pytest.raises(ConfigError, match=", ".join(SIM_CONGESTION_CONTROLS)):
        SimBatch([{"trace": constant(12), "cc": "no such thing"}])


def test_the_page_says_where_each_is_from() -> None:
    text = (ROOT / "docs" / "congestion-controls.md").read_text()
    assert [cc for cc in SIM_CONGESTION_CONTROLS if f"`{cc}`" not in text.split("\nWhere a law")[0]] == []


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


def test_a_clean_slates_window_is_the_cap_whatever_is_lost() -> None:
    def windows(cc: str) -> tuple[np.ndarray, np.ndarray]:
        records = Flow(cc, constant(12), 8.0, cap_pkts=60, buffer_bytes=20 * 1504).since(2.0)
        return records["cwnd_pkts"], (records["flags"] & Flag.IN_RECOVERY) != 0

    slate, mending = windows("clean-slate")
    assert mending.mean() > 0.2  # a window of 60 is more than path and buffer hold
    assert np.mean(slate == 60) > 0.95  # but after a timeout, which may come now and then
    reno, _ = windows("reno")
    assert np.mean(reno == 60) < 0.2


def test_an_application_that_writes_slowly_is_what_limits_the_flow() -> None:
    for cc in SIM_CONGESTION_CONTROLS:
        flow = Flow(cc, constant(12), 6.0, app_mbps=3.0)
        assert flow.mbps(since_s=2.0) == pytest.approx(3.0 * 1504 / 1448, rel=0.05), cc
        assert flow.qdelay_ms(since_s=2.0) <= 2, cc
        assert np.mean((flow.since(2.0)["flags"] & Flag.APP_LIMITED) != 0) > 0.9, cc
    # A window that is not used does not grow.
    assert Flow("cubic", constant(12), 20.0, app_mbps=3.0).records["cwnd_pkts"].max() <= 40
