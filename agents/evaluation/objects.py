"""Completion times of objects over simulated links: many connections in one batch, each row taking the next when free.

An object's time runs from when the server wrote its first byte to when the client has its last one, in order. Neither
the handshake nor the request's way is in it: a cap cannot change them, and they would only bring ratios nearer to 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.decider import Decider
from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation.batch import batch_seen
from reinet.agents.evaluation.scenario import data_leaves_s
from reinet.core import PeriodConfig
from reinet.core.guard import Guard
from reinet.core.records import Flag
from reinet.envs.link.spec import LinkSpec
from reinet.envs.link.stalls import why_stalled
from reinet.envs.sim import SimBatch

FloatArray = NDArray[np.float64]

ROWS = 256
"""Enough to share the cost of a decision, few enough for a core's cache (``reinet bench sim``)."""
LIMIT_S = 900.0
"""A connection that has not finished by then never will: 50 objects with pauses, or 30 MB at 1 Mbit/s, take 300 s."""
UNWATCHED = PeriodConfig(min_period_ns=250_000_000, packet_timed=False)
"""Nobody decides on the records of a plain flow, and the fewer there are the sooner it is through."""


@dataclass(frozen=True)
class Fetched:
    """The objects of one connection."""

    took_ms: FloatArray
    """(K,), in order; the first is the one that a new connection begins with."""
    complete: bool
    """False where the connection did not get all of its objects through within LIMIT_S."""
    qdelay_ms: FloatArray
    """(P,), the time in the bottleneck's queue of every packet that left it; empty unless it was asked for."""
    stalled: bool = False
    """Whether nothing left the link for so long that the connection must not be believed (``envs/link/stalls.py``)."""


def fetch(
    links: Sequence[LinkSpec],
    agent: Agent,
    *,
    keep_delays: bool = False,
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[Fetched]:
    """Returns what became of every link's connection, in their order; ``progress`` is told how many are through.

    Each link has ``flow_bytes``, an end. What a connection does depends neither on the others nor on ``threads``. One
    whose link lets nothing through within LIMIT_S is not waited for.
    """
    if never := {at for at, link in enumerate(links) if data_leaves_s(link) >= LIMIT_S}:
        rest = [link for at, link in enumerate(links) if at not in never]
        found = iter(fetch(rest, agent, keep_delays=keep_delays, threads=threads, progress=progress))
        nothing = Fetched(np.zeros(0), complete=False, qdelay_ms=np.zeros(0))
        return [nothing if at in never else next(found) for at in range(len(links))]
    if not links:
        return []
    rows = min(ROWS, len(links))
    view = agent.view if agent.sets_caps else replace(agent.view, period=UNWATCHED)
    batch = batch_seen(view, links[:rows], record_log=True, threads=threads)
    agent.bind(batch.clairvoyant_caps)
    decider = Decider(agent, rows, Guard())
    results: list[Fetched | None] = [None] * len(links)
    present = np.arange(rows)  # the link that each row carries, -1 = none any more
    until_ns = np.array([_until_ns(link) for link in links], np.uint64)
    waiting, through = rows, 0
    batch.reset()
    while True:
        while True:  # a new connection's first record may be its last
            closed = (batch.stats["flags"] & Flag.CLOSED) != 0
            ended = (present >= 0) & (closed | (batch.stats["time_ns"] > until_ns[present]))
            if not ended.any():
                break
            free = np.flatnonzero(ended)
            for row in free:
                results[present[row]] = _fetched(batch, int(row), links[present[row]], keep_delays)
            through += free.size
            decider.clear(free)
            fresh = free[: len(links) - waiting]
            present[free] = -1
            for row in fresh:
                present[row] = waiting
                batch.set_link(int(row), links[waiting])
                waiting += 1
            batch.reset(fresh)
            if progress is not None:
                progress(through)
        if through == len(links):
            return [result for result in results if result is not None]
        stats = batch.stats.copy()
        stats["cookie"] = present + 1  # a row's next connection is another flow to whoever remembers flows
        batch.step_caps(decider.decide(stats, batch.states, batch.rule_pkts, batch.decided, batch.may_cap))


def _until_ns(link: LinkSpec) -> int:
    return round((link.start_offset_ms + LIMIT_S * 1000) * 1e6)


def _fetched(batch: SimBatch, row: int, link: LinkSpec, keep_delays: bool) -> Fetched:
    written_ms, received_ms = batch.objects(row)
    due = -(-link.flow_bytes // link.object_bytes)
    log = batch.log(row, 0)
    left_ms = log["departure_ms"]
    stall_ms = float(np.diff(left_ms).max()) if len(left_ms) > 1 else 0.0
    return Fetched(
        took_ms=received_ms - written_ms,
        complete=len(written_ms) == due,
        qdelay_ms=log["departure_delay_ms"] if keep_delays else np.zeros(0),
        stalled=why_stalled(stall_ms, link.trace_ms, link.pause_ms) is not None,
    )
