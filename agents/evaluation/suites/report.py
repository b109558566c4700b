"""A store's report as data: every cell of every scenario, with intervals, pairs against the baseline, and what made it.

    {"suite", "made_by", "traces", "agents", "cells": [...], "better_in_both", "rows": [...], "not_compared", ...}

A row is a run. Only valid runs of the present definition, models and code are in cells and rows; others are counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reinet.agents.evaluation.suites import better
from reinet.agents.evaluation.suites.plan import BASELINE, Cell, Job, SuitePlan
from reinet.agents.evaluation.suites.provenance import versions
from reinet.agents.evaluation.suites.statistics import OVER, Estimate, by_trace, estimate
from reinet.agents.evaluation.suites.store import Store, Stored

FORMAT = 1
"""A report of another number is not compared with."""
METRICS = (
    "throughput_mbps", "utilization", "qdelay_mean_ms", "qdelay_p95_ms", "jain", "share", "beside_mbps",
    "beside_qdelay_mean_ms", "longest_stall_ms", "beside_stall_ms", "refused_share", "capped_share",
)  # fmt: skip
"""What a cell tells of its runs, where they have it."""
RATIOS = {"throughput_kept": "throughput_mbps", "delay_left": "qdelay_mean_ms", "p95_left": "qdelay_p95_ms"}
"""What a cell tells of its pairs: the agent's figure over the baseline's, of the same link, seed and start."""
LEAST_BASE = 0.01
"""Of less than this, in ms or Mbit/s, there is no ratio: a baseline without a queue has none."""

Report = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Group:
    """A cell's valid runs, and how many of its runs are not."""

    cell: Cell
    runs: tuple[tuple[Job, Stored], ...]
    planned: int
    invalid: int

    def values(self, metric: str) -> dict[str, list[float]]:
        """Returns a figure of the runs that have it, by trace."""
        return by_trace(
            (job.scenario.trace.sha256, value)
            for job, stored in self.runs
            if (value := stored.figures.get(metric)) is not None
        )

    def estimate(self, metric: str) -> Estimate | None:
        """Returns the mean of a figure with its interval."""
        return estimate(self.values(metric))


def groups(plan: SuitePlan, store: Store) -> list[Group]:
    """Returns the cells of a plan in order, each with its runs."""
    cells: dict[Cell, list[Job]] = {}
    for job in plan.jobs:
        cells.setdefault(job.cell, []).append(job)
    return [
        Group(
            cell,
            tuple((job, stored) for job in jobs if (stored := store.valid(job.key)) is not None),
            len(jobs),
            sum(len(store.invalid(job.key)) for job in jobs),
        )
        for cell, jobs in cells.items()
    ]


def baseline_of(cell: Cell) -> Cell:
    """Returns the cell that another's runs are paired with: the same without a cap."""
    return replace(cell, agent=BASELINE)


def solo_of(cell: Cell) -> Cell:
    """Returns the cell of the plain flow beside, alone in the queue over the same time."""
    assert cell.beside is not None, "a cell without a plain flow beside has no solo"
    return replace(cell, agent=BASELINE, cc=cell.beside, beside=None, role="solo")


def paired(
    group: Group, other: Group | None, metric: str, against: str | None = None, labels: Sequence[str] | None = None
) -> dict[str, list[float]]:
    """Returns the ratios of a figure to another cell's of the same link, seed and start, by trace."""
    if other is None:
        return {}
    theirs = {job.pair: stored.figures.get(against or metric) for job, stored in other.runs}
    found = []
    for job, stored in group.runs:
        if labels is not None and job.label not in labels:
            continue
        own, base = stored.figures.get(metric), theirs.get(job.pair)
        if own is not None and base is not None and base > LEAST_BASE:
            found.append((job.scenario.trace.sha256, own / base))
    return by_trace(found)


