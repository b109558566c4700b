"""``reinet evaluate`` in the simulator: rows, refusals, labels, the picture; plain and capped flows."""

import json
import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.places import ROOT
from reinet.agents.decide.baselines import FixedCap, NoCap
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray
from reinet.agents.decide.roccet import Roccet
from reinet.agents.evaluation import plan
from reinet.agents.evaluation.batch import figures as figures_of_paths
from reinet.agents.evaluation.picture import buffer_of
from reinet.agents.evaluation.plan import Plan
from reinet.agents.evaluation.run import Run, run
from reinet.agents.evaluation.scenario import Scenario, link_options
from reinet.agents.evaluation.suites.definition import MOST_SEEDS
from reinet.cli.main import app
from reinet.cli.options import MOST_REPEAT
from reinet.core import Flag
from reinet.core.errors import ConfigError, LinkError, TraceError
from reinet.core.records import FlowStatsArray
from reinet.envs.link.spec import LinkSpec
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

MODEL = ROOT / "checkpoints" / "default"
KEYS = {
    "agent", "cc", "trace", "link", "throughput_mbps", "utilization", "qdelay_mean_ms", "qdelay_p95_ms",
    "delay_mean_ms", "valid",
}  # fmt: skip
TWELVE_MBPS = Trace.constant(12, 10)


def figures(agent: str, **scenario: object) -> dict[str, object]:
    ((_, row),) = Plan(agent, [Scenario.of(TWELVE_MBPS, **{"link": "sim", "seconds": 10.0, **scenario})])  # type: ignore[arg-type]
    return row


def test_a_cap_keeps_the_throughput_and_loses_the_delay() -> None:
    plain, capped = (figures(agent, seconds=60.0) for agent in ("none", "fixed:25"))  # its first second is its own
    assert plain["qdelay_mean_ms"] > 60
    assert capped["qdelay_mean_ms"] < 6
    assert capped["throughput_mbps"] > 0.95 * plain["throughput_mbps"]
    assert capped["delay_mean_ms"] == pytest.approx(capped["qdelay_mean_ms"] + 20)


def test_every_run_has_the_keys_that_measurements_rely_on(tmp_path: Path) -> None:
    trace = TWELVE_MBPS.save(tmp_path / "twelve.trace")
    command = ["evaluate", "--agents", f"none,rule,{MODEL}", "--link", "sim", "--seconds", "5", "--json", "-"]
    result = CliRunner().invoke(app, [*command, "--traces", str(trace), "--png", str(tmp_path / "run.png")])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["agent"] for row in rows] == ["none", "rule:1.5", str(MODEL)]
    assert all(set(row) >= KEYS for row in rows)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_target_below_the_path_leaves_the_flow_uncapped_and_says_so() -> None:
    """A run of some seconds is too short for a look at its minimum RTT: the flow is plain Cubic's."""
    plain, refused = figures("none", mrtt_ms=60.0), figures("rule", mrtt_ms=60.0, target_ms=50.0)
    assert "below 1.1 x the path's minimum RTT" in str(refused["uncapped_reason"])
    assert refused["throughput_mbps"] == plain["throughput_mbps"]
    assert refused["qdelay_mean_ms"] == plain["qdelay_mean_ms"]


def test_a_relative_target_is_resolved_from_the_paths_fixed_delay() -> None:
    of_text, of_number = (figures("rule", mrtt_ms=40.0, seconds=3.0, **{key: value}) for key, value in (
        ("target", "+20ms"), ("target_ms", 60.0)))  # fmt: skip
    assert (of_text.pop("target"), of_number.pop("target")) == ("+20ms", "60ms")
    assert of_text == of_number
    assert of_text["target_ms"] == 60.0
    assert figures("none", seconds=1.0)["target"] == "50ms"
    ((done, _),) = Plan("none", [Scenario.of(TWELVE_MBPS, "sim", seconds=1.0, mrtt_ms=40.0, target="2.5x")])
    assert set(done.records["target_us"].tolist()) == {100_000}


