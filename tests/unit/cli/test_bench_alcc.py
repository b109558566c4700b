"""``reinet bench alcc --against``: what is refused before any link is made, what Ctrl-C leaves."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from reinet.agents.evaluation.ways import actuators
from reinet.cli.benches import alcc
from reinet.cli.main import app
from reinet.core.errors import ConfigError
from reinet.envs.link.metrics import Metrics
from reinet.envs.trace import Trace


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--against", "java"], "java needs links: give --traces"),
        (["--against", "udp"], "udp needs links: give --traces"),
        (["--against", "kernel"], "kernel needs links: give --traces"),
        (["--against", "shim"], "shim needs links: give --traces"),
        (["--against", "plain", "--traces", "x"], "--traces: with --against plain it does nothing; it belongs to "),
        (["--against", "tunnel", "--traces", "x"], "it belongs to --against udp, kernel, shim, java"),
        (["--against", "fetches", "--traces", "x"], "--traces: with --against fetches it does nothing"),
        (["--against", "fetches", "--seconds", "5"], "--seconds: with --against fetches it does nothing"),
        (
            ["--against", "kernel", "--buffer-bytes", "30000"],
            "--buffer-bytes: with --against kernel it does",
        ),
        (["--against", "kernel", "--laws", "copa"], "--laws: with --against kernel it does nothing"),
        (["--against", "udp", "--agents", "rule"], "--agents: with --against udp it does nothing"),
        (["--against", "shim", "--agents", "rule"], "--agents: with --against shim it does nothing"),
        (["--against", "java", "--law", "rule"], "--law: with --against java it does nothing; it belongs to the measu"),
        (["--against", "plain", "--connections", "9"], "--connections: with --against plain it does nothing"),
        (["--traces", "x"], "--traces: over loopback it does nothing; it belongs to --against udp, kernel"),
        (["--agents", "rule"], "--agents: over loopback"),
        (["--laws", "copa"], "--laws: over loopback"),
        (["--repeat", "1"], "--repeat: over loopback"),
        (["--buffer-bytes", "5000"], "--buffer-bytes: over loopback"),
        (["--against", "udp", "--traces", "x", "--laws", "copa,cubic"], "cubic do not run over UDP"),
        (["--connections", "200000"], "--connections: 2000000 idle ones, 10 times as many as asked for, are more than"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["bench", "alcc", *arguments])
    assert isinstance(result.exception, ConfigError)
    assert says in str(result.exception)


def test_every_option_says_to_which_measurement_it_belongs() -> None:
    options = inspect.signature(alcc.bench_alcc).parameters
    assert {*alcc.BELONGS_TO, "context", "against", "json_destination"} == set(options)


def test_ctrl_c_ends_it_without_a_traceback() -> None:
    """A terminal sends it to the measuring process too, and to the one that reads what that sends."""
    command = ["-c", "from reinet.cli.entry import main; main()", "bench", "alcc", "--connections", "5"]
    bench = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True, start_new_session=True)
    end_s = time.monotonic() + 30
    while "openings" not in commands_of(bench.pid):
        assert bench.poll() is None
        assert time.monotonic() < end_s
        time.sleep(0.01)
    time.sleep(1.0)  # until it has the process that reads
    os.killpg(bench.pid, signal.SIGINT)
    _, said = bench.communicate(timeout=60)
    assert "Traceback" not in said
    assert bench.returncode == 130


def test_ctrl_c_leaves_the_runs_that_were_made_and_their_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def run(agent: Any, scenario: Any) -> Any:
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(agent.name)
        return SimpleNamespace(metrics=Metrics(*([1.0] * len(fields(Metrics)))), invalid_reason=None, sender_cpu_us=5)

    monkeypatch.setattr(actuators, "run", run)
    trace, told = Trace.constant(12, 1).save(tmp_path / "12.trace"), tmp_path / "told.json"
    command = ["bench", "alcc", "--against", "kernel", "--agents", "rule", "--repeat", "2", "--traces", str(trace)]
    result = CliRunner().invoke(app, [*command, "--json", str(told)])
    assert result.exit_code == 130
    found = json.loads(told.read_text())
    assert [row["way"] for row in found["rows"]] == ["none", "kernel", "gate", "none"]
    assert [row["agent"] for row in found["compared"]] == ["rule"]
    assert "│ rule" in result.output


def test_ctrl_c_leaves_the_laws_whose_fetches_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(law: Any, _pairs: int, _tell: Any) -> list[dict[str, Any]]:
        if law.name != "fixed:8":
            raise KeyboardInterrupt
        return [{"law": law.name}]

    monkeypatch.setattr("reinet.agents.evaluation.ways.fetches.measure", measure)
    told = tmp_path / "told.json"
    command = ["bench", "alcc", "--against", "fetches", "--agents", "fixed:8,rule", "--json", str(told)]
    assert CliRunner().invoke(app, command).exit_code == 130
    assert [row["law"] for row in json.loads(told.read_text())["rows"]] == ["fixed:8"]


def commands_of(pid: int) -> str:
    """The command lines of a process's children; one that is gone before it is read has none."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/{child}/cmdline").read_text())
    return " ".join(found)
