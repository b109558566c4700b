"""What the supervisor makes of every end that a job's process can come to."""

import errno
import json
import os
import shutil
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.places import ROOT
from helpers.trainer import TINY
from reinet.agents.model.artifact import load_artifact
from reinet.agents.service.blobs import Blobs
from reinet.agents.service.config import Quota
from reinet.agents.service.database import Database
from reinet.agents.service.identity import ALL_ROLES, Caller
from reinet.agents.service.jobs import Given, Job, Jobs
from reinet.agents.service.registry import Registry
from reinet.agents.service.running import supervisor
from reinet.agents.service.running.progress import STOP_FILE, Progress, Result
from reinet.agents.service.running.runners import State
from reinet.agents.service.running.supervisor import Supervisor
from reinet.core.errors import ServiceError

ME = Caller("me", ALL_ROLES, Quota(waiting_jobs=100))


class Scripted:
    """A runner whose workers end as a test says."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int]] = []
        self.ends: dict[str, State] = {}
        self.killed: list[str] = []
        self.away = False

    def prepare(self) -> None:
        if self.away:
            raise ServiceError("Ray does not answer")

    def start(self, job: str, attempt: int, folder: Path) -> None:
        self.started.append((job, attempt))

    def state(self, job: str, attempt: int) -> State:
        if self.away:
            raise ServiceError("Ray does not answer")
        return self.ends.get(job, "running")

    def kill(self, job: str, attempt: int, folder: Path) -> None:
        self.killed.append(job)

    def close(self) -> None:
        pass


class Shop:
    """All that a supervisor looks after; ``open`` again is a service that was killed and started."""

    def __init__(self, folder: Path, at_once: int = 1) -> None:
        self.folder, self.at_once = folder, at_once
        self.runner = Scripted()
        self.open()

    def open(self) -> None:
        self.database = Database(self.folder)
        weakref.finalize(self, self.database.close)  # with the shop, whose tests open it once or often
        blobs = Blobs(self.folder, self.database)
        self.jobs = Jobs(self.folder, self.database, blobs, most_workers=2, code_version="1")
        self.registry = Registry(self.folder, self.database)
        self.supervisor = Supervisor(self.jobs, self.registry, self.runner, self.at_once, lambda _owner: ME.quota)

    def submit(self, request: str = "r") -> str:
        return self.jobs.submit(ME, Given(request, json.dumps(TINY))).id

    def step(self) -> None:
        self.supervisor.step()

    def job(self, job: str) -> Job:
        return self.jobs.get(job)

    def finish(self, job: str, name: str = "small") -> str:
        """Leaves what a worker leaves at its end."""
        shutil.copytree(ROOT / "checkpoints" / name, self.jobs.model_folder(job))
        digest = load_artifact(self.jobs.model_folder(job)).manifest_sha256
        Progress(iteration=6, iterations=6, wall_s=12.5).write(self.jobs.place(job))
        Result(ok=True, manifest_sha256=digest).write(self.jobs.place(job))
        self.runner.ends[job] = "gone"
        return digest


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_the_same_request_is_the_same_job(shop: Shop) -> None:
    assert shop.submit("a") == shop.submit("a") != shop.submit("b")


def test_jobs_start_in_their_order_and_no_more_than_may_run(shop: Shop) -> None:
    jobs = [shop.submit(str(number)) for number in range(3)]
    for _ in range(3):
        shop.step()
    assert shop.runner.started == [(jobs[0], 1)]
    digest = shop.finish(jobs[0])
    shop.step()
    shop.step()
    assert (shop.job(jobs[0]).state, shop.job(jobs[0]).model, shop.job(jobs[0]).wall_s) == ("done", digest, 12.5)
    assert shop.runner.started == [(jobs[0], 1), (jobs[1], 1)]


def test_a_job_that_was_resumed_waits_for_the_one_that_runs(shop: Shop) -> None:
    first = shop.submit("a")
    shop.step()
    shop.jobs.stop(shop.job(first))
    shop.step()
    assert (shop.jobs.place(first) / STOP_FILE).exists()
    shop.runner.ends[first] = "gone"
    shop.step()
    assert shop.job(first).state == "stopped"
    second = shop.submit("b")
    shop.step()
    shop.jobs.resume(ME, shop.job(first))
    shop.step()
    assert shop.job(first).state == "waiting"
    shop.finish(second)
    del shop.runner.ends[first]
    shop.step()
    shop.step()
    assert shop.job(first).state == "running"
    assert not (shop.jobs.place(first) / STOP_FILE).exists()


def test_a_job_that_waits_is_stopped_at_once(shop: Shop) -> None:
    shop.submit("a")
    job = shop.submit("b")
    shop.step()
    shop.jobs.stop(shop.job(job))
    shop.runner.ends[job] = "gone"
    shop.step()
    assert shop.job(job).state == "stopped"


def test_a_job_that_is_stopped_while_it_is_made_ready_is_not_started(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, behind = shop.submit("a"), shop.submit("b")
    prepare = Jobs.prepare

    def stopped_meanwhile(jobs: Jobs, which: Job) -> Path:
        if which.id == job:
            jobs.stop(jobs.get(job))
        return prepare(jobs, which)

    monkeypatch.setattr(Jobs, "prepare", stopped_meanwhile)
    shop.step()
    assert shop.runner.started == [(behind, 1)], "it takes no place either"
    shop.runner.ends[job] = "gone"
    shop.step()
    assert (shop.job(job).state, shop.job(job).attempt) == ("stopped", 0)


def test_a_job_whose_disk_is_full_waits_a_minute_for_each_of_many_tries_and_keeps_its_place(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now_s, time=time.time))
    job, behind = shop.submit("a"), shop.submit("b")
    shop.runner.ends[job] = "full"
    for minute in range(30):
        for _ in range(5):
            shop.step()
        assert [attempt for _, attempt in shop.runner.started] == list(range(1, minute + 2))
        assert (shop.job(job).state, shop.job(behind).state) == ("waiting", "waiting")
        now_s += supervisor.FULL_PAUSE_S
    del shop.runner.ends[job]  # there is room
    shop.step()
    assert shop.job(job).state == "running"
    shop.finish(job)
    shop.step()
    shop.step()
    assert (shop.job(job).state, shop.job(behind).state) == ("done", "running")


def test_a_disk_that_stays_full_for_an_hour_is_no_longer_waited_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now_s, time=time.time))
    job = shop.submit()
    shop.runner.ends[job] = "full"
    for _ in range(200):
        shop.step()
        now_s += supervisor.FULL_PAUSE_S / 2
    assert (shop.job(job).state, shop.job(job).attempt) == ("failed", supervisor.MOST_FAILURES)
    shop.jobs.resume(ME, shop.job(job))
    shop.step()
    shop.step()
    assert shop.job(job).state == "waiting"
    shop.jobs.stop(shop.job(job))
    shop.step()
    shop.jobs.resume(ME, shop.job(job))
    shop.step()
    assert shop.job(job).state == "running", "who resumes it waits for no pause"


def test_a_job_whose_disk_is_full_is_not_tried_before_there_is_room(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, free_bytes = 1000.0, 10
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now_s, time=time.time))
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=free_bytes))
    shop.jobs._min_free_bytes = 10
    job, behind = shop.submit("a"), shop.submit("b")
    shop.runner.ends[job] = "full"

    def pass_minutes(count: int) -> None:
        nonlocal now_s
        for _ in range(5 * count):
            shop.step()
            now_s += supervisor.FULL_PAUSE_S / 5

    free_bytes = 0
    pass_minutes(30)
    assert shop.runner.started == [(job, 1)]
    assert (shop.job(job).state, shop.job(behind).state) == ("waiting", "waiting")
    free_bytes = 10
    pass_minutes(2)
    assert shop.runner.started[:2] == [(job, 1), (job, 2)]
    free_bytes = 0
    pass_minutes(supervisor.MOST_FAILURES)
    assert shop.job(job).state == "failed"
    assert "the service's disk took no more; make room" in shop.job(job).problem
    assert shop.runner.started[-1] == (behind, 1)
    with pytest.raises(ServiceError, match="of the service's disk are free"):
        shop.jobs.resume(ME, shop.job(job))


def test_tries_that_end_at_a_full_disk_take_an_hour_in_all_and_none_of_their_owners(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trains for ten minutes, up to the checkpoint that does not fit, on a disk with room for all else."""
    now_s, working = 1000.0, False
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now_s, time=time.time))
    monkeypatch.setattr(supervisor, "at_work", lambda _folder: working)
    job = shop.submit()
    shop.runner.ends[job] = "full"
    while shop.job(job).state != "failed":
        shop.step()
        if working := shop.job(job).state == "running":
            Progress(iteration=7, iterations=9, wall_s=700.0).write(shop.jobs.place(job))
            shop.step()
            now_s += 600.0
            shop.step()
            working = False
            shop.step()
        now_s += supervisor.FULL_PAUSE_S
        assert now_s < 3 * 3600, "whose queue stands still meanwhile"
    assert shop.job(job).wall_s == pytest.approx(700.0), "as far as training has come, however often"
    assert "the service's disk took no more; make room" in shop.job(job).problem


