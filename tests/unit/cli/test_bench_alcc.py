"""``reinet bench alcc --against``: what is refused before any link is made."""

import pytest
from typer.testing import CliRunner

from reinet.cli.main import app
from reinet.core.errors import ConfigError


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--against", "java"], "java needs links: give --traces"),
        (["--against", "udp"], "udp needs links: give --traces"),
        (["--against", "kernel"], "kernel needs links: give --traces"),
        (["--against", "plain", "--traces", "x"], "leave --traces out"),
        (["--against", "tunnel", "--traces", "x"], "leave --traces out"),
        (["--traces", "x"], "--traces: over loopback it does nothing; it belongs to --against"),
        (["--agents", "rule"], "--agents: over loopback"),
        (["--laws", "copa"], "--laws: over loopback"),
        (["--repeat", "1"], "--repeat: over loopback"),
        (["--buffer-bytes", "5000"], "--buffer-bytes: over loopback"),
        (["--against", "udp", "--traces", "x", "--laws", "copa,cubic"], "cubic do not run over UDP"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["bench", "alcc", *arguments])
    assert isinstance(result.exception, ConfigError)
    assert says in str(result.exception)
