"""``reinet bench cpu``: what it refuses."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from reinet.agents.evaluation import cost
from reinet.cli.main import app
from reinet.core.errors import ConfigError, LinkError
from reinet.envs.trace import Trace


def test_of_several_traces_none_is_left_out_in_silence(tmp_path: Path) -> None:
    for mbps in (6, 12):
        Trace.constant(mbps, 5).save(tmp_path / f"{mbps}.trace")
    result = CliRunner().invoke(app, ["bench", "cpu", "--traces", str(tmp_path), "--agents", "none"])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith("--traces: 2 traces are given, and one is measured over")


def test_nothing_measured_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root every row was left out, and the command said that all was well."""
    trace = Trace.constant(6, 5).save(tmp_path / "6.trace")
    monkeypatch.setattr(cost, "measure", raised)
    result = CliRunner().invoke(app, ["bench", "cpu", "--traces", str(trace), "--agents", "none", "--cc", "cubic"])
    assert isinstance(result.exception, LinkError)
    assert "nothing was measured" in str(result.exception)
    assert "cubic, none: not measured: links need root" in result.output


def raised(*_: object) -> None:
    raise LinkError("links need root")
