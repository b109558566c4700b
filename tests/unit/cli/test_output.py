"""Nothing from outside is interpreted on its way to the terminal: no markup, no emoji, no control sequence."""

import errno
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from contextlib import nullcontext, suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.text import Text
from typer.testing import CliRunner

from helpers.places import ROOT
from reinet.cli import ctl, doctor, main, output
from reinet.core.errors import ConfigError, ReinetError
from reinet.core.visible import visible
from reinet.daemon.log_lines import LINES
from reinet.daemon.serve import configure_logging
from reinet.kshim.probe import Feature

NAME = "[red]:x: [bold]\x1b[2J$_{"
"""A name that a file, a model or an agent may have: markup, an emoji's name, a sequence that clears the screen, a
formula."""
SHOWN = r"[red]:x: [bold]\x1b[2J$_{"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """However wide the terminal is that runs the tests, no cell is cut."""
    monkeypatch.setattr(output.console, "_width", 1000)


def said(*arguments: object) -> str:
    """What a command writes to standard error, as people see it."""
    result = CliRunner().invoke(main.app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return assert_harmless(result.stderr)


def assert_harmless(text: str) -> str:
    assert not re.search(r"[^\n -~\x80-\uffff]|❌", text), text
    return text


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_text("".join(f"{ms}\n" for ms in range(1, 1001)))
    return path


def test_names_of_traces(trace: Path) -> None:
    assert SHOWN in said("traces", "list", trace)
    assert SHOWN in said("traces", "info", trace)
    assert SHOWN in said("traces", "import", trace, "--out", trace.with_name(NAME + "2"))


def test_lines_of_bad_traces(trace: Path) -> None:
    trace.write_text("root:x:0\n")
    shown = said("traces", "check", trace)
    assert SHOWN in shown
    assert "root:x:0" in shown


def test_names_of_traces_and_models_in_an_evaluation(trace: Path, tmp_path: Path) -> None:
    model = tmp_path / "models" / NAME
    shutil.copytree(ROOT / "checkpoints" / "default", model)
    picture = tmp_path / f"{NAME}.png"
    shown = said("evaluate", "--agents", f"none,{model}", "--traces", trace, "--link", "sim", "--seconds", 2,
                 "--png", picture)  # fmt: skip
    assert shown.count(f"models/{SHOWN}") + shown.count(f" {SHOWN} ") >= 3
    assert f"picture: {visible(picture)}" in shown
    assert picture.is_file()


def test_what_doctor_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Feature(False, f"root:x:0 {NAME}", f"chown {NAME}")
    monkeypatch.setattr(doctor, "prerequisites", lambda: {"user": found})
    shown = said("doctor")
    assert f"root:x:0 {SHOWN}" in shown
    assert f"chown {SHOWN}" in shown


def test_doctor_says_how_to_get_what_the_daemon_and_the_service_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", version)
    found = doctor.prerequisites()
    for name in ("grpcio", "grpcio-health-checking", "grpcio-reflection", "prometheus-client"):
        assert not found[name].ok
        assert found[name].cure == "pip install 'reinet[serve]'"


def test_doctor_goes_on_where_a_system_does_not_say_which_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def release() -> dict[str, str]:
        raise OSError("Unable to find /etc/os-release")

    monkeypatch.setattr("platform.freedesktop_os_release", release)
    assert doctor.prerequisites()["system"].why == "unknown: set-up does not know it"


def test_what_a_daemon_says(monkeypatch: pytest.MonkeyPatch) -> None:
    flow: dict[str, Any] = dict.fromkeys(ctl.FLOW_COLUMNS, 1) | {"reason": NAME, "rtt_mean_us": 1, "min_rtt_us": 1}
    flow |= {"target_us": 1, "delivery_rate_bytes_per_s": 1, "process": 1}
    health = {"ok": True, "state": NAME, "model": NAME, "target": NAME, "problem": f"root:x:0 {NAME}"}
    health |= dict.fromkeys(("flows", "decisions", "records", "uptime_s"), 1)
    health["swaps"] = [SimpleNamespace(policy=NAME, under_way=NAME, latest=NAME)]
    client = SimpleNamespace(
        flows=lambda _most: SimpleNamespace(flows=[SimpleNamespace(**flow)], live=2),
        health=lambda: SimpleNamespace(**health),
    )
    monkeypatch.setattr(ctl, "control_client", lambda _path: nullcontext(client))
    shown = said("ctl", "flows")
    assert SHOWN in shown
    assert "1 of 2 flows" in shown
    shown = said("ctl", "health")
    assert shown.count(SHOWN) == 8
    assert "root:x:0" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["traces", "info", f"/none/{NAME}"],
        ["evaluate", "--agents", NAME, "--traces", str(ROOT)],
        ["train", f"/none/{NAME}"],
        ["serve", f"/none/{NAME}"],
        ["export", f"/none/{NAME}"],
    ],
)
def test_errors(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["reinet", *arguments])
    with pytest.raises(SystemExit):
        main.main()
    shown = assert_harmless(capsys.readouterr().err)
    assert "error:" in shown
    assert SHOWN in shown or repr(NAME) in shown or str(ROOT) in shown