def numbers(group: Group, cells: Mapping[Cell, Group]) -> dict[str, Estimate]:
    """Returns everything that a table tells of a cell."""
    found = {metric: group.estimate(metric) for metric in METRICS}
    base = baseline_of(group.cell)
    if base != group.cell:
        for name, metric in RATIOS.items():
            found[name] = estimate(paired(group, cells.get(base), metric))
    if group.cell.beside is not None:
        solo = cells.get(solo_of(group.cell))
        lost = paired(group, solo, "beside_mbps", "throughput_mbps")
        found["beside_harm"] = estimate({trace: [1 - ratio for ratio in values] for trace, values in lost.items()})
        found["beside_delay_ratio"] = estimate(paired(group, solo, "beside_qdelay_mean_ms", "qdelay_mean_ms"))
    return {name: value for name, value in found.items() if value is not None}


def build(plan: SuitePlan, store: Store, command: str, failed: Mapping[str, str] | None = None) -> Report:
    """Returns the report; ``command`` made it, ``failed`` are runs that the host could not make."""
    all_groups = groups(plan, store)
    cells = {group.cell: group for group in all_groups}
    keys = {job.key for job in plan.jobs}
    suite = plan.suite
    told = [_cell(group, cells) for group in all_groups]
    models = [agent.name for agent in plan.agents.values() if agent.name != agent.identity]
    reasons = sorted({why for why in (failed or {}).values() if not why.startswith("not tried")})
    return {
        "format": FORMAT,
        "suite": {"name": suite.name, "title": suite.title, "about": suite.about, "sha256": suite.sha256},
        "command": command,
        "made_by": versions(),
        "intervals": OVER,
        "generated_traces": plan.generated,
        "replaced": list(plan.replaced),
        "traces": [
            {"name": trace.name, "sha256": trace.sha256, "mean_mbps": round(trace.mean_mbps, 3)}
            for trace in plan.traces
        ],
        "agents": [{"name": agent.name, "identity": agent.identity} for agent in plan.agents.values()],
        "scenarios": [
            {"name": spec.name, "about": spec.about, "link": spec.link, "seconds": spec.seconds, "path": spec.path}
            for spec in suite.scenarios
            if any(cell.scenario == spec.name for cell in cells)
        ],
        "cells": told,
        "better_in_both": better.found(told, models),
        "rows": [_row(job, stored) for group in all_groups for job, stored in group.runs],
        "runs": {
            "planned": len(keys),
            "valid": sum(store.valid(key) is not None for key in keys),
            "invalid": sum(len(store.invalid(key)) for key in keys),
            "not_made": len(failed or {}),
            "not_made_because": reasons,
            "of_other_definitions": store.others(keys),
        },
        "not_compared": [one.model_dump() for one in suite.not_compared],
    }


def cell_name(cell: Cell) -> dict[str, Any]:
    """Returns what names a cell in a report, also in a later one."""
    return {
        "scenario": cell.scenario,
        "agent": cell.agent,
        "cc": cell.cc,
        "point": dict(cell.point),
        "flows": cell.flows,
        "beside": cell.beside,
        "role": cell.role,
    }


def _cell(group: Group, cells: Mapping[Cell, Group]) -> dict[str, Any]:
    return {
        **cell_name(group.cell),
        "runs": len(group.runs),
        "planned": group.planned,
        "invalid": group.invalid,
        "numbers": {name: value.as_json() for name, value in numbers(group, cells).items()},
    }


def _row(job: Job, stored: Stored) -> dict[str, Any]:
    path = job.scenario.path
    return {
        **cell_name(job.cell),
        "trace": job.scenario.trace.name,
        "trace_sha256": job.scenario.trace.sha256,
        "label": job.label,
        "link": job.scenario.link,
        "repetition": job.repetition,
        "seed": path.seed,
        "start_offset_ms": path.start_offset_ms,
        "seconds": job.scenario.seconds,
        "mrtt_ms": path.mrtt_ms,
        "buffer_bytes": None if path.queue == "infinite" else path.buffer_bytes,
        "target_ms": job.scenario.target_ms,
        "trained_on": job.trained_on,
        "valid": True,
        **stored.figures,
    }
