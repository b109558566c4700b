"""``reinet bench frontier``: rows, means, and what the rule's own settings must show."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.places import ROOT
from reinet.agents.decide.policy import Policy
from reinet.agents.evaluation.suites.links import peak_buffer_bytes
from reinet.agents.learn import learners
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.links import training_traces
from reinet.cli.main import app
from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace
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


def test_repeated_runs_have_seeds_of_their_own_and_their_medians_count(tmp_path: Path) -> None:
    generate("lte-driving", 12.0, 3).save(tmp_path / "one.trace")
    command = ["bench", "frontier", "--traces", str(tmp_path), "--mrtt-ms", "40", "--agents", "fixed:30", "--json", "-"]
    rows = {}
    for runs in (1, 3):
        result = CliRunner().invoke(app, [*command, "--repeat", str(runs)])
        assert result.exit_code == 0, result.output
        rows[runs] = json.loads(result.stdout)["rows"][0]
    low, middle, high = (rows[3][f"frontier_mean{which}"] for which in ("_low", "", "_high"))
    assert low < middle < high, "three seeds are three runs"
    assert low <= rows[1]["frontier_mean"] <= high, "the first of them is the one that is run alone"
    assert "frontier_mean_low" not in rows[1]


def test_figures_are_the_same_on_any_number_of_threads(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        generate("lte-walking", 8.0, seed).save(tmp_path / f"{seed}.trace")
    command = ["bench", "frontier", "--traces", str(tmp_path), "--fixed", "--agents", "rule:2", "--json", "-"]
    rows = []
    for threads in (1, 3):
        result = CliRunner().invoke(app, [*command, "--threads", str(threads)])
        assert result.exit_code == 0, result.output
        rows.append(json.loads(result.stdout)["rows"])
    assert rows[0] == rows[1]


def test_a_buffer_in_time_follows_each_traces_peak_rate(tmp_path: Path) -> None:
    """The fast one has what --buffer-bytes says, 60 KB; the slow one beside it has less."""
    fast, slow = (Trace.constant(mbps, 10.0) for mbps in (24, 6))
    fast.save(tmp_path / "fast.trace")
    slow.save(tmp_path / "slow.trace")
    fast_bytes = peak_buffer_bytes(fast, 20.0)
    assert fast_bytes == pytest.approx(60_000, rel=0.01)
    command = ["bench", "frontier", "--traces", str(tmp_path), "--seconds", "5", "--agents", "rule:2", "--json", "-"]
    rows = {}
    for name, options in {"ms": ["--buffer-peak-ms", "20"], "bytes": ["--buffer-bytes", str(fast_bytes)]}.items():
        result = CliRunner().invoke(app, [*command, *options])
        assert result.exit_code == 0, result.output
        rows[name] = {row["trace"]: row for row in json.loads(result.stdout)["rows"]}
    assert rows["ms"]["fast.trace"] == rows["bytes"]["fast.trace"]
    assert rows["ms"]["slow.trace"]["qdelay_mean_ms"] < rows["bytes"]["slow.trace"]["qdelay_mean_ms"]


@pytest.mark.parametrize("command", ["frontier", "targets"])
def test_a_model_is_judged_on_its_training_traces_only_where_that_is_allowed(tmp_path: Path, command: str) -> None:
    model = ROOT / "checkpoints" / "default"
    config = TrainConfig.model_validate(Policy.load(model).manifest.training.config)
    training_traces(config)[0].save(tmp_path / "renamed.trace")
    asked = ["bench", command, "--traces", str(tmp_path), "--seconds", "3", "--agents", str(model), "--json", "-"]
    with pytest.raises(ConfigError, match="the model was trained on"):
        raise CliRunner().invoke(app, asked).exception or AssertionError
    result = CliRunner().invoke(app, [*asked, "--allow-training-traces"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["trained_on"] == {str(model): ["renamed.trace"]}
    assert f"note: {model} was trained on, or selected by, renamed.trace" in result.stderr


@pytest.mark.parametrize("bench", ["frontier", "targets", "learners"])
def test_a_trace_that_is_called_as_the_row_of_the_means_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: str
) -> None:
    """Two rows of one name stood below each other, and whoever reads the JSON took one for the other."""
    monkeypatch.setattr(learners, "train_any", lambda *_, **__: pytest.fail("a training began"))
    trace = Trace.constant(12, 10).save(tmp_path / "mean")
    here = ["--run-dir", str(tmp_path / "runs")] if bench == "learners" else ["--agents", "none"]
    result = CliRunner().invoke(app, ["bench", bench, "--traces", str(trace), "--seconds", "5", *here])
    assert isinstance(result.exception, ConfigError), result.output
    assert str(result.exception) == f"trace {trace}: the row of the means has its name; rename the file"


@pytest.mark.parametrize(
    ("command", "target", "told"),
    [
        ("evaluate --link sim --agents {} --seconds 2", "+100ms", "targets that add 15 to 80 ms, not for +100ms"),
        ("evaluate --link sim --agents {} --seconds 2", "+30ms", None),
        ("bench frontier --agents {} --seconds 2", "290ms", "targets from 19 to 280 ms, not for 290ms"),
        ("bench frontier --agents {} --seconds 2", "5x", None),
        ("bench frontier --agents {} --seconds 2", "6x", "targets that add 15 to 80 ms, not for 6x over 20 ms"),
        ("bench targets --agents {} --seconds 2", "40,+5ms", "targets that add 15 to 80 ms, not for +5ms"),
        ("compare {} --beside none --seconds 2 --out {out}", "+5ms", "targets that add 15 to 80 ms, not for +5ms"),
        (
            "bench harm --model {} --cc cubic --mrtt-ms 20,60 --rate-mbps 12 --bytes 10000 --pause-ms= --repeat 1",
            "2.5x",
            "targets that add 15 to 80 ms, not for 2.5x over 60 ms",
        ),
    ],
)
def test_a_target_that_a_model_was_not_trained_for_is_said_once(
    tmp_path: Path, command: str, target: str, told: str | None
) -> None:
    """The daemon warns of it; figures of such a target were told as if they were any others."""
    model = str(ROOT / "checkpoints" / "small")
    for mbps in (6, 12):
        Trace.constant(mbps, 10).save(tmp_path / "traces" / f"{mbps}.trace")
    words = [word.format(model, out=tmp_path / "out") for word in command.split()]
    result = CliRunner().invoke(app, [*words, "--traces", str(tmp_path / "traces"), "--target", target, "--json", "-"])
    assert result.exit_code == 0, (result.output, result.exception)
    notes = [line for line in result.stderr.splitlines() if "was trained for" in line]
    assert notes == ([] if told is None else [f"note: {model} was trained for {told}"])


def test_who_starves_its_flow_below_every_setting_is_told_of(tmp_path: Path) -> None:
    """Of 200 packets that the path holds four have a fiftieth, and no setting of the rule has so few."""
    Trace.constant(24, 10).save(tmp_path / "steady.trace")
    asked = ["bench", "frontier", "--traces", str(tmp_path), "--seconds", "8", "--agents", "fixed:4,rule:1.2"]
    result = CliRunner().invoke(app, [*asked, "--mrtt-ms", "100", "--target", "2.5x", "--json", "-"])
    assert result.exit_code == 0, result.output
    starved, mean, sound, _ = json.loads(result.stdout)["rows"]
    assert (starved["below_rule"], sound["below_rule"]) == (1, 0)
    assert mean["frontier_mean"] == starved["frontier_mean"], "the mean of what there is"
    for trace in ("steady.trace", "mean"):
        assert f"fixed:4 on {trace}: less utilisation than every setting" in " ".join(result.stderr.split())
    assert "rule:1.2 on" not in result.stderr


def test_ratios_that_rank_nothing_enter_no_mean(tmp_path: Path) -> None:
    """Twelve packets are a sixteenth of what a path of 100 ms and 24 Mbit/s holds, and enough for one of 1 Mbit/s."""
    for mbps in (1, 24):
        Trace.constant(mbps, 10).save(tmp_path / f"{mbps:02}.trace")
    asked = ["bench", "frontier", "--traces", str(tmp_path), "--seconds", "8", "--agents", "fixed:12", "--fixed"]
    result = CliRunner().invoke(app, [*asked, "--mrtt-ms", "100", "--target", "2.5x", "--json", "-"])
    assert result.exit_code == 0, result.output
    slow, starved, mean = json.loads(result.stdout)["rows"]
    assert (slow["below_rule"], starved["below_rule"], mean["below_rule"]) == (0, 1, 0.5)
    ratios = [key for key in mean if key.startswith("frontier_")]
    assert ratios == ["frontier_mean", "frontier_p95", "frontier_fixed_mean"]
    assert all(mean[key] == slow[key] != starved[key] for key in ratios)
    assert mean["utilization"] == pytest.approx((slow["utilization"] + starved["utilization"]) / 2)


def test_a_flow_that_was_refused_its_caps_is_told_of(tmp_path: Path) -> None:
    """Over 20 ms a flow measures more than 20 ms, so that a target of 22 is refused: its figures are plain's."""
    Trace.constant(12, 10).save(tmp_path / "steady.trace")
    command = ["bench", "frontier", "--traces", str(tmp_path), "--seconds", "8", "--agents", "fixed:25", "--json", "-"]
    for target, refused in (("22ms", True), ("50ms", False)):
        result = CliRunner().invoke(app, [*command, "--target", target])
        assert result.exit_code == 0, result.output
        row = json.loads(result.stdout)["rows"][0]
        assert (row["refused_share"] > 0.9, row["throughput_ratio"] == 1.0) == (refused, refused)
        assert ("steady.trace: caps refused in" in result.stderr) is refused