def test_progress_bars() -> None:
    written = io.StringIO()
    with Progress(
        output.TextColumn("{task.description}"), console=output.PlainConsole(file=written, width=200)
    ) as progress:
        progress.add_task(NAME)
    assert SHOWN in assert_harmless(written.getvalue())


def test_the_log_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    configure_logging()
    structlog.get_logger("test").info("serving", model=NAME.replace(" ", ""))  # it quotes what has spaces by itself
    structlog.reset_defaults()
    LINES.drain(60)
    assert "\x1b[2J" not in terminal.getvalue()
    assert SHOWN.replace(" ", "") in terminal.getvalue()


def test_our_own_words_may_have_a_style() -> None:
    written = io.StringIO()
    console = output.PlainConsole(file=written, force_terminal=True, color_system="standard")
    console.print(output.Text("bad", "red"), NAME)
    assert written.getvalue() == f"\x1b[31mbad\x1b[0m {SHOWN}\n"


def test_there_is_one_console() -> None:
    for path in (ROOT / "cli").glob("*.py"):
        if path.name != "output.py":
            assert not re.search(r"Console\(|rich\.markup|rich\.text|from_markup|import print", path.read_text()), path


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\x07", "\x9b", "\u202e", "\u2028", "\udcff", "\r", "\n"])
def test_characters_that_a_terminal_obeys_are_written_out(char: str) -> None:
    shown = visible(f"a{char}b")
    assert shown.startswith("a\\")
    assert shown.isprintable()


def test_other_characters_stay() -> None:
    for text in ("plain [x] :x:", "größer", "日本", "🙂", "a\\b"):
        assert visible(text) == text
    assert visible("a\nb", keep="\n") == "a\nb"


@pytest.mark.parametrize(
    ("destination", "why"),
    [
        ("{}", "it is a folder"),
        ("{}/file/x.json", "file is no folder"),
        ("{}/" + 300 * "x", "File name too long"),
    ],
    ids=["folder", "file", "long name"],
)
def test_a_place_where_no_results_can_be_written_is_refused_before_anything_runs(
    tmp_path: Path, trace: Path, destination: str, why: str
) -> None:
    (tmp_path / "file").touch()
    command = [
        "evaluate",
        "--link",
        "sim",
        "--agents",
        "none",
        "--traces",
        trace,
        "--json",
        destination.format(tmp_path),
    ]
    result = CliRunner().invoke(main.app, [str(word) for word in command])
    assert isinstance(result.exception, ConfigError)
    assert why in str(result.exception)


def test_results_go_into_a_folder_that_is_made_for_them(tmp_path: Path) -> None:
    output.write_json(str(tmp_path / "deep" / "er" / "x.json"), {"a": 1})
    assert (tmp_path / "deep" / "er" / "x.json").read_text() == output.json_text({"a": 1})


