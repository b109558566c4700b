"""The real runs of a suite, with a simulated one in their place: what is made again, what is left out, what is said."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from helpers.waiting import assert_ends_with_its_command
from reinet.agents.decide.baselines import NoCap
from reinet.agents.evaluation.run import Run, run
from reinet.agents.evaluation.suites import markdown, real, report, runner
from reinet.agents.evaluation.suites.definition import load
from reinet.agents.evaluation.suites.plan import Job, SuitePlan, plan
from reinet.agents.evaluation.suites.store import Store
from reinet.core.errors import LinkError, ShimError
from reinet.kshim.shim import WRAPPED_CC

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


@pytest.fixture(autouse=True)
def wraps_all_that_the_shim_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's kernel has."""
    monkeypatch.setattr(
        "reinet.agents.evaluation.run.why_not_capped", lambda cc: "" if cc in WRAPPED_CC else "the shim wraps no such"
    )


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

    monkeypatch.setattr(real, "run", stand_in)
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


def test_a_congestion_control_that_cannot_be_capped_is_left_out_and_all_else_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More runs of it than a host that can do nothing is asked for: they stop nothing, and come in any order."""
    text = REAL.replace("repeat = 2", 'repeat = 4\ncc = ["westwood", "cubic"]')
    (tmp_path / "real.toml").write_text(text)
    planned = plan(load(str(tmp_path / "real.toml")))
    made = answers(monkeypatch, repeat(None))
    outcome = runner.make(planned, Store(tmp_path / "store"))
    assert sorted((one.agent, one.scenario.path.cc) for one in made) == [
        *[("fixed:20", "cubic")] * 4, *[("none", "cubic")] * 4, *[("none", "westwood")] * 4
    ]  # fmt: skip
    built = report.build(planned, Store(tmp_path / "store"), "reinet", outcome.failed)
    (reason,) = built["runs"]["not_made_because"]
    assert "cc 'westwood' cannot be capped in the kernel: the shim wraps no such" in reason
    assert (built["runs"]["valid"], built["runs"]["not_made"]) == (12, 4)


def test_a_congestion_control_that_the_host_lacks_stops_none_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is random: the first runs may all be of what the host lacks."""
    text = REAL.replace("repeat = 2", 'repeat = 9\ncc = ["vegas", "cubic"]').replace(', "fixed:20"', "")
    (tmp_path / "real.toml").write_text(text)
    planned = plan(load(str(tmp_path / "real.toml")))
    monkeypatch.setattr(SuitePlan, "real", sorted(planned.real, key=lambda job: job.cell.cc != "vegas"))
    made = answers(monkeypatch, chain([LinkError("no vegas")] * 3, repeat(None)))
    outcome = runner.make(planned, Store(tmp_path / "store"))
    assert [one.scenario.path.cc for one in made] == ["cubic"] * 9
    assert len(outcome.failed) == 9


def test_beside_others_a_run_that_is_not_valid_is_none_and_from_then_on_there_are_fewer_at_a_time(
    planned: SuitePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, now, crowds = threading.Lock(), [0], list[int]()

    def lags_beside_another(name: str, identity: str, scenario: Any) -> Run:
        with lock:
            now[0] += 1
            crowds.append(now[0])
        assert len(crowds) < 50, "two lag beside each other for ever"
        time.sleep(0.1)  # so that those that begin together are seen together
        with lock:
            crowd, now[0] = max(now[0], crowds[-1]), now[0] - 1
        done = run(NoCap(), replace(scenario, link="sim"))
        return replace(done, invalid_reason="lagged" if crowd > 1 else None)

    monkeypatch.setattr(real, "ProcessPoolExecutor", lambda most, *_: ThreadPoolExecutor(most))
    monkeypatch.setattr(real, "_run_named", lags_beside_another)
    store = Store(tmp_path / "store")
    assert runner.make(planned, store, at_once=2).made == len(planned.jobs)
    assert max(crowds) == 2
    assert not any(store.invalid(job.key) for job in planned.jobs)
    assert crowds[-len(planned.jobs) + 1 :] == [1] * (len(planned.jobs) - 1)


def test_runs_at_once_are_made_in_processes_of_their_own_with_the_agents_that_were_planned(planned: SuitePlan) -> None:
    jobs = [replace(job, scenario=replace(job.scenario, link="sim")) for job in planned.jobs]
    found: dict[str, real.Found] = {}

    def take(job: Job, done: real.Found) -> bool:
        found[job.key] = done
        return True

    real.make_real(jobs, 2, take, lambda _job: None)
    for job in jobs:
        here, there = run(job.agent, job.scenario), found[job.key]
        assert isinstance(there, Run)
        assert there.metrics == here.metrics
        assert there.agent == job.agent.name


def test_an_agent_that_changed_meanwhile_is_refused(planned: SuitePlan) -> None:
    with pytest.raises(LinkError, match="has changed since the suite began"):
        real._run_named("fixed:20", "sha256:0", planned.jobs[0].scenario)


def test_a_host_of_another_kernel_makes_runs_of_its_own(planned: SuitePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    from reinet.agents.evaluation.suites import plan as planning

    keys = {job.key for job in planned.jobs}
    here = planning.versions()
    monkeypatch.setattr(planning, "versions", lambda: {**here, "kernel": "7.0"})
    assert not keys & {job.key for job in plan(planned.suite).jobs}


KILLED = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from reinet.agents.evaluation.suites.real import end_with_parent

if __name__ == "__main__":
    with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent) as executor:
        print(executor.submit(os.getpid).result(), flush=True)
        time.sleep(60)
"""


def test_a_process_of_runs_ends_with_the_command_that_made_it(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    assert_ends_with_its_command(script)
