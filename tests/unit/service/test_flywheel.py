"""Capacity estimated from flows: right where the link was busy, silent where it was not, against known links."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.period import SILENT
from helpers.trainer import TINY
from reinet.agents.decide.names import make_agent
from reinet.agents.learn.config import TrainConfig
from reinet.agents.service.flywheel import MRTTS_MS, measure, rate_error, recorded
from reinet.cli.main import app
from reinet.core.errors import TraceError
from reinet.envs.trace import Trace, load_traces
from reinet.envs.trace.estimate import BRIDGE_MS, Pieces, estimates
from reinet.envs.trace.estimated_set import LEAST_MEASURED, estimated, save
from reinet.envs.trace.model import generate
from reinet.kshim.recorded import RECORD_DTYPE, RecordArray, header

PERIOD_MS = 20


def flow(seconds: float, pkts: int = 20, queue_ms: int = 30) -> RecordArray:
    """A flow's records: a period each 20 ms, so many packets and so much queue in each."""
    made = np.zeros(round(1000 * seconds / PERIOD_MS), RECORD_DTYPE)
    made["time_us"] = 1000 * PERIOD_MS * np.arange(len(made))
    made["period_us"], made["mss_bytes"], made["inflight_pkts"] = 1000 * PERIOD_MS, 1448, 2 * pkts
    made["delivered_bytes"], made["rtt_samples"] = 1448 * pkts, pkts
    made["min_rtt_us"], made["rtt_least_us"] = 40_000, 40_000 + 1000 * queue_ms
    return made


