"""An agent over a real flow through the gate of ``alcc/``: it decides in the sender's own process."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reinet.agents.decide.protocol import Agent, CapArray
from reinet.alcc.launch import ENVIRONMENT, Settings
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.records import FlowStatsArray
from reinet.core.target import Target
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun, MahimahiLink
from reinet.envs.mahimahi.namespace import USER_FILES

RECORDS = "records"


@dataclass(frozen=True)
class GatedRun:
    """One agent over one flow through the gate."""

    link: LinkRun
    records: FlowStatsArray
    """FLOW_STATS_DTYPE; time_ns counts from the link's start, like the log."""
    caps_pkts: CapArray
    """(N,), the cap in force as each record was made, 0 = none."""


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
    records["time_ns"] -= np.uint64(run.zero_ns)
    return GatedRun(run, records, records["cap_pkts"].copy())
