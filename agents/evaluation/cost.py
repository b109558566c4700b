"""What a sender costs: CPU time of its process and of the one that decides, over one long flow on a real link.

The sender's process is charged with its system calls, which is where a TCP segment is made and first sent. What ACKs
set off is done in interrupts and charged to nobody, capped or not. The deciding process is charged with reading
records, states, the model and writing caps: the daemon's loop, for one flow.
"""

import time
from dataclasses import dataclass
from typing import Any

from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation.live import LiveLink, LiveRun, drive
from reinet.agents.evaluation.scenario import Scenario
from reinet.envs.capped_link import CappedLink


@dataclass(frozen=True)
class Cost:
    """One flow's figures."""

    run: LiveRun
    loop_cpu_s: float
    """The CPU time of this process while the flow ran."""
    seconds: float
    """The time over which that was counted."""

    def row(self) -> dict[str, Any]:
        """Returns the figures of a table; shares are of one core."""
        link = self.run.link
        took_s = (link.end_ms - link.start_ms) / 1000
        megabytes = link.metrics.throughput_mbps * took_s / 8
        return {
            "throughput_mbps": link.metrics.throughput_mbps,
            "sender_percent": link.sender_cpu_us / took_s / 1e4,
            "deciding_percent": 100 * self.loop_cpu_s / self.seconds,
            "sender_ms_per_mb": link.sender_cpu_us / 1000 / megabytes if megabytes else None,
            "records": len(self.run.records),
            "invalid_reason": "; ".join(filter(None, (link.invalid_reason, self.run.problem))) or None,
        }


def measure(agent: Agent, scenario: Scenario) -> Cost:
    """Returns what one real flow cost. Raises LinkError or ShimError where the host lacks something."""
    with CappedLink(scenario.path, period=agent.view.period) as link:
        return measured(link, agent, scenario)


def measured(link: LiveLink, agent: Agent, scenario: Scenario) -> Cost:
    """Returns what a flow over a link that is up cost."""
    told: list[tuple[float, float]] = []  # clock, CPU time

    def note(_seconds: float) -> None:
        told[1:] = [(time.monotonic(), time.process_time())]  # the first stays

    run = drive(link, agent, scenario.target, scenario.seconds, note)
    (began_s, idle_s), (ended_s, used_s) = told[0], told[-1]
    return Cost(run, used_s - idle_s, max(ended_s - began_s, 1e-9))
