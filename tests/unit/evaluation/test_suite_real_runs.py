"""The real runs of a suite, with a simulated one in their place: what is made again, what is left out, what is said."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reinet.agents.evaluation.run import Run, run
from reinet.agents.evaluation.suites import markdown, report, runner
from reinet.agents.evaluation.suites.definition import load
from reinet.agents.evaluation.suites.plan import SuitePlan, plan
from reinet.agents.evaluation.suites.store import Store
from reinet.core.errors import LinkError, ShimError

REAL = """
title = "Real"
[[scenario]]
name = "kernel"
link = "mahimahi"
agents = ["none", "fixed:20"]
traces = ["constant:12"]
seconds = 1
repeat = 2
"""


@pytest.fixture
def planned(tmp_path: Path) -> SuitePlan:
    (tmp_path / "real.toml").write_text(REAL)
    return plan(load(str(tmp_path / "real.toml")))


def answers(monkeypatch: pytest.MonkeyPatch, reasons: Iterator[str | Exception | None]) -> list[Run]:
    """Has each run end as the next of ``reasons`` says: valid (None), not valid (text), or with an error."""
    made: list[Run] = []

    def stand_in(agent: Any, scenario: Any) -> Run:
        reason = next(reasons)
        if isinstance(reason, Exception):
            raise reason
        made.append(replace(run(agent, replace(scenario, link="sim")), invalid_reason=reason))
        return made[-1]

    monkeypatch.setattr(runner, "run", stand_in)
    return made


def test_a_run_that_is_not_valid_is_made_again_and_never_in_a_table(
    planned: SuitePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    made = answers(monkeypatch, iter(["lagged", None, None, "lagged", "lagged", "lagged", None]))
    outcome = runner.make(planned, store)
    assert (outcome.made, outcome.failed) == (7, {})
    assert len(made) == 7
    built = report.build(planned, Store(tmp_path / "store"), "reinet", outcome.failed)
    assert (built["runs"]["valid"], built["runs"]["invalid"]) == (3, 4)
    assert len(built["rows"]) == 3
    answers(monkeypatch, iter([]))
    assert runner.make(planned, store).made == 0  # three times are enough


def test_a_host_that_cannot_is_said_so_and_asked_no_more_than_a_few_times(
    planned: SuitePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter([ShimError("no BTF"), LinkError("no root"), LinkError("no root")])
    answers(monkeypatch, asked)
    outcome = runner.make(planned, Store(tmp_path / "store"))
    assert len(outcome.failed) == 4
    built = report.build(planned, Store(tmp_path / "store"), "reinet", outcome.failed)
    assert built["runs"]["not_made_because"] == ["no BTF", "no root"]
    assert "4 could not be made here: no BTF; no root" in markdown.page(built)


def test_a_host_of_another_kernel_makes_runs_of_its_own(planned: SuitePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    from reinet.agents.evaluation.suites import plan as planning

    keys = {job.key for job in planned.jobs}
    here = planning.versions()
    monkeypatch.setattr(planning, "versions", lambda: {**here, "kernel": "7.0"})
    assert not keys & {job.key for job in plan(planned.suite).jobs}
