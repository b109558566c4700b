"""What a suite's report compares, a flow alone and beside another over one stretch of the trace, and how sure it is."""

import re
from pathlib import Path

import numpy as np
import pytest

from helpers.places import ROOT
from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.run import run
from reinet.agents.evaluation.suites import markdown, pictures, report, runner
from reinet.agents.evaluation.suites.definition import ScenarioSpec, load
from reinet.agents.evaluation.suites.links import links, scenario
from reinet.agents.evaluation.suites.plan import SuitePlan, plan
from reinet.agents.evaluation.suites.statistics import LEAST_PAIRS, change, estimate, interval
from reinet.agents.evaluation.suites.store import RUNS_FILE, Store
from reinet.cli import evaluate_suite
from reinet.core import toml_file
from reinet.core.errors import ConfigError
from reinet.envs.link.spec import LARGEST_BUFFER_BYTES
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

MODEL = ROOT / "checkpoints" / "default"
BESIDE = """
title = "Beside"
[[scenario]]
name = "later"
traces = ["{trace}"]
seconds = 4
repeat = 1
flows = [1, 2]
flow_start_s = {start_s}
beside = ["cubic"]
"""


def planned(folder: Path, start_s: float) -> SuitePlan:
    """A link of 2 Mbit/s for four seconds and of 12 Mbit/s from then on."""
    slow, fast = np.arange(6, 4000, 6), np.arange(4000, 16_001)
    trace = Trace(np.concatenate((slow, fast)).astype(np.uint32), "slow-then-fast").save(folder / "slow.trace")
    path = folder / "beside.toml"
    path.write_text(BESIDE.format(trace=trace, start_s=start_s))
    return plan(load(str(path)))


def made(folder: Path, text: str, *, allow_training_traces: bool = False) -> tuple[SuitePlan, Store]:
    """Return a suite of this definition and its store, with every run in it."""
    path = folder / "suite.toml"
    path.write_text(text)
    suite = plan(load(str(path)), allow_training_traces=allow_training_traces)
    store = Store(folder / "store")
    runner.make(suite, store)
    return suite, store


def test_an_agent_in_two_spellings_is_refused(tmp_path: Path) -> None:
    """Its runs were counted twice, and the intervals of their mean were too narrow."""
    path = tmp_path / "suite.toml"
    path.write_text('title = "2"\n[[scenario]]\nname = "a"\nagents = ["rule", "rule:1.5"]\ntraces = ["constant:9"]\n')
    with pytest.raises(ConfigError, match=r"two names stand for rule:1\.5"):
        plan(load(str(path)))


def test_a_page_says_which_lines_are_of_traces_that_a_model_learned_from(tmp_path: Path) -> None:
    """The rows of its JSON had a label, and the page, which is what is read, said nothing."""
    trace = generate("lte-driving", 60, 1).save(tmp_path / "renamed.trace")
    suite, store = made(
        tmp_path,
        f'title = "2"\n[[scenario]]\nname = "seen"\nagents = ["none", "{MODEL}"]\ntraces = ["{trace}"]\nseconds = 2\n'
        f'repeat = 2\n[[scenario]]\nname = "new"\nagents = ["none", "{MODEL}"]\ntraces = ["constant:9"]\nseconds = 2\n',
        allow_training_traces=True,
    )
    seen, new = markdown.page(report.build(suite, store, "")).split("## new")
    assert f"{MODEL} was trained on, or selected by, renamed.trace: its figures" in seen
    assert "was trained on" not in new


def test_a_recording_that_is_called_constant_is_begun_anywhere_all_the_same(tmp_path: Path) -> None:
    """All its repetitions began where it does, and the intervals over places in it were those of one place."""
    drawn = generate("lte-driving", 60, 7).save(tmp_path / "constant-speed-drive.trace")
    steady = [Trace.constant(mbps, 10).save(tmp_path / f"constant-{mbps:g}mbps.trace") for mbps in (0.7, 12, 100)]
    path = tmp_path / "suite.toml"
    names = ", ".join(f'"{file}"' for file in (drawn, *steady))
    path.write_text(f'title = "2"\n[[scenario]]\nname = "a"\nagents = ["none"]\ntraces = [{names}]\nrepeat = 3\n')
    begins: dict[str, list[int]] = {}
    for job in plan(load(str(path))).jobs:
        begins.setdefault(job.scenario.trace.name, []).append(job.scenario.path.start_offset_ms)
    first, *others = begins.pop(drawn.name)
    assert first == 0 < min(others)
    assert list(begins.values()) == [[0, 0, 0]] * 3


