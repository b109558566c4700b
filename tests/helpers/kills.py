"""kill -9 at random moments of one job: of the service, of its worker, of Ray's head, and what is true afterwards.

    PYTHONPATH=tests .venv/bin/python -m helpers.kills 20 --runner ray      # or --runner process, which has no head

prints what was killed when and ends with 1 where anything was lost; 20 moments take some minutes.
"""

import argparse
import json
import os
import random
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

from helpers.trainer import TINY, Service
from reinet.agents.service.jobs import OPEN
from reinet.agents.service.running.runners import worker_pid

RAYS_OWN_PORTS = range(10002, 20000)
"""Ray's workers listen there."""


def long(moments: int) -> dict[str, Any]:
    """A training that lasts for so many moments: half a second of work for each at least, a checkpoint every 5
    iterations."""
    run = {**TINY["run"], "iterations": 100 * max(moments, 6), "evaluate_every": 60, "checkpoint_every": 5}
    return {**TINY, "run": run}


def plain_training(folder: Path, config: dict[str, Any]) -> str:
    """The sha256 of the model that the same configuration gives without a service."""
    from reinet.agents.learn.config import TrainConfig
    from reinet.agents.learn.export import export
    from reinet.agents.learn.train import train

    result = train(TrainConfig.model_validate(config), folder / "run")
    assert result.best is not None
    return export(result.best, folder / "model")


def free_port() -> int:
    """A port that nobody listens at, and that Ray will not take for a worker."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        if port not in RAYS_OWN_PORTS:
            return port


def rays_of(service: Service) -> list[int]:
    """The processes of the service's own Ray."""
    mark = f"REINET_TRAINER_RAY={service.folder}/ray".encode()
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def disturbed(service: Service, config: dict[str, Any], moments: int, kinds: list[str], rng: random.Random) -> Any:
    """Submits a job and kills ``kinds`` of processes in turn; returns the job at its end, and the kills as (kind,
    iteration).

    The moments are those of iterations drawn from the whole job, three in ten of them a moment after the one before,
    wherever the job is then: while it starts, most likely.
    """
    iterations = config["run"]["iterations"]
    with service.client() as client:
        job = client.submit(config)["job"]
    place, kills, turn = service.folder / "jobs" / job, [], cycle(kinds)
    for iteration in sorted(rng.uniform(0, 0.9 * iterations) for _ in range(moments)):
        soon, kind = rng.random() < 0.3, next(turn)
        while (found := _found(service, job))["iteration"] < iteration and not soon and found["state"] in OPEN:
            time.sleep(rng.uniform(0.0, 0.1))
        time.sleep(rng.uniform(0.0, 2.0 if soon and kills else 0.1))  # the first one must not come after its end
        while not (pids := _pids(service, place, kind)) and _found(service, job)["state"] in OPEN:
            time.sleep(0.02)  # it is being started
        if (found := _found(service, job))["state"] not in OPEN:
            break
        if kind == "service":
            service.kill()
            time.sleep(rng.uniform(0.0, 1.0))
            service.start()
        for pid in pids if kind != "service" else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        kills.append((kind, found["iteration"]))
    with service.client() as client:
        *_, (found, _) = client.watch(job)
    return found, kills


def _found(service: Service, job: str) -> dict[str, Any]:
    with service.client() as client:
        return client.job(job)


def _pids(service: Service, place: Path, kind: str) -> list[int]:
    if kind == "service":
        return [service.pid]
    pid = worker_pid(place)
    return rays_of(service) if kind == "head" else [pid] if pid is not None else []


def left_over(service: Service, job: dict[str, Any]) -> list[str]:
    """What should not be there once the service has ended: processes, half-made files, models that nobody made."""
    wrong = [f"process {pid} of Ray goes on" for pid in rays_of(service)]
    if (pid := worker_pid(service.folder / "jobs" / job["job"])) is not None:
        wrong.append(f"worker {pid} goes on")
    wrong += [f"{path} is half-made" for path in service.folder.rglob(".staged-*")]
    models = sorted(path.name for path in (service.folder / "models").iterdir())
    with sqlite3.connect(service.folder / "trainer.sqlite") as opened:
        (sound,) = opened.execute("PRAGMA integrity_check").fetchone()
        rows = sorted(sha256 for (sha256,) in opened.execute("SELECT sha256 FROM models"))
    opened.close()
    if sound != "ok":
        wrong.append(f"the database is damaged: {sound}")
    if not models == rows == [job["model"]]:
        wrong.append(f"models {models} and their rows {rows} are not {job['model']} alone")
    return wrong


def main() -> int:
    """Does it at full length; returns 1 where anything is not as it should be."""
    asked = argparse.ArgumentParser()
    asked.add_argument("moments", type=int)
    asked.add_argument("--runner", choices=("ray", "process"), default="ray")
    asked.add_argument("--seed", type=int, default=1)
    given = asked.parse_args()
    kinds = ["service", "worker", "head"] if given.runner == "ray" else ["service", "worker"]
    config, start_s = long(given.moments), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="reinet-kills-") as name:
        folder = Path(name)
        undisturbed = plain_training(folder / "plain", config)
        service = Service(folder, runner=given.runner, more=f"ray_port = {free_port()}\n")
        service.start()
        try:
            job, kills = disturbed(service, config, given.moments, kinds, random.Random(given.seed))
            service.end()
            wrong = left_over(service, job) if job["state"] == "done" else [f"the job is {job['state']}"]
        finally:
            service.close()
    if job["model"] != undisturbed:
        wrong.append(f"its model is {job['model'][:12]}, that of an undisturbed run {undisturbed[:12]}")
    if len(kills) < given.moments:
        wrong.append(f"the job ended after {len(kills)} of {given.moments} moments")
    print(json.dumps({"kills": kills, "attempts": job["attempt"], "model": job["model"], "undisturbed": undisturbed,
                      "took_s": round(time.monotonic() - start_s), "wrong": wrong}, indent=1))  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
