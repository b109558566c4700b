"""No harm on real sockets: nginx and curl over emulated links, plain and capped in turn.

Caps are the kernel's, by the daemon's own loop, or nginx runs under the gate of ``alcc/``.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reinet.agents.decide.baselines import NoCap
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.protocol import Agent, CapArray
from reinet.agents.evaluation.harm import Cell, learned_from, row_of, target_us
from reinet.agents.evaluation.live import errors_only
from reinet.agents.evaluation.objects import LIMIT_S, Fetched
from reinet.agents.evaluation.scenario import Actuator
from reinet.alcc.launch import Settings, find_preload
from reinet.core.errors import ConfigError, LinkError
from reinet.core.records import FlowStatsArray
from reinet.core.target import Target
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.namespace import new_cgroup
from reinet.envs.mahimahi.process import require_open_to_all
from reinet.envs.mahimahi.web import WebLink
from reinet.envs.trace import Trace
from reinet.kshim.kernel import KernelShim
from reinet.kshim.probe import why_not_capped

Pair = tuple[Fetched, Fetched]
"""A connection plain, and the same capped."""

MRTTS_MS = (20.0, 60.0, 150.0)
RATES_MBPS = (24.0,)
PAUSES_MS = (1000.0,)
REPEAT = 3
"""Pairs of a cell: each path of the matrix takes an hour with three."""
MOST_OBJECTS = 21
"""The objects of one connection at most, for the same reason."""
LOOPBACK_BYTES = 10_000_000
LOOPBACK_COUNT = 20
"""200 MB over loopback take a tenth of a second and more: many records at any cadence."""
TICK_MS = 20
"""The longest wait for records, and how late the client's end may be noticed; its times are its own."""


def measure(
    matrix: Sequence[Cell],
    agent: Agent,
    *,
    target: Target,
    buffer_bytes: int = LinkSpec.buffer_bytes,
    repeat: int = REPEAT,
    actuator: Actuator = "kernel",
    progress: Callable[[float], None] | None = None,
    keep: Callable[[list[dict[str, Any]]], None] | None = None,
) -> list[dict[str, Any]]:
    """Returns a row for each cell, in order, from real sockets; ``progress`` is told the share that is done.

    ``keep`` gets the rows so far after each cell: a path takes an hour, and who ends it early has those. Times are
    curl's, so a fresh object's holds the handshake. Raises ConfigError for a congestion control that cannot be capped
    in the kernel, or an agent that does not run in a process; LinkError or ShimError where the host lacks something.
    """
    if actuator == "app":
        agent.law_of_the_gate()
        require_open_to_all(find_preload())
    for cc in {cell.cc for cell in matrix}:
        if actuator == "kernel" and (cannot := why_not_capped(cc)):
            raise ConfigError(f"cc {cc!r} cannot be capped in the kernel: {cannot}")
    rows, seen = [], learned_from(matrix, agent)
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(WebLink(new_cgroup(), [cell.size_bytes for cell in matrix]))
        shim = stack.enter_context(_shim(link, agent)) if actuator == "kernel" else None
        for index, cell in enumerate(matrix):
            pairs, reasons = [], []
            for number, spec in enumerate(_links(cell, repeat, target, buffer_bytes)):
                found: dict[bool, Fetched] = {}
                told = []
                for is_capped in (False, True) if number % 2 else (True, False):  # in turn: the host's load drifts
                    found[is_capped], reason = _run(link, shim, agent if is_capped else NoCap(), cell, spec, target)
                    told += [reason] if reason else []
                pairs.append((found[False], found[True]))
                reasons.append(told)
                if progress is not None:
                    progress((index + (number + 1) / repeat) / len(matrix))
            own = {"target": str(target), "actuator": actuator, "trained_on": cell.trace.sha256 in seen}
            rows.append({**live_row(cell, pairs, reasons), **own})
            if keep is not None:
                keep(rows)
    return rows


