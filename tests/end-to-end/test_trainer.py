"""The training service as its users meet it: submitted, watched, promoted, killed at random, and nothing is lost."""

import os
import random
import re
import shutil
import signal
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from helpers.kills import disturbed, free_port, left_over, long, plain_training, rays_of
from helpers.trainer import TINY, Service, small_gate
from helpers.waiting import wait_for
from reinet.agents.service.client import Client
from reinet.core.errors import ReinetError, ServiceError
from reinet.daemon.registry import Address, Follower
from reinet.envs.trace.model import generate

LONG = long(6)
"""Long enough to be killed a few times."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path, more=small_gate(tmp_path, harm_repeat=1))
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a service that has ended, and the two models that it made; whoever goes on with it copies it."""
    made = Service(tmp_path_factory.mktemp("two"))
    made.start()
    try:
        with made.client() as client:
            jobs = [client.submit({**TINY, "seed": seed})["job"] for seed in (1, 2)]
            models = [ended(client, job)["model"] for job in jobs]
        made.end()
    finally:
        made.close()
    return made.folder, models


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model that ``LONG`` gives without a service."""
    return plain_training(tmp_path_factory.mktemp("plain"), LONG)


def recordings(folder: Path, count: int = 3, first: int = 1) -> Path:
    folder.mkdir()
    for seed in range(first, first + count):
        generate("lte-driving", 6, seed).save(folder / f"{seed}.trace")
    return folder


def ended(client: Client, job: str) -> dict[str, Any]:
    return list(client.watch(job))[-1][0]


def test_recordings_go_in_and_a_model_that_a_name_points_to_comes_out(service: Service, tmp_path: Path) -> None:
    with service.client() as client:
        traces = recordings(tmp_path / "week14")
        job = client.submit(TINY, [traces], note="week 14", licence="CC BY 4.0")
        seen = list(client.watch(job["job"], log=True))
        assert seen[-1][0]["state"] == "done"
        assert seen[-1][0]["iteration"] == seen[-1][0]["iterations"] == 6
        assert "eval/score" in seen[-1][0]["scalars"]
        assert "iteration 6/6" in "".join(lines for _, lines in seen)
        model = client.model(seen[-1][0]["model"])
        assert [(use["name"].partition("/")[0], use["licence"]) for use in model["traces"]] == [
            ("week14", "CC BY 4.0")
        ] * 3
        assert (model["job"], model["seed"]) == (job["job"], 1)

        done = client.promote(model["sha256"][:12], "production", why="the first")
        assert (done["who"], done["why"], done["before"]) == ("local", "the first", "")
        assert re.search(r"1 runs; harm: \d+ of 72 cells above a limit", done["gate"]), "the gate measured it"
        assert client.pull("production", tmp_path / "pulled").name == model["sha256"]
        again = ended(client, client.submit(TINY, [traces])["job"])
        assert again["model"] == model["sha256"], "the same configuration and traces are the same model"

        other = ended(client, client.submit({**TINY, "seed": 2}, [traces])["job"])["model"]
        client.promote(other, "production", force=True)
        assert client.model("previous")["sha256"] == model["sha256"]
        assert client.rollback("production", "worse")["model"] == model["sha256"]
        assert [line["kind"] for line in client.history("production")] == ["promote", "promote", "rollback"]


def test_a_daemon_follows_a_promotion_and_a_roll_back_and_is_in_the_fleet(
    tmp_path: Path, two_models: tuple[Path, list[str]]
) -> None:
    folder, (first, second) = two_models
    service = Service(tmp_path, more=small_gate(tmp_path))
    shutil.copytree(folder, service.folder)
    service.start()
    swapped: list[str] = []
    address = Address(f"unix:{service.socket}")
    follower = Follower(
        address, "production", "host-1", tmp_path / "models", lambda _folder, sha256: swapped.append(sha256), "0.1.0"
    )
    follower.start()
    try:
        with service.client() as client:
            client.promote(first, "production")
            wait_for(lambda: swapped == [first])
            service.kill()
            service.start()
            client.promote(second, "production", force=True)
            wait_for(lambda: swapped == [first, second])
            client.rollback("production")
            wait_for(lambda: swapped == [first, second, first])
            (daemon,) = wait_for(lambda: [one for one in client.fleet() if one["model"] == first])
            assert (daemon["daemon"], daemon["name"], daemon["owner"]) == ("host-1", "production", "local")
            assert daemon["seen_s"] < 60
            assert client.gc(0.0)["removed"] == [], "both were in production, and one is"
    finally:
        follower.close()
        service.close()


def test_one_tensorboard_shows_every_job(two_models: tuple[Path, list[str]]) -> None:
    """What ``tensorboard --logdir runs/trainer/jobs`` reads."""
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    jobs = two_models[0] / "jobs"
    read = EventMultiplexer().AddRunsFromDirectory(str(jobs)).Reload()
    assert sorted(read.Runs()) == sorted(f"{job.name}/run" for job in jobs.iterdir())
    for run in read.Runs():
        assert [event.step for event in read.Tensors(run, "eval/score")] == [3, 6]


def test_a_model_that_is_worse_is_not_promoted_unless_forced_and_that_is_on_record(
    tmp_path: Path, two_models: tuple[Path, list[str]]
) -> None:
    folder, models = two_models
    service = Service(tmp_path, more=small_gate(tmp_path, "least_throughput = 1.5\n"))
    shutil.copytree(folder, service.folder)
    service.start()
    try:
        with service.client() as client:
            client.promote(models[0], "production")
            with pytest.raises(ServiceError, match=r"not promoted.*at least 150 %"):
                client.promote(models[1], "production")
            assert client.model("production")["sha256"] == models[0]
            done = client.promote(models[1], "production", force=True)
            assert done["forced"]
            assert "at least 150 %" in done["gate"]
    finally:
        service.close()


def test_a_model_cannot_be_judged_on_what_it_learned_from(tmp_path: Path) -> None:
    held_out = recordings(tmp_path / "held-out")
    service = Service(tmp_path, more=small_gate(tmp_path, f'traces = ["{held_out}"]\n'))
    service.start()
    try:
        with service.client() as client:
            model = ended(client, client.submit(TINY, [held_out])["job"])["model"]
            with pytest.raises(ServiceError, match="which the model was trained on"):
                client.promote(model, "production")
    finally:
        service.close()


def test_a_job_that_is_stopped_goes_on_where_it_was(service: Service) -> None:
    config = {**TINY, "run": {**TINY["run"], "iterations": 3000, "checkpoint_every": 500, "evaluate_every": 3000}}
    with service.client() as client:
        job = client.submit(config)["job"]
        wait_for(lambda: client.job(job)["iteration"] > 5)
        client.stop(job)
        stopped = ended(client, job)
        assert stopped["state"] == "stopped"
        client.resume(job)
        wait_for(lambda: client.job(job)["attempt"] == 2 and client.job(job)["iteration"] > stopped["iteration"])
        client.stop(job)
        assert ended(client, job)["state"] == "stopped"


def test_whatever_is_killed_the_model_is_that_of_an_undisturbed_training(tmp_path: Path, undisturbed: str) -> None:
    """kill -9 of service and worker at random moments, then the same bytes as without a service."""
    service = Service(tmp_path)
    service.start()
    try:
        found, kills = disturbed(service, LONG, 6, ["service", "worker"], random.Random(1))
        assert kills
        assert found["state"] == "done", found
        service.end()
        assert left_over(service, found) == []
    finally:
        service.close()
    assert found["model"] == undisturbed


def test_what_was_accepted_is_there_after_a_kill_and_once(tmp_path: Path) -> None:
    service = Service(tmp_path, idle=True, more="[trainer.quota]\nwaiting_jobs = 1000\n")
    service.start()
    accepted: list[str] = []
    rng = random.Random(7)
    try:
        for _ in range(4):
            over = threading.Event()

            def send() -> None:
                with suppress(ReinetError), service.client() as client:
                    while not over.is_set():  # noqa: B023
                        accepted.append(client.submit(TINY)["job"])

            sender = threading.Thread(target=send)
            sender.start()
            time.sleep(rng.uniform(0.1, 1.0))
            service.kill()
            over.set()
            service.start()
            sender.join()
        with service.client() as client:
            listed = [job["job"] for job in client.jobs()]
        assert len(accepted) > 4
        assert set(accepted) <= set(listed)
        assert len(set(listed)) == len(listed) <= len(accepted) + 4
    finally:
        service.close()


def assert_closed(port: int, token: Path) -> None:
    """The job port of Ray is on loopback alone, and answers who shows the service's token."""
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    listening = [line.split()[1] for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text()
                 .splitlines()[1:] if line.split()[3] == "0A"]  # fmt: skip
    assert [address for address in listening if int(address.rpartition(":")[2], 16) == port] == [f"0100007F:{port:04X}"]
    jobs = f"http://127.0.0.1:{port}/api/jobs/"
    for shown in ({}, {"Authorization": "Bearer x"}):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(jobs, headers=shown), timeout=60)
        with refused.value:
            assert refused.value.code in (401, 403)
    shown = {"Authorization": f"Bearer {token.read_text()}"}
    with urllib.request.urlopen(urllib.request.Request(jobs, headers=shown), timeout=60) as answer:
        assert answer.status == 200