def test_evaluate_takes_one_target(tmp_path: Path) -> None:
    trace = TWELVE_MBPS.save(tmp_path / "twelve.trace")
    command = ["evaluate", "--agents", "none", "--link", "sim", "--seconds", "1", "--traces", str(trace), "--json", "-"]
    result = CliRunner().invoke(app, [*command, "--mrtt-ms", "30", "--target", "2.5x"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["target"], row["target_ms"]) == ("2.5x", 75.0)
    with pytest.raises(ConfigError, match=r"target: 2\.5x and target_ms, 50, are both given"):
        Scenario.of(TWELVE_MBPS, "sim", target="2.5x", target_ms=50.0)


def test_a_model_is_not_judged_on_its_training_traces(tmp_path: Path) -> None:
    from reinet.agents.decide.policy import Policy
    from reinet.agents.learn.config import TrainConfig
    from reinet.agents.learn.links import training_traces

    config = TrainConfig.model_validate(Policy.load(MODEL).manifest.training.config)
    seen = training_traces(config)[0]
    renamed = tmp_path / "renamed.trace"
    renamed.write_bytes(seen.canonical_text.replace(b"\n", b"\r\n"))  # neither name nor line ends hide the content
    scenario = Scenario.of(Trace.load(renamed), "sim", seconds=5.0)
    with pytest.raises(ConfigError, match="the model was trained on"):
        Plan(str(MODEL), [scenario])
    ((_, row),) = Plan(str(MODEL), [scenario], allow_training_traces=True)
    assert row["trained_on"] is True
    assert figures(str(MODEL))["trained_on"] is False
    command = ["evaluate", "--link", "sim", "--seconds", "3", "--traces", str(renamed), "--allow-training-traces"]
    result = CliRunner().invoke(app, [*command, "--agents", f"none,{MODEL}"])
    assert result.stderr.count("was trained on") == 1, "who looks at the table alone is told of it"
    assert f"note: {MODEL} was trained on, or selected by, renamed.trace: its figures" in result.stderr


def test_a_training_trace_does_not_hide_behind_another_of_the_same_name() -> None:
    from reinet.agents.decide.policy import Policy
    from reinet.agents.learn.config import TrainConfig
    from reinet.agents.learn.links import training_traces

    seen = training_traces(TrainConfig.model_validate(Policy.load(MODEL).manifest.training.config))[0]
    same_name = Trace(TWELVE_MBPS.opportunities_ms, seen.name)
    with pytest.raises(ConfigError, match="the model was trained on"):
        Plan(str(MODEL), [Scenario.of(trace, "sim", seconds=5.0) for trace in (seen, same_name)])


class _TooLow(Agent):
    """It wants three packets up to some time, which the guard refuses, then twenty."""

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        return np.where(stats["time_ns"] < 5_000_000_000, 3, 20).astype(np.uint32)


def test_a_cap_that_was_refused_at_any_time_is_told_of() -> None:
    """At the end the flow is capped; its figures are those of a flow that was not, for half of its time."""
    done = run(_TooLow("too-low"), Scenario.of(TWELVE_MBPS, "sim", seconds=10.0))
    assert done.caps_pkts[-1] == 20
    assert "a cap of 3 packets is outside" in str(done.uncapped_reason)
    share = re.search(r"\(([\d.]+) % of its decisions\)", str(done.uncapped_reason))
    assert share
    assert 5 < float(share[1]) < 50
    assert run(FixedCap(20), Scenario.of(TWELVE_MBPS, "sim", seconds=10.0)).uncapped_reason is None


def test_each_of_several_stepped_flows_has_a_cap_and_a_guard_of_its_own() -> None:
    """Their records come in turn in one row; ROCCET, which remembers flows, would take each for a new one."""
    options = {"flows": [{"stepped": True, "start_ms": 500}]}
    scenario = Scenario.of(TWELVE_MBPS, "sim", seconds=10.0, link_options=options, buffer_bytes=600_000)
    done = run(Roccet(), scenario)
    assert done.metrics == figures_of_paths(Roccet(), [scenario.path], 10.0)[0]
    assert done.caps_pkts.any()
    assert set((done.records["cookie"] >> np.uint64(32)).tolist()) == {0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": 0.0}, "seconds"),
        ({"target_ms": float("nan")}, "target_ms"),
        ({"target_ms": 20_000.0}, "target_ms"),
        ({"target": "soon"}, "target 'soon'"),
        ({"buffer_bytes": 100}, "buffer_bytes"),
        ({"mrtt_ms": -1.0}, "mrtt_ms"),
        ({"mrtt_ms": float("nan"), "target": "+30ms"}, "mrtt_ms: nan"),  # a relative target would be NaN as well
        ({"mrtt_ms": float("inf"), "target": "2.5x"}, "mrtt_ms: inf"),
    ],
)
def test_impossible_scenarios_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scenario.of(TWELVE_MBPS, **change)  # type: ignore[arg-type]


