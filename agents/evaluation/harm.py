"""No harm: how long objects take that are fetched over capped connections, against the same fetches uncapped.

A cell of the matrix is a congestion control, a path, an object's size and whether each object has a connection of its
own (fresh) or all share one that is kept alive, with pauses. In a cell the same links, seeds and start offsets are run
plain and capped. Ratios are of quantiles: median over median, 95th percentile over 95th percentile, not quantiles of
the pairs' ratios, because a user notices the distribution and not which of two fetches had the outage.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from reinet.agents.decide.baselines import NoCap
from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation.objects import Fetched, FloatArray, fetch
from reinet.agents.model.artifact import used_traces
from reinet.core.errors import ConfigError
from reinet.core.target import Target
from reinet.envs.link.spec import LinkSpec
from reinet.envs.sim.options import require_simulated
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

MRTTS_MS = (4.0, 20.0, 60.0, 150.0, 300.0)
RATES_MBPS = (6.0, 24.0, 100.0)
PAUSES_MS = (100.0, 1000.0)
"""The first is below every retransmission timeout, so the window stays; the second is above it on all paths of the
matrix, so the kernel has the window begin anew."""
REQUEST_BYTES = 10_000
"""Objects of so many bytes or fewer, over a connection that is kept alive, are requests and their responses."""

LIMITS_QUIET = (1.03, 1.03)
"""The most that median and 95th percentile may grow where plain builds no queue."""
LIMITS_QUEUED = (1.05, 1.10)
"""The same elsewhere."""
LIMIT_P99 = 1.02
"""The most that the 99th percentile of requests may grow."""

REPEAT = 20
"""Pairs in a cell. On a constant link only jitter differs between them, so few quantiles need more."""
OFFSETS_PER_REPEAT = 3
"""On a recording the link differs from offset to offset, so there are so many times as many pairs."""
PRESETS = ("lte-driving", "lte-walking")
"""Models of the recordings that stand in where none are given."""
PRESET_SECONDS = 300.0
PRESET_SEED = 271_828
"""No training draws it: those begin at small numbers."""


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix; ``pause_ms`` None = every object has a new connection."""

    cc: str
    mrtt_ms: float
    trace: Trace
    is_recording: bool
    size_bytes: int
    pause_ms: float | None

    @property
    def objects(self) -> int:
        """Returns the objects of one connection; of one that is kept alive the first, being fresh, is not counted."""
        if self.pause_ms is None:
            return 1
        return 1 + next(count for most_bytes, count in OBJECTS if self.size_bytes <= most_bytes)

    @property
    def is_request(self) -> bool:
        """Returns whether its objects are responses, whose 99th percentile counts."""
        return self.pause_ms is not None and self.size_bytes <= REQUEST_BYTES

    def link(self, seed: int, start_offset_ms: int, target_us: int, buffer_bytes: int) -> LinkSpec:
        """Returns the path of one connection."""
        return LinkSpec(
            self.trace,
            cc=self.cc,
            mrtt_ms=self.mrtt_ms,
            target_us=target_us,
            buffer_bytes=buffer_bytes,
            seed=seed,
            start_offset_ms=start_offset_ms,
            object_bytes=self.size_bytes,
            flow_bytes=self.size_bytes * self.objects,
            pause_ms=self.pause_ms or 0.0,
        )

    def links(self, repeat: int, target_us: int, buffer_bytes: int) -> list[LinkSpec]:
        """Returns the paths of its connections: other seeds, and on a recording start offsets all along it."""
        count = repeat * (OFFSETS_PER_REPEAT if self.is_recording else 1)
        step_ms = self.trace.duration_ms / count if self.is_recording else 0.0
        return [self.link(seed, int(seed * step_ms), target_us, buffer_bytes) for seed in range(count)]


OBJECTS = ((REQUEST_BYTES, 50), (100_000, 10), (1_000_000, 5), (1 << 42, 2))
"""The objects after the first of a connection that is kept alive, by the largest size: many where they are small and a
99th percentile is asked for, few where each takes seconds."""


def queue_threshold_ms(mrtt_ms: float) -> float:
    """Returns the queueing delay, in ms, at which HyStart sees a queue: an eighth of the RTT, from 4 to 16 ms."""
    return min(max(mrtt_ms / 8, 4.0), 16.0)


def target_us(cell: Cell, target: Target) -> int:
    """Returns the RTT to stay below in a cell, in us: a relative target is told from the path's fixed round trip."""
    return round(target.resolve_ms(cell.mrtt_ms) * 1000)


