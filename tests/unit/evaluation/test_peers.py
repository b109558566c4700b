"""``reinet fidelity --peers``: the simulator's ports beside recorded runs of their own implementations."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reinet.agents.evaluation.peers import METRICS, Peers, Reference, agrees, ends, markdown
from reinet.cli.main import app
from reinet.core.errors import ConfigError
from reinet.core.visible import visible
from reinet.envs.sim import SIM_CONGESTION_CONTROLS
from reinet.envs.trace import Trace

REFERENCE = Reference.load()
TRACE = Trace.constant(12, 10)
OWN = Reference(
    mrtt_ms=20.0,
    buffer_bytes=150_000,
    seconds=5.0,
    traces={"constant": TRACE.sha256, "another": "0" * 64},
    cells={
        "sprout": {"constant": (0.9, 40.0, 50.0), "another": (0.1, 1.0, 1.0)},
        "copa-default": {"constant": (0.1, 500.0, 9.0)},
    },
    why={"copa-default": {"constant": "made up"}},
)


def test_the_packages_figures_are_of_the_simulators_controls_on_every_trace() -> None:
    for cc, cells in REFERENCE.cells.items():
        assert cc in SIM_CONGESTION_CONTROLS
        assert cells.keys() == REFERENCE.traces.keys()
        for cell in cells.values():
            assert all(low <= high for low, high in map(ends, cell))
    assert all(REFERENCE.why[cc].keys() <= cells.keys() for cc, cells in REFERENCE.cells.items() if cc in REFERENCE.why)


@pytest.mark.parametrize(
    ("utilization", "mean_ms", "expected"),
    [
        (0.75, 25.0, True),
        (0.80, 47.9, True),  # 8 ms
        (0.86, 25.0, False),
        (0.69, 48.1, False),
        (0.75, 11.0, False),
    ],
)
def test_agreement_with_a_range(utilization: float, mean_ms: float, expected: bool) -> None:
    assert agrees(utilization, mean_ms, ((0.72, 0.80), (20.0, 40.0), 50.0)) is expected


def test_a_fifth_of_a_long_delay_is_near_enough() -> None:
    assert agrees(0.9, 152.0, (0.9, 127.0, 155.0))
    assert not agrees(0.9, 153.0, (0.9, 127.0, 155.0))


def test_only_traces_of_the_same_content_are_compared() -> None:
    rows = list(Peers([TRACE, Trace.constant(5, 10)], OWN, runs=3))
    assert [(row["cc"], row["trace"]) for row in rows] == [("sprout", "constant"), ("copa-default", "constant")]
    assert all(row["runs"] == 3 and {*METRICS} <= row.keys() for row in rows)
    page = markdown(rows, "reinet fidelity --peers", OWN)
    assert "| `copa-default` | constant | 0.10 / " in page
    assert page.rstrip().endswith("| no: made up |")
    with pytest.raises(ConfigError, match="none of these traces is one of constant, another"):
        Peers([Trace.constant(5, 10)], OWN)


def test_the_command_refuses_traces_that_it_has_no_figures_of(tmp_path: Path) -> None:
    trace = tmp_path / "12.trace"
    TRACE.save(trace)
    done = CliRunner().invoke(app, ["fidelity", "--peers", "--traces", str(trace)])
    assert isinstance(done.exception, ConfigError)
    assert "ATT-LTE-driving" in str(done.exception)


def test_the_command_writes_rows_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"Z\xfcrich")  # which is no UTF-8, and the page is
    trace, page, rows = folder / "12.trace", tmp_path / "page.md", tmp_path / "rows.json"
    TRACE.save(trace)
    monkeypatch.setattr(Reference, "load", classmethod(lambda cls: OWN))
    options = ["--peers", "--traces", str(trace), "--markdown", str(page), "--json", str(rows)]
    done = CliRunner().invoke(app, ["fidelity", *options])
    assert done.exit_code == 0, done.output
    assert "of 2 cells agree." in done.output
    assert f"Made by `reinet fidelity --peers --traces '{visible(trace)}'`." in page.read_text()
    assert '"utilization_theirs"' in rows.read_text()
