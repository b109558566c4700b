"""``reinet traces``: results, exit codes, files."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from reinet.cli import traces
from reinet.core.errors import ConfigError, TraceError
from reinet.envs.trace import Trace, load_traces

runner = CliRunner()


def run(*arguments: object) -> Result:
    return runner.invoke(traces.app, [str(argument) for argument in arguments])


def data(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("command", ["list", "info", "check", "import", "generate", "split"])
def test_help_has_examples(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"reinet traces {command}" in result.output


def test_generate_info_list_agree(tmp_path: Path) -> None:
    out = tmp_path / "lte.trace"
    made = data("generate", "lte-driving", "--seconds", 20, "--seed", 3, "--out", out)
    assert made["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert made["duration_s"] == 20
    info = data("info", out)
    assert {key: info[key] for key in ("duration_s", "mean_mbps", "sha256")} == {
        key: made[key] for key in ("duration_s", "mean_mbps", "sha256")
    }
    assert info["rows"][0]["sha256"] == made["sha256"]
    assert [row["sha256"] for row in data("list", tmp_path)["rows"]] == [made["sha256"]]
    assert "lte-driving" in [row["preset"] for row in data("list")["rows"]]


def test_a_constant_rate_has_no_seed(tmp_path: Path) -> None:
    """A script may give one for all kinds; nothing of this one is drawn."""
    made = data("generate", "constant:12", "--seconds", 1, "--seed", 7, "--out", tmp_path / "a.trace")
    assert made["seed"] is None


def test_existing_files_are_kept_without_force(tmp_path: Path) -> None:
    out = write(tmp_path / "t", "precious")
    source = write(tmp_path / "s", "0 1\n1 1\n")
    for command in (["generate", "constant:12"], ["import", source]):
        result = run(*command, "--out", out)
        assert isinstance(result.exception, TraceError)
        assert "--force" in str(result.exception)
        assert out.read_text() == "precious"
    assert run("import", source, "--out", out, "--force").exit_code == 0
    assert Trace.load(out).mean_mbps == pytest.approx(1, rel=0.01)


def test_a_preset_that_does_not_exist_is_refused_with_the_nearest_and_all_there_are(tmp_path: Path) -> None:
    result = run("generate", "lte-drving", "--out", tmp_path / "x.trace")
    assert isinstance(result.exception, ConfigError)
    assert "did you mean 'lte-driving'?" in str(result.exception)
    assert str(result.exception).endswith("random, constant:MBPS")


def test_import_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "tram.txt", "0 1\n1 3\n2 -\n")
    row = data("import", source)
    assert (row["path"], row["format"], row["lines"], row["left_out_s"]) == ("tram.trace", "s-mbps", 3, 1.0)
    assert row["mean_mbps"] == pytest.approx(2, rel=0.01)
    assert Trace.load("tram.trace").sha256 == row["sha256"]


def test_check_reports_every_bad_file(tmp_path: Path) -> None:
    good = write(tmp_path / "a", "1\n2\n")
    write(tmp_path / "b", "2\n1\n")
    write(tmp_path / "c", "1\n\n")
    assert run("check", good).exit_code == 0
    result = run("check", tmp_path, "--json", "-")
    assert result.exit_code == 2
    report = json.loads(result.stdout)
    assert [row["ok"] for row in report["rows"]] == [True, False, False]
    assert f"{tmp_path}/b:2: " in report["rows"][1]["error"]
    assert f"{tmp_path}/c:2: " in result.output


def test_split_by_trace_shares_no_content(tmp_path: Path) -> None:
    for number in range(10):
        write(tmp_path / "in" / f"t{number}", f"{number + 1}\n{number + 20}\n")
    write(tmp_path / "in" / "copy-of-3", "4\r\n23\r\n")
    write(tmp_path / "other" / "t0", "5\n6\n")
    rows = data("split", tmp_path / "in", tmp_path / "other", "--out", tmp_path / "sets", "--share", 0.7)["rows"]
    assert len(rows) == 12
    content = {side: {row["sha256"] for row in rows if row["set"] == side} for side in ("train", "validation")}
    assert (len(content["train"]), len(content["validation"])) == (8, 3)
    assert not content["train"] & content["validation"]
    for side, hashes in content.items():
        assert {trace.sha256 for trace in load_traces([tmp_path / "sets" / f"{side}.toml"])} == hashes
    # Names and order do not decide.
    for file in list((tmp_path / "in").iterdir()):
        file.rename(file.with_name("z" + file.name[::-1]))
    again = data("split", tmp_path / "other", tmp_path / "in", "--out", tmp_path / "again", "--share", 0.7)["rows"]
    assert {row["sha256"] for row in again if row["set"] == "train"} == content["train"]


def test_split_by_time(tmp_path: Path) -> None:
    source = write(tmp_path / 'odd "name"', "".join(f"{k}\n" for k in range(1, 1001)))
    rows = data("split", source, "--by", "time", "--out", tmp_path / "sets", "--share", 0.75)["rows"]
    assert [row["duration_s"] for row in rows] == [0.75, 0.25]
    assert [trace.duration_ms for trace in load_traces([tmp_path / "sets" / "train.toml"])] == [750]
    said = run("split", source, "--by", "time", "--out", tmp_path / "again").output
    assert "not on the whole traces" in " ".join(said.split()), "no hash tells that they hold what was learned from"


def test_split_by_time_refuses_pieces_of_one_content(tmp_path: Path) -> None:
    """A constant rate's, for example: what was learned from would judge."""
    source = write(tmp_path / "steady", "".join(f"{k}\n" for k in range(2, 1001, 2)))
    refused = run("split", source, "--by", "time", "--out", tmp_path / "sets", "--share", 0.5).exception
    assert isinstance(refused, TraceError)
    assert "steady: its later piece is one to learn from as well" in str(refused)
    assert not (tmp_path / "sets").exists()
    assert data("split", source, "--by", "time", "--out", tmp_path / "sets", "--share", 0.6)["rows"]


