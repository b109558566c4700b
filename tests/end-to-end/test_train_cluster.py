"""Training on a Ray cluster of several nodes, one of which goes away in the middle: by hand, and by a service's job."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray
from typer.testing import CliRunner

from helpers.configs import as_toml
from helpers.kills import free_port
from helpers.trainer import TINY, Service
from helpers.waiting import wait_for
from reinet.agents.learn.checkpoint import Checkpoint
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.export import export
from reinet.agents.learn.loop import Progress
from reinet.agents.learn.train import train
from reinet.agents.learn.workers import RAY_STARTS
from reinet.cli import main

ITERATIONS, WORKERS = 4, 2
TWO_WORKERS = {**TINY, "rollout": {**TINY["rollout"], "workers": WORKERS}, "run": {**TINY["run"], "iterations": 4}}
IN_FLIGHT_S = 0.5
"""By then the learner has asked the workers, which stand still, for the next iteration."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that does no work, and two nodes, each of which could do all of it; who removes one adds another."""
    from ray.cluster_utils import Cluster

    for start in range(1, RAY_STARTS + 1):
        made = Cluster()
        try:
            made.add_node(  # with a dashboard, which takes jobs; at its usual port may be another program's
                num_cpus=0, include_dashboard=True, dashboard_port=free_port(), dashboard_agent_listen_port=0
            )
            made.add_node(num_cpus=WORKERS)
            made.add_node(num_cpus=WORKERS)
            made.wait_for_nodes()
            break
        except Exception:  # as in workers.start_ray: a busy host's Ray may not come up in its 30 s
            made.shutdown()
            if start == RAY_STARTS:
                raise
    yield made
    ray.shutdown()
    made.shutdown()


def workers_of(node: Any) -> list[int]:
    """The processes of rollout workers on a node."""
    (raylet,) = (info.process.pid for info in node.all_processes["raylet"])
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    return [int(pid) for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Gatherer")]


def in_the_middle_of_a_call(workers: list[int], disturb: Callable[[], None]) -> threading.Timer:
    """Has these workers stand still, so that what they are asked for next stays undone, and then disturbs them."""

    def strike() -> None:
        disturb()
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(IN_FLIGHT_S, strike)
    timer.start()
    return timer


def test_a_run_outlives_a_worker_and_a_node_and_ends_as_one_that_was_not_disturbed(
    cluster: Any, tmp_path: Path
) -> None:
    config = TrainConfig.model_validate(TWO_WORKERS)
    events: list[str | int] = []
    timers: list[threading.Timer] = []

    def disturb(step: Progress) -> None:
        events.append(step.iteration)
        if step.iteration in (1, 2):
            node = next(node for node in cluster.worker_nodes if workers_of(node))
            workers = workers_of(node)
            if step.iteration == 1:
                timers.append(in_the_middle_of_a_call(workers[:1], lambda: events.append("worker")))
            else:

                def remove() -> None:
                    events.append("node")
                    cluster.remove_node(node, allow_graceful=False)

                timers.append(in_the_middle_of_a_call(workers, remove))

    disturbed = train(config, tmp_path / "disturbed", progress=disturb, ray_address=cluster.address)
    for timer in timers:
        timer.join()
    assert events == [1, "worker", 2, "node", 3, 4], "no iteration went on while its workers were away"
    assert len(cluster.worker_nodes) == 1
    cluster.add_node(num_cpus=WORKERS)

    (tmp_path / "tiny.toml").write_text(as_toml(TWO_WORKERS))
    options = ["--ray", cluster.address, "--run-dir", tmp_path / "calm", "--json", tmp_path / "calm.json"]
    done = CliRunner().invoke(main.app, ["train", *map(str, [tmp_path / "tiny.toml", *options])])
    assert done.exit_code == 0, done.output
    calm = json.loads((tmp_path / "calm.json").read_text())
    counted = [disturbed.iterations, disturbed.env_steps, disturbed.updates]
    assert counted == [calm["iterations"], calm["env_steps"], calm["updates"]]
    rollout = config.rollout
    assert disturbed.env_steps == ITERATIONS * WORKERS * rollout.links * (rollout.periods + 1), "each record once"
    ends = [Checkpoint(folder).state.files for folder in (disturbed.checkpoint, Path(calm["checkpoint"]))]
    assert len(ends[0]) == 2
    assert ends[0] == ends[1], "networks and replay are the same, bit for bit"


def test_a_services_job_outlives_a_node_of_its_cluster_and_its_model_is_that_of_an_undisturbed_run(
    cluster: Any, tmp_path: Path
) -> None:
    wait_for(lambda: len(cluster.worker_nodes) == 2)
    config = {**TWO_WORKERS, "run": {**TINY["run"], "iterations": 150, "evaluate_every": 75, "checkpoint_every": 500}}
    more = f'ray_address = "http://{cluster.webui_url}"\nworkers = {WORKERS}\n'
    service = Service(tmp_path, runner="ray", more=more)
    service.start()
    try:
        with service.client() as client:
            job = client.submit(config)["job"]
            before = wait_for(lambda: (now := client.job(job))["iteration"] > 0 and now, 200)
            node = next(node for node in cluster.worker_nodes if workers_of(node))
            removed = in_the_middle_of_a_call(workers_of(node), lambda: cluster.remove_node(node, allow_graceful=False))
            found = list(client.watch(job))[-1][0]
            removed.join()
            assert before["iteration"] < 150, "it was struck before its end"
            assert found["state"] == "done", (found, client.job(job))
        service.end()
    finally:
        print(service.log(), *(f.read_text() for f in service.folder.glob("jobs/*/log.txt")))
        service.close()
    assert found["attempt"] == 1, "the workers started again, and the job did not"
    rollout = TrainConfig.model_validate(config).rollout
    assert found["env_steps"] == 150 * WORKERS * rollout.links * (rollout.periods + 1), "each record once"
    calm = train(TrainConfig.model_validate(config), tmp_path / "calm", ray_address=cluster.address)
    assert calm.best is not None
    assert found["model"] == export(calm.best, tmp_path / "model")
