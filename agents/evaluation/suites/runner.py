"""Makes the runs of a plan that a store lacks: simulated ones in batches, then the real ones."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reinet.agents.decide.baselines import NoCap
from reinet.agents.decide.protocol import View
from reinet.agents.evaluation.batch import logs
from reinet.agents.evaluation.objects import UNWATCHED
from reinet.agents.evaluation.run import require_caps
from reinet.agents.evaluation.suites.links import together_ms
from reinet.agents.evaluation.suites.measure import Figures, measure, series
from reinet.agents.evaluation.suites.plan import Job, SuitePlan
from reinet.agents.evaluation.suites.provenance import versions
from reinet.agents.evaluation.suites.real import ATTEMPTS, Found, make_real
from reinet.agents.evaluation.suites.store import Store, Stored
from reinet.core.errors import ConfigError, LinkError, ReinetError, ShimError
from reinet.envs.link.metrics import LinkLog
from reinet.envs.link.stalls import why_stalled_in

Told = Callable[[float, str], None]
"""It is told the seconds of link time that are through and what is being run."""


@dataclass
class Outcome:
    """What became of the runs that were missing."""

    made: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Key -> why, of runs that the host could not make at all."""


def missing_s(plan: SuitePlan, store: Store) -> float:
    """Returns the seconds of link time of the runs that are still to be made."""
    todo = [job for batch in plan.batches for job in batch if not store.has(job.key)]
    todo += [job for job in plan.real if _due(job, store)]
    return sum(job.scenario.seconds for job in todo)


def make(
    plan: SuitePlan, store: Store, threads: int = 1, told: Told = lambda _s, _what: None, at_once: int = 1
) -> Outcome:
    """Makes every run that the store lacks and writes each down as it ends; real ones up to ``at_once`` at a time."""
    outcome = Outcome()
    through_s = 0.0
    for batch in plan.batches:
        todo = [job for job in batch if not store.has(job.key)]
        if not todo:
            continue
        seconds = sum(job.scenario.seconds for job in todo)
        what, before_s = f"{batch[0].cell.scenario}, {batch[0].agent.name}", through_s
        results = _simulated(batch, threads, lambda share: told(before_s + share * seconds, what))  # noqa: B023
        store.add([one for one in results if not store.has(one.key)])
        outcome.made += len(todo)
        through_s += seconds
        told(through_s, what)
    able = set[str]()  # congestion controls that this host has run
    unable = Counter[str]()

    def take(job: Job, found: Found) -> bool:
        nonlocal through_s
        if _keep(job, found, store, outcome):
            able.add(job.cell.cc)
        unable[job.cell.cc] += job.key in outcome.failed
        is_through = job.key in outcome.failed or not _due(job, store)
        through_s += job.scenario.seconds * is_through
        return is_through

    def begins(job: Job) -> None:
        told(through_s, f"{job.cell.scenario}, {job.agent.name}, {job.cell.cc}, {job.scenario.trace.name}")

    def due() -> Iterator[Job]:
        for job in plan.real:
            if not _due(job, store):
                continue
            if reason := _why_no_caps(job):  # of the runs without caps it says nothing
                outcome.failed[job.key] = reason
            elif unable[job.cell.cc] >= ATTEMPTS and job.cell.cc not in able:
                outcome.failed[job.key] = "not tried: the runs before it could not be made"
            else:
                yield job

    make_real(due(), at_once, take, begins)
    return outcome


def _due(job: Job, store: Store) -> bool:
    return store.valid(job.key) is None and len(store.invalid(job.key)) < ATTEMPTS


def _why_no_caps(job: Job) -> str:
    """Returns why nothing on this host sets the caps of a run; empty where something does."""
    try:
        require_caps(job.agent, job.scenario)
    except ConfigError as error:
        return str(error)
    return ""


def _simulated(batch: list[Job], threads: int, progress: Callable[[float], None]) -> list[Stored]:
    agent, seconds = batch[0].agent, batch[0].scenario.seconds
    if not agent.sets_caps:  # nobody decides on its records, and the fewer there are the sooner it is through
        agent = NoCap(View(period=UNWATCHED))
    found = []
    carried: list[Job] = []
    for job in batch:
        try:
            if not job.scenario.path.flows:  # another flow may begin where something comes through
                job.scenario.require_data()
            carried.append(job)
        except ConfigError as error:  # nothing to tell of, and no more next time
            found.append(_stored(job, str(error), {}, None))
    if not carried:
        return found
    for job, log in zip(
        carried, logs(agent, [job.scenario.path for job in carried], seconds, threads, progress), strict=True
    ):
        path = job.scenario.path
        start_ms = float(path.start_offset_ms)
        end_ms = round(start_ms + seconds * 1000, 6)
        mrtts_ms = [float(flow.mrtt_ms or 0.0) for flow in path.all_flows()]
        try:
            figures = measure(log, mrtts_ms, job.own_flows, start_ms, together_ms(path), end_ms)
            figures |= {key: log[key] for key in ("refused_share", "capped_share") if agent.sets_caps}
            reason = why_stalled_in(log, path, start_ms + together_ms(path), end_ms)
        except LinkError as error:  # an outage as long as the run: nothing to tell of, and no more next time
            figures, reason = {}, str(error)
        course = series(log, len(mrtts_ms), start_ms, end_ms) if job.repetition == 0 else None
        found.append(_stored(job, reason, figures, course))
    return found


def _keep(job: Job, found: Found, store: Store, outcome: Outcome) -> bool:
    """Writes a real run down; returns whether there was one, valid or not."""
    if isinstance(found, ReinetError):
        if not isinstance(found, LinkError | ShimError):
            raise found
        if isinstance(found, ShimError) or not store.invalid(job.key):  # what the host lacks, it will lack again
            outcome.failed[job.key] = str(found)
        else:
            store.add([_stored(job, str(found), {}, None)])
        return False
    figures: Figures = {
        name: getattr(found.metrics, name)
        for name in ("throughput_mbps", "capacity_mbps", "utilization", "qdelay_mean_ms", "qdelay_p95_ms",
                     "delay_mean_ms", "longest_stall_ms")
    }  # fmt: skip
    course = series(_as_mapping(found.log), 1, 0.0, job.scenario.seconds * 1000) if job.repetition == 0 else None
    store.add([_stored(job, found.invalid_reason, figures, course)])
    outcome.made += 1
    return True


def _as_mapping(log: LinkLog) -> dict[str, Any]:
    zeros = np.zeros(log.departure_ms.size, np.int64)
    return {**vars(log), "departure_flow": zeros, "arrival_flow": np.zeros(log.arrival_ms.size, np.int64)}


def _stored(job: Job, reason: str | None, figures: Figures, course: Figures | None) -> Stored:
    made = {key: versions()[key] for key in ("reinet", "commit", "kernel")}
    return Stored(job.key, reason, figures, course, made)
