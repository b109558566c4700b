"""What ``reinet models`` and ``reinet jobs`` show of a service: tables, and daemons' hold-outs."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from reinet.cli.main import app
from reinet.cli.service import jobs, models
from reinet.cli.service.models import hold_out

JOB = {
    "job": "abc", "name": "small", "state": "done", "iteration": 8, "iterations": 8, "left_s": 0.0, "scalars": {},
    "model": "0123456789abcdef", "owner": "root", "created_s": 0.0, "note": "",
}  # fmt: skip
MODEL = {
    "sha256": "0123456789abcdef", "name": "small", "job": "abc", "owner": "root", "pointers": ["production"],
    "created_s": 0.0, "metrics": {"score": 0.5}, "config": {"seed": 1}, "traces": [], "parent": "", "seed": 1,
    "code_version": "1", "schema_hash": "2",
}  # fmt: skip
LINE = {
    "number": 1, "kind": "promotion", "name": "production", "model": "0123456789abcdef", "before": "", "who": "root",
    "when_s": 0.0, "forced": False, "why": "", "gate": "",
}  # fmt: skip
DAEMON = {
    "daemon": "a", "name": "production", "model": "0123456789abcdef", "seen_s": 1.0, "version": "1", "problem": "",
    "owner": "root", "figures": {},
}  # fmt: skip
SERVICE = SimpleNamespace(
    jobs=lambda: [JOB],
    models=lambda: [MODEL],
    model=lambda _: MODEL,
    history=lambda *_: [LINE],
    fleet=lambda: [DAEMON],
)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, ""),
        ({"of": 1.0, "another": 2.0, "version": 3.0}, ""),
        ({"capped_flows": 4.0, "plain_flows": 1.0}, "4 capped and 1 plain flows"),
        (
            {"delay": 0.5, "delay_low": 0.4, "delay_high": 0.6, "throughput": 0.97, "throughput_low": 0.9,
             "capped_flows": 40.0, "plain_flows": 10.0, "stood_down": 1.0},
            "stood down, delay 0.50 (0.40 to 0.60), throughput 0.97, 40 capped and 10 plain flows",
        ),
    ],
)  # fmt: skip
def test_a_hold_out_is_told_in_a_line(figures: dict[str, float], words: str) -> None:
    assert hold_out(figures) == words


@pytest.mark.parametrize(
    "command",
    ["jobs list", "models list", "models show production", "models compare a b", "models history", "models fleet"],
)
def test_the_table_is_shown_beside_a_file_of_results_and_not_into_standard_output(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (jobs, models):
        monkeypatch.setattr(module, "client", lambda: nullcontext(SERVICE))
    alone = CliRunner().invoke(app, command.split())
    assert alone.exit_code == 0, alone.exception
    beside = CliRunner().invoke(app, [*command.split(), "--json", str(tmp_path / "found.json")])
    assert "0123456789ab" in beside.stderr
    assert beside.stderr == alone.stderr
    assert json.loads((tmp_path / "found.json").read_bytes())
    piped = CliRunner().invoke(app, [*command.split(), "--json", "-"])
    assert json.loads(piped.stdout)
    assert not piped.stderr