def test_a_name_that_is_no_utf_8_is_written_out_in_a_set(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / "in" / os.fsdecode(b"Z\xfcrich%d.trace" % number), f"{number + 1}\n20\n")
    rows = data("split", tmp_path / "in", "--out", tmp_path / "sets")["rows"]
    names = {Path(row["path"]).name for row in rows}
    assert names == {r"Z\udcfcrich0.trace", r"Z\udcfcrich1.trace"}
    assert {trace.name for trace in load_traces(tmp_path.glob("sets/*.toml"))} == names


def test_the_folders_of_a_split_hold_the_same_traces_as_its_set_files(tmp_path: Path) -> None:
    """Of a folder a hidden file or a document is no trace: what a training learned from was missing where it judges."""
    given = [
        write(tmp_path / name, f"{k + 1}\n20\n") for k, name in enumerate((".city", "tram.md", "bus.JSON", "ferry"))
    ]
    data("split", *given, "--out", tmp_path / "sets", "--share", 0.5)
    for side in ("train", "validation"):
        by_file, by_folder = (load_traces([tmp_path / "sets" / name]) for name in (f"{side}.toml", side))
        assert len(by_file) == 2
        assert {trace.sha256 for trace in by_folder} == {trace.sha256 for trace in by_file}


def test_split_refuses(tmp_path: Path) -> None:
    one = write(tmp_path / "one", "1\n2\n")
    for arguments, what in (
        ((one, "--out", tmp_path / "new"), "--by time"),
        ((one, "--out", tmp_path), "exists already"),
        ((one, "--out", tmp_path / "new", "--share", 1.0), "between 0 and 1"),
    ):
        assert what in str(run("split", *arguments).exception)
    assert not (tmp_path / "new").exists()


def test_from_the_shell(tmp_path: Path) -> None:
    """The real program: messages without traceback, exit codes 0 and 2, JSON alone on standard output."""
    bad = write(tmp_path / "bad", "1\n\n2\n")
    command = [sys.executable, "-c", "from reinet.cli.main import main; main()", "traces"]
    environment = os.environ | {"COLUMNS": "40"}
    result = subprocess.run([*command, "info", bad], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 2
    assert f"{bad}:2: empty line; every line is one time in ms: delete it" in result.stderr
    assert "Traceback" not in result.stderr
    result = subprocess.run([*command, "info"], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 2
    good = write(tmp_path / "good", "1\n2\n")
    result = subprocess.run(
        [*command, "info", good, "--json", "-"], capture_output=True, text=True, env=environment, check=True
    )
    assert json.loads(result.stdout)["duration_s"] == 0.002