def recordings(given: Sequence[Trace]) -> list[Trace]:
    """Returns the traces that were given, else two that are drawn."""
    return list(given) or [generate(preset, PRESET_SECONDS, PRESET_SEED) for preset in PRESETS]


def cells(
    controls: Iterable[str],
    mrtts_ms: Iterable[float],
    rates_mbps: Iterable[float],
    traces: Iterable[Trace],
    sizes_bytes: Iterable[int],
    pauses_ms: Iterable[float],
) -> list[Cell]:
    """Returns the matrix. Raises ConfigError for what the simulator cannot do, and for an empty one."""
    links = [(Trace.constant(mbps, 10.0, f"constant-{mbps:g}"), False) for mbps in rates_mbps]
    links += [(trace, True) for trace in traces]
    found = [
        Cell(cc, mrtt_ms, trace, is_recording, size_bytes, pause_ms)
        for (trace, is_recording), cc, mrtt_ms, size_bytes, pause_ms in product(
            links, list(controls), list(mrtts_ms), list(sizes_bytes), [None, *pauses_ms]
        )
    ]
    if not found:
        raise ConfigError("the matrix is empty: give a congestion control, a path, a rate or a trace, and a size")
    for cell in found:
        if cell.size_bytes <= 0:
            raise ConfigError(f"bytes: {cell.size_bytes} is no size of an object; it must be above 0")
        require_simulated(cell.link(0, 0, 50_000, LinkSpec.buffer_bytes))
    return found


def measure(
    matrix: Sequence[Cell],
    agent: Agent,
    *,
    target: Target,
    buffer_bytes: int = LinkSpec.buffer_bytes,
    repeat: int = REPEAT,
    threads: int = 2,
    progress: Callable[[float], None] | None = None,
) -> list[dict[str, Any]]:
    """Returns a row for each cell, in order, from the simulator; ``progress`` is told the share that is done."""
    jobs = [
        (index, link)
        for index, cell in enumerate(matrix)
        for link in cell.links(repeat, target_us(cell, target), buffer_bytes)
    ]
    jobs.sort(key=lambda job: -_length_s(matrix[job[0]]))  # the longest first, so that none is waited for at the end
    links = [link for _, link in jobs]
    share = _Share(progress, 2 * len(links))
    plain = fetch(links, NoCap(), keep_delays=True, threads=threads, progress=share.of(0))
    capped = fetch(links, agent, threads=threads, progress=share.of(len(links)))
    pairs: dict[int, list[tuple[Fetched, Fetched]]] = defaultdict(list)
    for (index, _), before, after in zip(jobs, plain, capped, strict=True):
        pairs[index].append((before, after))
    seen = learned_from(matrix, agent)
    return [
        {**row_of(cell, "sim", pairs[index]), "target": str(target), "trained_on": cell.trace.sha256 in seen}
        for index, cell in enumerate(matrix)
    ]


def learned_from(matrix: Sequence[Cell], agent: Agent) -> set[str]:
    """Returns the hashes of those traces of a matrix that shaped the agent."""
    given = {(cell.trace.name, cell.trace.sha256) for cell in matrix}
    return {use.sha256 for _, use in used_traces(agent.trace_uses, given)}


