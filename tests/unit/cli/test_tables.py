"""Tables on a narrow terminal: what somebody looks for is whole, however long the text beside it."""

import io
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from reinet.cli import output
from reinet.cli.ctl import FLOW_COLUMNS
from reinet.cli.evaluate import COLUMNS
from reinet.cli.inspection import top
from reinet.cli.main import app

REASON = (
    "target 50.0 ms is below 1.1 x the path's minimum RTT (239.9 ms): flow stays uncapped; raise the target above "
    "263.9 ms (+24.0ms)"
)
FLOW = {
    "cookie": 123_456, "cap_pkts": 40, "cwnd_pkts": 1234, "rtt_mean_ms": 241.25, "min_rtt_ms": 239.87,
    "queueing_ms": 1.4, "target_ms": 50.0, "delivery_rate_mbps": 123.45, "age_s": 0.25, "actuator": "kernel",
    "reason": REASON,
}  # fmt: skip
RUN = {
    "agent": "/var/lib/reinet/models/default-2026-11-26", "cc": "cubic", "trace": "NYC-timessquare-walking-1.down",
    "link": "sim", "throughput_mbps": 12.34, "utilization": 0.98, "qdelay_mean_ms": 123.45, "qdelay_p95_ms": 1234.5,
    "delay_mean_ms": 143.45, "valid": True,
}  # fmt: skip


def printed(width: int, rows: list[dict[str, object]], columns: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    file = io.StringIO()
    monkeypatch.setattr(output, "console", output.PlainConsole(file=file, width=width))
    output.print_table(rows, columns)
    return file.getvalue()


def column(text: str, number: int) -> str:
    """Returns what stands in a column, its lines joined."""
    lines = [re.split("[┃│]", line) for line in text.splitlines() if line[:1] in "┃│"]
    return "".join(cells[number + 1].strip() for cells in lines)


@pytest.mark.parametrize("width", [40, 80, 120, 160])
@pytest.mark.parametrize(("row", "columns"), [(FLOW, FLOW_COLUMNS), (RUN, COLUMNS)])
def test_nothing_is_cut_however_narrow_the_terminal_and_long_the_text(
    width: int, row: dict[str, object], columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed(width, [row, row | {"reason": ""}], columns, monkeypatch)
    assert "…" not in text
    for number, name in enumerate(columns):
        value = row[name]
        assert column(text, number).startswith(name)
        if isinstance(value, float | int) and not isinstance(value, bool):
            assert text.count(f" {value:.2f} " if isinstance(value, float) else f" {value} ") >= 2, name
        elif not isinstance(value, bool):
            assert str(value).replace(" ", "") in column(text, number).replace(" ", ""), name


def test_a_table_fills_no_more_of_a_terminal_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (120, 160):
        assert max(map(len, printed(width, [FLOW], FLOW_COLUMNS, monkeypatch).splitlines())) == width
    assert max(map(len, printed(160, [{"a": 1}], ["a"], monkeypatch).splitlines())) == 5
    assert printed(160, [], ["a"], monkeypatch).count("\n") == 4


def test_top_keeps_a_flow_on_one_line_and_cuts_its_reason_alone() -> None:
    seen = {
        "rows": [FLOW] * 2, "ok": True, "state": "deciding", "problem": "", "model": "rule", "target": "+30ms",
        "flows": 2, "sorted_by": "rate",
    }  # fmt: skip
    file = io.StringIO()
    Console(file=file, width=120).print(top._table(seen, None, 120))
    (first, second) = [line for line in file.getvalue().splitlines() if line.startswith("│")]
    assert first == second
    assert re.search(r"│ +123456 │ +40 │ +1234 │ +241\.2 │ .* 123\.45 │ +0\.2 │ target 50.0 ms.*… │$", first)


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("command", [[], ["evaluate"], ["compare"], ["bench", "frontier"], ["bench", "harm"]])
def test_the_help_of_a_command_cuts_no_name_or_default(command: list[str], width: int) -> None:
    """On 80 columns it had --allow-training…, which no run takes, and defaults without their ends."""
    help_text = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": str(width)}).output
    assert "Usage:" in help_text
    assert "…" not in help_text


def test_a_flag_has_one_name_which_a_usual_terminal_shows_on_one_line() -> None:
    help_text = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "100"}).output
    assert "--allow-training-traces " in help_text
    assert "--no-" not in help_text
