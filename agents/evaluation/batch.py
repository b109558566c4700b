"""Many simulated links at once under one agent: the figures of each, without records or pictures."""

from collections.abc import Sequence

import numpy as np

from reinet.agents.decide.decider import Decider
from reinet.agents.decide.guard import Guard
from reinet.agents.decide.protocol import Agent
from reinet.envs.link.metrics import LinkLog, Metrics, compute
from reinet.envs.link.spec import LinkSpec
from reinet.envs.sim import SimBatch


def figures(agent: Agent, links: Sequence[LinkSpec], seconds: float, threads: int = 1) -> list[Metrics]:
    """Returns the figures of one flow per link over its first ``seconds``, decided by ``agent`` behind the guard."""
    view = agent.view
    sim = SimBatch(
        list(links), view.period, view.feature_set, normaliser=view.normaliser, record_log=True, threads=threads
    )
    agent.bind(sim.clairvoyant_caps)
    decider = Decider(agent, len(links), Guard())
    end_ns = np.array([round((link.start_offset_ms / 1e3 + seconds) * 1e9) for link in links])
    sim.reset()
    while np.any(sim.stats["time_ns"] < end_ns):
        sim.step_caps(decider.decide(sim.stats, sim.states, sim.rule_pkts, sim.decided, sim.may_cap))
    return [compute(LinkLog.of_flow(sim.log(row)), link.mrtt_ms, end_ns[row] / 1e6) for row, link in enumerate(links)]
