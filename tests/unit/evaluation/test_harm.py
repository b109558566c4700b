"""The matrix of completion times: what a row says, against which limits, and that plain and capped are pairs."""

import json
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from helpers.places import ROOT
from reinet.agents.decide.names import make_agent
from reinet.agents.decide.protocol import View
from reinet.agents.evaluation import harm, harm_live, objects
from reinet.agents.evaluation.harm import Cell
from reinet.agents.evaluation.objects import Fetched
from reinet.cli.main import app
from reinet.core.errors import ConfigError
from reinet.core.target import Target
from reinet.daemon.config import DaemonConfig
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.spec import require_emulated
from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

STEADY = Trace.constant(24.0, 10.0, "constant-24")
DRAWN = generate("lte-walking", 20.0, 1)
NAMES = {"cc", "mrtt_ms", "rate_mbps", "bytes", "fresh", "plain_ms", "capped_ms", "ratio_p50", "ratio_p95"}
"""What measurements rely on."""
BESIDE = {
    "trace", "link", "pause_ms", "plain_p95_ms", "capped_p95_ms", "ratio_mean", "plain_builds_queue",
    "plain_qdelay_p95_ms",
    "queue_threshold_ms", "limit_p50", "limit_p95", "runs", "objects", "valid", "ok", "target", "trained_on",
}  # fmt: skip
OF_REQUESTS = {"plain_p99_ms", "capped_p99_ms", "ratio_p99", "limit_p99"}


def cell(size_bytes: int = 300_000, pause_ms: float | None = None, trace: Trace = STEADY, **path: Any) -> Cell:
    values = {"cc": "cubic", "mrtt_ms": 20.0, **path}
    return Cell(trace=trace, is_recording=trace is DRAWN, size_bytes=size_bytes, pause_ms=pause_ms, **values)


def rows_of(matrix: list[Cell], agent: str, target: str = "2.5x", repeat: int = 2) -> list[dict[str, Any]]:
    return harm.measure(matrix, make_agent(agent), target=Target.parse(target), repeat=repeat)


def fetched(took_ms: list[float], qdelay_ms: float = 0.0, complete: bool = True) -> Fetched:
    return Fetched(np.array(took_ms), complete, np.full(100, qdelay_ms))


def test_an_agent_that_sets_no_cap_changes_nothing() -> None:
    """Plain and capped are runs of the same links, seeds and offsets; only records are taken at other times."""
    matrix = [cell(trace=trace, pause_ms=pause_ms, cc=cc) for trace in (STEADY, DRAWN) for pause_ms in (None, 300.0)
              for cc in ("cubic", "bbr")]  # fmt: skip
    for row in rows_of(matrix, "none"):
        assert (row["ratio_p50"], row["ratio_p95"], row["ok"], row["valid"]) == (1.0, 1.0, True, True)
        assert row["plain_ms"] == row["capped_ms"] > 0


def test_a_rows_next_connection_is_another_flow_to_an_agent_that_remembers_flows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = cell(3_000_000, trace=DRAWN).links(2, 50_000, 300_000)
    beside = objects.fetch(links, make_agent("roccet"))
    monkeypatch.setattr(objects, "ROWS", 1)
    one_by_one = objects.fetch(links, make_agent("roccet"))
    assert [one.took_ms.tolist() for one in beside] == [one.took_ms.tolist() for one in one_by_one]


def test_a_cap_below_what_the_path_holds_is_harm() -> None:
    """40 packets fill 24 Mbit/s and 20 ms; of ten, a transfer takes four times as long.

    It is a long one: until its queue stands no cap is in force, and that is a good part of a short one.
    """
    (row,) = rows_of([cell(10_000_000)], "fixed:10")
    assert row["ratio_p50"] == pytest.approx(4.0, rel=0.15)
    assert not row["ok"]
    assert row["valid"]


