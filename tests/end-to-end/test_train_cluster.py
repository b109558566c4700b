"""Training on a Ray cluster of several nodes, one of which goes away in the middle."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from helpers.trainer import TINY
from reinet.agents.learn.checkpoint import Checkpoint
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.train import Progress, train

TWO_WORKERS = {**TINY, "rollout": {**TINY["rollout"], "workers": 2}}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that does no work, and two nodes, each of which could do all of it."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.add_node(num_cpus=2)
    made.add_node(num_cpus=2)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


def workers_of(node: Any) -> list[int]:
    """The processes of rollout workers on a node."""
    (raylet,) = (info.process.pid for info in node.all_processes["raylet"])
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    return [int(pid) for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Gatherer")]


def test_a_run_outlives_a_worker_and_a_node_and_ends_as_one_that_was_not_disturbed(
    cluster: Any, tmp_path: Path
) -> None:
    config = TrainConfig.model_validate(TWO_WORKERS)
    gone: list[str] = []

    def disturb(step: Progress) -> None:
        if step.iteration in (2, 4):
            node = next(node for node in cluster.worker_nodes if workers_of(node))
            if step.iteration == 2:
                os.kill(workers_of(node)[0], signal.SIGKILL)
                gone.append("worker")
            else:
                cluster.remove_node(node, allow_graceful=False)
                gone.append("node")

    disturbed = train(config, tmp_path / "disturbed", progress=disturb, ray_address=cluster.address)
    assert gone == ["worker", "node"]
    assert len(cluster.worker_nodes) == 1
    calm = train(config, tmp_path / "calm", ray_address=cluster.address)
    assert (disturbed.iterations, disturbed.env_steps, disturbed.updates) == (
        calm.iterations, calm.env_steps, calm.updates,
    )  # fmt: skip
    ends = [Checkpoint(result.checkpoint).state.files for result in (disturbed, calm)]
    assert len(ends[0]) == 2
    assert ends[0] == ends[1], "networks and replay are the same, bit for bit"