def test_a_trace_that_lets_nothing_through_in_time_is_refused_by_name_before_the_first_run(tmp_path: Path) -> None:
    """It was found midway, when the runs before it were done and lost."""
    late = Trace(np.array([300] * 50, np.uint32), "late.trace")
    paths = [str(trace.save(tmp_path / trace.name)) for trace in (TWELVE_MBPS, late)]
    of_traces = ["--traces", paths[0], "--traces", paths[1]]
    for command in (
        ["evaluate", "--agents", "none", "--link", "sim", "--seconds", "0.5"],
        ["bench", "frontier", "--agents", "none", "--seconds", "1"],
        ["bench", "targets", "--agents", "rule", "--seconds", "1"],
    ):
        result = CliRunner().invoke(app, [*command, *of_traces])
        assert isinstance(result.exception, ConfigError), result.exception
        assert re.search(
            r"over late\.trace ends before the trace .* takes 0\.6 s; .* leave this trace out", str(result.exception)
        )
    # The answer to the SYN leaves at 300 ms, data at 600.
    assert run(NoCap(), Scenario.of(late, "sim", seconds=0.7)).metrics.packets > 0
    with pytest.raises(LinkError, match=r"^over late\.trace: link log: nothing left the link"):
        run(NoCap(), Scenario.of(late, "sim", seconds=0.6))
    with pytest.raises(LinkError, match=r"^over late\.trace: link log: nothing left the link"):
        figures_of_paths(NoCap(), [Scenario.of(late, "sim", seconds=0.6).path], 0.6)


