"""An agent over a real flow through the gate of ``alcc/``: it decides in the sender's own process."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reinet.agents.decide.protocol import Agent, CapArray
from reinet.agents.decide.verdicts import Why, text
from reinet.agents.evaluation.replayed import answers
from reinet.alcc.launch import ENVIRONMENT, Settings
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.records import FlowStatsArray
from reinet.core.target import Target
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun, MahimahiLink
from reinet.envs.mahimahi.namespace import USER_FILES

RECORDS = "records"
NEVER_SEEN = "the gate made no record with an RTT sample, so no cap came: flow ran uncapped; run it longer"


@dataclass(frozen=True)
class GatedRun:
    """One agent over one flow through the gate."""

    link: LinkRun
    records: FlowStatsArray
    """FLOW_STATS_DTYPE; time_ns counts from the link's start, like the log."""
    caps_pkts: CapArray
    """(N,), the cap in force as each record was made, 0 = none."""
    uncapped_reason: str | None
    """Why the flow was refused a cap at its end, None = it was not."""


def drive_gated(
    agent: Agent, path: LinkSpec, target: Target, seconds: float, progress: Callable[[float], None] | None = None
) -> GatedRun:
    """Runs one flow for ``seconds`` and returns what became of it; ``progress`` is told the seconds that have passed.

    Raises ReinetError for an agent that does not run in the process, LinkError when flow or link died.
    """
    variables = Settings(law=agent.law_of_the_gate(), target=target).variables()
    variables[ENVIRONMENT] += f" records={USER_FILES}/{RECORDS}"
    with MahimahiLink(path, sender_variables=variables) as link:
        link.start()
        link.go_on(seconds, progress)
        run = link.stop()
        records = np.frombuffer(link.read_file(RECORDS), FLOW_STATS_DTYPE).copy()
    reason = why_uncapped(agent, records)
    records["time_ns"] -= np.uint64(run.zero_ns)
    return GatedRun(run, records, records["cap_pkts"].copy(), reason)


def why_uncapped(agent: Agent, records: FlowStatsArray) -> str | None:
    """Returns why a flow through the gate was refused a cap at its end, None = it was not, or the agent sets none.

    The process writes records, but no reasons. It decides as the daemon does (``tests/unit/alcc/test_laws.py``), so the
    daemon's decider is asked about the same records, whose times are still the process's own: looks for a path's
    minimum RTT begin at set times of that clock.
    """
    if not agent.sets_caps:
        return None
    _, decided, verdict = answers(agent, records)
    if not decided.any():
        return NEVER_SEEN
    return None if verdict["code"] in (Why.CAPPED, Why.AGENT_CHOSE_NONE) else text(verdict)
