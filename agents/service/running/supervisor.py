"""Looks after jobs: starts what waits, settles what ended, starts again what died. It remembers nothing of its own:
what it does follows from the table of jobs, their folders and the runner, so a service that was killed goes on."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from reinet.agents.service.config import Quota
from reinet.agents.service.files import NoRoomError
from reinet.agents.service.jobs import Job, Jobs
from reinet.agents.service.registry import Registry
from reinet.agents.service.running.progress import RUN_FOLDER, STOP_FILE, Progress, Result, log_since
from reinet.agents.service.running.runners import Runner, State, at_work
from reinet.core.errors import ReinetError, ServiceError
from reinet.core.visible import visible

STOP_GRACE_S = 120.0
"""A job that is to stop has so long for its iteration; the configurations here take up to ten seconds for one."""
MOST_FAILURES = 60
"""A job that does not come further is given up at so many points:"""
POINTS: dict[State, int] = {"failed": 20, "full": 1, "killed": 1, "gone": 0, "running": 0}
"""an error repeats itself, so three are enough; a disk gets room again, and whoever kills (out of memory, an operator)
may have a reason that passes; and that the service itself was away is not the job's fault."""
FULL_PAUSE_S = 60.0
"""A job whose disk took no more waits so long, and again while less is free than the service keeps free. Each such
minute is a point, also of a try that was in vain: whoever makes room has an hour before the job is given up."""
STOPPED = "it was stopped: "
"""So begins why a job is to stop that nobody asked to; another problem of one that stops is what it waits for."""
NO_ROOM = "the service's disk has no room, and the job waits for some: for an hour, with what it tries meanwhile"
WALL_STEP_S = 5.0
"""The table learns so often how long a job has trained."""

log = structlog.get_logger("reinet.trainer")


