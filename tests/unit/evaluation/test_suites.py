"""Suites: what a file may say, which runs follow, the store that resumes, pairs, intervals, the report and a change."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reinet.agents.evaluation.suites import against, better, markdown, report, runner
from reinet.agents.evaluation.suites.definition import load, shipped
from reinet.agents.evaluation.suites.links import begin, links, peak_mbps
from reinet.agents.evaluation.suites.measure import jain
from reinet.agents.evaluation.suites.plan import SuitePlan, plan, unique
from reinet.agents.evaluation.suites.store import RUNS_FILE, Store, Stored
from reinet.cli.main import app
from reinet.core.errors import ConfigError
from reinet.envs.trace import Trace

SMALL = """
title = "Small"
seed = 3
[[scenario]]
name = "one"
agents = ["none", "fixed:20"]
cc = ["cubic", "reno"]
plain = ["vegas"]
traces = ["lte-walking", "constant:12"]
trace_seconds = 10
seconds = 2
repeat = 2
[[scenario]]
name = "two"
agents = ["none", "rule"]
traces = ["constant:12"]
seconds = 2
repeat = 2
flows = [2]
flow_start_s = 0.5
beside = ["cubic"]
"""


def suite_file(folder: Path, text: str = SMALL) -> str:
    path = folder / "small.toml"
    path.write_text(text)
    return str(path)


def planned(folder: Path, text: str = SMALL, **more: Any) -> SuitePlan:
    return plan(load(suite_file(folder, text)), **more)


def made(folder: Path, name: str = "store", **more: Any) -> tuple[SuitePlan, Store]:
    suite, store = planned(folder, **more), Store(folder / name)
    runner.make(suite, store)
    return suite, store


def rows(plan_: SuitePlan, store: Store) -> dict[str, dict[str, Any]]:
    return {job.key: dict(found.figures) for job in plan_.jobs if (found := store.valid(job.key))}


def test_every_shipped_suite_says_what_can_be_run() -> None:
    assert shipped() == ["deepcc", "quick", "reinet"]
    for name in shipped():
        suite = plan(load(name))
        assert len(unique(suite.jobs)) > 100
        assert suite.suite.not_compared
        assert any(job.scenario.link == "mahimahi" for job in suite.jobs) == (name == "deepcc")


def test_a_suite_that_cannot_be_run_is_refused_with_its_place(tmp_path: Path) -> None:
    for old, new, said in (
        ("repeat = 2", "repet = 2", "scenario one: unknown key 'repet'"),
        ('agents = ["none", "rule"]', 'agents = ["random"]', "scenario two: .*could not be resumed"),
        ("flows = [2]", "flows = [0]", "no numbers of flows"),
        ('name = "two"', 'name = "one"', "scenario one is there twice"),
        ("flows = [2]", 'path = { bufer = 1 }', "path and sweep have no 'bufer'"),
        ("flows = [2]", "flows = [2]\nlink = 'mahimahi'", "flows and beside need link = 'sim'"),
        ('title = "Small"', "", "title is missing"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            load(suite_file(tmp_path, SMALL.replace(old, new, 1)))
    with pytest.raises(ConfigError, match="there are deepcc, quick, reinet"):
        load("quik")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("path = {buffer_peak_ms = inf}", "buffer_peak_ms = inf is no number above 0"),
        ("path = {buffer_bdp = nan}", "buffer_bdp = nan is no number above 0"),
        ("path = {buffer_bdp = -1}", "buffer_bdp = -1 is no number above 0"),
        ("path = {mrtt_ms = 1" + "0" * 400 + "}", "mrtt_ms = 10+ is no number above 0"),
        ("path = {flows = [{start_ms = 1" + "0" * 400 + "}]}", "path.flows is a list of tables"),
        ("path = {buffer_bdp = 'x'}", "buffer_bdp = 'x' is no number above 0"),
        ("path = {app_share = 'x'}", "app_share = 'x' is no number above 0"),
        ("path = {target_ms = true}", "target_ms = True is no number above 0"),
        ("path = {target = 5}", "target = 5 is no text"),
        ("path = {mrtt_ms = [1]}", r"mrtt_ms = \[1\] is no number above 0"),
        ("sweep = {mrtt_ms = [20, 'x']}", "mrtt_ms = 'x' is no number above 0"),
        ("path = {flows = 3}", "path.flows is a list of tables"),
        ("path = {flows = [{start_ms = 'x'}]}", "path.flows is a list of tables"),
        ("beside = ['bbr']\npath = {flows = [{}]}", "path.flows says each flow by itself"),
        ("flows = [2]\nsweep = {flows = [[{}], [{}, {}]]}", "sweep.flows says each flow by itself"),
        ("sweep = {mrtt_ms = [20, 20]}", "sweep.mrtt_ms: 20 is there twice"),
        ("agents = ['none', 'none']", "agents: 'none' is there twice"),
        ("plain = ['bbr', 'cubic', 'bbr']", "plain: 'bbr' is there twice"),
    ],
)
def test_a_value_that_nothing_can_be_worked_out_from_is_refused_with_its_place(
    tmp_path: Path, change: str, message: str
) -> None:
    text = f'title = "x"\n[[scenario]]\nname = "a"\n{change}\n'
    with pytest.raises(ConfigError, match=f"scenario a: .*{message}"):
        load(suite_file(tmp_path, text))


def test_every_agent_meets_the_same_links_seeds_and_starts(tmp_path: Path) -> None:
    suite = planned(tmp_path)
    first = [job for job in suite.jobs if job.cell.scenario == "one"]
    met = {(job.cell.agent, job.cell.cc): [other.pair for other in first if other.cell == job.cell] for job in first}
    assert set(met) == {("none", "cubic"), ("fixed:20", "cubic"), ("none", "reno"), ("fixed:20", "reno"),
                        ("none", "vegas")}  # fmt: skip
    assert len({tuple(pairs) for pairs in met.values()}) == 1
    pairs = met["none", "cubic"]
    assert len(set(pairs)) == 4  # two traces, two repetitions
    assert len({seed for _, seed, _ in pairs}) == 4
    spec = suite.suite.scenarios[0]
    generated, constant = (link.trace for link in links(spec, ()))
    assert begin(3, spec, generated, 0)[1] == begin(3, spec, constant, 1)[1] == 0
    assert begin(3, spec, generated, 1)[1] > 0


def test_a_key_tells_of_everything_that_shapes_a_run(tmp_path: Path) -> None:
    keys = {job.key for job in planned(tmp_path).jobs}
    assert keys == {job.key for job in planned(tmp_path, SMALL.replace("Small", "Other title")).jobs}
    for old, new in (("seed = 3", "seed = 4"), ("seconds = 2", "seconds = 3"), ("fixed:20", "fixed:21"),
                     ("trace_seconds = 10", "trace_seconds = 11")):  # fmt: skip
        others = {job.key for job in planned(tmp_path, SMALL.replace(old, new)).jobs}
        assert others != keys
        assert not (old == "seed = 3" and others & keys)


def test_code_of_another_hash_makes_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reinet.agents.evaluation.suites import plan as planning

    before = {job.key for job in planned(tmp_path).jobs}
    monkeypatch.setattr(planning, "versions", lambda: {"code_sha256": "0" * 64})
    assert not before & {job.key for job in planned(tmp_path).jobs}


def test_a_store_cut_anywhere_ends_with_the_same_numbers(tmp_path: Path) -> None:
    suite, whole = made(tmp_path)
    expected = rows(suite, whole)
    assert len(expected) == len(unique(suite.jobs))
    content = (tmp_path / "store" / RUNS_FILE).read_bytes()
    for share in (0.0, 0.31, 0.77):
        folder = tmp_path / f"cut-{share}"
        folder.mkdir()
        (folder / RUNS_FILE).write_bytes(content[: round(share * len(content))])
        cut = Store(folder)
        assert len(cut) < len(whole)
        runner.make(suite, cut)
        assert rows(suite, Store(folder)) == expected
        assert len(Store(folder)) == len(whole)  # none twice


KILLED = """
import sys
from pathlib import Path
from reinet.agents.evaluation.suites import definition, plan, runner, store
made = plan.plan(definition.load(sys.argv[1]))
runner.make(made, store.Store(Path(sys.argv[2])))
"""


def test_a_killed_process_resumes_and_ends_with_the_same_numbers(tmp_path: Path) -> None:
    suite, whole = made(tmp_path)
    folder = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", KILLED, suite_file(tmp_path), str(folder)])
    deadline = time.monotonic() + 120
    while not (folder / RUNS_FILE).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (folder / RUNS_FILE).exists()
    runner.make(suite, Store(folder))
    assert rows(suite, Store(folder)) == rows(suite, whole)


def test_more_repetitions_add_to_a_store_and_change_none(tmp_path: Path) -> None:
    suite, store = made(tmp_path)
    before = rows(suite, store)
    more = planned(tmp_path, repeat=4)
    outcome = runner.make(more, store)
    assert outcome.made == len(unique(more.jobs)) - len(before)
    assert {key: rows(more, store)[key] for key in before} == before
    assert rows(more, store) == rows(*made(tmp_path, "at-once", repeat=4))
    assert runner.missing_s(more, store) == 0


def test_one_process_at_a_time_runs_into_a_store(tmp_path: Path) -> None:
    """The one that is refused changes nothing: a line that is being written is none that a killed process left."""
    (tmp_path / RUNS_FILE).write_text("")
    with Store.locked(tmp_path) as store:
        (tmp_path / RUNS_FILE).write_text('{"key": ')
        with pytest.raises(ConfigError, match="another process is running a suite"), Store.locked(tmp_path):
            pass
        command = ["evaluate", "--suite", suite_file(tmp_path), "--scenarios", "two", "--out", str(store.folder)]
        assert "another process" in str(CliRunner().invoke(app, command).exception)
        assert (tmp_path / RUNS_FILE).read_text() == '{"key": '


def test_runs_that_do_not_count_are_counted_and_in_no_table(tmp_path: Path) -> None:
    suite, store = made(tmp_path)
    worst = next(job for job in suite.jobs if job.cell.agent == "fixed:20")
    spoilt = Store(tmp_path / "spoilt")
    for job in unique(suite.jobs):
        found = store.valid(job.key)
        assert found is not None
        spoilt.add([Stored(job.key, "the host lagged" if job is worst else None, found.figures, None, {})])
    built = report.build(suite, spoilt, "reinet")
    assert built["runs"]["invalid"] == 1
    assert built["runs"]["valid"] == built["runs"]["planned"] - 1
    cell = next(cell for cell in built["cells"] if cell["agent"] == "fixed:20" and cell["cc"] == worst.cell.cc)
    assert (cell["runs"], cell["invalid"]) == (3, 1)
    assert "(+1 invalid)" in markdown.page(built)
    assert all(row["valid"] for row in built["rows"])
    kept = [row for row in built["rows"] if row["agent"] == "fixed:20" and row["cc"] == worst.cell.cc]
    assert len(kept) == 3


def test_a_report_has_an_interval_for_every_number_and_pairs_with_plain(tmp_path: Path) -> None:
    suite, store = made(tmp_path)
    built = report.build(suite, store, "reinet evaluate --suite small.toml")
    for cell in built["cells"]:
        for name, number in cell["numbers"].items():
            assert number["low"] <= number["mean"] + 1e-9, name
            assert number["high"] >= number["mean"] - 1e-9, name
    capped = next(cell for cell in built["cells"] if cell["agent"] == "fixed:20" and cell["cc"] == "cubic")
    assert capped["numbers"]["delay_left"]["mean"] < 0.9
    assert 0.5 < capped["numbers"]["throughput_kept"]["mean"] <= 1.05
    both = next(cell for cell in built["cells"] if cell["beside"] and cell["agent"] == "none")
    assert set(both["numbers"]) >= {"jain", "share", "beside_mbps", "beside_harm", "beside_delay_ratio"}
    assert 0 < both["numbers"]["beside_harm"]["mean"] < 1
    page = markdown.page(built)
    for said in ("percentile bootstrap", "code_sha256", suite.suite.sha256, "links are generated from presets"):
        assert said in page
    assert {row["trace_sha256"] for row in built["rows"]} == {trace.sha256 for trace in suite.traces}


def test_only_the_scenarios_that_were_asked_for_are_planned_and_told(tmp_path: Path) -> None:
    suite = planned(tmp_path, only=["two"])
    assert {job.cell.scenario for job in suite.jobs} == {"two"}
    assert {job.key for job in suite.jobs} < {job.key for job in planned(tmp_path).jobs}
    built = report.build(suite, Store(tmp_path / "empty"), "reinet")
    assert [spec["name"] for spec in built["scenarios"]] == ["two"]
    with pytest.raises(ConfigError, match="no scenario 'tow'; did you mean 'two'"):
        planned(tmp_path, only=["tow"])


def test_given_traces_stand_in_for_generated_ones_and_constant_links_stay(tmp_path: Path) -> None:
    mine = Trace.constant(7, 5, name="mine-driving")
    suite = planned(tmp_path, given=[mine])
    assert [trace.name for trace in suite.traces] == ["constant-12mbps", "mine-driving"]
    assert not suite.generated
    assert {job.label for job in suite.jobs} == {"constant", "driving"}


def test_a_page_says_what_was_run_in_place_of_what_the_suite_tells_of(tmp_path: Path) -> None:
    """Its own words of agents and links stand at the head of every report."""
    store = Store(tmp_path / "store")
    said = "**What follows is not the suite as it is described.**"
    own = planned(tmp_path, agents=["none", "fixed:20", "rule"])
    assert own.replaced == ()
    assert said not in markdown.page(report.build(own, store, ""))
    given = planned(tmp_path, agents=["none", "fixed:9"], given=[Trace.constant(3.0, 5.0, "mine")])
    page = markdown.page(report.build(given, store, ""))
    assert (
        f"{said} The agents none, fixed:9 were run in place of none, fixed:20, rule. "
        "The traces mine were run in place of those generated from lte-walking."
    ) in page


def test_recordings_that_a_suite_names_are_not_called_generated(tmp_path: Path) -> None:
    recording = Trace.constant(12, 10).save(tmp_path / "mine.trace")
    assert not planned(tmp_path, SMALL.replace("lte-walking", str(recording))).generated
    assert not planned(tmp_path, only=["two"]).generated, "what is not planned does not count"
    with pytest.raises(ConfigError, match="name no traces"):
        planned(tmp_path, re.sub("traces = .*", "traces = []", SMALL))


def test_a_suite_without_a_valid_run_fails(tmp_path: Path) -> None:
    late = tmp_path / "late.trace"
    late.write_text("5000\n")
    text = SMALL.replace("lte-walking", str(late)).replace(', "constant:12"', "")
    command = ["evaluate", "--suite", suite_file(tmp_path, text), "--out", str(tmp_path / "store")]
    result = CliRunner().invoke(app, [*command, "--scenarios", "one", "--agents", "none"])
    assert result.exit_code == 1
    assert "no run is valid" in result.stderr
    result = CliRunner().invoke(app, [*command[:-1], suite_file(tmp_path)])
    assert "is no folder" in str(result.exception)


def test_what_hangs_on_the_trace_is_worked_out_from_it(tmp_path: Path) -> None:
    text = SMALL.replace("flows = [2]", 'path = { buffer_bdp = 2.0, mrtt_ms = 40, app_share = 0.5, target = "2x" }')
    job = next(job for job in planned(tmp_path, text).jobs if job.cell.scenario == "two")
    path = job.scenario.path
    assert path.buffer_bytes == pytest.approx(2 * 12e6 / 8 * 0.040, rel=0.01)
    assert path.app_mbps == pytest.approx(6, rel=0.01)
    assert path.target_us == 80_000
    for seconds in (10, 0.06, 0.001):  # the last is Mahimahi's usual trace of 12 Mbit/s, a line with 1
        assert peak_mbps(Trace.constant(12, seconds)) == pytest.approx(12, rel=0.02)


def test_a_path_starts_so_long_after_the_common_look_as_a_suite_says(tmp_path: Path) -> None:
    text = SMALL.replace("flows = [2]", "sweep = { look_phase_s = [0, 5.5] }\nflows = [2]").replace(
        'cc = ["cubic", "reno"]', 'cc = ["cubic"]\npath = { look_phase_s = 2 }'
    )
    jobs = planned(tmp_path, text).jobs
    starts = {job.scenario.path.start_offset_ms for job in jobs if job.cell.scenario == "two"}
    assert starts == {0, 5500}
    assert {job.scenario.path.start_offset_ms % 10_000 for job in jobs if job.cell.scenario == "one"} == {2000}
    for wrong in ("10", "-1", "true", "'late'"):
        with pytest.raises(ConfigError, match=r"suite s.*scenario one: look_phase_s"):
            planned(tmp_path, text.replace("look_phase_s = 2", f"look_phase_s = {wrong}"))


def test_a_report_against_itself_is_the_same_and_a_worse_agent_is_more_than_noise(tmp_path: Path) -> None:
    text = SMALL.replace("repeat = 2", "repeat = 6", 1)
    suite, store = planned(tmp_path, text), Store(tmp_path / "before")
    runner.make(suite, store)
    before = report.build(suite, store, "reinet")
    same = against.compare(before, before)
    assert {one["verdict"] for one in same["changes"]} == {"same"}
    assert (same["changed"], same["shaped_by"]) == (0, [])
    after = json.loads(json.dumps(before))
    for row in after["rows"]:
        if row["agent"] == "fixed:20":
            row["qdelay_mean_ms"] *= 1.5
            row["throughput_mbps"] *= 1 + 1e-3 * (-1) ** row["repetition"]
    found = against.compare(before, after)
    verdicts = {(one["cc"], one["metric"]): one["verdict"] for one in found["changes"] if one["agent"] == "fixed:20"}
    assert verdicts["cubic", "qdelay_mean_ms"] == "changed"
    assert verdicts["cubic", "throughput_mbps"] == "within noise"
    few = [one for one in found["changes"] if one["scenario"] == "two" and one["verdict"] == "changed"]
    assert not few  # two pairs tell nothing
    page = markdown.page(before, against=found)
    assert "changed by more than noise" in page


def test_what_is_no_report_is_refused_before_anything_runs(tmp_path: Path) -> None:
    suite, store = made(tmp_path)
    whole = report.build(suite, store, "reinet")
    path = tmp_path / "report.json"
    path.write_text(json.dumps(whole))
    assert against.read(path) == json.loads(path.read_text())
    (row, *_) = whole["rows"]
    for change, why in (
        ({"made_by": 3}, "made_by: Input should be a valid dictionary"),
        ({"suite": {}}, "suite.sha256: Field required"),
        ({"rows": [3]}, "rows.0: Input should be a valid dictionary or instance of _Row"),
        ({"rows": [{**row, "qdelay_mean_ms": "x"}]}, "rows.0.qdelay_mean_ms: Input should be a valid number"),
        ({"agents": [{"name": "none"}]}, "agents.0.identity: Field required"),
    ):
        path.write_text(json.dumps({**whole, **change}))
        with pytest.raises(ConfigError, match=f"report.json: {why}; name the report.json of an earlier run"):
            against.read(path)
    path.write_text("[" * 5000)
    with pytest.raises(ConfigError, match="not JSON"):
        against.read(path)


def line(agent: str, cc: str, p95_ms: float, share: float, **more: Any) -> dict[str, Any]:
    numbers = {"qdelay_p95_ms": {"mean": p95_ms}, "utilization": {"mean": share}}
    place = {"scenario": "one", "point": {}, "flows": 1, "beside": None, "role": "run"}
    return {**place, "agent": agent, "cc": cc, "numbers": numbers, **more}


def test_a_report_names_who_beats_a_model_in_delay_and_utilisation_at_once() -> None:
    model = line("model", "cubic", 50, 0.95)
    others = [line("none", "cubic", 200, 0.99), line("none", "vegas", 20, 0.7), line("none", "copa", 49, 0.96)]
    (told,) = better.found([model, *others], ["model"])
    assert told["lines"] == 3
    assert told["better"] == [{"agent": "none", "cc": "copa"}]
    assert better.sentences([told], "one") == [
        "Both lower p95 and higher utilisation than model over cubic, of 3 other lines: copa."
    ]
    for beside_it in (
        line("none", "copa", 50, 0.96),  # no less delay
        line("none", "copa", 49, 0.95),  # no more rate
        line("none", "copa", 49, 0.96, point={"mrtt_ms": 4}),
        line("none", "copa", 49, 0.96, beside="cubic"),
        line("none", "copa", 49, 0.96, role="solo"),
        line("model", "bbr", 49, 0.96),  # the same model
    ):
        (told,) = [one for one in better.found([model, beside_it], ["model"]) if one["cc"] == "cubic"]
        assert not told["better"]


def test_jains_index() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([5.0, 0.0]) == jain([0.0, 0.0]) == pytest.approx(0.5)


def test_the_command_writes_a_report_with_pictures_and_a_second_one_adds_to_it(tmp_path: Path) -> None:
    command = ["evaluate", "--suite", suite_file(tmp_path), "--out", str(tmp_path / "store")]
    first = CliRunner().invoke(app, [*command, "--json", str(tmp_path / "first.json")])
    assert first.exit_code == 0, first.output
    files = {path.name for path in (tmp_path / "store").iterdir()}
    assert files >= {"report.md", "report.json", RUNS_FILE, "one-delay.png", "one-kinds.png", "two-course.png"}
    page = (tmp_path / "store" / "report.md").read_text()
    assert all(f"({name})" in page for name in files if name.endswith(".png"))
    second = CliRunner().invoke(app, [*command, "--repeat", "3", "--against", str(tmp_path / "first.json")])
    assert second.exit_code == 0, second.output
    built = json.loads((tmp_path / "store" / "report.json").read_text())
    assert built["runs"]["valid"] == 1.5 * json.loads((tmp_path / "first.json").read_text())["runs"]["valid"]
    assert {one["verdict"] for one in built["against"]["changes"]} == {"same"}
    assert "## What changed" in (tmp_path / "store" / "report.md").read_text()


def test_a_suite_takes_only_options_that_it_does_not_say_itself() -> None:
    for words in (["--suite", "quick", "--seconds", "3"], ["--out", "x"], ["--agents", "none"]):
        result = CliRunner().invoke(app, ["evaluate", *words])
        assert isinstance(result.exception, ConfigError), words


def test_a_report_says_where_flows_ran_uncapped(tmp_path: Path) -> None:
    """22 ms cannot be kept over 20 ms and two clocks: what looks like a cap's figures there are plain's."""
    text = SMALL.split("[[scenario]]")
    swept = (
        text[1]
        .replace("repeat = 2", "repeat = 1\nsweep = { target_ms = [22, 50] }")
        .replace("seconds = 2", "seconds = 5")
    )
    suite, store = planned(tmp_path, "[[scenario]]".join([text[0], swept])), Store(tmp_path / "store")
    runner.make(suite, store)
    page = markdown.page(report.build(suite, store, "here"))
    (said,) = re.findall("The guard refused caps.*", page)
    assert "fixed:20 over cubic (target_ms 22) " in said
    assert "target_ms 50" not in said
    assert "none" not in said
    assert "No cap acted" not in page