def row_of(cell: Cell, link: str, pairs: Sequence[tuple[Fetched, Fetched]]) -> dict[str, Any]:
    """Returns a cell's row of its connections, (plain, capped) each; units are in the keys.

    plain_ms and capped_ms are medians. Pairs of which one is incomplete or stalled are left out, and the row is not
    valid then.
    """
    whole = [pair for pair in pairs if all(fetched.complete and not fetched.stalled for fetched in pair)]
    first = 0 if cell.pause_ms is None else 1
    plain_ms = np.concatenate([np.zeros(0), *(plain.took_ms[first:] for plain, _ in whole)])
    capped_ms = np.concatenate([np.zeros(0), *(capped.took_ms[first:] for _, capped in whole)])
    qdelay_ms = np.concatenate([np.zeros(0), *(plain.qdelay_ms for plain, _ in whole)])
    qdelay_p95_ms = _quantile(qdelay_ms, 0.95)
    builds_queue = qdelay_p95_ms is not None and qdelay_p95_ms >= queue_threshold_ms(cell.mrtt_ms)
    limits = LIMITS_QUEUED if builds_queue else LIMITS_QUIET
    row: dict[str, Any] = {
        "cc": cell.cc,
        "mrtt_ms": cell.mrtt_ms,
        "rate_mbps": cell.trace.mean_mbps,
        "bytes": cell.size_bytes,
        "fresh": cell.pause_ms is None,
        "pause_ms": cell.pause_ms,
        "trace": cell.trace.name,
        "link": link,
        "plain_ms": _quantile(plain_ms, 0.5),
        "capped_ms": _quantile(capped_ms, 0.5),
        "plain_p95_ms": _quantile(plain_ms, 0.95),
        "capped_p95_ms": _quantile(capped_ms, 0.95),
        "ratio_p50": _ratio(plain_ms, capped_ms, 0.5),
        "ratio_p95": _ratio(plain_ms, capped_ms, 0.95),
        "ratio_mean": float(capped_ms.mean() / plain_ms.mean()) if plain_ms.size else None,
        "plain_builds_queue": builds_queue,
        "plain_qdelay_p95_ms": qdelay_p95_ms,
        "queue_threshold_ms": queue_threshold_ms(cell.mrtt_ms),
        "limit_p50": limits[0],
        "limit_p95": limits[1],
        "runs": len(pairs),
        "objects": len(plain_ms),
        "valid": len(whole) == len(pairs) > 0,
    }
    ok = within(row, limits)
    if cell.is_request:
        row |= {
            "plain_p99_ms": _quantile(plain_ms, 0.99),
            "capped_p99_ms": _quantile(capped_ms, 0.99),
            "ratio_p99": _ratio(plain_ms, capped_ms, 0.99),
            "limit_p99": LIMIT_P99,
        }
        ok = ok and _keeps(row["ratio_p99"], LIMIT_P99)
    return row | {"ok": ok}


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns groups of rows with their limits: by size, fresh or kept alive, and whether plain builds a queue.

    ``failures`` counts the rows above a limit, the worst ratios are the largest; further groups are those of requests.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["bytes"], not row["fresh"], row["plain_builds_queue"]].append(row)
    found = []
    for (size_bytes, kept, queued), members in sorted(groups.items()):
        limits = LIMITS_QUEUED if queued else LIMITS_QUIET
        connections = "kept alive" if kept else "fresh"
        found.append(
            {
                "group": f"{size_bytes} bytes, {connections}, {'queue' if queued else 'no queue'}",
                "cells": len(members),
                "failures": sum(not within(row, limits) for row in members),
                "worst_p50": _worst(members, "ratio_p50"),
                "limit_p50": limits[0],
                "worst_p95": _worst(members, "ratio_p95"),
                "limit_p95": limits[1],
            }
        )
    requests = [row for row in rows if "ratio_p99" in row]
    for cc in sorted({row["cc"] for row in requests}):
        members = [row for row in requests if row["cc"] == cc]
        found.append(
            {
                "group": f"request/response, {cc}",
                "cells": len(members),
                "failures": sum(not _keeps(row["ratio_p99"], LIMIT_P99) for row in members),
                "worst_p99": _worst(members, "ratio_p99"),
                "limit_p99": LIMIT_P99,
            }
        )
    return found


def within(row: Mapping[str, Any], limits: tuple[float, float]) -> bool:
    """Returns whether a row's median and 95th percentile keep their limits; a row without figures does not."""
    return _keeps(row["ratio_p50"], limits[0]) and _keeps(row["ratio_p95"], limits[1])


def _keeps(ratio: float | None, limit: float) -> bool:
    return ratio is not None and ratio <= limit


class _Share:
    """Turns counts of two halves into the share of the whole."""

    def __init__(self, tell: Callable[[float], None] | None, total: int) -> None:
        self._tell, self._total = tell, total

    def of(self, before: int) -> Callable[[int], None] | None:
        tell = self._tell
        return None if tell is None else lambda done: tell((before + done) / self._total)


def _length_s(cell: Cell) -> float:
    """Returns about how long a connection of the cell takes."""
    each_s = cell.size_bytes * 8e-6 / cell.trace.mean_mbps + (cell.pause_ms or 0.0) / 1000 + 4 * cell.mrtt_ms / 1000
    return cell.objects * each_s


def _quantile(values: FloatArray, share: float) -> float | None:
    """Returns the quantile, between neighbours linear; None of nothing."""
    return float(np.quantile(values, share)) if values.size else None


def _ratio(plain_ms: FloatArray, capped_ms: FloatArray, share: float) -> float | None:
    return float(np.quantile(capped_ms, share) / np.quantile(plain_ms, share)) if plain_ms.size else None


def _worst(rows: Iterable[Mapping[str, Any]], key: str) -> float | None:
    return max((row[key] for row in rows if row[key] is not None), default=None)
