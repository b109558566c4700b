"""Real runs of a suite: several at once for as long as they stay valid.

A run over an emulated link takes its seconds and little of a processor, so several go side by side, each in a process
of its own. Beside others a run may lag; one that is not valid is then no run at all: it is made again, and from then on
there is one less at a time. Only what is not valid alone counts as an attempt.
"""

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from functools import cache, partial
from multiprocessing import get_context, parent_process
from typing import Any

from reinet.agents.decide.names import make_agent
from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation.run import Run, run
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.evaluation.suites.plan import Job
from reinet.core.errors import LinkError, ReinetError

ATTEMPTS = 3
"""A run that the host's lag made invalid is made so often before it is left out."""

Found = Run | ReinetError
Told = Callable[[Job], None]
"""It is told of a run that begins."""


def make_real(jobs: Iterable[Job], at_once: int, take: Callable[[Job, Found], bool], told: Told) -> None:
    """Makes real runs, at most ``at_once`` at a time: with 1 in this process, otherwise in processes of their own.

    The next of ``jobs`` is asked for when there is room for it. Each run, or why it could not be made, is handed to
    ``take`` until that returns True. Raises LinkError where a process of a run is killed.
    """
    try:
        _make(jobs, at_once, take, told)
    except BrokenExecutor:  # told by a run's future, or where the next one is to begin
        raise LinkError("a process that made a real run was killed; the same command goes on where it was") from None


def _make(jobs: Iterable[Job], at_once: int, take: Callable[[Job, Found], bool], told: Told) -> None:
    apart = at_once > 1
    fresh, again = iter(jobs), deque[Job]()  # the latter are to be made once more
    running = dict[Future[Run], Job]()
    shared = set[Future[Run]]()  # they had another run beside them for a time: it may be why one is not valid
    # Spawned: a fork would copy the threads' locks of onnxruntime and torch, whoever holds them.
    processes = partial(ProcessPoolExecutor, at_once, get_context("spawn"), end_with_parent)
    with processes() if apart else _Here() as executor:
        while True:
            while len(running) < at_once and (job := again.popleft() if again else next(fresh, None)):
                told(job)
                future = (
                    executor.submit(_run_named, job.agent.name, job.agent.identity, job.scenario)
                    if apart
                    else executor.submit(run, job.agent, job.scenario)
                )
                running[future] = job
                if len(running) > 1:
                    shared |= running.keys()
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, found = running.pop(future), _found(future)
                if future in shared and not (isinstance(found, Run) and found.invalid_reason is None):
                    at_once = max(1, at_once - 1)
                    again.append(job)
                elif not take(job, found):
                    again.append(job)


def end_with_parent() -> None:
    """Has this process end when its parent ends, however that does: an executor's processes wait for work for ever.

    Told to end (SIGTERM), it clears its run away first.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parent = parent_process()
    assert parent is not None

    def wait_for_it() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_it, daemon=True).start()


class _Here(Executor):
    """Runs what it is given at once, in this thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Returns a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _found(future: Future[Run]) -> Found:
    try:
        return future.result()
    except ReinetError as error:
        return error


def _run_named(name: str, identity: str, scenario: Scenario) -> Run:
    agent = _agent(name, scenario.link)
    if agent.identity != identity:
        raise LinkError(f"agent {name}: its folder has changed since the suite began; run the command again")
    return run(agent, scenario)


@cache
def _agent(name: str, link: str) -> Agent:
    return make_agent(name, link)
