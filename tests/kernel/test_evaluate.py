"""``reinet evaluate`` on real kernel flows: models and caps act, and what cannot be capped is measured all the same."""

from pathlib import Path

import numpy as np
import pytest

from helpers.figures import figures_hold
from helpers.places import ROOT
from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.picture import save_comparison
from reinet.agents.evaluation.plan import Plan
from reinet.agents.evaluation.run import Run, run
from reinet.agents.evaluation.scenario import Scenario
from reinet.core.errors import ConfigError
from reinet.core.records import Flag
from reinet.envs.trace import Trace
from reinet.kshim.probe import why_not_capped
from reinet.kshim.shim import WRAPPED_CC

MODEL = ROOT / "checkpoints" / "default"
TWELVE_MBPS = Trace.constant(12, 10)


@pytest.mark.kernel
@pytest.mark.mahimahi
def test_a_model_caps_a_real_kernel_flow(tmp_path: Path) -> None:
    def plain_and_capped() -> list[Run]:
        runs = [done for done, _ in Plan(f"none,{MODEL}", [Scenario.of(TWELVE_MBPS, "mahimahi", seconds=6.0)])]
        assert runs[1].caps_pkts.any()
        assert not runs[0].caps_pkts.any()
        return runs

    def check(runs: list[Run]) -> None:
        plain, capped = (done.metrics for done in runs)
        assert capped.qdelay_mean_ms < plain.qdelay_mean_ms / 2
        assert capped.throughput_mbps > 0.9 * plain.throughput_mbps

    runs = figures_hold(plain_and_capped, check, lambda runs: [r.invalid_reason for r in runs if r.invalid_reason])
    save_comparison(runs, tmp_path / "runs.png")
    assert (tmp_path / "runs.png").stat().st_size > 10_000


@pytest.mark.kernel
@pytest.mark.mahimahi
@pytest.mark.parametrize("cc", WRAPPED_CC)
def test_every_wrapped_congestion_control_is_capped(cc: str) -> None:
    if reason := why_not_capped(cc):
        pytest.skip(reason)

    def capped() -> Run:
        done = run(make_agent("fixed:10"), Scenario.of(TWELVE_MBPS, "mahimahi", cc=cc, seconds=6.0))
        capped = np.flatnonzero(done.caps_pkts)  # from when its queue stands, after the first second
        assert capped.size
        assert (done.caps_pkts[capped[0] :] == 10).all()
        records = done.records
        steady = records[(records["cap_pkts"] == 10) & ((records["flags"] & Flag.IN_RECOVERY) == 0)][1:]
        assert len(steady) > 20
        assert steady["cwnd_pkts"].max() <= 10
        return done

    def check(done: Run) -> None:
        assert np.median(done.log.departure_delay_ms) < 5
        assert 4 < done.metrics.throughput_mbps < 8  # 10 packets in some 22 ms, and what came before the cap

    figures_hold(capped, check)


@pytest.mark.kernel
@pytest.mark.mahimahi
def test_a_congestion_control_without_a_wrapper_is_measured_but_not_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="'vegas' cannot be capped in the kernel: the shim wraps only"):
        run(make_agent("fixed:20"), Scenario.of(TWELVE_MBPS, "mahimahi", cc="vegas", seconds=3.0))
    monkeypatch.setattr("reinet.envs.capped_link.wrapper_names", dict)

    def unobserved() -> Run:
        done = run(make_agent("none"), Scenario.of(TWELVE_MBPS, "mahimahi", cc="reno", seconds=3.0))
        assert done.records.size == 0
        return done

    def check(done: Run) -> None:
        assert done.metrics.throughput_mbps > 8

    figures_hold(unobserved, check)