def test_a_flow_alone_is_measured_over_the_stretch_that_it_shares_with_others(tmp_path: Path) -> None:
    """Alone from the trace's beginning it had 2 Mbit/s, beside another from 4 s on some 6: that looked like no harm."""
    suite, store = planned(tmp_path, 4.0), Store(tmp_path / "store")
    runner.make(suite, store)
    cells = report.build(suite, store, "")["cells"]
    for flows in (1, 2):
        alone, beside = (
            next(cell["numbers"] for cell in cells if (cell["role"], cell["flows"]) == (role, flows))
            for role in ("solo", "run")
        )
        assert 10 < alone["throughput_mbps"]["mean"] < 12.1
        expected = 1 - beside["beside_mbps"]["mean"] / alone["throughput_mbps"]["mean"]
        assert beside["beside_harm"]["mean"] == pytest.approx(expected)
        assert 0.2 < expected < 0.95


def test_flows_that_all_start_at_once_have_one_run_alone(tmp_path: Path) -> None:
    alone = [job for job in planned(tmp_path, 0.0).jobs if job.cell.role == "solo"]
    assert [job.cell.flows for job in alone] == [1, 2]
    assert len({job.key for job in alone}) == 1


def test_an_interval_holds_the_scatter_of_traces_and_runs_once() -> None:
    """Traces that do not differ leave that of the runs: each draw of a trace has a draw of its runs of its own."""
    runs = np.random.Generator(np.random.PCG64(1)).normal(size=60)
    runs = (runs - runs.mean()) / runs.std()
    found = estimate({f"trace {number}": list(runs) for number in range(3)})
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    width = 2 * 1.96 / np.sqrt(3 * 60)  # runs drawn once for a trace that is drawn twice: sqrt(5 / 3) times that
    assert found.high - found.low == pytest.approx(width, rel=0.1)


def test_an_interval_leaves_as_much_out_above_as_below() -> None:
    assert interval(np.linspace(0.0, 100.0, 1001)) == pytest.approx((2.5, 97.5))


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "within noise"), (5.0, "changed")])
def test_runs_that_two_reports_do_not_share_are_compared_by_their_means(shift: float, verdict: str) -> None:
    values = np.linspace(10.0, 12.0, 2 * LEAST_PAIRS)
    before = {("trace", f"{seed}"): value for seed, value in enumerate(values)}
    after = {("trace", f"other {seed}"): value + shift for seed, value in enumerate(values[::-1])}
    found = change(before, after)
    assert found is not None
    assert not found.paired
    assert (found.before, found.after) == pytest.approx((11.0, 11.0 + shift))
    low, mean, high = found.difference.low, found.difference.mean, found.difference.high
    assert low is not None
    assert high is not None
    assert mean == pytest.approx(shift)
    width = 2 * 1.96 * values.std() * np.sqrt(2 / len(values))
    assert (low, high) == pytest.approx((shift - width / 2, shift + width / 2), abs=0.1 * width)
    assert found.verdict == verdict


def test_a_trace_counts_once_in_a_comparison_however_many_runs_it_has() -> None:
    before = {("a", "1"): 0.0, ("a", "2"): 0.0, ("a", "3"): 0.0, ("b", "1"): 8.0}
    for prefix in ("", "other "):  # in pairs, and not
        after = {(trace, f"{prefix}{run}"): value + 1.0 for (trace, run), value in before.items()}
        found = change(before, after)
        assert found is not None
        assert found.paired is not bool(prefix)
        assert (found.before, found.after, found.difference.mean) == pytest.approx((4.0, 5.0, 1.0))


def test_a_difference_of_few_runs_is_called_no_change_however_large() -> None:
    few = range(LEAST_PAIRS - 1)
    for name in ("{}", "other {}"):  # in pairs, and not
        found = change(
            {("trace", f"{run}"): float(run) for run in few}, {("trace", name.format(run)): 99.0 for run in few}
        )
        assert found is not None
        assert found.verdict == "too few runs"
    assert change({}, {("trace", "1"): 1.0}) is change({("trace", "1"): 1.0}, {}) is None


def test_the_runs_alone_of_each_number_of_flows_are_told_apart(tmp_path: Path) -> None:
    """Their rows were all called ``solo``."""
    suite, store = planned(tmp_path, 4.0), Store(tmp_path / "store")
    runner.make(suite, store)
    names = [evaluate_suite._shown(cell)["cell"] for cell in report.build(suite, store, "")["cells"]]
    assert len(set(names)) == len(names) == 4