def test_a_link_that_always_had_a_packet_waiting_is_known_exactly() -> None:
    (found,) = estimates(flow(10), "x")
    assert found.measured_share == 1.0
    assert found.least_mbps == pytest.approx(found.most_mbps)
    assert found.trace.mean_mbps == pytest.approx(12.0)  # 20 packets of 1500 bytes in 20 ms
    assert found.trace.duration_ms == 10_000
    assert np.bincount((found.trace.opportunities_ms - 1) // 1000).tolist() == pytest.approx([1000] * 10, abs=2)


@pytest.mark.parametrize("records", [flow(10, queue_ms=0), flow(10, queue_ms=1), flow(10, pkts=2, queue_ms=8), flow(4),
                                     flow(0.02), flow(0)])  # fmt: skip
def test_a_link_that_was_not_surely_busy_for_long_gives_no_trace(records: RecordArray) -> None:
    assert estimates(records, "x") == []


def test_a_short_pause_is_bridged_at_the_rate_beside_it_and_a_long_one_parts_two_traces() -> None:
    records = flow(20)
    idle = slice(500, 525)  # half a second
    records["rtt_least_us"][idle], records["delivered_bytes"][idle] = 40_000, 1448 * 5
    (found,) = estimates(records, "x")
    assert found.measured_share == pytest.approx(1 - 0.5 / 20)
    assert found.least_mbps == pytest.approx(12.0 * (1 - 0.75 * 0.5 / 20))
    assert found.trace.mean_mbps == pytest.approx(12.0, rel=1e-3)
    records["rtt_least_us"][500 : 501 + round(BRIDGE_MS / PERIOD_MS)] = 40_000
    first, second = estimates(records, "x")
    assert (first.trace.name, second.trace.name) == ("x-1", "x-2")
    assert first.trace.duration_ms == 10_000
    assert (first.measured_share, second.measured_share) == (1.0, 1.0)


def test_a_trace_ends_where_a_file_could_not_hold_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes at 200 Mbit/s, as a daemon records them, were a trace that no command would read."""
    monkeypatch.setattr("reinet.envs.trace.estimate.most_opportunities", lambda duration_ms: 6000)
    records = flow(10)
    records["rtt_least_us"][295:305] = 40_000  # no more of them than end with a measured period
    (found,) = estimates(records, "x")
    assert found.trace.duration_ms == 5900
    assert found.trace.opportunities_ms.size <= 6000
    assert found.trace.mean_mbps == pytest.approx(12.0)
    records["delivered_bytes"][10] = 2**32 - 1  # of a damaged file
    records["mss_bytes"][10] = 1
    assert estimates(records, "x") == []


def test_a_silence_is_an_outage_and_what_it_counts_is_counted_once() -> None:
    records = flow(10)
    silent = slice(200, 210)  # ten records, 250 ms apart, of the period that began at the last ACK
    began_us = int(records["time_us"][199])
    records["flags"][silent] = SILENT
    records["time_us"][silent] = began_us + 5_000 + 250_000 * np.arange(1, 11)  # 5 ms of it had ACKs
    records["period_us"][silent] = records["time_us"][silent] - began_us
    records["delivered_bytes"][silent] = 1448 * 5
    records["time_us"][210:] = records["time_us"][209] + 15_000 + 20_000 * np.arange(len(records) - 210)
    records["period_us"][210] = records["time_us"][210] - began_us
    records["delivered_bytes"][210] = 1448 * 20  # of the whole period
    (found,) = estimates(records, "x")
    assert found.trace.mean_mbps * found.trace.duration_ms == pytest.approx(
        12.0 * (len(records) - 10) * PERIOD_MS, rel=2e-3
    )
    longest_ms = int(np.diff(found.trace.opportunities_ms.astype(np.int64)).max())
    assert longest_ms == pytest.approx(2500, abs=3)


def test_a_lost_record_leaves_its_time_unmeasured() -> None:
    records = np.delete(flow(10), 250)
    pieces = Pieces.of(records)
    assert pieces.lengths_ms.sum() == pytest.approx(10_000)
    assert pieces.lengths_ms[~pieces.is_measured].sum() == pytest.approx(2 * PERIOD_MS)


def test_what_a_silence_told_counts_once_across_an_idle_time() -> None:
    """A pause moves the start of the period, which goes on, beyond the silence."""
    records = flow(0.1)
    records["time_us"] = np.array([20, 320, 2020, 2040, 2060]) * 1000
    records["period_us"][1:3] = np.array([300, 320]) * 1000
    records["flags"][1] = SILENT
    assert Pieces.of(records).delivered_pkts.sum() == 4 * 20


def known(count: int = 3) -> list[Trace]:
    return [generate(preset, 30, 7) for preset in ("lte-stationary", "lte-walking", "umts-driving")[:count]]


@pytest.mark.parametrize(
    ("agent", "most_100_ms", "most_1_s", "most_mean"),
    [
        ("none", (0.05, 0.12, 0.30), (0.01, 0.04, 0.15), (0.01, 0.02, 0.05)),
        ("checkpoints/default", (0.04, 0.10, 0.20), (0.02, 0.06, 0.12), (0.01, 0.04, 0.10)),
    ],
)
def test_capped_and_uncapped_flows_show_the_rate_of_known_links(
    agent: str, most_100_ms: tuple[float, ...], most_1_s: tuple[float, ...], most_mean: tuple[float, ...]
) -> None:
    """The simulator repeats itself bit for bit: the bounds are what it gives, and some room."""
    traces = known()
    for number, records in enumerate(recorded(make_agent(agent, "sim"), traces, 29.0)):
        found = estimates(records, "x")
        assert sum(one.trace.duration_ms for one in found) > 20_000
        for one in found:
            assert one.least_mbps <= one.trace.mean_mbps + 0.01 <= one.most_mbps + 0.02
            fine, coarse = (rate_error(one, traces[number], MRTTS_MS[number], bin_ms) for bin_ms in (100, 1000))
            assert fine.absolute_share < most_100_ms[number], (traces[number].name, fine)
            assert coarse.absolute_share < most_1_s[number], (traces[number].name, coarse)
            assert abs(coarse.mean_share) < most_mean[number], (traces[number].name, coarse)


@pytest.mark.parametrize(
    ("said", "is_known"),
    [
        ({"cc": "bbr"}, True),
        ({"link_options": {"jitter_us": 3000}}, True),
        ({"buffer_bytes": 2_000_000}, True),
        ({"link_options": {"loss": 0.01}}, False),  # Cubic uses a sixth of such a link
        ({"buffer_bytes": 30_000}, False),  # and half of this one
        ({"link_options": {"app_mbps": 3.0}}, False),  # and here its application has no more to send
    ],
    ids=str,
)
def test_other_flows_show_the_link_too_or_are_known_not_to(said: dict[str, Any], is_known: bool) -> None:
    trace = generate("lte-walking", 20, 9)
    (records,) = recorded(make_agent("rule", "sim"), [trace], 19.0, **said)
    found = [one for one in estimates(records, "x") if one.measured_share >= LEAST_MEASURED]
    assert bool(found) == is_known
    for one in found:
        error = rate_error(one, trace, MRTTS_MS[0], 1000)
        assert abs(error.mean_share) < 0.03
        assert error.absolute_share < 0.06


def test_recorded_flows_become_a_folder_that_a_training_takes(tmp_path: Path) -> None:
    sure, doubtful = flow(6), flow(8)
    doubtful["rtt_least_us"][10:-10] = np.where(np.arange(380) % 10 < 7, 40_000, 70_000)
    for name, records in (("a", sure), ("b", doubtful)):
        (tmp_path / f"{name}.flow").write_bytes(header("ab12") + records.tobytes())
    found, left_out = estimated([tmp_path])
    assert (len(found), left_out) == (1, 1)
    rows = save(found, tmp_path / "out")
    assert rows[0]["measured_share"] == 1.0
    for path in (tmp_path / "out", tmp_path / "out" / "estimated.toml"):
        assert [trace.sha256 for trace in load_traces([path])] == [rows[0]["sha256"]]
    with pytest.raises(TraceError, match="exists"):
        save(found, tmp_path / "out")
    with pytest.raises(TraceError, match="show no link's capacity"):
        save([], tmp_path / "none")


def test_a_set_of_estimates_names_its_traces_whatever_the_recordings_are_called(tmp_path: Path) -> None:
    """A quote made the set file unreadable, bytes that are no UTF-8 ended in a traceback, and of two recordings of one
    name in two folders, one for each daemon, the second was refused, or took the first one's place under --force."""
    for number, name in enumerate((b'a"b\nc', b"\xfcber", b"twice", b"daemon/twice")):
        path = tmp_path / "flows" / os.fsdecode(name + b".flow")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(header("ab12") + flow(6 + number).tobytes())
    found, _ = estimated([tmp_path / "flows", tmp_path / "flows" / "twice.flow"])
    assert len(found) == 4, "the file that is named beside its folder is one flow, not two to learn from"
    save(found, tmp_path / "out")
    loaded = load_traces([tmp_path / "out" / "estimated.toml"])
    assert sorted(trace.duration_ms for trace in loaded) == sorted(one.trace.duration_ms for one in found)
    assert len({trace.sha256 for trace in loaded}) == 4


def _forced(flows: Path, out: Path, least_measured: float) -> list[str]:
    """Estimates into a folder that has estimates already; returns the names of its traces."""
    command = ["traces", "from-flows", str(flows), "--out", str(out), "--force", "--json", "-"]
    done = CliRunner().invoke(app, [*command, "--least-measured", str(least_measured)])
    assert done.exit_code == 0, done.output
    names = sorted(path.name for path in out.glob("*.trace"))
    assert [trace.name for trace in load_traces([out])] == names
    return names


def _recordings(folder: Path) -> Path:
    """Writes one flow that was busy all the time, and one that was for two thirds of it."""
    folder.mkdir()
    doubtful = flow(6)
    for at in range(0, len(doubtful), 30):
        doubtful["rtt_least_us"][at : at + 10] = 40_000
    (folder / "doubtful.flow").write_bytes(header("ab12") + doubtful.tobytes())
    (folder / "sure.flow").write_bytes(header("ab12") + flow(6).tobytes())
    return folder


def test_whoever_estimates_anew_finds_no_earlier_estimate_among_the_new_ones(tmp_path: Path) -> None:
    """What a training takes is the folder, and the earlier trace was too uncertain by now."""
    flows, out = _recordings(tmp_path / "flows"), tmp_path / "out"
    assert _forced(flows, out, 0.5) == ["flow-doubtful.trace", "flow-sure.trace"]
    Trace.constant(6, 1).save(out / "mine.trace")
    assert _forced(flows, out, 0.9) == ["flow-sure.trace", "mine.trace"]


NAMES = ["../beside.trace", "{parent}/beside.trace", "inner/x.trace", "folder.trace", "notes.txt",
         "estimated.toml", "..", "", None, 7, "a\0.trace", "\ud800.trace"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_only_traces_of_the_very_folder_are_removed(tmp_path: Path, name: object) -> None:
    flows, out = _recordings(tmp_path / "flows"), tmp_path / "out"
    for folder in (out / "inner", out / "folder.trace"):
        folder.mkdir(parents=True)
    others = [tmp_path / "beside.trace", out / "inner" / "x.trace", out / "notes.txt", out / "folder.trace" / "y"]
    for path in others:
        path.write_text("1\n")
    told = name.format(parent=tmp_path) if isinstance(name, str) else name
    (out / "estimates.json").write_text(json.dumps({"rows": [{"path": told}]}))
    save(estimated([flows])[0], out, overwrite=True)
    assert all(path.exists() for path in others)
    assert (out / "estimated.toml").exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"rows": [1]}', '{"rows": null}', "[" * 100_000])
def test_estimates_that_cannot_be_read_are_not_written_over(tmp_path: Path, text: str) -> None:
    flows, out = _recordings(tmp_path / "flows"), tmp_path / "out"
    out.mkdir()
    (out / "estimates.json").write_text(text)
    with pytest.raises(TraceError, match=r"estimates\.json does not name the traces of earlier estimates.*; delete it"):
        save(estimated([flows])[0], out, overwrite=True)
    assert [path.name for path in out.iterdir()] == ["estimates.json"]


def test_a_damaged_recording_is_named_and_left_out(tmp_path: Path) -> None:
    flows, out, told = tmp_path / "flows", tmp_path / "out", tmp_path / "told.json"
    flows.mkdir()
    (flows / "a.flow").write_bytes(b"x" * 100)
    (flows / "b.flow").write_bytes(b"")
    command = ["traces", "from-flows", str(flows), "--out", str(out), "--json", str(told)]
    failed = CliRunner().invoke(app, command)
    assert isinstance(failed.exception, TraceError)
    assert "none of 2 files is a recorded flow" in str(failed.exception)
    assert not out.exists()
    (flows / "c.flow").write_bytes(header("ab12") + flow(6).tobytes())
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    found = json.loads(told.read_text())
    assert [row["path"] for row in found["rows"]] == ["flow-c.trace"]
    assert [text.partition(":")[0] for text in found["damaged"]] == [str(flows / "a.flow"), str(flows / "b.flow")]
    alone = CliRunner().invoke(app, [*command[:2], str(flows / "a.flow"), *command[3:]])
    assert isinstance(alone.exception, TraceError)


def test_the_benchmark_compares_policies_of_either_kind_of_trace(tmp_path: Path) -> None:
    config = TrainConfig.model_validate(TINY)
    found = measure(config, "rule", tmp_path, traces=4, links=2, seeds=1, seconds=8)
    assert len(found["rows"]) == 2
    assert found["errors"]
    assert 0.5 < found["throughput"] < 2
    again = measure(config, "rule", tmp_path, traces=4, links=2, seeds=1, seconds=8)
    assert again == found, "runs that are there are taken up, and the rest repeats itself"
