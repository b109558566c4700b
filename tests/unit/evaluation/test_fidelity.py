"""``reinet fidelity``: what counts as agreement, going on after an interruption, what fails, the page."""

import json
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.period import SILENT
from helpers.waiting import assert_ends_with_its_command
from reinet.agents.decide.baselines import NoCap
from reinet.agents.evaluation import fidelity
from reinet.agents.evaluation.fidelity import (
    MAX_ATTEMPTS,
    NOT_TRIED,
    TOLERANCES,
    Combination,
    Comparison,
    agrees,
    figures_of,
    markdown,
    sim_figures,
)
from reinet.agents.evaluation.kernel_results import METRICS, KernelResult, Results
from reinet.agents.evaluation.run import run
from reinet.agents.evaluation.scenario import Scenario
from reinet.cli.main import app
from reinet.core.errors import ConfigError, LinkError, ShimError
from reinet.envs.mahimahi.spec import LinkSpec
from reinet.envs.mahimahi.uml import find_kernel, run_flow
from reinet.envs.trace import Trace

COMBINATION = Combination(Trace.constant(12, 10), "cubic", 150_000, 40)
KEY = COMBINATION.key(8.0, 20.0)


@pytest.mark.parametrize(
    ("metric", "sim", "kernel", "expected"),
    [
        ("throughput_mbps", 5.14, 5.0, True),
        ("throughput_mbps", 5.16, 5.0, False),
        ("qdelay_mean_ms", 5.9, 4.0, True),  # 48 % off, but by less than 2 ms
        ("qdelay_mean_ms", 111.0, 100.0, False),
        ("qdelay_p95_ms", 114.0, 100.0, True),
        ("cwnd_mean_pkts", 1.0, 100.0, None),
    ],
)
def test_agreement(metric: str, sim: float, kernel: float, expected: bool | None) -> None:
    assert agrees(metric, sim, kernel) is expected