def sessions_of(pids: list[int]) -> set[int]:
    """The sessions of those of some processes that still live: Ray's helpers come and go between a list and its use."""
    found = set()
    for pid in pids:
        with suppress(ProcessLookupError):
            found.add(os.getsid(pid))
    return found


def members_of(sessions: set[int]) -> list[int]:
    """The processes of some sessions, also those that have written their name over their environment's mark."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if sessions & sessions_of([pid])]


def test_under_ray_a_job_outlives_service_and_head(tmp_path: Path, undisturbed: str) -> None:
    """kill -9 of the service, then of Ray's head: the job ends with the model of an undisturbed training."""
    port = free_port()
    service = Service(tmp_path, runner="ray", more=f"ray_port = {port}\n")
    service.start()
    try:
        with service.client() as client:
            job = client.submit(LONG)["job"]
            wait_for(lambda: client.job(job)["iteration"] > 3, 200)
        assert_closed(port, service.folder / "ray" / "token")
        service.kill()
        assert rays_of(service), "the head outlives the service"
        service.start()
        with service.client() as client:
            found = wait_for(lambda: (now := client.job(job))["iteration"] > 8 and now)
            assert found["attempt"] == 1, "the worker went on, it was not started again"
            first_head = sessions_of(rays_of(service))
            for pid in rays_of(service):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_for(lambda: client.job(job)["attempt"] == 2)
            # Its agents ask for it in vain and keep a core busy for a minute; who starts the next head ends them.
            wait_for(lambda: not members_of(first_head), 20)
            found = ended(client, job)
        assert found["state"] == "done", found
        sessions = sessions_of(rays_of(service))
        service.end()
        wait_for(lambda: not rays_of(service) and not members_of(sessions), 20)
    finally:
        service.close()
    assert found["model"] == undisturbed