def test_link_options_reach_the_simulated_link(tmp_path: Path) -> None:
    trace = TWELVE_MBPS.save(tmp_path / "twelve.trace")
    command = ["evaluate", "--agents", "none", "--link", "sim", "--seconds", "5", "--json", "-", "--traces", str(trace)]
    options = {"queue": "codel", "loss": 0.01, "wired_mbps": [[0, 6.0]], "flows": [{"cc": "reno", "start_ms": 1000}]}
    for key, value in options.items():
        command += ["--link-option", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert row["link_options"] == options
    assert row["qdelay_mean_ms"] > 10  # the queue is before the wired link
    assert 1 < row["throughput_mbps"] < 5  # this flow's, not both flows'


@pytest.mark.parametrize("link", ["sim", "mahimahi"])
def test_an_uplink_that_lets_no_ack_through_in_time_is_refused(
    tmp_path: Path, link: Literal["sim", "mahimahi"]
) -> None:
    """The simulator ran on to the first ACK, and its log of hours or days of a link took all memory."""
    up = Trace(np.array([4000], np.uint32), "rare").save(tmp_path / "rare.trace")
    options = link_options([f"uplink={up}"])
    with pytest.raises(ConfigError, match=r"ends before the trace, with this uplink, lets any data .* takes 4\.02 s"):
        Scenario.of(TWELVE_MBPS, link, seconds=4.0, link_options=options).require_data()
    Scenario.of(TWELVE_MBPS, link, seconds=5.0, link_options=options).require_data()


@pytest.mark.parametrize("link", ["sim", "mahimahi"])
def test_an_uplink_is_said_by_its_file(tmp_path: Path, link: Literal["sim", "mahimahi"]) -> None:
    up = Trace.constant(0.2, 5.0).save(tmp_path / "up.trace")
    scenario = Scenario.of(TWELVE_MBPS, link, seconds=5.0, link_options=link_options([f"uplink={up}"]))
    assert isinstance(scenario.path.uplink, Trace)
    assert np.array_equal(scenario.path.uplink.opportunities_ms, Trace.load(up).opportunities_ms)
    with pytest.raises(TraceError, match=r"no-such\.trace"):
        Scenario.of(TWELVE_MBPS, link, link_options={"uplink": "no-such.trace"})
    if link == "sim":
        row = run(FixedCap(4000), scenario).row()
        assert row["link_options"] == {"uplink": str(up)}
        assert row["throughput_mbps"] < 0.8 * figures("none", seconds=5.0)["throughput_mbps"]


def test_every_link_option_changes_the_run() -> None:
    plain = figures("none", seconds=3.0)
    for options in (
        {"queue": "pie"},
        {"loss": 0.02},
        {"jitter_us": 3000},
        {"forward_jitter_us": 3000},
        {"pkts_per_ack": 4},
        {"forward_ms": 5.0},
        {"flow_bytes": 500_000},
        {"app_mbps": 2.0},
        {"object_bytes": 100_000, "pause_ms": 30.0},
        {"buffer_pkts": 20},
    ):
        assert figures("none", seconds=3.0, link_options=options)["qdelay_mean_ms"] != plain["qdelay_mean_ms"], options


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["queue"], "give key=value"),
        (["loss=0.1", "loss=0.2"], "loss: is given twice"),
        (["qeue=codel"], "qeue: unknown; did you mean 'queue'"),
        (["cc=reno"], "cc: it is said beside"),
        (["queue=codl"], "did you mean 'codel'"),
        (["loss=" + "[" * 5000], r"loss: '\[+' is not a number"),
        (["loss=much"], "loss: 'much' is not a number"),
        (["loss=2"], "loss: 2 is outside"),
        (["jitter_us=1.5"], "jitter_us: 1.5 is not a whole number"),
        (["mss_bytes=large"], "mss_bytes: 'large' is not a whole number"),
        (["stop_ms=soon"], "stop_ms: 'soon' is not a number"),
        (["forward_ms=half"], "forward_ms: 'half' is not a number"),
        (["wired_mbps=6"], "wired_mbps: "),
        (["wired_mbps=[[0]]"], "wired_mbps: "),
        (["uplink=5"], "uplink: give the file of a trace of the ACKs' direction, not 5"),
        (["flows=1"], "flows: "),
        (["flows=[1]"], "flows: "),
        (['flows=[{"cap_pkts": "x"}]'], "cap_pkts: 'x' is not a whole number"),
    ],
)
def test_link_options_that_make_no_sense_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scenario.of(TWELVE_MBPS, "sim", link_options=link_options(texts))


def test_mahimahi_takes_the_link_options_that_it_can_do() -> None:
    options = {"queue": "codel", "codel_target_ms": 10, "buffer_pkts": 50, "loss": 0.01}
    path = Scenario.of(TWELVE_MBPS, "mahimahi", link_options=options).path
    assert (path.queue, path.codel_target_ms, path.buffer_pkts, path.loss) == ("codel", 10, 50, 0.01)
    with pytest.raises(ConfigError, match=r"decision_ms: Mahimahi's link has no such thing, only the simulated one"):
        Scenario.of(TWELVE_MBPS, "mahimahi", link_options={"decision_ms": 5.0})
    with pytest.raises(ConfigError, match="queue: there is no queue 'red'; there are infinite, droptail"):
        Scenario.of(TWELVE_MBPS, "mahimahi", link_options={"queue": "red"})


def test_repetitions_have_seeds_of_their_own_and_agents_of_one_share_it() -> None:
    lossy = Scenario.of(TWELVE_MBPS, "sim", seconds=5.0, link_options={"loss": 0.01}, seed=7)
    rows = [row for _, row in Plan("none,fixed:4000", [lossy], repeat=3)]
    assert [row["seed"] for row in rows] == [7, 7, 8, 8, 9, 9]
    assert len({row["throughput_mbps"] for row in rows if row["agent"] == "none"}) == 3
    again = [row for _, row in Plan("none", [lossy], repeat=3)]
    assert again == [row for row in rows if row["agent"] == "none"]