@pytest.mark.parametrize("key", ["buffer_bdp", "buffer_peak_ms"])
def test_a_buffer_that_no_number_can_hold_is_refused_as_one_that_is_too_large(key: str) -> None:
    text = f'name = "a"\ntraces = ["constant:12"]\npath = {{{key} = 1.7e308}}\n'
    spec = ScenarioSpec.model_validate(toml_file.loads(text))
    with pytest.raises(ConfigError, match=f"buffer_bytes: {LARGEST_BUFFER_BYTES + 1} is outside"):
        scenario(spec, links(spec, ())[0], "cubic", seed=1, start_ms=0)


@pytest.mark.parametrize(("key", "of"), [("buffer_bdp", "buffer_bytes"), ("app_share", "app_mbps")])
def test_what_is_worked_out_is_not_given_as_well(key: str, of: str) -> None:
    text = f'name = "a"\ntraces = ["constant:12"]\npath = {{ {of} = 30000 }}\nsweep = {{ {key} = [0.5] }}\n'
    spec = ScenarioSpec.model_validate(toml_file.loads(text))
    with pytest.raises(ConfigError, match=f"{key}: {of} is given too"):
        scenario(spec, links(spec, ())[0], "cubic", seed=1, start_ms=0)


@pytest.mark.parametrize("line", ["{}", "[1]", "no JSON", "[" * 100_000], ids=["empty", "list", "text", "nested"])
def test_a_line_that_is_no_run_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / RUNS_FILE).write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=rf"{RUNS_FILE}:1: not a run of a suite"):
        Store(tmp_path)


RARE = """
title = "Rare"
[[scenario]]
name = "rare"
agents = ["none"]
traces = ["{trace}"]
seconds = 4
repeat = 2
path = {{ uplink = "{uplink}" }}
"""


def test_a_run_whose_link_lets_nothing_through_in_time_is_written_down_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator went on to the first opportunity, weeks later, and logged what all of them asked for meanwhile."""
    rare = Trace(np.array([2**32 - 1], np.uint32), "rare").save(tmp_path / "rare.trace")
    often = Trace.constant(12, 4.0, "often").save(tmp_path / "often.trace")
    path = tmp_path / "rare.toml"
    monkeypatch.setattr(runner, "logs", lambda *_: pytest.fail("it was simulated"))
    for trace, uplink in ((rare, often), (often, rare)):
        path.write_text(RARE.format(trace=trace, uplink=uplink))
        suite, store = plan(load(str(path))), Store(tmp_path / f"store-{trace.stem}")
        runner.make(suite, store)
        reasons = {one.invalid_reason for job in suite.jobs for one in store.invalid(job.key)}
        assert len(suite.jobs) == 2
        assert all("lets any data through" in str(reason) for reason in reasons), reasons
        assert reasons


@pytest.mark.parametrize(
    "sweep",
    ["wired_mbps = [[[0, 12]], [[0, 6], [1000, 12]]]", 'flows = [[{ cc = "bbr" }], [{ cc = "reno", start_ms = 500 }]]'],
)
def test_a_swept_field_whose_values_are_lists_has_a_cell_for_each(tmp_path: Path, sweep: str) -> None:
    """Its report ended in a traceback when all runs had been made."""
    suite, store = made(
        tmp_path,
        'title = "Lists"\n[[scenario]]\nname = "lists"\nagents = ["none", "rule"]\ntraces = ["constant:12"]\n'
        f"seconds = 2\nrepeat = 1\nsweep = {{ {sweep} }}\n",
    )
    found = report.build(suite, store, "test")
    assert [(cell["agent"], cell["runs"]) for cell in found["cells"]] == [("none", 1), ("rule:1.5", 1)] * 2
    assert found["cells"][0]["point"] != found["cells"][2]["point"]
    assert "throughput_kept" in found["cells"][1]["numbers"]
    assert "lists" in markdown.page(found, pictures.save(report.groups(suite, store), tmp_path), None)


def test_traces_and_agents_that_would_replace_nothing_are_refused(tmp_path: Path) -> None:
    """The report was of other links than those that had been asked for, and said nothing of it."""
    file = tmp_path / "plain.toml"
    file.write_text('title = "Plain"\n[[scenario]]\nname = "steady"\ntraces = ["constant:12"]\nplain = ["vegas"]\n')
    with pytest.raises(ConfigError, match="traces: steady of suite plain generates no link that they would replace"):
        plan(load(str(file)), given=[Trace.constant(3.0, 5.0, "mine")])
    with pytest.raises(ConfigError, match="agents: steady of suite plain runs plain congestion controls alone"):
        plan(load(str(file)), agents=["rule"])
    assert plan(load("quick"), given=[Trace.constant(3.0, 5.0, "mine")], agents=["rule"]).jobs


def test_of_a_paths_own_flows_only_those_that_the_agent_decides_for_are_its_own(tmp_path: Path) -> None:
    """A plain flow that a path names was counted among the agent's: its throughput was that of both."""
    suite, store = made(
        tmp_path,
        'title = "Named"\n[[scenario]]\nname = "named"\nagents = ["rule"]\ntraces = ["constant:12"]\nseconds = 5\n'
        'repeat = 1\nsweep = { flows = [[{ cc = "bbr" }], [{ cc = "bbr" }, { stepped = true }]] }\n',
    )
    jobs = [job for job in suite.jobs if job.agent.name == "rule:1.5"]
    assert [job.own_flows for job in jobs] == [[0], [0, 2]]
    one, two = (store.valid(job.key) for job in jobs)
    assert one is not None
    assert two is not None
    alone = run(make_agent("rule"), jobs[0].scenario).metrics
    assert one.figures["throughput_mbps"] == alone.throughput_mbps
    assert one.figures["qdelay_mean_ms"] == alone.qdelay_mean_ms
    assert "jain" not in one.figures
    first, plain, second = two.figures["flows_mbps"]
    assert two.figures["beside_mbps"] == plain
    assert two.figures["share"] == pytest.approx((first + second) / (first + plain + second))


