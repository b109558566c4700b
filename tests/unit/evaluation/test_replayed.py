"""Recorded flows are shown to models again, and get the caps that those would have set."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.places import ROOT
from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.replayed import answers, replay, rows_of, stats_of
from reinet.agents.evaluation.run import Run, run
from reinet.agents.evaluation.scenario import Scenario
from reinet.cli.main import app
from reinet.core.errors import ConfigError
from reinet.core.records import Flag
from reinet.core.target import Target
from reinet.daemon.config import DaemonConfig
from reinet.envs.trace import Trace
from reinet.envs.trace.flow_records import FlowRecording
from reinet.envs.trace.model import generate
from reinet.kshim.recorded import header, kept

MODEL = str(ROOT / "checkpoints" / "default")
TARGET = Target.parse("50ms")


@pytest.fixture(scope="module")
def lived() -> Run:
    return run(make_agent(MODEL), Scenario.of(generate("lte-walking", 20.0, 1), "sim", seconds=15))


@pytest.fixture
def flow(lived: Run, tmp_path: Path) -> Path:
    """That flow as a daemon would have recorded it."""
    file = tmp_path / "week14.flow"
    file.write_bytes(header("abc123") + kept(lived.records, int(lived.records["time_ns"][0])).tobytes())
    return file


def test_the_model_that_was_recorded_answers_as_it_did(lived: Run, flow: Path) -> None:
    found = replay(FlowRecording.load(flow), make_agent(MODEL), TARGET)
    assert len(found.caps_pkts) == len(lived.caps_pkts) > 500
    assert np.mean(found.caps_pkts > 0) > 0.5
    assert np.mean((found.caps_pkts > 0) == (lived.caps_pkts > 0)) > 0.99
    both = (found.caps_pkts > 0) & (lived.caps_pkts > 0)
    # A record's latest RTT is not in the file, its mean is.
    ratio = found.caps_pkts[both] / lived.caps_pkts[both]
    assert np.quantile(np.abs(ratio - 1), 0.9) < 0.1


def test_what_a_record_lacks_is_made_again(lived: Run, flow: Path) -> None:
    stats = stats_of(FlowRecording.load(flow).records)
    was = lived.records
    sampled = was["rtt_samples"] > 0
    rate = stats["delivery_rate_bytes_per_s"][sampled], was["delivery_rate_bytes_per_s"][sampled]
    np.testing.assert_allclose(*rate, rtol=1e-3, atol=1)
    assert np.median(np.abs(stats["srtt_us"][sampled] / was["srtt_us"][sampled] - 1)) < 0.1
    assert np.array_equal(np.diff(stats["time_ns"] // 1000), np.diff(was["time_ns"] // 1000))


def test_a_relative_target_follows_a_path_that_became_longer_as_the_daemons_does() -> None:
    handover = {"detour_ms": [[3000, 15]]}
    lived = run(make_agent("rule"), Scenario.of(Trace.constant(24, 5), "sim", seconds=9, link_options=handover))
    stats = stats_of(kept(lived.records, int(lived.records["time_ns"][0])))
    answers(make_agent("rule"), stats, Target.parse("+30ms"))
    above_us = stats["target_us"][[0, -1]].astype(int) - stats["min_rtt_us"][[0, -1]]  # which knows the shorter path
    assert above_us[0] == 30_000
    assert above_us[1] == pytest.approx(45_000, abs=3000)
    assert (stats["flags"] & Flag.RELATIVE).all()


def test_two_agents_are_compared_on_the_same_sights(flow: Path) -> None:
    recording = FlowRecording.load(flow)
    fixed, twice, none = (make_agent(name) for name in ("fixed:20", "fixed:40", "none"))
    recorded, first, second, third = rows_of([replay(recording, agent, TARGET) for agent in (fixed, twice, none)])
    assert [row["agent"] for row in (recorded, first, second, third)] == ["recorded", "fixed:20", "fixed:40", "none"]
    assert (first["cap_median_pkts"], second["cap_median_pkts"]) == (20, 40)
    assert second["median_ratio"] == 2.0
    assert second["same_share"] == pytest.approx(1 - float(str(first["capped_share"])))
    assert (third["capped_share"], third["median_ratio"]) == (0.0, None)
    assert "same_share" not in first


def test_the_command_prints_a_row_for_each_and_every_records_caps(flow: Path) -> None:
    result = CliRunner().invoke(app, ["replay", str(flow), "--agents", f"{MODEL},rule", "--json", "-"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [row["agent"] for row in told["rows"]] == ["recorded", MODEL, "rule:1.5"]
    assert len(told["caps"]) == 2
    assert len(told["caps"][0]["cap_pkts"]) == len(told["caps"][0]["time_s"]) == len(FlowRecording.load(flow).records)
    shown = CliRunner().invoke(app, ["replay", str(flow), "--agents", "rule:1.3"])
    assert "recorded" in shown.output
    refused = CliRunner().invoke(app, ["replay", str(flow), "--agents", "clairvoyant:20"])
    assert isinstance(refused.exception, ConfigError)


def test_a_flow_over_a_long_path_is_replayed_under_the_daemons_own_target(tmp_path: Path) -> None:
    """Under DeepCC's 50 ms, out of reach over 100 ms, the model that had capped the flow seemed never to cap it."""
    link = generate("lte-walking", 20.0, 1)
    capped = run(
        make_agent(MODEL),
        Scenario.of(link, "sim", seconds=8, mrtt_ms=100, target=str(DaemonConfig.model_fields["target"].default)),
    )
    file = tmp_path / "far.flow"
    file.write_bytes(header("abc123") + kept(capped.records, int(capped.records["time_ns"][0])).tobytes())
    result = CliRunner().invoke(app, ["replay", str(file), "--agents", MODEL, "--json", "-"])
    recorded, replayed = json.loads(result.stdout)["rows"]
    assert recorded["capped_share"] > 0.5
    assert replayed["capped_share"] == pytest.approx(recorded["capped_share"], abs=0.01)


def test_one_damaged_file_of_several_is_named_and_left_out(flow: Path) -> None:
    (flow.parent / "bad.flow").write_bytes(b"x\n")
    result = CliRunner().invoke(app, ["replay", str(flow.parent), "--agents", "rule", "--json", "-"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert len(told["damaged"]) == 1
    assert len(told["rows"]) == 2


def test_two_files_of_one_flow_are_compared_each_by_itself(lived: Run, flow: Path) -> None:
    """A daemon that was started anew records an open flow into another file, under the flow's own name."""
    later = flow.with_name("week15.flow")
    later.write_bytes(flow.read_bytes()[: flow.stat().st_size // 3])
    result = CliRunner().invoke(app, ["replay", str(flow.parent), "--agents", "fixed:20,fixed:40", "--json", "-"])
    assert result.exit_code == 0, result.exception
    rows = json.loads(result.stdout)["rows"]
    assert [row["agent"] for row in rows] == ["recorded", "fixed:20", "fixed:40"] * 2
    assert [row.get("median_ratio") for row in rows] == [None, None, 2.0] * 2
    assert rows[0]["decisions"] == rows[2]["decisions"] > rows[3]["decisions"] == rows[5]["decisions"]
