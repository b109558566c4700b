"""A page that compares agents: its curves, its names, its intervals, and that batches change no run."""

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.summary.writer.record_writer import RecordWriter
from typer.testing import CliRunner

from helpers.places import ROOT
from reinet.agents.decide.names import make_agent
from reinet.agents.decide.policy import Policy
from reinet.agents.evaluation.compare.learning import Curves, estimate, learning_curves, reference_curves, run_folders
from reinet.agents.evaluation.compare.models import Comparison
from reinet.agents.evaluation.compare.page import LINK_RUN, Content, agent_labels, write_page
from reinet.agents.evaluation.compare.series import curves_of, curves_of_link, interval_ms
from reinet.agents.evaluation.plan import Plan
from reinet.agents.evaluation.run import Run, run, simulate
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.model import folder_lock
from reinet.cli.main import app
from reinet.core.errors import ConfigError
from reinet.core.records import Flag
from reinet.core.tensorboard.curves import CURVES, PANELS, panels
from reinet.core.tensorboard.event_file import EventFile, scalar
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

SECONDS = 3.0


def scenarios(*names: str, seconds: float = SECONDS) -> list[Scenario]:
    return [Scenario.of(generate(name, seconds, seed), "sim", seconds=seconds) for seed, name in enumerate(names, 1)]


def runs_of(agents: Sequence[str], links: Sequence[Scenario]) -> list[Run]:
    return [done for name in agents for done in simulate(make_agent(name), links)]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(p.step, p.value) for p in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("name", ["none", "rule", "clairvoyant:30"])
def test_a_run_is_the_same_beside_others_as_alone(name: str) -> None:
    links = scenarios("lte-walking", "lte-driving", "random")
    for beside, link in zip(simulate(make_agent(name), links), links, strict=True):
        alone = run(make_agent(name), link)
        assert beside.metrics == alone.metrics
        assert np.array_equal(beside.caps_pkts, alone.caps_pkts)
        for field in ("time_ns", "cwnd_pkts", "rtt_mean_us"):
            assert np.array_equal(beside.records[field], alone.records[field])


def test_runs_of_different_lengths_end_where_they_should() -> None:
    short, long = scenarios("lte-walking", seconds=2.0)[0], scenarios("lte-walking", seconds=4.0)[0]
    first, second = simulate(make_agent("rule"), [short, long])
    assert first.metrics == run(make_agent("rule"), short).metrics
    assert first.records["time_ns"].max() < 2e9 < second.records["time_ns"].max() < 4e9


def test_every_curve_stands_in_one_panel() -> None:
    placed = [name for _, names in PANELS for name in names]
    assert len(placed) == len(set(placed))
    assert {curve for _, curve, _ in CURVES} < set(placed)
    (done,) = runs_of(["rule"], scenarios("lte-walking"))
    assert {*curves_of(done), *curves_of_link(done)} == set(placed)


def test_a_panel_draws_the_curves_of_its_own_link_alone() -> None:
    """A trace's name may be a pattern itself."""

    (pattern,) = panels("a.b+").chart[0].multiline.tag
    assert re.match(pattern, "a.b+/cap_pkts")
    for other in ("aXb+/cap_pkts", "a.b+/cap_pkts/more", "a.bb/cap_pkts", "a.b+/rtt_mean_ms"):
        assert not re.match(pattern, other)


def test_points_are_few_enough_for_tensorboard_to_show_all() -> None:
    assert interval_ms(60) == 100
    assert 131_000 / interval_ms(131) <= 1000
    (done,) = runs_of(["rule"], scenarios("lte-walking"))
    steps, values = curves_of(done)["cwnd_pkts"]
    assert np.all(np.diff(steps) >= 100)
    assert np.all(steps % 100 == 0)
    last = done.records["time_ns"] // 100_000_000 == steps[-1] // 100 - 1
    assert values[-1] == done.records["cwnd_pkts"][last][-1]


def test_no_cap_is_no_point() -> None:
    plain, capped = runs_of(["none", "fixed:20"], scenarios("lte-walking"))
    assert "cap_pkts" not in curves_of(plain)
    assert set(curves_of(capped)["cap_pkts"][1]) == {20}