@pytest.mark.parametrize(
    "command",
    [
        ["frontier", "--buffer-peak-ms", "inf"],
        ["harm", "--repeat", "99999999999"],
        ["sim", "--links", "99999999999"],
    ],
)
def test_a_number_that_would_fill_the_memory_is_refused(tmp_path: Path, command: list[str]) -> None:
    traces = ["--traces", str(Trace.constant(12, 10).save(tmp_path / "12.trace"))] if command[0] != "sim" else []
    result = CliRunner().invoke(app, ["bench", *command, *traces])
    assert result.exit_code == 2
    assert command[1] in result.stderr


@pytest.mark.parametrize("bench", [["frontier"], ["targets", "--target", "50ms"]])
def test_a_trace_on_which_no_cap_acted_is_named_whose_ratios_are_plains(tmp_path: Path, bench: list[str]) -> None:
    """No cap acts in a flow's first second: over a shorter trace every policy stood at a ratio of 1."""
    paths = [Trace.constant(6, seconds).save(tmp_path / f"{seconds}.trace") for seconds in (0.9, 8)]
    traces = [word for path in paths for word in ("--traces", str(path))]
    result = CliRunner().invoke(app, ["bench", *bench, *traces, "--agents", "rule,none", "--json", "-"])
    assert result.exit_code == 0, result.output
    short, long, *_ = json.loads(result.stdout)["rows"]
    assert (short["throughput_ratio"], short["capped_share"], short["refused_share"]) == (1, 0, 0)
    assert long["capped_share"] > 0.5
    notes = [line for line in result.stderr.splitlines() if line.startswith("note:")]
    assert len(notes) == 1
    assert re.match(r"note: rule:1\.5 on 0\.9\.trace.*: no cap acted, so its figures are plain's", notes[0])
