"""``reinet bench frontier``: rows, means, and what the rule's own settings must show."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reinet.cli.main import app
from reinet.envs.trace.model import generate


def test_the_rule_stands_on_its_own_frontier_and_the_last_row_is_the_mean(tmp_path: Path) -> None:
    for seed in (1, 2):
        generate("lte-walking", 10.0, seed).save(tmp_path / f"{seed}.trace")
    result = CliRunner().invoke(
        app,
        ["bench", "frontier", "--traces", str(tmp_path), "--seconds", "8", "--agents", "rule:1.3,fixed:20", "--fixed",
         "--json", "-"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [(row["agent"], row["trace"] == "mean") for row in rows] == [
        (agent, mean) for agent in ("rule:1.3", "fixed:20") for mean in (False, False, True)
    ]
    own, fixed = rows[:3], rows[3:]
    # One of the settings that the envelope is made of: no better than it, and not far off.
    assert all(1 <= row["frontier_mean"] < 1.3 for row in own)
    assert all(row["frontier_fixed_mean"] == pytest.approx(1, abs=0.3) for row in fixed)
    for key in ("frontier_mean", "frontier_p95", "throughput_ratio", "times_lower_mean"):
        assert own[2][key] == pytest.approx((own[0][key] + own[1][key]) / 2)
    assert own[0]["times_lower_mean"] > 1