class Supervisor:
    """Takes one step at a time; every step may be the last."""

    def __init__(
        self, jobs: Jobs, registry: Registry, runner: Runner, at_once: int, quota_of: Callable[[str], Quota]
    ) -> None:
        self._jobs, self._registry, self._runner, self._at_once = jobs, registry, runner, at_once
        self._quota_of = quota_of
        self._stopping_since_s: dict[str, float] = {}
        self._seen: dict[str, tuple[int, float, float]] = {}
        """The attempt that is at work, when it was first seen to be, and how long its job had trained before."""
        self._paused_until_s: dict[str, float] = {}
        self._problems: dict[str, str] = {}
        """What stood in the way of each job that could not be looked after last time."""

    def prepare(self) -> None:
        """Has the runner make ready; where that fails, the first job says why."""
        try:
            self._runner.prepare()
        except (ReinetError, OSError) as error:
            log.error("what runs the jobs is not ready", problem=str(error))

    def step(self) -> None:
        """Looks at every job that has not ended."""
        jobs = self._jobs.all(("running", "stopping", "waiting"))
        # Places that are taken by those before in the list, and those that later ones hold: who was resumed may be old.
        running, later = 0, sum(job.state != "waiting" for job in jobs)
        self._problems = {job.id: self._problems[job.id] for job in jobs if job.id in self._problems}
        for job in jobs:
            later -= job.state != "waiting"
            try:
                running += self._look(job, running + later)
                self._problems.pop(job.id, None)
                if job.problem and job.id not in self._paused_until_s:
                    self._tell(job, "")
            except (ReinetError, OSError) as error:
                # A full disk or a Ray that is down: said once, however many jobs it stands in the way of, tried again.
                if str(error) not in self._problems.values():
                    log.error("a job could not be looked after", job=job.id, problem=str(error))
                self._problems[job.id] = str(error)
                why = str(error) if isinstance(error, ReinetError) else f"the service's disk says: {error.strerror}"
                self._tell(job, visible(why)[:1000])
                running += job.state != "waiting"

    def _tell(self, job: Job, problem: str) -> None:
        """Has whoever watches a job see what stands in its way, or that nothing does; why one is to stop stays."""
        if problem == job.problem or (job.state == "stopping" and _why_stopped(job)):
            return
        # It may have been moved between the first two, or have ended since.
        states = ("stopping",) if job.state == "stopping" else ("waiting", "running")
        with suppress(ReinetError):  # a database that takes nothing has been told of
            for state in states:
                self._jobs.move(job.id, (state,), state, problem=problem)

    def _look(self, job: Job, running: int) -> bool:
        """Returns whether the job takes one of the places."""
        folder = self._jobs.place(job.id)
        if job.state == "waiting":
            if running >= self._at_once:
                return False
            if time.monotonic() < self._paused_until_s.get(job.id, 0.0):
                return True
            if job.id in self._paused_until_s:  # a try would train up to the checkpoint that does not fit
                try:
                    self._jobs.check_room()
                except NoRoomError as error:
                    return self._pause(job, job.failures + POINTS["full"], str(error))
            return self._start(job)
        working = at_work(folder)
        self._note_time(job, working)
        if not working:
            if (result := Result.read(folder)) is not None:
                self._settle(job, result)
                return False
            if (state := self._runner.state(job.id, job.attempt)) != "running":
                if job.state == "stopping":
                    self._end(job, "stopped", _why_stopped(job))
                    return False
                return self._again(job, state)
        if job.state == "stopping":
            self._press(job)
        return True

    def _start(self, job: Job) -> bool:
        """Returns whether the job runs now; one that was told to stop since it was looked up does not."""
        folder = self._jobs.prepare(job)
        (folder / STOP_FILE).unlink(missing_ok=True)
        iteration = Progress.read(folder).iteration
        # First the table: a service that is killed between the two finds a job that runs and nobody at work.
        if not self._jobs.move(job.id, ("waiting",), "running", attempt=job.attempt + 1, iteration=iteration):
            return False
        self._paused_until_s.pop(job.id, None)
        self._runner.start(job.id, job.attempt + 1, folder)
        log.info("job started", job=job.id, attempt=job.attempt + 1, iteration=iteration)
        return True

    def _again(self, job: Job, state: State) -> bool:
        """Returns whether the job keeps its place."""
        folder = self._jobs.place(job.id)
        progress = Progress.read(folder)
        further = progress.iteration > job.iteration
        failures = POINTS[state] + (0 if further else job.failures)
        if state == "full":
            # What a try took in vain is not its owner's: training's own clock goes on from the newest checkpoint.
            attempt, since_s, before_s = self._seen.get(job.id, (0, 0.0, 0.0))
            if attempt == job.attempt:
                job = replace(job, wall_s=max(before_s, progress.wall_s))
                failures += 0 if further else int((time.monotonic() - since_s) / FULL_PAUSE_S)
            return self._pause(job, failures, _log_end(folder))
        if failures >= MOST_FAILURES:
            self._end(job, "failed", f"it failed {failures // POINTS['failed']} times; {_log_end(folder)}")
            return False
        self._jobs.move(job.id, ("running",), "waiting", failures=failures)
        log.warning("job ended without a result, it goes on", job=job.id, attempt=job.attempt, end=state)
        return False

    def _pause(self, job: Job, failures: int, why: str) -> bool:
        """Has a job wait for room on the disk, or gives it up; returns whether it keeps its place.

        A disk is as full for those behind it, which would go first then.
        """
        if failures >= MOST_FAILURES:
            told = f"the service's disk took no more; make room, then `reinet jobs resume {job.id}`; {why}"
            self._end(job, "failed", told)
            return False
        self._jobs.move(job.id, (job.state,), "waiting", failures=failures, wall_s=job.wall_s, problem=NO_ROOM)
        self._paused_until_s[job.id] = time.monotonic() + FULL_PAUSE_S
        log.warning("no room on the disk, job waits", job=job.id, attempt=job.attempt)
        return True

    def _settle(self, job: Job, result: Result) -> None:
        if result.ok:
            try:
                model = self._registry.add_of_job(job, self._jobs.model_folder(job.id), result.manifest_sha256)
            except ServiceError:
                raise
            except ReinetError as error:
                self._end(job, "failed", str(error))
                return
            shutil.rmtree(self._jobs.place(job.id) / RUN_FOLDER / "checkpoints", ignore_errors=True)
            self._end(job, "done", "", model=model)
        else:
            self._end(job, "failed", visible(result.problem)[:1000])

    def _end(self, job: Job, state: str, problem: str, **values: str) -> None:
        folder = self._jobs.place(job.id)
        wall_s = max(Progress.read(folder).wall_s, job.wall_s)
        self._jobs.move(job.id, (job.state,), state, problem=problem, ended_s=time.time(), wall_s=wall_s, **values)
        (folder / STOP_FILE).unlink(missing_ok=True)
        self._stopping_since_s.pop(job.id, None)
        self._seen.pop(job.id, None)
        self._paused_until_s.pop(job.id, None)
        log.info("job ended", job=job.id, state=state, problem=problem)

    def _press(self, job: Job) -> None:
        """Asks a job to end, and ends it where it does not."""
        folder = self._jobs.place(job.id)
        since_s = self._stopping_since_s.setdefault(job.id, time.monotonic())
        (folder / STOP_FILE).touch()
        if time.monotonic() - since_s > STOP_GRACE_S:
            self._runner.kill(job.id, job.attempt, folder)

    def _note_time(self, job: Job, working: bool) -> None:
        """Writes down how long a job has trained, and stops it where that is more than its owner's quota.

        An iteration that never ends writes no progress, so the time that an attempt is at work counts as well.
        """
        wall_s, now_s = Progress.read(self._jobs.place(job.id)).wall_s, time.monotonic()
        if working:
            seen = self._seen.get(job.id)
            if seen is None or seen[0] != job.attempt:
                seen = self._seen[job.id] = (job.attempt, now_s, max(wall_s, job.wall_s))
            wall_s = max(wall_s, seen[2] + now_s - seen[1])
        if wall_s > job.wall_s + WALL_STEP_S:
            self._jobs.set(job.id, wall_s=wall_s)
            if job.state == "running" and (over := self._jobs.over_time(job.owner, self._quota_of(job.owner))):
                self._jobs.stop(job, f"{STOPPED}{over}")


def _why_stopped(job: Job) -> str:
    """Returns why a job is to stop, empty where somebody asked for it."""
    return job.problem if job.problem.startswith(STOPPED) else ""


def _log_end(folder: Path) -> str:
    tail = visible(log_since(folder, 0, 2000)[0], keep="\n")[-1000:]
    return f"the log ends with:\n{tail}"