def test_a_worker_that_fails_three_times_in_the_same_place_is_given_up(shop: Shop) -> None:
    job = shop.submit()
    shop.runner.ends[job] = "failed"
    for _ in range(10):
        shop.step()
    assert shop.job(job).state == "failed"
    assert [attempt for _, attempt in shop.runner.started] == [1, 2, 3]


def test_a_worker_that_comes_further_each_time_is_not(shop: Shop) -> None:
    job = shop.submit()
    shop.runner.ends[job] = "failed"
    for iteration in range(1, 10):
        shop.step()
        Progress(iteration=iteration, iterations=100).write(shop.jobs.place(job))
        shop.step()
    assert shop.job(job).state == "waiting"
    assert shop.job(job).attempt == 9


@pytest.mark.parametrize("end", ["killed", "gone"])
def test_who_is_killed_goes_on_many_times(shop: Shop, end: State) -> None:
    job = shop.submit()
    shop.runner.ends[job] = end
    for _ in range(40):
        shop.step()
    assert shop.job(job).state in ("waiting", "running")
    assert shop.job(job).attempt == 20


def test_what_would_fail_again_fails_once_with_its_reason(shop: Shop) -> None:
    job = shop.submit()
    shop.step()
    Result(ok=False, problem="traces.sets: \x1b[31mwrong").write(shop.jobs.place(job))
    shop.runner.ends[job] = "gone"
    shop.step()
    assert (shop.job(job).state, shop.job(job).problem) == ("failed", "traces.sets: \\x1b[31mwrong")
    shop.jobs.resume(ME, shop.job(job))
    shop.jobs.stop(shop.job(job))
    shop.step()
    assert (shop.job(job).state, shop.job(job).problem) == ("stopped", "")