def test_a_row_has_the_names_that_measurements_rely_on() -> None:
    fresh, kept = rows_of([cell(10_000), cell(10_000, 100.0, DRAWN)], "rule")
    assert set(fresh) == NAMES | BESIDE
    assert set(kept) == NAMES | BESIDE | OF_REQUESTS
    assert (fresh["cc"], fresh["mrtt_ms"], fresh["bytes"], fresh["fresh"], fresh["link"]) == (
        "cubic", 20.0, 10_000, True, "sim",
    )  # fmt: skip
    assert fresh["rate_mbps"] == pytest.approx(24.0)
    assert (fresh["runs"], fresh["objects"]) == (2, 2)
    assert (kept["fresh"], kept["trace"]) == (False, DRAWN.name)
    assert kept["runs"] == 2 * harm.OFFSETS_PER_REPEAT
    assert kept["objects"] == 50 * kept["runs"]  # without the first of each, which is fresh


def test_what_a_connection_does_depends_on_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows take one connection after the other; nothing of the one before is left, the guard's probe included."""
    matrix = [cell(size, pause_ms, trace, mrtt_ms=mrtt_ms) for size in (10_000, 300_000) for pause_ms in (None, 100.0)
              for trace in (STEADY, DRAWN) for mrtt_ms in (20.0, 60.0)]  # fmt: skip
    together = rows_of(matrix, "rule:1.25", "50ms")
    monkeypatch.setattr(objects, "ROWS", 3)
    assert rows_of(matrix, "rule:1.25", "50ms") == together


def test_a_ratio_is_of_quantiles_not_a_quantile_of_ratios() -> None:
    pairs = [(fetched([100.0]), fetched([102.0])), (fetched([200.0]), fetched([100.0]))]
    row = harm.row_of(cell(), "sim", pairs)
    assert (row["plain_ms"], row["capped_ms"]) == (150.0, 101.0)
    assert row["ratio_p50"] == pytest.approx(101 / 150)
    assert row["ratio_p95"] == pytest.approx(101.9 / 195)
    assert row["ratio_mean"] == pytest.approx(202 / 300)


@pytest.mark.parametrize(
    ("qdelay_ms", "ratio", "ok"),
    [(3.9, 1.03, True), (3.9, 1.04, False), (4.0, 1.04, True), (4.0, 1.05, True), (4.0, 1.06, False)],
)
def test_the_limit_is_tighter_where_plain_builds_no_queue(qdelay_ms: float, ratio: float, ok: bool) -> None:
    row = harm.row_of(cell(), "sim", [(fetched([100.0], qdelay_ms), fetched([100.0 * ratio - 1e-9]))])
    assert row["plain_builds_queue"] == (qdelay_ms >= 4.0)
    assert row["ok"] == ok


@pytest.mark.parametrize(("mrtt_ms", "threshold_ms"), [(4, 4), (20, 4), (60, 7.5), (150, 16), (300, 16)])
def test_a_queue_is_what_hystart_calls_one(mrtt_ms: float, threshold_ms: float) -> None:
    assert harm.queue_threshold_ms(mrtt_ms) == threshold_ms


def test_the_last_percent_of_requests_counts() -> None:
    """Three of a hundred responses late: the median and the 95th percentile do not see it."""
    plain = [7.0, *[10.0] * 100]
    late = [7.0, *[10.0] * 97, *[30.0] * 3]
    row = harm.row_of(cell(10_000, 100.0), "sim", [(fetched(plain), fetched(late))])
    assert (row["ratio_p50"], row["ratio_p95"]) == (1.0, 1.0)
    assert row["ratio_p99"] == pytest.approx(3.0)
    assert not row["ok"]
    assert "ratio_p99" not in harm.row_of(cell(300_000, 100.0), "sim", [(fetched(plain), fetched(late))])


def test_a_connection_that_never_ends_makes_its_row_invalid() -> None:
    pairs = [(fetched([10.0]), fetched([10.0])), (fetched([10.0]), fetched([], complete=False))]
    row = harm.row_of(cell(), "sim", pairs)
    assert (row["valid"], row["runs"], row["objects"]) == (False, 2, 1)
    nothing = harm.row_of(cell(), "sim", pairs[1:])
    assert (nothing["valid"], nothing["ok"], nothing["plain_ms"], nothing["ratio_p50"]) == (False, False, None, None)
    json.dumps(nothing, allow_nan=False)


