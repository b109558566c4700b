"""The registry: names that point, a history that tells of it, what may be removed, and a gate's verdict."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.places import ROOT
from helpers.trainer import TINY, small_gate
from reinet.agents.evaluation.no_harm import Harm
from reinet.agents.model.artifact import load_artifact
from reinet.agents.service import registry as registry_module
from reinet.agents.service.blobs import Blobs
from reinet.agents.service.config import Gate, Quota
from reinet.agents.service.database import Database
from reinet.agents.service.gate import Verdict, judged, measure, suite_figures, with_harm
from reinet.agents.service.identity import ALL_ROLES, Caller
from reinet.agents.service.jobs import Given, Job, Jobs
from reinet.agents.service.registry import Registry
from reinet.core import toml_file
from reinet.core.disk import durable
from reinet.core.errors import ModelError, ServiceError

SHIPPED = [ROOT / "checkpoints" / name for name in ("default", "per-rtt", "small")]


def job(number: int) -> Job:
    return Job(
        id=f"{number:012x}", owner="local", name="x", note="", parent="", config_json="{}", sets_json="[]",
        state="running", attempt=1, failures=0, iteration=0, created_s=0.0, ended_s=0.0, wall_s=0.0, model="",
        problem="", code_version="1",
    )  # fmt: skip


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with closing(Database(tmp_path)) as database:
        yield Registry(tmp_path, database)


@pytest.fixture
def models(registry: Registry) -> list[str]:
    return [
        registry.add_of_job(job(number), folder, load_artifact(folder).manifest_sha256)
        for number, folder in enumerate(SHIPPED)
    ]


def promote(registry: Registry, model: str, name: str = "production") -> None:
    registry.promote(model, name, "me", "because", False, "well")


def test_a_name_points_and_previous_follows(registry: Registry, models: list[str]) -> None:
    assert registry.pointer("production").model == ""
    promote(registry, models[0])
    assert registry.pointer("previous").model == ""
    promote(registry, models[1])
    assert registry.pointer("production").model == models[1]
    assert registry.find("previous").sha256 == models[0]
    assert registry.find("production").pointers == ("production",)
    assert registry.pointer("production").schema_hash == registry.find(models[1]).lineage["schema_hash"]


def test_rolling_back_twice_goes_back_twice(registry: Registry, models: list[str]) -> None:
    for model in models:
        promote(registry, model)
    assert registry.rollback("production", "me", "").model == models[1]
    assert registry.rollback("production", "me", "").model == models[0]
    with pytest.raises(ServiceError, match="nothing to go back to"):
        registry.rollback("production", "me", "")
    promote(registry, models[2])
    assert registry.rollback("production", "me", "").model == models[0]


@pytest.mark.parametrize("age_s", [float("nan"), float("inf"), -1.0, 1e12])
def test_what_is_no_age_removes_nothing_and_is_told(registry: Registry, models: list[str], age_s: float) -> None:
    with pytest.raises(ServiceError, match="are no age"):
        registry.gc(age_s, False, [])
    assert len(registry.all()) == len(models)


def test_latest_is_the_newest_also_where_the_clock_was_set_back(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = registry._database
    jobs = Jobs(tmp_path, database, Blobs(tmp_path, database), most_workers=0, code_version="test")
    with pytest.raises(ServiceError, match="there is no job yet"):  # and not that latest is no 12 digits
        jobs.get("latest")
    with pytest.raises(ServiceError, match="there is no model yet"):
        registry.find("latest")
    made = []
    for number, now_s in enumerate((2e9, 1e9, 1.5e9)):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        digest = registry.add_of_job(job(number), SHIPPED[number], load_artifact(SHIPPED[number]).manifest_sha256)
        submitted = jobs.submit(Caller("me", ALL_ROLES, Quota()), Given(f"r{number}", json.dumps(TINY))).id
        assert registry.find("latest").sha256 == digest
        assert jobs.get("latest").id == submitted
        made.append(submitted)
    assert [one.id for one in jobs.all()] == [one.id for one in jobs.latest(9)] == made


def test_hours_of_jobs_that_end_in_years_as_the_clock_was_set_back_are_not_counted(
    registry: Registry, tmp_path: Path
) -> None:
    jobs = Jobs(tmp_path, registry._database, Blobs(tmp_path, registry._database), most_workers=0, code_version="test")
    job, now_s = jobs.submit(Caller("me", ALL_ROLES, Quota()), Given("r", json.dumps(TINY))).id, time.time()
    for ended_s, is_over in ((now_s + 60, True), (now_s + 1e8, False)):
        jobs.set(job, wall_s=1e9, ended_s=ended_s)
        assert bool(jobs.over_time("me", Quota())) is is_over


def test_the_history_tells_who_when_why(registry: Registry, models: list[str]) -> None:
    registry.promote(models[0], "canary", "alice", "week 14", True, "worse")
    (line,) = registry.history("canary")
    assert (line.kind, line.model, line.who, line.why, line.forced, line.gate) == (
        "promote", models[0], "alice", "week 14", True, "worse",
    )  # fmt: skip
    assert line.when_s > 1e9
    assert registry.history("production") == []


@pytest.mark.parametrize("name", ["previous", "latest", "abc", "../x", "", "a b"])
def test_some_names_cannot_be_pointed(registry: Registry, models: list[str], name: str) -> None:
    with pytest.raises(ServiceError):
        promote(registry, models[0], name)


def test_a_model_is_found_by_the_beginning_of_its_digest(registry: Registry, models: list[str]) -> None:
    assert registry.find(models[0][:6]).sha256 == models[0]
    assert registry.find("latest").sha256 == models[-1]
    for wanted in ("0" * 64, "nowhere", "", "../x"):
        with pytest.raises(ServiceError, match=r"there is no model|is no name"):
            registry.find(wanted)
    with pytest.raises(ServiceError, match="of a sha256 give 6 digits or more"):
        registry.find(models[0][:5])


def test_what_is_no_model_is_not_taken_in(registry: Registry, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(SHIPPED[0], damaged)
    digest = load_artifact(damaged).manifest_sha256
    (damaged / "policy.onnx").write_bytes(b"x")
    with pytest.raises(ModelError):
        registry.add_of_job(job(1), damaged, digest)
    assert registry.all() == []


def test_a_model_that_was_damaged_in_its_place_is_not_sent(registry: Registry, models: list[str]) -> None:
    (registry.place(models[0]) / "README.md").write_text("x")
    with pytest.raises(ModelError):
        registry.content(models[0])


def test_gc_keeps_what_a_name_pointed_to_and_what_a_daemon_runs(registry: Registry, models: list[str]) -> None:
    promote(registry, models[0])
    assert registry.gc(0.0, True, [models[1]])[0] == [models[2]]
    assert registry.place(models[2]).is_dir()
    assert registry.gc(3600.0, False, [])[0] == []
    removed, freed = registry.gc(0.0, False, [models[1]])
    assert removed == [models[2]]
    assert freed > 1000
    assert not registry.place(models[2]).exists()
    assert [model.sha256 for model in registry.all()] == models[:2]


def test_a_model_that_was_removed_meanwhile_cannot_be_pointed_to(registry: Registry, models: list[str]) -> None:
    promote(registry, models[0])
    registry.gc(0.0, False, [])
    with pytest.raises(ServiceError, match="there is no model"):
        promote(registry, models[1])
    assert registry.pointer("production").model == models[0]
    assert len(registry.history()) == 1


def test_a_lost_database_takes_no_model_along(
    registry: Registry, models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    warn = SimpleNamespace(warning=lambda event, **fields: told.append({"event": event, **fields}))
    monkeypatch.setattr(registry_module, "log", warn)
    registry.tell_of_unknown()
    assert told == []
    for path in tmp_path.glob("trainer.sqlite*"):
        path.unlink()
    with closing(Database(tmp_path)) as database:
        anew = Registry(tmp_path, database)
        anew.tell_of_unknown()
        anew.add_of_job(job(9), SHIPPED[0], models[0])  # from then on the database is not empty
        anew.tell_of_unknown()
        assert [model.sha256 for model in anew.all()] == [models[0]]
    assert [line["count"] for line in told] == [3, 2]
    assert "left as they are; put the database back" in told[0]["event"]
    assert all(anew.place(model).is_dir() for model in models)


def test_what_gc_was_killed_over_is_cleared_away(
    registry: Registry, models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            registry.gc(0.0, False, models[1:])
    assert not registry.place(models[0]).exists()
    durable.clear_staged(tmp_path / "staged")
    assert list((tmp_path / "staged").iterdir()) == []
    assert registry.gc(0.0, False, models[1:]) == ([], 0)


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    database = Database(tmp_path)
    with database.change() as run:
        run("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ServiceError, match="of version 99") as told:
        Database(tmp_path)
    still_open = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not [path for path in still_open if path.is_relative_to(tmp_path)], told.value


def test_a_change_holds_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    database = Database(tmp_path)

    def insert(run: Any) -> None:
        run("INSERT INTO uploads VALUES ('a', 'b', 1)")
        run("INSERT INTO nowhere VALUES (1)")

    with pytest.raises(ServiceError, match="no such table"), database.change() as run:
        insert(run)
    assert database.rows("SELECT * FROM uploads") == []
    database.close()


def row(agent: str, throughput: float, delay: float, seed: int = 1) -> dict[str, Any]:
    return {
        "scenario": "cellular", "cc": "cubic", "point": {}, "flows": 1, "beside": None, "role": "run", "agent": agent,
        "trace_sha256": "x", "seed": seed, "start_offset_ms": 0, "throughput_mbps": throughput, "qdelay_mean_ms": delay,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("throughput", "delay", "ok"),
    [(10.0, 20.0, True), (10.5, 15.0, True), (9.9, 20.5, True), (9.5, 20.0, False), (10.0, 22.0, False)],
)
def test_the_gate_lets_through_what_is_no_worse(throughput: float, delay: float, ok: bool) -> None:
    rows = [row("new", throughput, delay, seed) for seed in (1, 2)] + [row("old", 10.0, 20.0, seed) for seed in (1, 2)]
    verdict = judged(rows, "new", "old", Gate())
    assert verdict.ok is ok
    assert verdict.runs == 2
    assert ("at least" in verdict.words) is not ok


def test_the_gate_compares_pairs_alone_and_refuses_where_there_are_none() -> None:
    assert not judged([row("new", 1.0, 1.0, 1), row("old", 1.0, 1.0, 2)], "new", "old", Gate()).ok
    assert not judged([], "new", "old", Gate()).ok
    # A run in which nothing comes through has no figures, and no row: what is left would look as good as ever.
    starved = judged([row("new", 1.0, 1.0, 1), row("old", 1.0, 1.0, 1), row("old", 1.0, 1.0, 2)], "new", "old", Gate())
    assert not starved.ok
    assert "in 1 of 2 runs nothing came through" in starved.words
    assert judged([row("old", 1.0, 1.0, 1), row("new", 1.0, 1.0, 1), row("new", 1.0, 1.0, 2)], "new", "old", Gate()).ok
    idle = judged([row("new", 1.0, 0.0), row("old", 1.0, 0.0)], "new", "old", Gate())
    assert idle.ok, "two models without any queue are alike"


def test_congestion_controls_that_a_suite_runs_plain_alone_are_no_lost_runs_of_a_first_model(tmp_path: Path) -> None:
    """It was told that nothing came through under it in those, and had no ratios among its figures."""
    gate = toml_file.loads(small_gate(tmp_path))["trainer"]["gate"]
    found = measure({"gate": gate, "candidate": str(SHIPPED[0]), "present": "", "store": str(tmp_path / "runs")})
    kept = r"[\d.]+ % of the throughput and [\d.]+ % of the queueing delay of no cap, 1 runs"
    assert re.fullmatch(f"the name points to nothing yet; {kept}", found.words)
    assert found.ok
    assert {"suite/throughput_ratio", "suite/qdelay_ratio"} <= found.candidate.keys()


def test_a_models_figures_of_the_suite_are_its_means_and_its_ratios_to_no_cap() -> None:
    more = {"utilization": 0.5, "qdelay_p95_ms": 40.0}
    rows = [row("new", 9.0, 10.0, 1) | more, row("new", 9.0, 20.0, 2) | more, row("none", 10.0, 40.0, 1) | more,
            row("none", 10.0, 80.0, 2) | more]  # fmt: skip
    assert suite_figures(rows, "new", "none", Gate()) == pytest.approx({
        "suite/throughput_mbps": 9.0, "suite/utilization": 0.5, "suite/qdelay_mean_ms": 15.0,
        "suite/qdelay_p95_ms": 40.0, "suite/runs": 2, "suite/throughput_ratio": 0.9, "suite/qdelay_ratio": 0.25,
    })  # fmt: skip
    assert suite_figures(rows, "old", "none", Gate()) == {}
    assert "suite/qdelay_ratio" not in suite_figures(rows[:2], "new", "none", Gate())


def test_what_a_gate_measured_stays_with_the_model_and_a_later_one_replaces_it(
    registry: Registry, models: list[str]
) -> None:
    trained = registry.find(models[0]).lineage["metrics"]
    assert trained
    registry.measured(models[0], {"suite/runs": 3.0, "suite/utilization": 0.9})
    registry.measured(models[0], {"suite/runs": 4.0})
    assert registry.find(models[0]).lineage["metrics"] == trained | {"suite/runs": 4.0}
    registry.measured(models[0], {})
    registry.measured("0" * 64, {"suite/runs": 4.0})
    assert registry.find(models[0]).lineage["metrics"]["suite/runs"] == 4.0
    assert "suite/runs" not in registry.find(models[1]).lineage["metrics"]
    registry.add_of_job(job(9), registry.place(models[0]), models[0])
    assert registry.find(models[0]).lineage["metrics"]["suite/runs"] == 4.0, "the same again changes nothing"


def test_a_model_that_slows_short_transfers_is_refused_however_well_long_ones_do() -> None:
    well = Verdict(True, "99 % of the throughput", 0.99, 0.9, 12)
    harmful = Harm(False, 144, 1, ("bbr, lte, 20 ms, 10000 bytes fresh: 1.40 / 1.90",), 1.5, "1.25 times is the most")
    refused = with_harm(well, harmful)
    assert not refused.ok
    assert (refused.throughput, refused.delay, refused.runs) == (0.99, 0.9, 12)
    assert refused.words.endswith("1.25 times is the most: bbr, lte, 20 ms, 10000 bytes fresh: 1.40 / 1.90")
    fine = Harm(True, 144, 0, (), 1.0)
    assert with_harm(well, fine).ok
    assert not with_harm(Verdict(False, "slow"), fine).ok
