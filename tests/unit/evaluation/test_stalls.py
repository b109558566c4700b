"""Simulated runs whose flow stalled count nowhere, as real ones do not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from typer.testing import CliRunner

from helpers.links import constant
from reinet.agents.decide.baselines import NoCap
from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation import objects
from reinet.agents.evaluation.batch import logs
from reinet.agents.evaluation.frontier import Baseline, Point, _middle, against_frontier, ratio
from reinet.agents.evaluation.harm import Cell, row_of
from reinet.agents.evaluation.picture import save_comparison
from reinet.agents.evaluation.run import run
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.evaluation.suites import report, runner
from reinet.agents.evaluation.suites.definition import load
from reinet.agents.evaluation.suites.plan import plan
from reinet.agents.evaluation.suites.store import Store
from reinet.agents.evaluation.within_target import within_targets
from reinet.agents.learn import effects
from reinet.cli.main import app
from reinet.cli.options import note_stalls
from reinet.envs.link.spec import LinkSpec
from reinet.envs.link.stalls import held_up_ms, why_stalled
from reinet.envs.trace import Trace

TWELVE = Trace.constant(12.0, 10.0)
DEAF = {"loss": 0.5}
"""A flow under such losses waits for its timer most of the time, which doubles."""


def test_a_stalled_simulated_run_is_not_valid_and_says_why() -> None:
    for seed in range(3):
        sound = run(NoCap(), Scenario.of(TWELVE, "sim", seconds=20, seed=seed)).row()
        assert (sound["valid"], sound["invalid_reason"]) == (True, None)
        row = run(NoCap(), Scenario.of(TWELVE, "sim", seconds=20, seed=seed, link_options=DEAF)).row()
        assert not row["valid"]
        assert "the flow stalled: nothing left the link for" in str(row["invalid_reason"])


@pytest.mark.parametrize(
    "path",
    [
        {"app_mbps": 0.001},
        {"object_bytes": 3000, "pause_ms": 4000.0},
        {"stop_ms": 3000.0},
        {"flow_bytes": 30_000},
        {"wired_mbps": ((0.0, 12.0), (3000.0, 0.0), (8000.0, 12.0))},
        {"uplink": np.array([*range(1, 3001), *range(8000, 11_000)], np.uint32)},  # no ACK for five seconds
        {"loss": 0.5, "flows": [{"stepped": True} for _ in range(40)]},  # the link is never without a packet for long
    ],
    ids=lambda path: next(iter(path)),
)
def test_a_link_that_is_idle_for_another_reason_or_by_others_packets_is_not_stalled(path: dict[str, object]) -> None:
    (log,) = logs(NoCap(), [LinkSpec(constant(12.0), **path)], 10.0)  # type: ignore[arg-type]
    assert log["stalled"] is None


def test_the_traces_own_gap_and_two_seconds_more_may_pass() -> None:
    times_ms = np.array([1, 2, 5000], np.uint32)  # nothing for 4998 ms
    assert why_stalled(6998, times_ms) is None
    assert why_stalled(6999, times_ms) == (
        "the flow stalled: nothing left the link for 6999 ms; the trace's longest gap + 2 s is 6998 ms"
    )
    assert why_stalled(7400, times_ms, 500.0) is None


def test_a_run_is_valid_in_which_no_ack_came_for_as_long_as_the_uplinks_own_gap() -> None:
    """Its timer doubles meanwhile: every run over a recorded uplink with an outage of some seconds was refused."""
    uplink = Trace(np.array([*range(1, 4001), *range(16_000, 20_001)], np.uint32), "up")
    path = LinkSpec(TWELVE, uplink=uplink)
    assert held_up_ms(path) == 12_000
    row = run(NoCap(), Scenario(path, "sim", seconds=20.0)).row()
    assert (row["valid"], row["invalid_reason"]) == (True, None)
    (longer,) = logs(NoCap(), [replace(path, loss=0.5, seed=1)], 60.0)
    assert "the path's longest gap + 2 s is 14001 ms" in str(longer["stalled"])


def test_a_suites_stalled_runs_are_counted_and_in_no_table(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text("""
title = "Small"
seed = 3
[[scenario]]
name = "deaf"
agents = ["none"]
traces = ["constant:12"]
seconds = 20
repeat = 2
sweep = { loss = [0.0, 0.5] }
""")
    suite, store = plan(load(str(file))), Store(tmp_path / "store")
    runner.make(suite, store)
    made = report.build(suite, store, "test")
    assert made["runs"]["valid"] == made["runs"]["invalid"] == 2
    assert {row["point"]["loss"] for row in made["rows"]} == {0.0}
    assert runner.make(suite, store).made == 0, "it would come out the same"


def test_a_stalled_setting_is_no_rival_and_a_stalled_run_enters_no_mean() -> None:
    knob = [Point(0.9, 20.0, 50.0), Point(0.95, 1.0, 1.0, stalled=True)]
    assert ratio(Point(0.9, 20.0, 50.0), knob).mean == 1.0
    assert ratio(Point(0.9, 20.0, 50.0), [replace(point, stalled=True) for point in knob]).mean == 20.0
    runs = [{"frontier_mean": 1.0, "frontier_p95": 1.0}, {"frontier_mean": 9.0, "frontier_p95": 9.0}]
    assert _middle(runs, [True, False])["frontier_mean"] == 1.0
    assert _middle(runs, [True, False])["runs"] == 1
    assert _middle(runs, [False, False])["frontier_mean"] == 5.0


def test_a_row_of_the_frontier_over_a_link_where_flows_stall_is_not_valid() -> None:
    scenarios = [
        Scenario.of(TWELVE, "sim", seconds=12, link_options=options) for options in ({}, DEAF)
    ]  # fmt: skip
    sound, deaf, mean = against_frontier([make_agent("rule")], scenarios)
    assert (sound["valid"], deaf["valid"], mean["valid"]) == (True, False, True)
    assert mean["utilization"] == sound["utilization"]


def test_the_picture_of_a_stalled_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures stood above it like any others, and a picture goes further than the table beside it."""
    titles: list[str] = []
    monkeypatch.setattr(Axes, "set_title", lambda _axes, text, **_: titles.append(text))
    links = [Scenario.of(TWELVE, "sim", seconds=12, link_options=options) for options in ({}, DEAF)]
    save_comparison([run(NoCap(), link) for link in links], tmp_path / "runs.png")
    assert [title.splitlines()[2:] for title in titles] == [[], ["not valid: do not quote this run"]]


