"""Gatherers at work: one Ray actor for each worker, or none and all of it in this process."""

import logging
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation.frontier import Baseline
from reinet.agents.learn.config import TrainConfig
from reinet.agents.learn.evolution import Members
from reinet.agents.learn.gatherer import Experience, Gatherer, Ranked
from reinet.agents.model.mlp import Folded
from reinet.core import Normaliser, PeriodConfig
from reinet.core.closing import Closing
from reinet.core.errors import ReinetError
from reinet.envs.link.metrics import Metrics
from reinet.envs.link.spec import LinkSpec
from reinet.envs.trace import Trace

RAY_STARTS = 3
"""Now and then a Ray of one's own does not come up within its 30 s, without a word why; the next one does."""
REACH_S = 10.0
"""A cluster's head answers within so long, wherever on earth it is."""


def start_ray(ray: Any, workers: int) -> None:
    """Starts a Ray of this process, a CPU for each worker; ``ray`` is the module. Raises ReinetError."""
    for start in range(1, RAY_STARTS + 1):
        try:
            ray.init(
                address="local",  # also where RAY_ADDRESS or another program's cluster on this host would be taken
                num_cpus=workers,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            return
        except Exception as error:  # Ray raises no narrower one
            ray.shutdown()
            if start == RAY_STARTS:
                raise ReinetError(
                    f"Ray did not start in {RAY_STARTS} attempts ({error}); look into /tmp/ray/session_latest/logs, or "
                    "train without it: rollout.workers = 0"
                ) from error


def join_ray(ray: Any, workers: int, address: str | None) -> bool:
    """Has a Ray for so many workers: the one that this process is in, the one at ``address``, or one of its own.

    Returns whether it was joined or started here, and so is to be left here. Raises ReinetError where there is none.
    """
    if ray.is_initialized():
        return False
    if address:
        try:
            _reach(address)
            ray.init(address=address, log_to_driver=False)
        except Exception as error:  # Ray's are of many kinds
            ray.shutdown()
            why = " ".join(str(error).split())
            raise ReinetError(
                f"the Ray cluster at {address} cannot be joined ({why}); give the HOST:PORT of one that runs, as `ray "
                "start --head` says it, or train without it"
            ) from error
    else:
        start_ray(ray, workers)
    return True


def _reach(address: str) -> None:
    """Raises OSError where nobody listens at a HOST:PORT, with ray:// before it or not, and ValueError for ray://HOST.

    Ray's own client says so every minute, and never ends; the one of ray:// says nothing for half a minute. Without a
    port that one knocks at 443, where no Ray is: it has no default of its own.
    """
    place = address.removeprefix("ray://")
    if place != address and not {":", "/"} & set(place.rpartition("]")[2]):
        raise ValueError("it has no port; ray:// needs 10001, or what --ray-client-server-port was at `ray start`")
    host, _, port = place.rpartition(":")
    if host and "/" not in host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()


def bundles(workers: int) -> list[dict[str, float]]:
    """Returns what a training takes of a cluster, its own process first, for Tune to set aside."""
    # The learner waits while its workers gather, and they while it learns: it takes no CPU of its own.
    return [{}, *[{"CPU": 1.0}] * workers] if workers else [{"CPU": 1.0}]


RESTARTS = -1  # without end
"""A worker that is killed, or whose node goes away, starts anew wherever a CPU is free, and its call is made again:
what it returns hangs on its arguments alone, so nothing is counted twice and nothing changes. While no CPU is free the
run waits for one."""


class GathererActor:
    """A ``Gatherer`` in a process of its own.

    Traces come with each call that needs them: Ray may forget what an actor was made with before it starts anew, and
    warns of that at every start.
    """

    def __init__(self, config: TrainConfig, worker: int) -> None:
        self._config, self._worker = config, worker

    def call(self, name: str, traces: Sequence[Trace], *arguments: object) -> Any:
        """Returns what this method of the gatherer returns."""
        return getattr(Gatherer(self._config, traces, self._worker), name)(*arguments)


class RayGatherers(Closing):
    """One ``Gatherer`` per worker, each in a Ray actor of one CPU; without workers, one in this process.

    Results come back in the order of the workers, whichever finished first. Workers restart by themselves.
    """

    def __init__(self, config: TrainConfig, traces: Sequence[Trace], ray_address: str | None = None) -> None:
        self._config = config
        self._local = Gatherer(config, traces, 0) if config.rollout.workers == 0 else None
        self._actors: list[Any] = []
        if self._local is None:
            self._start(traces, ray_address)

    def _start(self, traces: Sequence[Trace], ray_address: str | None) -> None:
        import ray  # here, for a run without workers needs none

        workers = self._config.rollout.workers
        self._ray = ray
        self._owns_ray = join_ray(ray, workers, ray_address)
        self._shared = ray.put(list(traces))
        actor = ray.remote(num_cpus=1, max_restarts=RESTARTS, max_task_retries=RESTARTS)(GathererActor)
        self._actors = [actor.remote(self._config, worker) for worker in range(workers)]

    def gather(self, actor: Folded | None, normaliser: Normaliser, iteration: int) -> list[Experience]:
        """Returns every worker's experience of this iteration."""
        shared = (actor, normaliser) if self._local is not None else map(self._ray.put, (actor, normaliser))
        return self._everywhere("gather", *shared, iteration)

    def evaluate(self, links: Sequence[LinkSpec], agent: Agent) -> list[Metrics]:
        """Returns the figures of one flow per link, the links shared out among the workers."""
        return self._shared_out("evaluate", links, agent)

    def costs(self, actor: Folded, members: Members, normaliser: Normaliser, iteration: int) -> Ranked:
        """Returns what each member costs on each of this iteration's links (P, L), those of all workers."""
        parts: list[Ranked] = self._everywhere("costs", actor, members, normaliser, iteration)
        return Ranked(np.concatenate([part.costs for part in parts], axis=1), sum(part.periods for part in parts))

    def baselines(self, links: Sequence[LinkSpec], period: PeriodConfig) -> list[Baseline]:
        """Returns what policies of this cadence are judged by on each link, the links shared out among the workers."""
        return self._shared_out("baselines", links, period)

    def _everywhere(self, name: str, *arguments: object) -> list[Any]:
        """Returns what this method of each worker's gatherer returns."""
        if self._local is not None:
            return [getattr(self._local, name)(*arguments)]
        return self._get([actor.call.remote(name, self._shared, *arguments) for actor in self._actors])

    def _shared_out(self, name: str, links: Sequence[LinkSpec], *arguments: object) -> list[Any]:
        """Returns what this method of a gatherer returns for each link; every worker has some of the links."""
        if self._local is not None:
            return list(getattr(self._local, name)(links, *arguments))
        share = -(-len(links) // len(self._actors))
        parts = [(actor, links[i * share : (i + 1) * share]) for i, actor in enumerate(self._actors)]
        futures = [actor.call.remote(name, (), some, *arguments) for actor, some in parts if some]
        return [found for part in self._get(futures) for found in part]

    def _get(self, futures: Sequence[Any]) -> list[Any]:
        """Returns what the workers return, and raises what one raises: Ray's own error has a traceback as its text."""
        try:
            return list(self._ray.get(list(futures)))
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ReinetError):
                raise error.cause from None
            raise

    def close(self) -> None:
        """Ends the workers, and Ray unless it was running in this process before."""
        if self._actors:
            self._actors.clear()
            if self._owns_ray:
                self._ray.shutdown()
