"""An agent over a real flow, driven by the control loop that the daemon runs: what is measured is what ships."""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import structlog

from reinet.agents.decide.loop import TICK_MS, ControlLoop
from reinet.agents.decide.protocol import Agent, CapArray
from reinet.agents.decide.verdicts import WORDS, Why
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.records import FlowStatsArray
from reinet.core.target import Target
from reinet.envs.mahimahi.link import LinkRun
from reinet.kshim.shim import Shim

NS_PER_S = 1_000_000_000
_NO_REFUSALS = [WORDS[why] for why in (Why.CAPPED, Why.NO_DECISION, Why.AGENT_CHOSE_NONE)]


class LiveLink(Protocol):
    """A link whose flow can be driven; ``CappedLink`` is one."""

    @property
    def shim(self) -> Shim:
        """Returns what gives the flow's records and takes its caps."""

    @property
    def started_ns(self) -> int:
        """Returns the start of the flow, CLOCK_MONOTONIC in ns."""

    def start(self) -> None:
        """Begins a flow."""

    def stop(self) -> LinkRun:
        """Ends the flow; returns the link's log and figures."""


@dataclass(frozen=True)
class LiveRun:
    """One agent over one live flow."""

    link: LinkRun
    records: FlowStatsArray
    """FLOW_STATS_DTYPE, as the loop saw them; time_ns counts from the link's start, like the log."""
    caps_pkts: CapArray
    """(N,), the cap in force after each of ``records``, 0 = none."""
    problem: str | None
    """How the agent first failed, None = it never did. The loop then uncapped the flow, as the daemon would."""
    uncapped_reason: str | None
    """Why the flow was refused a cap at its end, None = it was not."""


def drive(
    link: LiveLink,
    agent: Agent,
    target: Target,
    seconds: float,
    progress: Callable[[float], None] | None = None,
    clock_ns: Callable[[], int] = time.monotonic_ns,
) -> LiveRun:
    """Runs one flow for ``seconds`` under the daemon's control loop and returns what became of it.

    ``progress`` is told the seconds that have passed.
    An agent that raises does not end the run: the flow goes on uncapped and ``problem`` says why. Raises LinkError when
    flow or link died.
    """
    seen = _Recorder()
    problem = ""
    link.start()
    loop = ControlLoop(link.shim, agent, target, sink=seen, clock_ns=clock_ns, log=errors_only())
    until_ns = link.started_ns + round(seconds * NS_PER_S)
    while (left_ns := until_ns - clock_ns()) > 0:
        loop.tick(min(TICK_MS, -(-left_ns // 1_000_000)))
        problem = problem or loop.status().problem
        if progress is not None:
            progress((clock_ns() - link.started_ns) / NS_PER_S)
    reasons = loop.snapshot().reasons
    run = link.stop()
    loop.release()
    records = np.concatenate([np.zeros(0, FLOW_STATS_DTYPE), *seen.records])
    records["time_ns"] -= np.uint64(run.zero_ns)
    return LiveRun(
        link=run,
        records=records,
        caps_pkts=np.concatenate([np.zeros(0, np.uint32), *seen.caps_pkts]),
        problem=problem or None,
        uncapped_reason=next((why for why in reasons if why not in _NO_REFUSALS), None),
    )


class _Recorder:
    """Keeps what the loop offers."""

    def __init__(self) -> None:
        self.records: list[FlowStatsArray] = []
        self.caps_pkts: list[CapArray] = []

    def offer(self, records: FlowStatsArray, caps_pkts: CapArray) -> None:
        self.records.append(records)
        self.caps_pkts.append(caps_pkts)


def errors_only() -> Any:
    """Returns a log of failures, on standard error: standard output may carry the results, refusals among them."""
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[structlog.processors.add_log_level, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
    )
