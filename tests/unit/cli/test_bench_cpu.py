"""``reinet bench cpu``: what it refuses."""

from pathlib import Path

from typer.testing import CliRunner

from reinet.cli.main import app
from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace


def test_of_several_traces_none_is_left_out_in_silence(tmp_path: Path) -> None:
    for mbps in (6, 12):
        Trace.constant(mbps, 5).save(tmp_path / f"{mbps}.trace")
    result = CliRunner().invoke(app, ["bench", "cpu", "--traces", str(tmp_path), "--agents", "none"])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith("--traces: 2 traces are given, and one is measured over")
