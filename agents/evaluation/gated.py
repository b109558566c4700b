"""An agent over a real flow through the gate of ``alcc/``: it decides in the sender's own process."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reinet.agents.decide.protocol import Agent, CapArray, StatsArray
from reinet.alcc.launch import ENVIRONMENT, Settings
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.target import Target
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun, MahimahiLink
from reinet.envs.mahimahi.namespace import USER_FILES

RECORDS = "records"
_LOOK_S = 0.05


@dataclass(frozen=True)
class GatedRun:
    """One agent over one flow through the gate."""

    link: LinkRun
    records: StatsArray
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
        until_ns = link.started_ns + round(seconds * 1e9)
        while (left_ns := until_ns - time.monotonic_ns()) > 0:
            time.sleep(min(_LOOK_S, left_ns / 1e9))
            link.check()
            if progress is not None:
                progress((time.monotonic_ns() - link.started_ns) / 1e9)
        run = link.stop()
        records = np.frombuffer(link.read_file(RECORDS), FLOW_STATS_DTYPE).copy()
    records["time_ns"] -= np.uint64(run.zero_ns)
    return GatedRun(run, records, records["cap_pkts"].copy())