def test_a_disk_that_is_full_loses_no_finished_model(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    job = shop.submit()
    shop.step()
    digest = shop.finish(job)
    real = os.fsync

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for _ in range(3):
        shop.step()
    assert shop.job(job).state == "running"
    monkeypatch.setattr(os, "fsync", real)
    shop.step()
    assert shop.job(job).state == "done"
    assert shop.registry.find(digest).job == job


def test_a_service_killed_at_any_moment_of_taking_a_model_in_has_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at every call that reaches the disk, in turn."""
    digests = set()
    for moment in range(12):
        shop = Shop(tmp_path / str(moment))
        job = shop.submit()
        shop.step()
        digest = shop.finish(job)
        calls = 0

        def killed(real: Any) -> Any:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > moment:  # noqa: B023
                    raise KeyboardInterrupt  # what no handler of ours catches
                return real(*arguments, **named)

            return call

        with monkeypatch.context() as patched:
            for name in ("fsync", "replace", "rename"):
                patched.setattr(os, name, killed(getattr(os, name)))
            try:
                shop.step()
            except KeyboardInterrupt:
                digests.add(moment)
        shop.open()
        shop.registry.tell_of_unknown()
        shop.step()
        assert shop.job(job).state == "done"
        assert [model.sha256 for model in shop.registry.all()] == [digest]
        assert shop.registry.content(digest)
    assert digests == set(range(len(digests))), "killed at each of the calls"
    assert 5 < len(digests) < 12, "all of them, for the last moments come after taking it in"


def test_while_ray_is_away_jobs_are_left_as_they_are(shop: Shop) -> None:
    job = shop.submit()
    shop.step()
    shop.runner.away = True
    shop.step()
    assert shop.job(job).state == "running"
    shop.runner.away = False
    shop.runner.ends[job] = "killed"
    shop.step()
    assert shop.job(job).state == "waiting"


def test_a_service_that_was_killed_between_the_table_and_the_start_starts_it_again(shop: Shop) -> None:
    job = shop.submit()
    shop.jobs.prepare(shop.job(job))
    shop.jobs.move(job, ("waiting",), "running", attempt=1)
    shop.open()
    shop.runner.ends[job] = "gone"
    shop.step()
    del shop.runner.ends[job]
    shop.step()
    assert shop.runner.started == [(job, 2)]
    assert shop.job(job).failures == 0


def test_a_job_that_trains_beyond_its_owners_quota_is_stopped_and_says_why(shop: Shop) -> None:
    job = shop.submit()
    shop.step()
    Progress(iteration=5, wall_s=3600 * ME.quota.job_hours - 1).write(shop.jobs.place(job))
    shop.step()
    assert shop.job(job).state == "running"
    Progress(iteration=9, wall_s=3600 * ME.quota.job_hours + 60).write(shop.jobs.place(job))
    shop.step()
    shop.step()
    assert (shop.jobs.place(job) / STOP_FILE).exists()
    shop.runner.ends[job] = "gone"
    shop.step()
    assert shop.job(job).state == "stopped"
    assert "h in seven days, and 24 h are the quota" in shop.job(job).problem
    for over in (lambda: shop.submit("another"), lambda: shop.jobs.resume(ME, shop.job(job))):
        with pytest.raises(ServiceError, match="are the quota"):
            over()
    shop.jobs.set(job, created_s=0.0)
    with pytest.raises(ServiceError, match="are the quota"):
        shop.submit("it-began-long-ago-and-ended-today")
    shop.jobs.set(job, ended_s=1.0)
    assert shop.submit("a-week-later")


def test_a_job_whose_iteration_never_ends_is_stopped_once_its_owners_hours_are_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, quota_s = 1000.0, 3600 * ME.quota.job_hours
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now_s, time=time.time))
    monkeypatch.setattr(supervisor, "at_work", lambda _folder: True)
    job = shop.submit()
    shop.step()
    Progress(iteration=1, wall_s=10.0).write(shop.jobs.place(job))
    shop.step()
    now_s += quota_s / 2
    shop.step()
    assert shop.job(job).wall_s == pytest.approx(quota_s / 2 + 10)
    shop.open()  # a service that was killed goes on from what it wrote down
    shop.step()
    assert shop.job(job).state == "running"
    now_s += quota_s / 2
    shop.step()
    shop.step()
    assert shop.job(job).state == "stopping"
    monkeypatch.setattr(supervisor, "at_work", lambda _folder: False)
    shop.runner.ends[job] = "killed"
    shop.step()
    assert shop.job(job).state == "stopped"
    with pytest.raises(ServiceError, match="are the quota"):
        shop.jobs.resume(ME, shop.job(job))


def test_a_runner_that_is_not_ready_is_said_and_nothing_else(shop: Shop) -> None:
    shop.runner.away = True
    shop.supervisor.prepare()
    shop.runner.away = False
    shop.supervisor.prepare()