def test_a_cap_that_stays_through_a_silence_was_decided_once() -> None:
    done = run(FixedCap(20), Scenario.of(generate("evdo-driving", 40.0, 2), "sim", seconds=40.0))
    silent = (done.records["flags"] & int(Flag.NO_SAMPLE)) != 0
    assert done.caps_pkts[silent].any()
    assert done.row()["decisions"] == np.count_nonzero(done.caps_pkts[~silent])


def test_an_agent_that_throws_dice_throws_others_in_each_repetition() -> None:
    """Else their spread would be that of the link's noise alone, and a link without any would show none."""
    still = Scenario.of(TWELVE_MBPS, "sim", seconds=6.0, link_options={"jitter_us": 0})
    caps = [tuple(done.caps_pkts) for done, _ in Plan("random", [still], repeat=3)]
    assert len(set(caps)) == 3
    assert [tuple(done.caps_pkts) for done, _ in Plan("random", [still], repeat=3)] == caps
    plain = [row["qdelay_mean_ms"] for _, row in Plan("none", [still], repeat=2)]
    assert plain[0] == plain[1]


def test_a_field_that_no_option_of_the_link_sets_is_refused_with_what_sets_it() -> None:
    for option, cure in (
        ("mrtt_ms=30", "said beside the link's options"),
        ("start_offset_ms=5", "cut off what lies before"),
    ):
        with pytest.raises(ConfigError, match=cure):
            Scenario.of(TWELVE_MBPS, "sim", link_options=link_options([option]))


@pytest.mark.parametrize("option", ["codel_target_ms=5", "pie_burst_ms=5", "wired_buffer_bytes=4000", "pause_ms=10",
                                    "fair_window_ms=5"])  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option.partition('=')[0]}: does nothing without"):
        Scenario.of(TWELVE_MBPS, "sim", link_options=link_options([option]))
    Scenario.of(TWELVE_MBPS, "sim", link_options={"queue": "codel", "codel_target_ms": 5})


def test_an_infinite_queue_has_no_size() -> None:
    assert figures("none", link_options={"queue": "infinite"}, seconds=1.0)["buffer_bytes"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "buffer of 150 KB"),
        ({"queue": "infinite"}, "no limit to its buffer"),
        ({"buffer_pkts": 40}, "buffer of 150 KB and 40 packets"),
        ({"buffer_pkts": 40, "buffer_bytes": 0}, "buffer of 40 packets"),
    ],
)
def test_a_pictures_title_tells_of_the_buffer_that_there_was(options: dict[str, Any], words: str) -> None:
    """Over a queue without a limit it said 150 KB, and 0 KB where the limit was one of packets."""
    assert buffer_of(LinkSpec(TWELVE_MBPS, **options)) == words


@pytest.mark.parametrize("ended", [LinkError("the link died"), KeyboardInterrupt()])
def test_what_was_measured_before_a_run_fails_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: BaseException
) -> None:
    """It was written after the last run: what ended the command at the fortieth took the others with it."""
    trace, found = TWELVE_MBPS.save(tmp_path / "twelve.trace"), tmp_path / "found.json"
    kept: list[int] = []
    done: list[weakref.ref[Run]] = []

    def fails_at_the_third(agent: Agent, scenario: Scenario, progress: Callable[[float], None] | None) -> Run:
        kept.append(len(json.loads(found.read_text())["rows"]) if found.exists() else 0)
        assert sum(one() is not None for one in done) <= 1, "of runs that are over there is the row, and no log"
        if len(done) == 2:
            raise ended
        here = run(agent, scenario, progress)
        done.append(weakref.ref(here))
        return here

    monkeypatch.setattr(plan, "run", fails_at_the_third)
    command = ["evaluate", "--agents", "none,fixed:20", "--link", "sim", "--seconds", "1", "--repeat", "2"]
    result = CliRunner().invoke(app, [*command, "--traces", str(trace), "--json", str(found)])
    assert kept == [0, 1, 2]
    assert [row["agent"] for row in json.loads(found.read_text())["rows"]] == ["none", "fixed:20"]
    assert "fixed:20" in result.stderr, "the table of what there is"
    if isinstance(ended, LinkError):
        said = rf"run 3 of 4, none over cubic on twelve.*: the link died; the rows before it are in {found}"
        assert re.fullmatch(said, str(result.exception))


