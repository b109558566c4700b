"""A job's file that a power cut left damaged, or that says what no message holds: all jobs are still listed."""

import asyncio
import hashlib
import inspect
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from helpers.trainer import TINY
from reinet.agents.learn.config import MOST_COUNT, TrainConfig
from reinet.agents.service import files
from reinet.agents.service.blobs import Blobs
from reinet.agents.service.config import Quota, TrainerConfig
from reinet.agents.service.database import Database
from reinet.agents.service.fleet import Fleet, Flows
from reinet.agents.service.identity import ALL_ROLES, Caller, Callers
from reinet.agents.service.jobs import Given, GivenSet, Jobs
from reinet.agents.service.jobs_servicer import MOST_SHOWN, JobsServicer
from reinet.agents.service.registry import Registry
from reinet.agents.service.running.progress import ORDER_FILE, STOP_FILE, Progress, Result
from reinet.agents.service.running.supervisor import Supervisor
from reinet.core.errors import ConfigError, ServiceError
from reinet.envs.trace import Trace, load_traces
from reinet.proto import trainer_pb2 as pb

DAMAGED = [b"", bytes(200), b'{"iteration": 1', b"\xff\xfe", b"[1]", b'{"iteration": "many"}', b'{"ok": 7}']
ME = Caller("me", ALL_ROLES, Quota())


def listed(folder: Path, database: Database, jobs: Jobs) -> list[pb.Job]:
    callers = Callers(TrainerConfig())
    servicer = JobsServicer(jobs, Blobs(folder, database), Flows(folder), callers)
    return list(asyncio.run(inspect.unwrap(JobsServicer.List)(servicer, pb.ListRequest(), ME)).jobs)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path)) as opened:
        yield opened


@pytest.fixture
def jobs(tmp_path: Path, database: Database) -> Jobs:
    return Jobs(tmp_path, database, Blobs(tmp_path, database), most_workers=2, code_version="1")


@pytest.mark.parametrize("data", DAMAGED, ids=repr)
def test_a_damaged_file_of_a_job_is_none(tmp_path: Path, database: Database, jobs: Jobs, data: bytes) -> None:
    job = jobs.submit(ME, Given("r", json.dumps(TINY))).id
    folder = jobs.prepare(jobs.get(job))
    (folder / Progress.FILE).write_bytes(data)
    (folder / Result.FILE).write_bytes(data)
    assert Progress.read(folder) == Progress()
    assert Result.read(folder) is None
    (found,) = listed(tmp_path, database, jobs)
    assert (found.job, found.progress.iteration) == (job, 0)


def test_what_a_later_release_writes_besides_is_left_out(tmp_path: Path) -> None:
    files.write_json(tmp_path / Progress.FILE, {"iteration": 3, "mood": "good"})
    assert Progress.read(tmp_path).iteration == 3


@pytest.mark.parametrize("key", ["run.iterations", "run.updates", "evolution.generations", "hindsight.iterations",
                                 "ddpg.cold_start_iterations", "ddpg.normaliser_iterations"])  # fmt: skip
def test_a_job_without_end_is_refused(jobs: Jobs, key: str) -> None:
    section, name = key.split(".")
    # iterations to learn in, of which the statistics are no part
    learning = {"evolution.generations": 5, "ddpg.normaliser_iterations": 1}.get(key, 0)
    TrainConfig.model_validate({"run": {"iterations": MOST_COUNT}, section: {name: MOST_COUNT - learning}})
    with pytest.raises(ConfigError, match=name):
        jobs.submit(ME, Given("r", json.dumps({section: {name: 5_000_000_000}})))


def test_a_job_that_was_accepted_before_there_was_a_bound_is_listed_with_the_others(
    tmp_path: Path, database: Database, jobs: Jobs
) -> None:
    first, second = (jobs.submit(ME, Given(request, json.dumps(TINY))) for request in ("a", "b"))
    config = {**first.config, "run": {**first.config["run"], "iterations": 5_000_000_000}}
    jobs.set(first.id, config=json.dumps(config))
    jobs.place(second.id).mkdir()
    Progress(iteration=-1, env_steps=2**70).write(jobs.place(second.id))
    found = {job.job: job.progress for job in listed(tmp_path, database, jobs)}
    assert found[first.id].iterations == MOST_SHOWN
    assert (found[second.id].iteration, found[second.id].env_steps) == (0, 2**64 - 1)


def test_a_damaged_database_is_named_with_what_to_do(tmp_path: Path, database: Database, jobs: Jobs) -> None:
    for number in range(20):
        jobs.submit(ME, Given(f"r{number}", json.dumps(TINY)))
    path = database.path
    database.close()
    with path.open("r+b") as file:  # all but its header and the names of its tables
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    damaged = Database(tmp_path)
    found = Jobs(tmp_path, damaged, Blobs(tmp_path, damaged), most_workers=2, code_version="1")
    calls = [lambda: found.latest(1), lambda: found.set("x", note=""), lambda: Fleet(damaged)]
    for call in calls:
        with pytest.raises(ServiceError, match=rf"{path}: database disk image is malformed; end the service, then"):
            call()
    damaged.close()


