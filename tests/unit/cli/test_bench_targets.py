"""``reinet bench targets``: which targets can be kept, and who keeps them."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helpers.links import constant
from reinet.agents.decide.baselines import FixedCap
from reinet.agents.decide.protocol import View
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.evaluation.within_target import within_targets
from reinet.cli.main import app
from reinet.core import Normaliser, PeriodConfig
from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate


def _steady(mbps: float) -> Trace:
    return Trace(constant(mbps, 6.0), "steady")


def _rows(traces: Path, *options: str) -> list[dict[str, Any]]:
    command = ["bench", "targets", "--traces", str(traces), "--seconds", "6", *options, "--json", "-"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return rows


def test_who_keeps_a_target_that_can_be_kept_is_ok_and_who_does_not_is_not(tmp_path: Path) -> None:
    _steady(12.0).save(tmp_path / "steady.trace")
    rows = _rows(tmp_path, "--agents", "fixed:25,none", "--target", "2.5x,60")
    told = [(row["agent"], row["target_ms"], row["trace"] == "mean") for row in rows]
    assert told == [(a, t, m) for a in ("fixed:25", "none") for t in (50, 60) for m in (False, True)]
    # 12 Mbit/s for 20 ms are 20 packets: 25 keep the link busy and a queue of 5 ms; all of the buffer takes 100 ms.
    capped, plain = [rows[0], rows[2]], [rows[4], rows[6]]
    assert all(row["can_be_kept"] and row["ok"] for row in capped)
    assert all(row["can_be_kept"] and not row["ok"] for row in plain)
    assert (rows[1]["ok"], rows[5]["ok"]) == (1, 0)


def test_who_is_ok_without_filling_the_link_is_told_so(tmp_path: Path) -> None:
    """Delay alone decides what is ok: a cap of half of the path has hardly any, and half of the throughput."""
    _steady(12.0).save(tmp_path / "steady.trace")
    few, means, plenty, _ = _rows(tmp_path, "--agents", "fixed:12,fixed:25", "--target", "60")
    assert (few["ok"], few["throughput_kept"], means["throughput_kept"]) == (True, False, 0)
    assert (plenty["ok"], plenty["throughput_kept"]) == (True, True)


def test_where_no_clairvoyant_cap_keeps_a_target_least_delay_counts(tmp_path: Path) -> None:
    _steady(0.4).save(tmp_path / "slow.trace")  # a packet takes 30 ms to serve, and four are the least that a cap lets
    rows = _rows(tmp_path, "--agents", "fixed:4,fixed:40", "--target", "50")
    few, many = rows[0], rows[2]
    assert not few["can_be_kept"]
    assert not many["can_be_kept"]
    assert few["delay_ratio"] == pytest.approx(1.0, abs=0.05)
    assert many["delay_ratio"] > 1.3
    assert (few["ok"], many["ok"]) == (True, False)


def test_an_agent_that_decides_more_often_meets_the_clairvoyant_cap_at_its_cadence_too() -> None:
    """A knob of twice the settings: the least delay at a utilisation can only fall, and the ratio to it only rise."""
    path = [Scenario.of(generate("lte-driving", 8.0, 3), "sim", seconds=8.0)]
    seen = "scalefree-5x20"
    ratios = []
    for period in (PeriodConfig(), PeriodConfig(5_000_000, packet_timed=False)):
        agent = FixedCap(25, View(seen, Normaliser.reference(seen), period))
        ratios.append(within_targets([agent], path, [50.0])[0]["delay_ratio"])
    assert ratios[0] < ratios[1]


def test_the_clairvoyant_cap_does_not_hang_on_the_targets_beside() -> None:
    """22 ms are below 1.1 x what a flow over this path of 20 ms measures: told of them the guard refuses every cap."""
    path = [Scenario.of(generate("lte-driving", 12.0, 3), "sim", seconds=12.0, target_ms=22.0)]
    low, _, beside, _ = within_targets([FixedCap(25)], path, [22.0, 60.0])
    (alone, _) = within_targets([FixedCap(25)], path, [60.0])
    assert beside == alone
    assert low["refused_share"] > 0.9
    assert beside["refused_share"] == 0
    own = [Scenario.of(path[0].trace, "sim", seconds=12.0, target_ms=60.0)]
    assert within_targets([FixedCap(25)], own, [60.0])[0] == alone


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("bench targets --target 50,2.5x", "--target: 50.0 is there twice"),
        ("bench harm --model rule --mrtt-ms 20,20.0", "--mrtt-ms: 20.0 is there twice"),
        ("bench harm --model rule --bytes 10000,10000", "--bytes: 10000 is there twice"),
        ("bench harm --model rule --cc cubic,cubic", "--cc: cubic is there twice"),
        ("fidelity --buffers 60000,60000", "--buffers: 60000 is there twice"),
        ("bench handover --how stop,stop", "--how: stop is there twice"),
        ("bench alcc --against fetches --agents rule,rule", "'rule' appears twice"),
    ],
)
def test_what_would_count_twice_is_refused(tmp_path: Path, command: str, message: str) -> None:
    _steady(12.0).save(tmp_path / "steady.trace")
    given = ["--traces", str(tmp_path)] if "targets" in command or "fidelity" in command else []
    result = CliRunner().invoke(app, [*command.split(), *given])
    assert isinstance(result.exception, ConfigError), result.output
    assert message in str(result.exception)


def test_a_wrong_target_is_named(tmp_path: Path) -> None:
    _steady(12.0).save(tmp_path / "steady.trace")
    result = CliRunner().invoke(app, ["bench", "targets", "--traces", str(tmp_path), "--target", "50,fast"])
    assert result.exit_code != 0
    assert "'fast'" in str(result.exception)