def live_row(cell: Cell, pairs: Sequence[Pair], reasons: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Returns a cell's row of its pairs and of why each of them must not be believed (nothing = it may).

    ``runs`` are the pairs that may be believed. Where more than half may, the figures are theirs and the row is valid,
    else of all pairs.
    """
    sound = [pair for pair, told in zip(pairs, reasons, strict=True) if not told]
    enough = 2 * len(sound) > len(pairs)
    row = row_of(cell, "mahimahi", sound if enough else pairs)
    return {
        **row,
        "runs": len(sound),
        "valid": row["valid"] and enough,
        "invalid_reasons": [reason for told in reasons for reason in told],
    }


def loopback(agent: Agent, cc: str, *, target: Target, buffer_bytes: int = LinkSpec.buffer_bytes) -> dict[str, Any]:
    """Returns what became of transfers over loopback from a server whose cgroup is watched: none may be capped.

    ``records``: what the loop saw of flows whose minimum RTT is below a millisecond; ``capped``: those with a cap.
    """
    cell = Cell(cc, 20.0, Trace.constant(24.0, 10.0), is_recording=False, size_bytes=LOOPBACK_BYTES, pause_ms=None)
    with WebLink(new_cgroup(), [LOOPBACK_BYTES]) as link, _shim(link, agent) as shim:
        (spec,) = _links(cell, 1, target, buffer_bytes)
        link.start(spec)
        seen = _Caps()
        loop = ControlLoop(shim, agent, target, sink=seen, log=errors_only())
        client = link.fetch_beside(LOOPBACK_BYTES, LOOPBACK_COUNT)
        while client.process.poll() is None:
            loop.tick(TICK_MS)
        loop.tick(TICK_MS)  # what the last of them left
        loop.release()
    return {"cc": cc, "objects": LOOPBACK_COUNT, "records": seen.records, "capped": seen.capped}


class _Caps:
    """Counts records of flows that never left the host, and those of them with a cap."""

    def __init__(self) -> None:
        self.records = self.capped = 0

    def offer(self, records: FlowStatsArray, caps_pkts: CapArray) -> None:
        local = (records["min_rtt_us"] > 0) & (records["min_rtt_us"] < 1000)
        self.records += int(np.count_nonzero(local))
        self.capped += int(np.count_nonzero(caps_pkts[local]))


def _run(
    link: WebLink, shim: KernelShim | None, agent: Agent, cell: Cell, spec: LinkSpec, target: Target
) -> tuple[Fetched, str | None]:
    """Runs one connection; returns its objects, and why they must not be believed, None = they may.

    Without a shim the agent decides in nginx's own process.
    """
    gated = shim is None and agent.sets_caps
    link.start(spec, Settings(law=agent.law_of_the_gate(), target=target).variables() if gated else None)
    loop = None
    if shim is not None:
        shim.poll(0)  # what is left of connections before
        loop = ControlLoop(shim, agent, target, log=errors_only())
    link.fetch(cell.size_bytes, min(cell.objects, MOST_OBJECTS), cell.pause_ms or 0.0)
    until_s = time.monotonic() + LIMIT_S
    problem = ""
    while not link.finished():
        if loop is None:
            time.sleep(TICK_MS / 1000)
        else:
            loop.tick(TICK_MS)
            problem = problem or loop.status().problem
        if time.monotonic() > until_s:
            raise LinkError(f"{cell.size_bytes} bytes were not fetched within {LIMIT_S:g} s")
    if loop is not None:
        loop.release()
    run = link.stop()
    reason = "; ".join(filter(None, (run.invalid_reason, problem))) or None
    return Fetched(run.took_ms, run.complete, run.qdelay_ms), reason


def _links(cell: Cell, repeat: int, target: Target, buffer_bytes: int) -> list[LinkSpec]:
    """Returns the paths of a cell's pairs, without what the application does, which is nginx's and curl's business.

    Real time is dear: a recording has no more offsets than there are repeats, as far apart as they can be.
    """
    links = cell.links(repeat, target_us(cell, target), buffer_bytes)
    return [replace(link, object_bytes=0, flow_bytes=0, pause_ms=0.0) for link in links[:: len(links) // repeat]]


def _shim(link: WebLink, agent: Agent) -> KernelShim:
    return KernelShim([link.cgroup], period=agent.view.period)