def test_traces_of_one_name_have_pictures_of_their_own(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "twelve.trace" for folder in ("a", "b")]
    command = ["evaluate", "--agents", "none", "--link", "sim", "--seconds", "1", "--png", str(tmp_path / "run.png")]
    for path in paths:
        path.parent.mkdir()
        command += ["--traces", str(TWELVE_MBPS.save(path))]
    result = CliRunner().invoke(app, [*command, "--repeat", "2"])
    assert result.exit_code == 0, result.output
    files = sorted(path.name for path in tmp_path.glob("*.png"))
    assert len(files) == 2
    assert all(name.startswith("run-twelve.trace.") for name in files)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--png", "run.xyz"], r"ends in \.png"),
        (["--png", "{}/twelve.trace/run.png"], r"--png .*/run\.png: .*/twelve\.trace is no folder"),
        (["--cc", "cubic, reno,cubic"], "cc: cubic is there twice"),
        (["--seconds", "1e9"], r"seconds is 1e\+09; it must be above 0 and below 1e6"),
        (["--link-option", "start_ms=5000"], "ends before anything comes back: the flow starts after 5000 ms"),
        (["--link-option", "queue=infinite", "--buffer-bytes", "30000"], "--buffer-bytes: queue=infinite holds"),
        (["--link-option", "queue=infinite", "--link-option", "buffer_pkts=9"], "option buffer_pkts: queue=infinite"),
        (["--link", "mahimahi", "--seed", "2"], "a real host's noise has none"),
        (["--link", "mahimahi", "--actuator", "app", "--agents", "none,random"], "random does not run in a process"),
        (["--link", "mahimahi", "--actuator", "app", "--agents", "none,roccet"], "roccet does not run in a process"),
        (["--link", "mahimahi", "--agents", "none,rule", "--cc", "westwood"], "'westwood' cannot be capped in"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], why: str
) -> None:
    monkeypatch.setattr(plan, "run", lambda *_: pytest.fail("a run has begun"))
    trace = TWELVE_MBPS.save(tmp_path / "twelve.trace")
    command = ["evaluate", "--agents", "none", "--link", "sim", "--seconds", "5", "--traces", str(trace)]
    command += [word.format(tmp_path) for word in more]
    with pytest.raises(ConfigError, match=why):
        raise CliRunner().invoke(app, command).exception or AssertionError


def test_a_suite_over_a_trace_whose_name_is_no_utf_8_has_its_page_and_its_results(tmp_path: Path) -> None:
    trace = TWELVE_MBPS.save(tmp_path / os.fsdecode(b"Z\xfcrich.trace"))
    suite, page = tmp_path / "suite.toml", tmp_path / "out" / "report.md"
    suite.write_text('title = "One"\n[[scenario]]\nname = "one"\nagents = ["none"]\nseconds = 2\n')
    command = ["evaluate", "--suite", str(suite), "--traces", str(trace), "--out", str(page.parent)]
    result = CliRunner().invoke(app, [*command, "--json", str(tmp_path / "json")])
    assert result.exit_code == 0, result.output
    assert r"trace Z\udcfcrich.trace (12 Mbit/s)" in page.read_text()
    assert json.loads((tmp_path / "json").read_text())["traces"][0]["name"] == trace.name


def test_more_repetitions_than_a_suites_file_may_have_are_refused(tmp_path: Path) -> None:
    assert MOST_REPEAT == MOST_SEEDS
    trace = TWELVE_MBPS.save(tmp_path / "twelve.trace")
    command = ["evaluate", "--agents", "none", "--link", "sim", "--traces", str(trace), "--repeat", "1001"]
    for more in (["--seconds", "1"], ["--suite", "quick"]):
        result = CliRunner().invoke(app, [*command, *more])
        assert result.exit_code == 2
        assert "--repeat" in result.stderr
