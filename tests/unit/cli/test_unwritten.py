"""A full disk at the end of a run costs its report and none of its figures: they are printed, the fault is named."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from helpers.places import ROOT
from reinet.agents.evaluation import picture
from reinet.agents.evaluation.compare import page
from reinet.agents.evaluation.suites import pictures
from reinet.cli.main import app
from reinet.core.disk import durable
from reinet.core.errors import ReinetError
from reinet.envs.trace import Trace


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def trace(tmp_path: Path) -> str:
    Trace.constant(12, 10).save(tmp_path / "my.trace")
    return str(tmp_path / "my.trace")


def told(result: Result, *paths: Path) -> None:
    """Holds that a command printed its table, then ended with an error that names these files."""
    assert isinstance(result.exception, ReinetError), result.exception
    assert "rule:1.5" in result.output
    for path in paths:
        assert f"{path}: No space left on device" in str(result.exception)


def test_a_suite_tells_its_figures_and_which_files_of_its_report_are_missing(
    tmp_path: Path, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, definition = tmp_path / "out", tmp_path / "one.toml"
    definition.write_text(
        'title = "One"\n[[scenario]]\nname = "one"\nagents = ["none", "rule"]\nseconds = 5\nrepeat = 2\n'
    )
    command = ["evaluate", "--suite", str(definition), "--traces", trace, "--out", str(out)]
    write = durable.write
    monkeypatch.setattr(pictures, "save", full)
    monkeypatch.setattr(durable, "write", lambda path, data: full() if path.suffix == ".md" else write(path, data))
    told(CliRunner().invoke(app, command), out / "*.png", out / "report.md")
    assert json.loads((out / "report.json").read_bytes())["cells"], "what there was room for is there"
    monkeypatch.undo()
    assert CliRunner().invoke(app, command).exit_code == 0, "with room the same command makes the report"
    assert (out / "report.md").is_file()


def test_pictures_that_do_not_fit_are_named_after_the_figures(
    tmp_path: Path, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "save_comparison", full)
    png = tmp_path / "a.png"
    told(CliRunner().invoke(app, ["evaluate", "--agents", "none,rule", "--traces", trace, "--seconds", "5",
                                  "--link", "sim", "--png", str(png)]), png)  # fmt: skip


def test_a_page_that_does_not_fit_is_named_after_the_figures(
    tmp_path: Path, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "write_page", full)
    out = tmp_path / "page"
    told(CliRunner().invoke(app, ["compare", str(ROOT / "checkpoints" / "small"), "--beside", "rule", "--traces", trace,
                                  "--seconds", "5", "--out", str(out)]), out)  # fmt: skip