def test_a_standard_output_that_takes_no_results_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(ReinetError, match="standard output: No space left on device"):
            output.write_json("-", {"a": 1})
        with suppress(OSError):
            full.close()
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ReinetError, match="standard output is closed"):
        output.write_json("-", {"a": 1})


def test_who_closed_standard_error_gets_the_results_all_the_same() -> None:
    code = "from reinet.cli.main import main; main()"
    command = [sys.executable, "-c", code, "traces", "list", "--json", "-"]
    done = subprocess.run(["sh", "-c", 'exec "$0" "$@" 2>&-', *command], capture_output=True, timeout=60)
    assert done.returncode == 0
    assert json.loads(done.stdout)["rows"]


def test_results_that_cannot_be_written_are_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ReinetError, match="No space left on device; the results are on standard output instead"):
        output.write_json("/dev/full", {"a": 1})
    assert capsys.readouterr().out == output.json_text({"a": 1})


def test_what_is_kept_on_the_way_is_whole_or_what_was_there(tmp_path: Path) -> None:
    """It was written in place: who ended the command in the middle, or filled the disk, had half of a file."""
    found = tmp_path / "found.json"
    (tmp_path / "link.json").symlink_to(found)
    output.keep_json(str(tmp_path / "link.json"), {"rows": [1]})
    assert json.loads(found.read_text()) == {"rows": [1]}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        output.keep_json(str(found), {"rows": list(range(100))})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert json.loads(found.read_text()) == {"rows": [1]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json", "link.json"]


def test_a_disk_that_is_full_at_the_end_leaves_what_was_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last word was written in place: half of it was left of all rows where standard output goes nowhere."""
    found = tmp_path / "found.json"
    output.keep_json(str(found), {"rows": [1]})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(ReinetError, match="File too large; the results are on standard output instead"):
            output.write_json(str(found), {"rows": list(range(100))})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert json.loads(found.read_text()) == {"rows": [1]}
    assert json.loads(capsys.readouterr().out) == {"rows": list(range(100))}
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]


def test_a_file_that_cannot_be_replaced_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> Path:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", busy)
    output.write_json(str(tmp_path / "mounted.json"), {"rows": [1]})
    assert json.loads((tmp_path / "mounted.json").read_text()) == {"rows": [1]}
    assert [path.name for path in tmp_path.iterdir()] == ["mounted.json"]


def test_a_file_behind_dev_stdout_has_all_results(tmp_path: Path) -> None:
    """Another file took its place after the first run, and what came later went into one that nobody sees."""
    code = "from reinet.cli.output import keep_json, write_json\n"
    code += "for rows in ([1], [1, 2]): keep_json('/dev/stdout', {'rows': rows})\n"
    code += "write_json('/dev/stdout', {'rows': [1, 2, 3]})"
    with (tmp_path / "found.json").open("w") as found:
        subprocess.run([sys.executable, "-c", code], stdout=found, check=True, timeout=60)
    assert json.loads((tmp_path / "found.json").read_text()) == {"rows": [1, 2, 3]}
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]


def test_a_pipe_gets_the_results_once(tmp_path: Path) -> None:
    """It had one document after each run, and a reader that had enough of them left the command waiting for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        output.keep_json(str(pipe), {"rows": [1]})
        output.write_json(str(pipe), {"rows": [1, 2]})
        assert json.loads(os.read(reader, 1000)) == {"rows": [1, 2]}
    finally:
        os.close(reader)


def test_a_long_note_cuts_neither_bar_nor_count_nor_times() -> None:
    written = io.StringIO()
    columns = (BarColumn(bar_width=12), MofNCompleteColumn(), TimeElapsedColumn(), output.note_column())
    with Progress(*columns, console=Console(file=written, width=60, force_terminal=True), expand=True) as bar:
        bar.add_task("training", total=40, completed=7, note="a note " * 20)
    lines = Text.from_ansi(written.getvalue()).plain.splitlines()
    assert all(" 7/40 0:00:00 a note a note" in line and cell_len(line) <= 60 for line in lines if line.strip())
