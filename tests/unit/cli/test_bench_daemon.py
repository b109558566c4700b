"""``reinet bench daemon``: what it counts, on short runs; how fast a host is nobody tests here."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from reinet.cli.main import app
from reinet.core.errors import ConfigError, DaemonError
from reinet.daemon.benches import cost, load, served
from reinet.daemon.benches.cost import Cost
from reinet.daemon.benches.loop import RING_RECORDS, PacedShim

DEADLINE_S = 60.0
"""Only a test that fails takes so long."""


MEASUREMENT = """
import sys, time
from pathlib import Path
from reinet.daemon.benches import served

served.SERVE = '''
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("in order", file=sys.stderr), sys.exit()))
print('"serving"', file=sys.stderr, flush=True)
time.sleep(600)
'''
daemon = served.ServedDaemon(Path(sys.argv[1]), Path("/unused"), "rule")
print(daemon._process.pid, flush=True)
time.sleep(600)
"""


def test_a_measurement_that_is_killed_leaves_no_daemon(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASUREMENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as measurement:
        try:
            assert measurement.stdout is not None
            daemon = int(measurement.stdout.readline())
        finally:
            measurement.kill()
    end_s = time.monotonic() + DEADLINE_S
    while "in order" not in (tmp_path / "log").read_text():
        if time.monotonic() > end_s:
            os.kill(daemon, signal.SIGKILL)
            pytest.fail("the daemon goes on")
        time.sleep(0.05)


def test_every_number_of_flows_has_its_row_and_the_largest_stands_at_the_top(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    words = [
        "bench",
        "daemon",
        "--model",
        "rule",
        "--flows",
        "1,30",
        "--rtt-ms",
        "10",
        "--seconds",
        "0.3",
        "--pairs",
        "0",
        "--json",
    ]
    result = CliRunner().invoke(app, [*words, str(out)])
    assert result.exit_code == 0, result.output
    told = json.loads(out.read_text())
    assert [row["flows"] for row in told["rows"]] == [1, 30]
    for row in told["rows"]:
        assert row["records"] > 0
        assert 0 < row["decision_latency_us_p50"] <= row["decision_latency_us_p99"]
        assert row["decisions_per_s"] > 0
    assert {key: told[key] for key in told["rows"][1]} == told["rows"][1]
    assert told["model"] == "rule:1.5"
    assert (told["cpu_ratio_vs_plain"], told["cpu_why"]) == (None, "--pairs 0")


def test_what_too_few_pairs_cannot_say_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [Cost(**dict.fromkeys(Cost.__dataclass_fields__, ratio)) for ratio in (1.5, math.nan)]  # type: ignore[arg-type]
    monkeypatch.setattr("reinet.daemon.benches.cost.measure_all", lambda *_: costs)
    out = tmp_path / "bench.json"
    words = [
        "bench",
        "daemon",
        "--model",
        "rule",
        "--flows",
        "1",
        "--seconds",
        "0.1",
        "--pairs",
        "2",
        "--json",
        str(out),
    ]
    assert CliRunner().invoke(app, words).exit_code == 0
    told = json.loads(out.read_text())
    assert [row["cpu_ratio_vs_plain"] for row in told["cpu_rows"]] == [1.5, None]
    assert told["cpu_ratio_vs_plain"] is None


def test_a_latency_that_nothing_was_measured_of_is_none_and_no_failure() -> None:
    words = ["--model", "rule", "--flows", "1", "--rtt-ms", "1000", "--seconds", "0.1", "--pairs", "0", "--json", "-"]
    result = CliRunner().invoke(app, ["bench", "daemon", *words])
    assert result.exit_code == 0, result.exception
    told = json.loads(result.stdout)
    assert (told["records"], told["decision_latency_us_p50"], told["decision_latency_us_p99"]) == (0, None, None)


@pytest.mark.parametrize("flows", ["", "1,x", "0", "1,2000000"])
def test_a_number_of_flows_that_is_none_is_refused(flows: str) -> None:
    result = CliRunner().invoke(app, ["bench", "daemon", "--flows", flows])
    assert isinstance(result.exception, ConfigError)


def test_a_list_may_have_spaces_behind_its_commas() -> None:
    words = ["--cc", "cubic, bbr", "--how", "stop, killed"]
    result = CliRunner().invoke(app, ["bench", "handover", *words])
    assert "there is no killed; use stop, kill" in str(result.exception)


@pytest.mark.parametrize("name", ["--rate-mbps", "--rate-mbit"])
def test_a_rate_is_in_mbps_as_elsewhere_and_the_former_name_still_goes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class Row:
        rate_mbps: float

    monkeypatch.setattr(
        "reinet.daemon.benches.handover.measure", lambda _cc, _flows, _how, _model, rate_mbps, _mrtt: Row(rate_mbps)
    )
    result = CliRunner().invoke(app, ["bench", "handover", "--cc", "bbr", name, "3", "--json", "-"])
    assert result.exit_code == 0, result.exception
    told = json.loads(result.stdout)
    assert (told["rate_mbps"], told["rows"]) == (3.0, [{"rate_mbps": 3.0}])


def test_the_oldest_unanswered_record_counts_and_renewals_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [0]
    monkeypatch.setattr("time.monotonic_ns", lambda: now_ns[0])
    monkeypatch.setattr("time.sleep", lambda _: None)
    shim = PacedShim(2, period_ns=2000)
    now_ns[0] = 4_500  # four records are due: two of each flow, from 1000 on
    records = shim.poll(1)
    assert records["slot"].tolist() == [0, 1, 0, 1]
    assert records["time_ns"].tolist() == [1000, 2000, 3000, 4000]
    now_ns[0] = 5_000
    slots = np.array([0, 1], np.uint32)
    for _ in range(2):
        shim.apply(slots, slots, slots, 0, slots)
    assert [part.tolist() for part in shim.latencies_ns] == [[4000, 3000], []]
    now_ns[0] = 1000 * (4 + RING_RECORDS + 7) + 500
    assert len(shim.poll(1)) == RING_RECORDS
    assert shim.records_lost == 7


@pytest.mark.parametrize("refused", [lambda: load.measure(2, 1, 1.0), lambda: cost.measure(1, 1.0, 1, 0.01, "rule")])
def test_who_may_make_no_cgroup_is_told_to_be_root(
    refused: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a cgroup and "Permission denied" told nobody what to do."""
    monkeypatch.setattr(served, "cgroup2_mount", lambda: tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(DaemonError, match=f"{tmp_path}: this user may make no cgroup there, .*: run as root"):
        refused()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--seconds", "--rtt-ms", "--pair-seconds"])
def test_a_time_without_an_end_is_refused_by_its_option(option: str) -> None:
    """It was a traceback."""
    done = CliRunner().invoke(app, ["bench", "daemon", "--pairs", "0", "--model", "rule", option, "inf"])
    assert done.exit_code == 2
    assert option in done.output