def test_what_stands_in_the_way_of_one_job_is_said_once_whatever_becomes_of_the_others(
    tmp_path: Path, database: Database, jobs: Jobs
) -> None:
    """It was said at every look, three times a second, where another job had been looked after since."""
    stopped, waiting = (jobs.submit(ME, Given(request, json.dumps(TINY))).id for request in ("a", "b"))
    jobs.move(stopped, ("waiting",), "running", attempt=1)
    jobs.prepare(jobs.get(waiting))
    runner = SimpleNamespace(state=lambda *_: "running", start=lambda *_: None)
    supervisor = Supervisor(jobs, Registry(tmp_path, database), runner, 2, lambda _owner: Quota())
    jobs.stop(jobs.get(stopped))
    with capture_logs() as lines:
        for _ in range(3):
            supervisor.step()
        jobs.prepare(jobs.get(stopped))
        supervisor.step()
        (jobs.place(stopped) / STOP_FILE).unlink()
        (jobs.place(stopped) / "traces").rmdir()
        (jobs.place(stopped) / ORDER_FILE).unlink()
        jobs.place(stopped).rmdir()
        supervisor.step()
    told = [line["job"] for line in lines if line["event"] == "a job could not be looked after"]
    assert told == [stopped, stopped], "once, and once again after it had gone well"


def test_a_trace_that_was_removed_from_the_store_is_told_to_whoever_watches_the_job_and_goes_on_once_it_is_back(
    tmp_path: Path, database: Database, jobs: Jobs
) -> None:
    data = b"1\n5\n"
    sha256 = hashlib.sha256(data).hexdigest()
    place = Blobs(tmp_path, database).path(sha256)
    place.parent.mkdir()
    place.write_bytes(data)
    job = jobs.submit(ME, Given("r", json.dumps(TINY), (GivenSet("own", (("a.trace", sha256),)),))).id
    place.unlink()
    runner = SimpleNamespace(state=lambda *_: "running", start=lambda *_: None)
    supervisor = Supervisor(jobs, Registry(tmp_path, database), runner, 2, lambda _owner: Quota())
    supervisor.step()
    assert jobs.get(job).state == "waiting"
    assert jobs.get(job).problem.startswith(f"trace own/a.trace ({sha256[:12]}) is not in the service's store any more")
    place.write_bytes(data)
    supervisor.step()
    assert (jobs.get(job).state, jobs.get(job).problem) == ("running", "")


AWAY = "no Ray answers at http://head:8265"


def away(*_: object) -> str:
    raise ServiceError(AWAY)


def test_a_ray_that_is_away_is_told_to_whoever_watches_a_job_until_it_is_back(
    tmp_path: Path, database: Database, jobs: Jobs
) -> None:
    """The job was shown as running, for ever at its first iteration, and the service's log alone said why."""
    job = jobs.submit(ME, Given("r", json.dumps(TINY))).id

    runner = SimpleNamespace(state=away, start=away)
    supervisor = Supervisor(jobs, Registry(tmp_path, database), runner, 2, lambda _owner: Quota())
    for _ in range(2):
        supervisor.step()
        assert (jobs.get(job).state, jobs.get(job).problem) == ("running", AWAY)
    runner.state = lambda *_: "running"
    supervisor.step()
    assert (jobs.get(job).state, jobs.get(job).problem) == ("running", "")
    runner.state = away
    supervisor.step()
    jobs.stop(jobs.get(job), "it was stopped: hours")
    supervisor.step()
    assert (jobs.get(job).state, jobs.get(job).problem) == ("stopping", "it was stopped: hours")
    runner.state = lambda *_: "gone"
    supervisor.step()
    assert (jobs.get(job).state, jobs.get(job).problem) == ("stopped", "it was stopped: hours")


def test_a_ray_that_is_away_is_told_to_whoever_asked_a_job_to_stop_until_it_has(
    tmp_path: Path, database: Database, jobs: Jobs
) -> None:
    """It was shown as stopping, for as long as Ray was away, and nothing else."""
    job = jobs.submit(ME, Given("r", json.dumps(TINY))).id

    runner = SimpleNamespace(state=lambda *_: "running", start=lambda *_: None, kill=lambda *_: None)
    supervisor = Supervisor(jobs, Registry(tmp_path, database), runner, 2, lambda _owner: Quota())
    supervisor.step()
    jobs.stop(jobs.get(job))
    runner.state = away
    supervisor.step()
    assert (jobs.get(job).state, jobs.get(job).problem) == ("stopping", AWAY)
    runner.state = lambda *_: "running"
    supervisor.step()
    assert (jobs.get(job).state, jobs.get(job).problem) == ("stopping", "")
    runner.state = away
    supervisor.step()
    runner.state = lambda *_: "gone"
    supervisor.step()
    assert (jobs.get(job).state, jobs.get(job).problem) == ("stopped", "")


def test_a_trace_that_is_named_as_a_document_is_one_of_the_folder_that_a_job_reads(
    tmp_path: Path, database: Database, jobs: Jobs
) -> None:
    """The worker reads a set as a folder, which gives no documents: such a recording was not forbidden, either."""
    traces = {name: Trace.constant(mbps, 6) for mbps, name in enumerate(("tram.json", "bus.trace"), 1)}
    blobs = Blobs(tmp_path, database)
    for trace in traces.values():
        blobs.claim(ME, trace.sha256, trace.save(tmp_path / "staged" / trace.sha256))
    given = GivenSet("mine", tuple((name, trace.sha256) for name, trace in traces.items()), role="forbid")
    folder = jobs.prepare(jobs.submit(ME, Given("r", json.dumps(TINY), (given,))))
    assert {trace.sha256 for trace in load_traces([folder / "traces" / "mine"])} == {
        trace.sha256 for trace in traces.values()
    }
