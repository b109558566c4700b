"""docs/faults.md and docs/operate.md: every row's test exists, every command of the runbook is well formed."""

import ast
import re
import shlex

import pytest

from helpers.documents import FENCED, PLACEHOLDER, command_of, parsed
from helpers.places import ROOT

ROW = re.compile(r"^\| (?P<fault>[^|]+) \| (?P<happens>[^|]+) \| `(?P<path>[\w/.-]+)::(?P<name>\w+)` \|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "faults.md").read_text()
RUNBOOK = (ROOT / "docs" / "operate.md").read_text()


def test_every_row_of_the_faults_tables_names_a_test_that_exists() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    rows = [line for line in lines if line != "| fault | what happens | test |"]
    found = list(ROW.finditer(PAGE))
    assert len(found) == len(rows) > 120, "what has no test belongs before the tables"
    for row in found:
        path = ROOT / row["path"]
        assert path.is_file(), row["path"]
        names = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
        assert row["name"] in names, f"{row['path']} has no {row['name']}"


def commands_of_the_runbook() -> list[str]:
    lines = [line for _, block in FENCED.findall(RUNBOOK) for line in block.splitlines()]
    return [line for line in lines if line.startswith("reinet ")]


def test_the_runbook_has_commands() -> None:
    assert len(commands_of_the_runbook()) > 10


@pytest.mark.parametrize("line", commands_of_the_runbook())
def test_a_command_of_the_runbook_is_well_formed(line: str) -> None:
    assert not PLACEHOLDER.search(line)
    parsed(*command_of(shlex.split(line, comments=True)[1:]))


def test_the_runbook_answers_every_alert_and_names_none_that_is_not_there() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (ROOT / "docs" / "monitoring" / "alerts.yml").read_text()))
    named = set(re.findall(r"\bReinet[A-Z]\w+", RUNBOOK))
    assert named <= alerts, named - alerts
    assert alerts - named <= {"ReinetPausedForLong"}, "whose summary says all there is to say"
