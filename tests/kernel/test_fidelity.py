"""``reinet fidelity``: one cell for real, and what a flow does when its cap is lifted."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from helpers.figures import figures_hold
from reinet.agents.decide.baselines import FixedCap
from reinet.agents.decide.protocol import CapArray, FloatArray
from reinet.agents.evaluation.fidelity import (
    Combination,
    Comparison,
    agrees,
    kernel_run,
    sim_figures,
)
from reinet.agents.evaluation.kernel_results import KernelResult, Results
from reinet.agents.evaluation.run import run
from reinet.agents.evaluation.scenario import Scenario
from reinet.core.records import FlowStatsArray
from reinet.envs.trace import Trace

COMBINATION = Combination(Trace.constant(12, 10), "cubic", 150_000, 40)


DRAWS = 8
"""A flow's first second is uncapped, and where slow start leaves is another place each time, on either side: HyStart
sees a queue or does not. So a run on the kernel is to be one of so many simulated ones, not their median."""


@pytest.mark.kernel
@pytest.mark.mahimahi
def test_a_capped_flow_is_the_kernels(tmp_path: Path) -> None:
    def check(done: tuple[KernelResult, str | None]) -> None:
        results = Results(tmp_path / f"{next(numbers)}.jsonl")
        results.add(done[0])
        (rows,) = Comparison([COMBINATION], results, seconds=8.0, repeat=1)
        figures = {row["metric"]: row for row in rows}
        assert figures["throughput_mbps"]["agrees"]
        kernel = done[0].figures
        draws = [sim_figures(COMBINATION, 8.0, 20.0, done[0].begin_ms, seed) for seed in range(DRAWS)]
        found = [draw for draw in draws if agrees("qdelay_mean_ms", draw["qdelay_mean_ms"], kernel["qdelay_mean_ms"])]
        assert found, draws
        assert min(abs(draw["cwnd_mean_pkts"] - kernel["cwnd_mean_pkts"]) for draw in found) < 2
        assert kernel["cwnd_mean_pkts"] < 50  # a cap of 40 after the first, uncapped second

    numbers = itertools.count()
    figures_hold(lambda: kernel_run(COMBINATION, 8.0, 20.0, None), check, lambda done: done[1])


class LiftedCap(FixedCap):
    """A cap that is lifted four seconds after the first record."""

    def reset(self) -> None:
        self.lift_ns = 0

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        now_ns = int(stats["time_ns"][0])
        self.lift_ns = self.lift_ns or now_ns + 4_000_000_000
        return super().decide(stats, states, rule_pkts) * (now_ns < self.lift_ns)


@pytest.mark.kernel
@pytest.mark.mahimahi
@pytest.mark.parametrize("cc", ["cubic", "reno"])
def test_after_the_cap_is_lifted_the_window_grows_as_the_kernels_does(cc: str) -> None:
    """Under the cap, a tenth of a second after it, and at its largest; growth goes on where the cap held it."""

    def windows(link: str) -> tuple[list[float], str | None]:
        done = run(LiftedCap(40), Scenario.of(COMBINATION.trace, link, cc=cc, target_ms=200.0, seconds=7.0))  # type: ignore[arg-type]
        lifted = np.flatnonzero(done.caps_pkts)[-1] + 1
        since_s = (done.records["time_ns"].astype(np.int64) - int(done.records["time_ns"][lifted])) / 1e9
        cwnd_pkts = done.records["cwnd_pkts"]
        at_most = [float(cwnd_pkts[since_s > -2].min()), float(np.interp(0.1, since_s, cwnd_pkts))]
        return [*at_most, float(cwnd_pkts.max())], done.invalid_reason

    simulated, _ = windows("sim")
    assert simulated[0] == 40
    assert simulated[1] > 40  # it grows, Cubic in slow start, Reno after the loss that its own start met

    def check(done: tuple[list[float], str | None]) -> None:
        assert done[0] == pytest.approx(simulated, rel=0.1)

    figures_hold(lambda: windows("mahimahi"), check, lambda done: done[1])
