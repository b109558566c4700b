"""``reinet fidelity``: what counts as agreement, going on after an interruption, the page, one cell for real."""

from pathlib import Path

import pytest

from reinet.agents.fidelity import Cell, Comparison, KernelResult, Results, agrees, markdown, sim_figures
from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace

CELL = Cell(Trace.constant(12, 10), "cubic", 150_000, 40)
KEY = CELL.key(8.0, 20.0)


@pytest.mark.parametrize(
    ("metric", "sim", "kernel", "expected"),
    [
        ("throughput_mbps", 5.14, 5.0, True),
        ("throughput_mbps", 5.16, 5.0, False),
        ("qdelay_mean_ms", 5.9, 4.0, True),  # 48 % off, but by less than 2 ms
        ("qdelay_mean_ms", 111.0, 100.0, False),
        ("qdelay_p95_ms", 114.0, 100.0, True),
        ("cwnd_mean_pkts", 1.0, 100.0, None),
    ],
)
def test_agreement(metric: str, sim: float, kernel: float, expected: bool | None) -> None:
    assert agrees(metric, sim, kernel) is expected


def test_it_goes_on_where_it_stopped_and_compares_by_the_median(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    exact = sim_figures(CELL, 8.0, 20.0, start_ms=60.0, seed=0)
    for factor in (1.0, 1.01, 5.0):
        Results(path).add(KernelResult(KEY, 60.0, {name: factor * value for name, value in exact.items()}))
    comparison = Comparison([CELL], Results(path), seconds=8.0, repeat=3)
    comparison.measure(lambda *_: pytest.fail("all runs are there: nothing may start"))
    (rows,) = comparison
    throughput = next(row for row in rows if row["metric"] == "throughput_mbps")
    assert throughput["ratio"] == pytest.approx(1 / 1.01, rel=0.01)
    assert throughput["kernel_max"] == pytest.approx(5 * throughput["kernel_min"])
    assert all(row["agrees"] is not False for row in rows)
    assert "**1 of 1 cells agree.**" in markdown([rows], "reinet fidelity")


def test_a_damaged_results_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Results(path).add(KernelResult(KEY, 60.0, {}))
    with path.open("a") as file:
        file.write('{"half": ')
    with pytest.raises(ConfigError, match=r"results\.jsonl:2: not a result"):
        Results(path)


@pytest.mark.kernel
@pytest.mark.mahimahi
def test_a_capped_flow_is_the_kernels(tmp_path: Path) -> None:
    comparison = Comparison([CELL], Results(tmp_path / "results.jsonl"), seconds=8.0, repeat=1)
    comparison.measure(lambda *_: None)
    (rows,) = comparison
    figures = {row["metric"]: row for row in rows}
    assert figures["throughput_mbps"]["agrees"]
    assert figures["qdelay_mean_ms"]["agrees"]
    assert figures["cwnd_mean_pkts"]["kernel"] == pytest.approx(40, abs=2)