def test_it_goes_on_where_it_stopped_and_compares_by_the_median(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    exact = sim_figures(COMBINATION, 8.0, 20.0, begin_ms=60.0, seed=0)
    for factor in (1.0, 1.01, 5.0):
        Results(path).add(KernelResult(KEY, 60.0, {name: factor * value for name, value in exact.items()}))
    comparison = Comparison([COMBINATION], Results(path), seconds=8.0, repeat=3)
    comparison.measure(lambda *_: pytest.fail("all runs are there: nothing may start"))
    (rows,) = comparison
    throughput = next(row for row in rows if row["metric"] == "throughput_mbps")
    assert throughput["ratio"] == pytest.approx(1 / 1.01, rel=0.01)
    assert throughput["kernel_max"] == pytest.approx(5 * throughput["kernel_min"])
    assert all(row["agrees"] is not False for row in rows)
    assert "**1 of 1 combinations agree**." in markdown(comparison, [rows], "reinet fidelity")


def test_what_a_silence_tells_again_counts_once() -> None:
    """Its records repeat what their period has so far: sums over all records would hold it two and three times."""
    done = run(NoCap(), Scenario(COMBINATION.path(20.0), "sim", 2.0))
    records = np.zeros(4, done.records.dtype)
    records["time_ns"] = np.array([100, 400, 650, 700]) * 1_000_000
    records["period_ns"] = np.array([100, 300, 550, 600]) * 1_000_000
    records["retrans_bytes"], records["mss_bytes"] = np.array([1, 2, 2, 3]) * 1448, 1448
    records["cwnd_pkts"], records["flags"] = [10, 90, 90, 20], [0, SILENT, SILENT, 0]
    found = figures_of(replace(done, records=records))
    assert found["retrans_pkts"] == 4
    assert found["cwnd_mean_pkts"] == pytest.approx((10 * 100 + 20 * 600) / 700)


FIGURES = dict.fromkeys(METRICS, 1.0)


def test_a_damaged_results_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Results(path).add(KernelResult(KEY, 60.0, FIGURES))
    whole = path.read_bytes()
    empty = json.dumps({"key": KEY, "begin_ms": 60.0, "figures": {}}).encode()
    text = json.dumps({"key": KEY, "begin_ms": "60", "figures": FIGURES}).encode()
    for damage in (b'{"half": ', b"\x89PNG\xff", b"[" * 100_000, empty, text, b"3"):
        path.write_bytes(whole + damage + b"\n")
        with pytest.raises(ConfigError, match=r"results\.jsonl:2: not a result"):
            Results(path)


def test_a_last_line_that_was_being_written_is_made_anew(tmp_path: Path) -> None:
    """Where the command is killed while it writes, the line has no end; the suites' store cuts it off, too."""
    path = tmp_path / "results.jsonl"
    Results(path).add(KernelResult(KEY, 60.0, FIGURES))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    results = Results(path)
    assert len(results.of(KEY)) == 1
    assert path.read_bytes() == whole + whole[:30], "who only reads may not write, and another may be writing now"
    results.add(KernelResult(KEY, 60.0, FIGURES))
    results.add(KernelResult(KEY, 60.0, FIGURES))
    assert path.read_bytes() == 3 * whole


def test_runs_in_virtual_time_are_kept_apart_and_may_lack_what_records_tell(tmp_path: Path) -> None:
    uncapped = Combination(COMBINATION.trace, "westwood", 150_000, 0)
    results, machine = Results(tmp_path / "results.jsonl"), tmp_path / "linux"
    machine.write_text("a kernel")
    exact = sim_figures(uncapped, 8.0, 20.0, begin_ms=60.0, seed=0)
    results.add(KernelResult(uncapped.key(8.0, 20.0, machine), 60.0, {**exact, "cwnd_mean_pkts": None}))
    assert not list(Comparison([uncapped], results, seconds=8.0, repeat=1))
    comparison = Comparison([uncapped], results, seconds=8.0, repeat=1, uml=machine)
    (rows,) = comparison
    assert {row["kernel_kind"] for row in rows} == {"uml"}
    window = next(row for row in rows if row["metric"] == "cwnd_mean_pkts")
    assert window["kernel"] is window["ratio"] is window["agrees"] is None
    assert all(row["agrees"] for row in rows if row["metric"] in TOLERANCES)
    page = markdown(comparison, [rows], "reinet fidelity")
    assert page.startswith("# The simulator against Mahimahi and a kernel in virtual time\n")
    assert "/ ? |" in page


def test_runs_of_different_kernels_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uncapped = replace(COMBINATION, cap_pkts=0)
    machines = [tmp_path / "linux", tmp_path / "true"]
    for machine in machines:
        machine.write_text(machine.name)
    keys = {uncapped.key(8.0, 20.0, uml) for uml in (None, *machines)}
    for release in ("7.0", "7.1"):
        fidelity.kernel_identity.cache_clear()
        monkeypatch.setattr(fidelity.os, "uname", lambda release=release: SimpleNamespace(release=release))
        keys.add(uncapped.key(8.0, 20.0))
    fidelity.kernel_identity.cache_clear()
    monkeypatch.setattr(fidelity, "emulator_sha256", lambda: "others")
    keys.add(uncapped.key(8.0, 20.0))
    fidelity.kernel_identity.cache_clear()
    assert len(keys) == 6


def test_runs_of_another_kernel_are_said_and_do_not_count(tmp_path: Path) -> None:
    """Those of a file from before keys had the kernel as well, for nothing tells of which one they are."""
    trace, path = COMBINATION.trace.save(tmp_path / "12.trace"), tmp_path / "results.jsonl"
    before = COMBINATION.key_of_any_kernel(8.0, 20.0)
    for key in (before, f"{before} uml", f"{before} host 7.0 0", f"{before}0 host 7.0 0"):
        Results(path).add(KernelResult(key, 60.0, FIGURES))
    command = ["fidelity", "--traces", str(trace), "--buffers", "150000", "--caps", "20,40", "--seconds", "8"]
    done = CliRunner().invoke(app, [*command, "--results", str(path), "--report"])
    assert done.exit_code == 0, done.output
    assert "note: 3 runs in" in done.output
    assert "0 of 0 combinations agree; 2 not measured." in done.output


def test_caps_and_a_missing_machine_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"caps need the kernel shim.*--caps none"):
        Comparison([COMBINATION], Results(tmp_path / "results.jsonl"), uml=Path("linux"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(LinkError, match=r"reinet/uml/linux: no User-Mode Linux is there; build it with docker/uml"):
        find_kernel()
    machine = tmp_path / "linux"
    machine.write_text("")
    with pytest.raises(LinkError, match="no User-Mode Linux"):
        find_kernel(machine)  # not executable
    machine.chmod(0o755)
    assert find_kernel(machine) == machine


def test_a_machine_that_does_not_work_is_reported_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reinet.envs.mahimahi.uml.find_program", Path)  # Mahimahi need not be there
    machine = tmp_path / "linux"
    machine.write_text("#!/bin/sh\necho Kernel panic\n")
    machine.chmod(0o755)
    with pytest.raises(LinkError, match="did not work out: Kernel panic"):
        run_flow(machine, LinkSpec(COMBINATION.trace, cc="vegas"), 1.0)


def test_a_link_that_does_not_come_up_is_tried_again(tmp_path: Path) -> None:
    machine = tmp_path / "linux"
    machine.write_text("#!/bin/sh\necho Kernel panic\n")
    machine.chmod(0o755)
    uncapped = Combination(COMBINATION.trace, "vegas", 150_000, 0)
    told: list[str | None] = []
    comparison = Comparison([uncapped], Results(tmp_path / "results.jsonl"), seconds=5.0, repeat=1, uml=machine)
    (left_out,) = comparison.measure(lambda done, total, invalid_reason: told.append(invalid_reason))
    assert len(told) == MAX_ATTEMPTS
    assert all(told)
    assert left_out.combination == uncapped


def lacking(monkeypatch: pytest.MonkeyPatch, lacks: dict[str, Exception]) -> list[str]:
    """Has kernel runs be simulated ones, in threads, but for congestion controls that the host lacks."""
    begun: list[str] = []

    def kernel_run(one: Combination, seconds: float, mrtt_ms: float, _uml: Path | None) -> Any:
        begun.append(one.cc)
        if one.cc in lacks:
            raise lacks[one.cc]
        return KernelResult(one.key(seconds, mrtt_ms), 60.0, sim_figures(one, seconds, mrtt_ms, 60.0, 0)), None

    monkeypatch.setattr(fidelity, "ProcessPoolExecutor", lambda most, *_: ThreadPoolExecutor(most))
    monkeypatch.setattr(fidelity, "kernel_run", kernel_run)
    return begun


def test_what_the_host_lacks_is_left_out_and_the_rest_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, told = COMBINATION.trace.save(tmp_path / "12.trace"), tmp_path / "told.json"
    lacks: dict[str, Exception] = {"vegas": LinkError("no vegas here"), "westwood": ShimError("no shim here")}
    begun = lacking(monkeypatch, lacks)
    command = ["fidelity", "--traces", str(trace), "--cc", "vegas,westwood,cubic", "--buffers", "150000"]
    command += [
        "--caps",
        "none",
        "--seconds",
        "8",
        "--repeat",
        "2",
        "--results",
        str(tmp_path / "results.jsonl"),
        "--json",
        str(told),
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1, "what is missing is a failure"
    assert sorted(begun) == ["cubic"] * 2 + ["vegas"] * MAX_ATTEMPTS + ["westwood"]
    assert "left out: vegas on 12.trace, buffer 150000, cap none: no vegas here" in done.output
    found = json.loads(told.read_text())
    assert {row["cc"] for row in found["rows"]} == {"cubic"}
    assert [(one["cc"], one["why"]) for one in found["left_out"]] == [
        ("westwood", "no shim here"), ("vegas", "no vegas here")
    ]  # fmt: skip


def test_what_a_host_lacks_is_asked_for_no_more_than_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = lacking(monkeypatch, {"westwood": ShimError("no root")})
    combinations = [Combination(COMBINATION.trace, "westwood", 10_000 + n, 0) for n in range(8)]
    combinations += [replace(COMBINATION, cap_pkts=0)]
    through: list[tuple[int, int]] = []
    comparison = Comparison(combinations, Results(tmp_path / "results.jsonl"), seconds=8.0, repeat=3)
    left_out = comparison.measure(lambda done, total, _: through.append((done, total)))
    assert begun == ["westwood"] * MAX_ATTEMPTS + ["cubic"] * 3
    assert [one.why for one in left_out] == ["no root"] * MAX_ATTEMPTS + [NOT_TRIED] * 5
    assert through[-1] == (27, 27)


def test_a_run_whose_process_was_killed_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch, {"cubic": BrokenProcessPool("a traceback")})
    uncapped = replace(COMBINATION, cap_pkts=0)
    comparison = Comparison([uncapped], Results(tmp_path / "results.jsonl"), seconds=8.0)
    with pytest.raises(LinkError, match="was killed; the same command goes on where it was"):
        comparison.measure(lambda *_: None)


RUNNING = """
import os, sys, time
from pathlib import Path
from reinet.agents.evaluation import fidelity, kernel_results
from reinet.envs.trace import Trace

def run_for_ever(*_):
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    fidelity.kernel_run = run_for_ever
    one = fidelity.Combination(Trace.constant(12, 10), "cubic", 150_000, 0)
    fidelity.Comparison([one], kernel_results.Results(Path(sys.argv[1]))).measure(print)
"""


def test_a_process_of_runs_ends_with_the_command_that_made_it(tmp_path: Path) -> None:
    """Where the command was killed, its workers waited for work for ever, as root."""
    script = tmp_path / "running.py"
    script.write_text(RUNNING)
    assert_ends_with_its_command(script, tmp_path / "results.jsonl")


def test_a_report_runs_nothing(tmp_path: Path) -> None:
    trace, results, page = tmp_path / "12.trace", tmp_path / "results.jsonl", tmp_path / "page.md"
    COMBINATION.trace.save(trace)
    Results(results).add(KernelResult(KEY, 60.0, sim_figures(COMBINATION, 8.0, 20.0, begin_ms=60.0, seed=0)))
    command = ["fidelity", "--traces", str(trace), "--buffers", "150000", "--caps", "20,40", "--seconds", "8"]
    command += ["--results", str(results), "--report", "--markdown", str(page), "--json", str(tmp_path / "told.json")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert {row["agrees"] for row in json.loads((tmp_path / "told.json").read_text())["rows"]} == {True, None}
    assert "1 of 1 combinations agree; 1 not measured." in done.output
    assert "**1 of 1 combinations agree**; 1 not measured." in page.read_text()


def test_a_page_names_the_command_that_makes_it_again(tmp_path: Path) -> None:
    """Over another path the figures are others, and the command has to say so."""
    trace, page = tmp_path / "12 Mbit.trace", tmp_path / "page.md"
    COMBINATION.trace.save(trace)
    command = ["fidelity", "--traces", str(trace), "--report", "--results", str(tmp_path / "none.jsonl")]
    for more, named in ([], False), (["--mrtt-ms", "40"], True):
        done = CliRunner().invoke(app, [*command, "--markdown", str(page), *more])
        assert done.exit_code == 0, done.output
        assert f"--traces '{trace}' --cc" in page.read_text()
        assert (" --mrtt-ms 40" in page.read_text()) is named
        assert f"a path of {'40' if named else '20'} ms" in page.read_text()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--cc", "zzz"], "the simulator has no congestion control 'zzz'"),
        (["--buffers", "-5"], "buffer_bytes: -5 is outside"),
        (["--caps", "-3"], "caps: -3 is outside 4 to 40000 packets"),
        (["--mrtt-ms", "nan"], "mrtt_ms is nan; it must be above 0"),
        (["--mrtt-ms", "25"], "mrtt_ms is 25: Mahimahi delays each way by whole milliseconds"),
        (["--buffers", "60000,2000"], r"buffer_bytes is 2000; two full packets \(3008\) must fit"),
        (["--markdown", "{}"], "--markdown .*: it is a folder"),
        (["--markdown", "{}/12.trace/page.md"], r"--markdown .*: .*/12\.trace is no folder"),
        (["--results", "{}"], "--results .*: it is a folder"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_hours_of_runs(tmp_path: Path, more: list[str], why: str) -> None:
    trace = COMBINATION.trace.save(tmp_path / "12.trace")
    command = ["fidelity", "--report", "--results", str(tmp_path / "results.jsonl"), "--traces", str(trace)]
    with pytest.raises(ConfigError, match=why):
        raise CliRunner().invoke(app, [*command, *(word.format(tmp_path) for word in more)]).exception or AssertionError


def test_a_cap_that_the_kernel_cannot_set_is_refused_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fidelity, "kernel_run", lambda *_: pytest.fail("a run has begun"))
    asked = [("cubic", 0), ("westwood", 0), ("westwood", 20)]
    combinations = [Combination(COMBINATION.trace, cc, 150_000, cap_pkts) for cc, cap_pkts in asked]
    comparison = Comparison(combinations, Results(tmp_path / "results.jsonl"), seconds=8.0)
    with pytest.raises(ConfigError, match=r"cc 'westwood' cannot be capped .*wraps only .*--caps none"):
        comparison.measure(lambda *_: pytest.fail("a run has ended"))


def test_results_that_could_not_be_kept_are_refused_before_the_first_run(tmp_path: Path) -> None:
    """It was found when the first run had ended, and its result was lost."""
    trace = COMBINATION.trace.save(tmp_path / "12.trace")
    command = ["fidelity", "--traces", str(trace), "--results", str(trace / "runs.jsonl")]
    with pytest.raises(ConfigError, match=r"--results .*: .*/12\.trace is no folder"):
        raise CliRunner().invoke(app, command).exception or AssertionError


def test_a_page_may_lie_in_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    trace, page = COMBINATION.trace.save(tmp_path / "12.trace"), tmp_path / "deep" / "er" / "page.md"
    command = ["fidelity", "--report", "--results", str(tmp_path / "results.jsonl"), "--traces", str(trace)]
    done = CliRunner().invoke(app, [*command, "--markdown", str(page)])
    assert done.exit_code == 0, done.output
    assert "9 not measured" in page.read_text()