def test_an_outage_that_outlasts_the_limit_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "LIMIT_S", 2.0)
    (row,) = rows_of([cell(30_000_000)], "none", repeat=1)
    assert not row["valid"]


def test_groups_count_what_is_above_its_limit() -> None:
    slow = harm.row_of(cell(), "sim", [(fetched([100.0]), fetched([150.0]))])
    fine = harm.row_of(cell(cc="bbr"), "sim", [(fetched([100.0]), fetched([90.0]))])
    request = harm.row_of(cell(10_000, 100.0), "sim", [(fetched([7.0, 10.0], 9.0), fetched([7.0, 10.3]))])
    small, large, requests = harm.summary([slow, fine, request])
    assert (large["group"], large["cells"], large["failures"]) == ("300000 bytes, fresh, no queue", 2, 1)
    assert (large["worst_p50"], large["limit_p50"]) == (1.5, 1.03)
    assert (small["group"], small["failures"], small["limit_p95"]) == ("10000 bytes, kept alive, queue", 0, 1.10)
    assert (requests["group"], requests["failures"]) == ("request/response, cubic", 1)


def test_pauses_lie_on_both_sides_of_every_timeout() -> None:
    """Linux's timeout is the RTT and at least 200 ms."""
    short_ms, long_ms = harm.PAUSES_MS
    assert short_ms < 200 + min(harm.MRTTS_MS)
    assert long_ms > 200 + 2 * max(harm.MRTTS_MS)


def test_a_relative_target_is_told_from_the_path() -> None:
    assert harm.target_us(cell(mrtt_ms=60.0), Target.parse("+30ms")) == 90_000
    assert harm.target_us(cell(mrtt_ms=60.0), Target.parse("50ms")) == 50_000


@pytest.mark.parametrize(
    ("change", "message"),
    [({"rates_mbps": [], "traces": []}, "the matrix is empty"), ({"controls": ["cubik"]}, "did you mean 'cubic'"),
     ({"sizes_bytes": [0]}, "bytes: 0 is no size"), ({"mrtts_ms": [-1.0]}, "mrtt_ms: -1")],
)  # fmt: skip
def test_a_matrix_that_cannot_be_run_is_refused(change: dict[str, Any], message: str) -> None:
    axes: dict[str, Any] = {
        "controls": ["cubic"], "mrtts_ms": [20.0], "rates_mbps": [24.0], "traces": [DRAWN], "sizes_bytes": [10_000],
        "pauses_ms": [100.0],
    }  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        harm.cells(**{**axes, **change})


def test_on_the_kernel_pairs_of_a_lagging_host_do_not_count() -> None:
    pairs = [
        (fetched([100.0]), fetched([101.0])),
        (fetched([100.0]), fetched([900.0])),
        (fetched([100.0]), fetched([101.0])),
    ]
    row = harm_live.live_row(cell(), pairs, [[], ["the host lagged"], []])
    assert (row["link"], row["valid"], row["runs"], row["ok"]) == ("mahimahi", True, 2, True)
    assert row["invalid_reasons"] == ["the host lagged"]


def test_on_the_kernel_a_row_of_mostly_lagging_pairs_is_not_valid() -> None:
    """It keeps its figures, so that one sees what there was."""
    pairs = [(fetched([100.0]), fetched([900.0]))] * 2
    row = harm_live.live_row(cell(), pairs, [[], ["the host lagged"]])
    assert (row["valid"], row["runs"], row["capped_ms"]) == (False, 1, 900.0)


def test_on_the_kernel_the_path_is_what_an_emulated_link_can_be() -> None:
    for trace in (STEADY, DRAWN):
        links = harm_live._links(cell(10_000, 100.0, trace), 2, Target.parse("+30ms"), 150_000)
        assert len(links) == 2
        assert [require_emulated(link) for link in links] == links
        assert len({link.start_offset_ms for link in links}) == (2 if trace is DRAWN else 1)