def test_a_mean_of_nothing_but_stalled_rows_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Its row stood in the table without a word, and each trace's note said that it is not in the mean."""
    rows = against_frontier([make_agent("rule")], [Scenario.of(TWELVE, "sim", seconds=12, link_options=DEAF)])
    note_stalls(rows)
    deaf, mean = capsys.readouterr().err.splitlines()
    assert deaf.endswith("the flow stalled, so do not use this row, which enters no mean of others")
    assert mean == "note: rule:1.5 on mean: the flow stalled on every trace, so do not use this row either"


def test_a_row_of_the_targets_over_such_a_link_is_not_valid_either(capsys: pytest.CaptureFixture[str]) -> None:
    """A flow that stands still has hardly any delay, and was told to keep its target."""
    scenarios = [Scenario.of(TWELVE, "sim", seconds=12, link_options=options) for options in ({}, DEAF)]
    rows = within_targets([make_agent("rule")], scenarios, [50.0])
    sound, deaf, mean = rows
    assert deaf["ok"]
    assert (sound["valid"], deaf["valid"], mean["valid"]) == (True, False, True)
    assert mean["utilization"] == sound["utilization"]
    note_stalls(rows)
    said = capsys.readouterr().err
    assert said.count("the flow stalled, so do not use this row") == 1
    assert "rule:1.5 on constant-12mbps under 50 ms" in said


def test_a_stalled_run_of_a_variant_enters_no_mean_of_its_seed_nor_its_seed_the_median() -> None:
    """A flow that stands still has hardly any delay, and was a variant's best run."""
    beside = Baseline([Point(0.9, 20.0, 50.0)], Point(0.95, 40.0, 90.0))
    sound, deaf = Point(0.9, 20.0, 50.0), Point(0.3, 1.0, 1.0, stalled=True)
    one = effects.means(["a", "b"], [sound, deaf], [beside, beside], [50.0, 2.0])
    assert (one["frontier_mean"], one["qdelay_mean_ms"], one["decisions_per_s"]) == (1.0, 20.0, 50.0)
    assert (one["valid"], one["stalled"]) == (True, ["b"])
    none = effects.means(["a"], [deaf], [beside], [2.0])
    assert (none["valid"], none["stalled"], none["qdelay_mean_ms"]) == (False, ["a"], 1.0)
    plain = replace(beside, plain=replace(beside.plain, stalled=True))
    assert not effects.means(["a"], [sound], [plain], [50.0])["valid"]
    about = {"variant": "v", "beside": None, "path": "20 ms"}
    (row,) = effects.over_seeds([about | one, about | none])
    assert (row["seeds"], row["valid"], row["frontier_mean"]) == (1, True, 1.0)
    (row,) = effects.over_seeds([about | none])
    assert (row["seeds"], row["valid"]) == (0, False)


def test_who_judges_variants_is_told_of_each_run_that_stalled_or_starved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Baseline([Point(0.9, 20.0, 50.0)], Point(0.95, 40.0, 90.0))
    sound, deaf, starved = Point(0.9, 20.0, 50.0), Point(0.3, 1.0, 1.0, stalled=True), Point(0.3, 1.0, 1.0)
    seeds = [
        effects.means(names, some, [beside] * len(some), [50.0] * len(some))
        for names, some in ((["a", "b"], [sound, deaf]), (["b"], [deaf]), (["a", "c"], [sound, starved]))
    ]
    about = {"variant": "v", "what": "", "beside": None, "path": "20 ms"}
    rows = [about | {"seed": seed} | row for seed, row in enumerate(seeds, 1)]
    monkeypatch.setattr(effects, "measure", lambda *_, **__: iter(rows))
    TWELVE.save(tmp_path / "one.trace")
    result = CliRunner().invoke(app, ["bench", "effects", "--traces", str(tmp_path / "one.trace")])
    assert result.exit_code == 0, result.output
    assert "note: v, seed 1, 20 ms: the flow stalled on b, so it is not in the means" in result.output
    assert "note: v, seed 2, 20 ms: the flow stalled on b, as on every trace, so do not quote it" in result.output
    assert [row["below_rule"] for row in seeds] == [0, 1, 0.5]
    told = " ".join(result.output.split())
    assert (
        "note: v, seed 3, 20 ms: less utilisation than every setting of the rule on 50 % of the traces, so no" in told
    )
    assert "seed 1, 20 ms: less utilisation" not in told


def test_a_fetch_that_stalled_makes_its_row_not_valid() -> None:
    cell = Cell("cubic", 20.0, TWELVE, False, 3_000_000, None)
    link = cell.link(1, 0, 50_000, 150_000)
    sound, stalled = objects.fetch([link, replace(link, loss=0.4)], NoCap())
    assert (sound.stalled, stalled.stalled) == (False, True)
    assert row_of(cell, "sim", [(sound, sound)])["valid"]
    assert not row_of(cell, "sim", [(sound, sound), (sound, replace(stalled, complete=True))])["valid"]