def test_models_are_called_by_as_much_of_their_paths_as_tells_them_apart() -> None:
    manifest = Policy.load(ROOT / "checkpoints" / "small").manifest
    models = dict.fromkeys(("runs/x/1/model", "runs/y/1/model"), manifest)
    assert agent_labels(["runs/x/1/model", "none"], models) == {"runs/x/1/model": "1/model", "none": "none"}
    assert set(agent_labels(models, models).values()) == {"x/1/model", "y/1/model"}
    assert agent_labels(["../x y/.m"], {"../x y/.m": manifest})["../x y/.m"] == "x_y/m"


def test_models_whose_labels_would_be_the_same_are_numbered() -> None:
    """A label is a folder that is one run of TensorBoard's."""
    models = dict.fromkeys(("a b/m", "a_b/m", "a?b/m", "a_b/m-2"), Policy.load(ROOT / "checkpoints" / "small").manifest)
    labels = agent_labels(models, models)
    assert list(labels.values()) == ["a_b/m", "a_b/m-2", "a_b/m-3", "a_b/m-2-2"]


def test_a_page_has_a_run_for_each_agent_and_a_row_of_panels_for_each_link(tmp_path: Path) -> None:
    links = scenarios("lte-walking", "lte-driving")
    comparison = Comparison([str(ROOT / "checkpoints" / "small"), "rule"], ["none", "rule:1.5"], links)
    rows = [row for agent in comparison.agents for row in comparison.run(agent)]
    assert [agent.name for agent in comparison.agents][1:] == ["rule:1.5", "none"]
    assert len(rows) == 6
    names = write_page(comparison.content({}), tmp_path)
    assert {str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("events*")} == {
        "checkpoints/small", "rule:1.5", "none", LINK_RUN
    }  # fmt: skip
    assert {tag.partition("/")[0] for tag in scalars(tmp_path / "none")} == {*names, "figures"}
    events = EventAccumulator(str(tmp_path / LINK_RUN))
    events.Reload()
    (stored,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(stored.tensor_proto.string_val[0])
    assert [category.title for category in layout.category] == names
    assert set(events.Tags()["images"]) == {"throughput against delay", *(f"time series/{name}" for name in names)}


def test_figures_are_means_over_links_and_ratios_are_formed_on_each(tmp_path: Path) -> None:
    links = scenarios("lte-walking", "lte-driving")
    plain, capped = runs_of(["none"], links), runs_of(["fixed:10"], links)
    write_page(Content([*plain, *capped]), tmp_path)
    ((_, delay),) = scalars(tmp_path / "fixed:10")["figures/qdelay_mean_ms"]
    ((_, ratio),) = scalars(tmp_path / "fixed:10")["figures/throughput_ratio"]
    assert delay == pytest.approx(np.mean([done.metrics.qdelay_mean_ms for done in capped]))
    ratios = [a.metrics.throughput_mbps / b.metrics.throughput_mbps for a, b in zip(capped, plain, strict=True)]
    assert ratio == pytest.approx(np.mean(ratios))


def test_a_new_page_replaces_the_last_and_nothing_else(tmp_path: Path) -> None:
    links = scenarios("lte-walking")
    other = tmp_path / "rule:1.5" / "events.out.tfevents.1.other"
    write_page(Content(runs_of(["rule", "none"], links)), tmp_path)
    other.write_bytes(b"")
    write_page(Content(runs_of(["none"], links)), tmp_path)
    assert [path.name for path in (tmp_path / "rule:1.5").iterdir()] == [other.name]


def test_links_of_one_trace_have_names_of_their_own(tmp_path: Path) -> None:
    trace = generate("lte-walking", SECONDS, 1)
    links = [Scenario.of(trace, "sim", seconds=SECONDS, cc=cc) for cc in ("cubic", "bbr", "cubic")]
    names = write_page(Content(runs_of(["none"], links)), tmp_path)
    assert len(set(names)) == 3
    assert names[1].endswith("-bbr")


def test_a_model_is_not_shown_on_what_it_learned_from() -> None:
    model = str(ROOT / "checkpoints" / "default")
    trained_on = Scenario.of(generate("lte-driving", 60, 1), "sim", seconds=SECONDS)
    with pytest.raises(ConfigError, match="trained on"):
        Comparison([model], ["none"], [trained_on])


def test_a_page_says_which_figures_are_of_traces_that_a_model_learned_from(tmp_path: Path) -> None:
    model = str(ROOT / "checkpoints" / "default")
    other = Scenario.of(generate("lte-driving", 60, 77), "sim", seconds=SECONDS)
    links = [Scenario.of(generate("lte-driving", 60, 1), "sim", seconds=SECONDS), other]
    comparison = Comparison([model], ["none"], links, allow_training_traces=True)
    for agent in comparison.agents:
        comparison.run(agent)
    write_page(comparison.content({}), tmp_path)
    events = EventAccumulator(str(tmp_path / LINK_RUN), size_guidance={"tensors": 0})
    events.Reload()
    (shown,) = events.Tensors("figures")
    table = shown.tensor_proto.string_val[0].decode()
    assert f"{model} was trained on, or selected by, {links[0].trace.name}: its figures" in table
    assert "none was trained" not in table
    assert table.count(other.trace.name) == 2, "its rows alone: nobody learned from it"


@pytest.mark.parametrize("stalled", [0, 2])
def test_a_run_that_is_not_valid_is_named_and_enters_no_mean_of_others(tmp_path: Path, stalled: int) -> None:
    """A flow that stands still has hardly any delay: its agent had the best mean, and the page said nothing of it."""
    links = scenarios("lte-walking", "lte-driving")
    runs = runs_of(["rule", "none"], links)
    runs[stalled] = replace(runs[stalled], invalid_reason="the flow stalled")
    write_page(Content(runs), tmp_path)
    drawn = scalars(tmp_path / "rule:1.5")
    rule, plain = runs[1].metrics, runs[3].metrics
    if stalled == 0:
        assert drawn["figures/qdelay_mean_ms"] == [(0, pytest.approx(rule.qdelay_mean_ms))]
    assert drawn["figures/throughput_ratio"] == [(0, pytest.approx(rule.throughput_mbps / plain.throughput_mbps))]
    events = EventAccumulator(str(tmp_path / LINK_RUN), size_guidance={"tensors": 0})
    events.Reload()
    (shown,) = events.Tensors("figures")
    who = f"{runs[stalled].agent} on {links[0].trace.name}"
    assert f"\n\n{who}: the flow stalled; do not use its figures" in shown.tensor_proto.string_val[0].decode()


def training(folder: Path, values: Sequence[float]) -> Path:
    with EventFile(folder, 1.7e9, "test") as file:
        for iteration, value in enumerate(values, 1):
            file.add([scalar("eval/frontier_mean", value), scalar("losses/actor", 1.0)], iteration, 1.7e9)
    return folder


def test_evaluation_curves_are_means_over_seeds_with_students_interval(tmp_path: Path) -> None:
    seeds = [training(tmp_path / str(seed), values) for seed, values in enumerate([[1.0, 2.0], [3.0, 2.0], [2.0]])]
    named = run_folders([f"mine={folder}" for folder in seeds])
    assert named == {"mine": seeds}
    curves = learning_curves(seeds)
    assert set(curves) == {"eval/frontier_mean"}
    first, second = curves["eval/frontier_mean"][1], curves["eval/frontier_mean"][2]
    assert (first.mean, first.low, first.high) == pytest.approx((2, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert (second.mean, second.low, second.high) == (2, 2, 2)  # two seeds that agree
    assert estimate([5.0]).low == estimate([5.0]).high == 5.0
    write_page(Content(runs_of(["none"], scenarios("lte-walking")), learning={"mine": curves}), tmp_path / "page")
    drawn = scalars(tmp_path / "page" / "mine")
    assert drawn["eval/frontier_mean"] == [(1, 2), (2, 2)]
    assert drawn["eval/frontier_mean/lower"][0][1] < 2 < drawn["eval/frontier_mean/upper"][0][1]
    assert scalars(tmp_path / "page" / "rule, best gain")["eval/frontier_mean"] == [(1, 1), (2, 1)]
    events = EventAccumulator(str(tmp_path / "page" / LINK_RUN))
    events.Reload()
    assert "learning curves" in events.Tags()["images"]


def test_trainings_whose_names_would_be_one_folder_are_all_drawn(tmp_path: Path) -> None:
    """And none is drawn over an agent of that name, or over plain control and the rule, which stand at 1."""
    named: dict[str, Curves] = {
        name: {"eval/throughput_ratio": {1: estimate([value])}}
        for name, value in {"a b": 2.0, "a,b": 3.0, "none": 4.0, "link": 5.0}.items()
    }
    write_page(Content(runs_of(["none"], scenarios("lte-walking")), learning=named), tmp_path / "page")
    drawn = {
        name: scalars(tmp_path / "page" / name)["eval/throughput_ratio"][0][1]
        for name in ("a_b", "a_b-2", "none", "none-2", "link-2")
    }
    assert drawn == {"a_b": 2, "a_b-2": 3, "none": 1, "none-2": 4, "link-2": 5}


def test_a_model_that_is_named_twice_is_drawn_once() -> None:
    model = ROOT / "checkpoints" / "default"
    comparison = Comparison([str(model), f"{model}/../default", "rule"], ["none", "rule:1.5"], scenarios("lte-walking"))
    assert [agent.name for agent in comparison.agents] == [str(model), "rule:1.5", "none"]


def test_who_stands_at_one_is_drawn_where_a_training_is() -> None:
    assert reference_curves([{}]) == {}


@pytest.mark.parametrize("text", ["mine", "=runs", "mine=", "mine=/nowhere"])
def test_a_run_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="run"):
        run_folders([text])


def test_event_files_that_cannot_be_read_are_refused_with_their_folder(tmp_path: Path) -> None:
    """Their names were told as bytes, b'...', and of what is no event there was a traceback."""
    (tmp_path / "folder" / "events.out.tfevents.1").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"run .*/folder: a TensorBoard file in it cannot be read: Is a directory$"):
        learning_curves([tmp_path / "folder"])
    (tmp_path / "damaged").mkdir()
    with (tmp_path / "damaged" / "events.out.tfevents.1").open("wb") as file:
        RecordWriter(file).write(b"\xff" * 60)
    with pytest.raises(ConfigError, match=r"run .*/damaged: a TensorBoard file in it is damaged"):
        learning_curves([tmp_path / "damaged"])


def test_a_run_is_one_seed_however_often_it_is_named(tmp_path: Path) -> None:
    """One run, given twice, was two seeds that agree: an interval of no width."""
    folder = training(tmp_path / "run", [1.0, 2.0])
    with pytest.raises(ConfigError, match=r"run 'mine=.*/\.\./run': .* is there twice; give each seed's folder once"):
        run_folders([f"mine={folder}", f"mine={folder}/../run"])
    assert run_folders([f"a={folder}", f"b={folder}"]) == {"a": [folder], "b": [folder]}


@pytest.mark.parametrize("agent", ["none", "checkpoints/default"])
def test_a_curve_of_rates_has_the_throughputs_mean_however_often_an_agent_decides(agent: str) -> None:
    """Over a link whose bursts make short records with high rates."""
    scenario = Scenario.of(generate("lte-driving", 20.0, 7), "sim", seconds=10.0)
    done = run(make_agent(str(ROOT / agent) if "/" in agent else agent), scenario)
    records = done.records[(done.records["flags"] & Flag.NO_SAMPLE) == 0]
    truth_mbps = 8e3 * records["delivered_bytes"].sum() / records["period_ns"].sum()
    _, rates_mbps = curves_of(done)["delivery_rate_mbps"]
    assert np.mean(rates_mbps) == pytest.approx(truth_mbps, rel=0.06)


def test_a_training_without_an_evaluation_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = str(Trace.constant(12, 5).save(tmp_path / "twelve.trace"))
    EventFile(tmp_path, 0.0, "none").close()
    monkeypatch.setattr(Comparison, "run", lambda *_: pytest.fail("a link was run"))
    of_run = ["--run", f"rule={tmp_path}", "--out", str(tmp_path / "page")]
    result = CliRunner().invoke(app, ["compare", "rule", "--traces", trace, *of_run])
    assert isinstance(result.exception, ConfigError), result.exception
    assert "run rule: no evaluation in" in str(result.exception)


@pytest.mark.parametrize("out", ["12.trace", "12.trace/deeper", "loop"])
def test_a_place_where_no_page_can_be_written_is_refused_before_anything_runs(tmp_path: Path, out: str) -> None:
    trace = Trace.constant(12, 10).save(tmp_path / "12.trace")
    (tmp_path / "loop").symlink_to("loop")
    command = ["compare", "none", "--traces", str(trace), "--out", str(tmp_path / out)]
    with pytest.raises(ConfigError, match=f"--out .*/{out}: .* is no folder; name another"):
        raise CliRunner().invoke(app, command).exception or AssertionError


def test_a_buffer_beside_a_queue_without_a_limit_is_refused(tmp_path: Path) -> None:
    trace = Trace.constant(12, 1).save(tmp_path / "12.trace")
    command = ["compare", "rule", "--traces", str(trace), "--out", str(tmp_path / "page"), "--seconds", "1"]
    done = CliRunner().invoke(app, [*command, "--link-option", "queue=infinite", "--buffer-bytes", "30000"])
    assert isinstance(done.exception, ConfigError)
    assert "--buffer-bytes: queue=infinite holds whatever comes" in str(done.exception)


def test_the_command_that_shows_the_page_can_be_copied_where_its_folder_has_a_space(tmp_path: Path) -> None:
    trace, page = Trace.constant(12, 1).save(tmp_path / "12.trace"), tmp_path / "my page"
    told = ["compare", "rule", "--beside", "none", "--traces", str(trace), "--out", str(page), "--seconds", "1"]
    done = CliRunner().invoke(app, told)
    assert f"tensorboard --logdir '{page}', then" in " ".join(done.output.split()), done.exception


def test_rows_are_those_of_an_evaluation_also_where_caps_are_drawn() -> None:
    links = scenarios("evdo-driving", "lte-driving", seconds=6.0)
    for name in ("random", "roccet"):
        comparison = Comparison([name], [], links)
        assert comparison.run(comparison.agents[0]) == [row for _, row in Plan(name, links)]


def test_why_a_run_is_not_valid_is_said_as_evaluate_says_it(tmp_path: Path) -> None:
    trace = Trace.constant(12.0, 5.0).save(tmp_path / "twelve.trace")
    stalling = ["--traces", str(trace), "--seconds", "12", "--link-option", "loss=0.5"]
    for command in (
        ["compare", "none", "--beside", "none", "--out", str(tmp_path / "page")],
        ["evaluate", "--agents", "none", "--link", "sim"],
    ):
        result = CliRunner().invoke(app, [*command, *stalling])
        assert result.exit_code == 0, result.exception
        assert "none on twelve.trace: the flow stalled: nothing left the link for" in result.output


def test_an_earlier_page_stays_whole_where_the_disk_fills_in_the_middle_of_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = Content(runs_of(["none", "rule"], scenarios("lte-walking")))
    write_page(content, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    add = EventFile.add

    def full(self: EventFile, values: Sequence[object], step: int, wall_s: float) -> None:
        if "rule" in self.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        add(self, values, step, wall_s)

    monkeypatch.setattr(EventFile, "add", full)
    with pytest.raises(OSError, match="No space left"):
        write_page(content, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not list(tmp_path.glob(".staged-*"))


def test_a_second_comparison_into_one_folder_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removed the event files that the other was writing."""
    trace = str(Trace.constant(12, 5).save(tmp_path / "twelve.trace"))
    monkeypatch.setattr(Comparison, "run", lambda *_: pytest.fail("a link was run"))
    command = ["compare", "rule", "--traces", trace, "--out", str(tmp_path / "page")]
    with (
        folder_lock.locked(tmp_path / "page", "held"),
        pytest.raises(ConfigError, match=r"page: another comparison is made in it; .* name another --out"),
    ):
        raise CliRunner().invoke(app, command).exception or AssertionError


def test_a_comparison_beside_its_traces_leaves_them_a_folder_of_traces(tmp_path: Path) -> None:
    """Its lock was taken for a trace without a line."""
    Trace.constant(12, 5).save(tmp_path / "twelve.trace")
    command = ["compare", "none", "--beside", "rule", "--traces", str(tmp_path), "--seconds", "2"]
    for _ in range(2):
        result = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
        assert result.exit_code == 0, result.exception