def test_a_connection_that_gets_nothing_through_in_time_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a trace with one opportunity in weeks it asked millions of times, and the log of them took gigabytes."""
    carried: list[LinkSpec] = []
    batch_seen = objects.batch_seen

    def seen(view: View, links: list[LinkSpec], **options: Any) -> SimBatch:
        carried.extend(links)
        return batch_seen(view, links, **options)

    monkeypatch.setattr(objects, "batch_seen", seen)
    rare = cell(10_000, trace=Trace(np.array([2_000_000], np.uint32), "rare"))
    rows = rows_of([rare, cell(10_000)], "none", repeat=1)
    assert {link.trace.name for link in carried if isinstance(link.trace, Trace)} == {"constant-24"}
    assert [(row["valid"], row["objects"]) for row in rows] == [(False, 0), (True, 1)]
    assert [row["objects"] for row in rows_of([rare], "none")] == [0]


COMMAND = ["bench", "harm", "--cc", "cubic", "--mrtt-ms", "20", "--bytes", "10000,5000000", "--repeat", "1"]
"""The larger one takes more than the second in which no flow is capped."""


def test_the_command_counts_failures_and_says_so_only_when_it_is_to_check() -> None:
    slow = [*COMMAND, "--model", "fixed:4", "--rate-mbps", "24", "--pause-ms", "100", "--json", "-"]
    result = CliRunner().invoke(app, slow)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["cells"] == len(found["rows"]) == 3 * 2 * 2  # a rate and two recordings, two sizes, fresh and not
    assert 0 < found["failures"] == sum(not row["ok"] for row in found["rows"])
    assert CliRunner().invoke(app, [*slow, "--check"]).exit_code == 1
    harmless = [*COMMAND, "--model", "none", "--rate-mbps", "24", "--pause-ms", "", "--check"]
    assert CliRunner().invoke(app, harmless).exit_code == 0


def test_the_command_tells_cells_that_are_not_valid_from_those_above_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = harm.row_of(cell(), "sim", [(fetched([100.0]), fetched([150.0]))])
    stalled = harm.row_of(cell(), "sim", [(fetched([100.0]), fetched([100.0], complete=False))])
    rows = [{**row, "trained_on": False} for row in (slow, slow, stalled)]
    monkeypatch.setattr(harm, "measure", lambda *_, **__: rows)
    said = CliRunner().invoke(app, [*COMMAND, "--model", "none"]).output
    assert "of 3 cells 2 are above a limit and 1 are not valid" in " ".join(said.split())


def test_the_command_takes_recordings(tmp_path: Any) -> None:
    recording = str(DRAWN.save(tmp_path / "own.trace"))
    options = ["--model", "none", "--rate-mbps", "", "--pause-ms", "", "--traces", recording, "--json", "-"]
    result = CliRunner().invoke(app, [*COMMAND, *options])
    assert result.exit_code == 0, result.output
    assert {row["trace"] for row in json.loads(result.stdout)["rows"]} == {"own.trace"}


def test_the_command_says_which_recordings_the_model_learned_from(tmp_path: Any) -> None:
    model = ROOT / "checkpoints" / "default"
    generate("lte-driving", 60.0, 1).save(tmp_path / "renamed.trace")
    STEADY.save(tmp_path / "new.trace")
    command = ["bench", "harm", "--model", str(model), "--cc", "cubic", "--mrtt-ms", "20", "--rate-mbps", ""]
    command += ["--bytes", "10000", "--pause-ms", "", "--repeat", "1", "--traces", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert f"note: {model} was trained on, or selected by, renamed.trace: its figures" in result.stderr


def test_the_command_asks_for_what_the_daemon_asks_for() -> None:
    (target,) = (option.default for option in get_command(app).commands["bench"].commands["harm"].params
                 if option.name == "target")  # fmt: skip
    assert Target.parse(target) == DaemonConfig.model_fields["target"].default


def test_the_command_refuses_what_is_no_number() -> None:
    result = CliRunner().invoke(app, [*COMMAND, "--rate-mbps", "fast"])
    assert result.exit_code != 0
    assert "--rate-mbps 'fast'" in str(result.exception)