IDLE = """
title = "Idle"
[[scenario]]
name = "slow"
agents = ["none", "fixed:20"]
traces = ["constant:12"]
seconds = 5
repeat = 1
sweep = { app_mbps = [0.5, 0.0] }
"""


def test_a_report_says_where_no_cap_ever_acted(tmp_path: Path) -> None:
    """A slow application builds no queue: plain's figures looked like those of a harmless cap."""
    suite, store = made(tmp_path, IDLE)
    (said,) = re.findall("No cap acted.*", markdown.page(report.build(suite, store, "here")))
    line = "fixed:20 over cubic (app_mbps 0.5)"
    assert said == f"No cap acted in any run of {line}: what stands there are plain congestion control's figures."


def test_what_is_swept_in_words_has_lines_of_its_own_in_the_pictures(tmp_path: Path) -> None:
    """Droptail and CoDel were marks of one colour under one name, and points of one zigzag over a swept number."""
    suite, store = made(
        tmp_path,
        'title = "2"\n[[scenario]]\nname = "a"\nagents = ["none", "rule"]\ntraces = ["constant:9"]\nseconds = 3\n'
        'repeat = 1\nsweep = { queue = ["droptail", "codel"], buffer_bytes = [30000, 90000] }\n',
    )
    groups = report.groups(suite, store)
    names = [f"cubic{agent}, queue {queue}" for queue in ("droptail", "codel") for agent in ("", " + rule:1.5")]
    one_buffer = [group for group in groups if ("buffer_bytes", 30_000) in group.cell.point]
    delay, sweeps = pictures._throughput_against_delay(one_buffer), pictures._sweeps(groups, "buffer_bytes")
    assert delay is not None
    assert sweeps is not None
    for figure, points in ((delay, 1), (sweeps, 2)):
        drawn = figure.axes[0].lines
        assert sorted(str(line.get_label()) for line in drawn) == sorted(names)
        assert len({str(line.get_color()) for line in drawn}) == 4
        assert [len(line.get_xydata()) for line in drawn] == [points] * 4


def test_runs_that_were_not_asked_for_again_are_not_said_to_be_of_another_definition(tmp_path: Path) -> None:
    path, store = tmp_path / "suite.toml", Store(tmp_path / "store")
    path.write_text('title = "2"\n[[scenario]]\nname = "a"\nagents = ["none"]\ntraces = ["constant:9"]\nseconds = 2\n')
    runner.make(plan(load(str(path)), repeat=3), store)
    page = markdown.page(report.build(plan(load(str(path)), repeat=1), store, ""))
    assert "1 of 1 runs are valid and in the tables. The store holds 2 other runs, left out: of scenarios or" in page
