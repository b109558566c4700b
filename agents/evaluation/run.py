"""A run: one agent over one scenario, measured with the one metrics module."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation.batch import FlowDecider, batch_seen, figures_over
from reinet.agents.evaluation.gated import GatedRun, drive_gated
from reinet.agents.evaluation.live import LiveLink, LiveRun, drive
from reinet.agents.evaluation.scenario import Scenario
from reinet.core import FLOW_STATS_DTYPE, Flag
from reinet.core.errors import ConfigError
from reinet.core.records import FlowStatsArray
from reinet.envs.capped_link import CappedLink
from reinet.envs.link.metrics import LinkLog, Metrics
from reinet.envs.link.stalls import why_stalled_in
from reinet.kshim.probe import why_not_capped

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Run:
    """One agent over one scenario."""

    agent: str
    scenario: Scenario
    metrics: Metrics
    log: LinkLog
    records: FlowStatsArray
    """FLOW_STATS_DTYPE: what the agent saw of the first flow, one record a period; time_ns counts from its link's
    start."""
    caps_pkts: NDArray[np.uint32]
    """The cap set after each record, 0 = none."""
    invalid_reason: str | None
    """Why the run must not be believed (the host lagged, the flow stalled, the agent failed), None = valid."""
    uncapped_reason: str | None
    """Why the guard refused caps; None = it never did after the first RTT sample, on a real link: not at the end."""
    sender_cpu_us: int | None = None
    """The CPU time of the sender's process on a real link, None = it was simulated."""

    def row(self) -> dict[str, object]:
        """Returns the run as one row of a table; units are in the keys.

        ``decisions`` are those of which a cap came; elsewhere (``logs``, ``reinet replay``) they are all.
        """
        s, path, m = self.scenario, self.scenario.path, self.metrics
        return {
            "agent": self.agent,
            "cc": path.cc,
            "trace": s.trace.name,
            "link": s.link,
            "actuator": s.actuator,
            "throughput_mbps": m.throughput_mbps,
            "utilization": m.utilization,
            "qdelay_mean_ms": m.qdelay_mean_ms,
            "qdelay_p95_ms": m.qdelay_p95_ms,
            "delay_mean_ms": m.delay_mean_ms,
            "valid": self.invalid_reason is None,
            "invalid_reason": self.invalid_reason,
            "uncapped_reason": self.uncapped_reason,
            "capacity_mbps": m.capacity_mbps,
            "decisions": int(np.count_nonzero(self.caps_pkts[(self.records["flags"] & int(Flag.NO_SAMPLE)) == 0])),
            "target": str(s.target),
            "target_ms": s.target_ms,
            "mrtt_ms": path.mrtt_ms,
            "buffer_bytes": None if path.queue == "infinite" else path.buffer_bytes,
            "link_options": dict(s.link_options),
            "seconds": s.seconds,
            "seed": path.seed if s.link == "sim" else None,
            "trace_sha256": s.trace.sha256,
        }


def run(agent: Agent, scenario: Scenario, progress: Callable[[float], None] | None = None) -> Run:
    """Runs one flow for the scenario's time and returns the run; ``progress`` is told the seconds that have passed.

    Raises what an agent raises in the simulator, where the run can be had again at once; on a real link the flow goes
    on uncapped, as it would under the daemon, and the run is not valid. Raises LinkError or ShimError where a real link
    cannot be had.
    """
    if scenario.link == "sim":
        return simulate(agent, [scenario], progress)[0]
    return (_run_gated if scenario.actuator == "app" else _run_mahimahi)(agent, scenario, progress)


def simulate(agent: Agent, scenarios: Sequence[Scenario], progress: Callable[[float], None] | None = None) -> list[Run]:
    """Returns the runs of one agent over simulated scenarios, all at once; ``progress`` is told the slowest's seconds.

    A link's run depends on its own caps alone, not on the others beside it. Raises what the agent raises.
    """
    paths = [scenario.path for scenario in scenarios]
    batch = batch_seen(agent.view, paths, record_log=True)
    agent.bind(batch.clairvoyant_caps)
    start_ms = np.array([path.start_offset_ms for path in paths], np.float64)
    end_ms = start_ms + [scenario.seconds * 1000 for scenario in scenarios]
    decider = FlowDecider(agent, paths, end_ms * NS_PER_MS)
    steps: list[tuple[FlowStatsArray, NDArray[np.uint32]]] = []
    batch.reset()
    while np.any(batch.stats["time_ns"] < end_ms * NS_PER_MS):
        caps = decider.decide(batch.stats, batch.states, batch.rule_pkts, batch.decided, batch.may_cap)
        steps.append((batch.stats.copy(), caps.copy()))
        batch.step_caps(caps)
        if progress is not None:
            progress(float(np.min(batch.stats["time_ns"] / NS_PER_S - start_ms / 1000)))
    records = np.stack([stats for stats, _ in steps]) if steps else np.zeros((0, len(paths)), FLOW_STATS_DTYPE)
    caps_pkts = np.stack([caps for _, caps in steps]) if steps else np.zeros((0, len(paths)), np.uint32)
    runs, refusals = [], decider.refusals()
    for row, scenario in enumerate(scenarios):
        whole = batch.log(row, end_ms[row])
        link_log = LinkLog.of_flow(whole)
        inside = records[:, row]["time_ns"] < end_ms[row] * NS_PER_MS  # a row that is through waits for the others
        inside &= records[:, row]["cookie"] >> np.uint64(32) == 0
        runs.append(
            Run(
                agent=agent.name,
                scenario=scenario,
                metrics=figures_over(scenario.path, link_log, end_ms[row]),
                log=link_log,
                records=records[inside, row],
                caps_pkts=caps_pkts[inside, row],
                invalid_reason=why_stalled_in(whole, scenario.path, start_ms[row], end_ms[row]),
                uncapped_reason=refusals[row] if agent.sets_caps else None,
            )
        )
    return runs


def require_caps(agent: Agent, scenario: Scenario) -> None:
    """Raises ReinetError where nothing on this host sets the agent's caps over a real link: neither shim nor gate.

    A run asks when it begins; who has many asks before the first one, for a refusal midway would lose the others.
    """
    if scenario.link == "sim":
        return
    if scenario.actuator == "app":
        agent.law_of_the_gate()
    elif agent.sets_caps and (reason := why_not_capped(scenario.path.cc)):
        raise ConfigError(
            f"cc {scenario.path.cc!r} cannot be capped in the kernel: {reason}; "
            "without a cap it runs under --agents none"
        )


def _run_mahimahi(agent: Agent, scenario: Scenario, progress: Callable[[float], None] | None) -> Run:
    require_caps(agent, scenario)
    with CappedLink(scenario.path, period=agent.view.period) as link:
        return live_run(link, agent, scenario, progress)


def _run_gated(agent: Agent, scenario: Scenario, progress: Callable[[float], None] | None) -> Run:
    done = drive_gated(agent, scenario.path, scenario.target, scenario.seconds, progress)
    return _run_of(agent, scenario, done, done.link.invalid_reason, done.uncapped_reason)


def live_run(
    link: LiveLink,
    agent: Agent,
    scenario: Scenario,
    progress: Callable[[float], None] | None = None,
    clock_ns: Callable[[], int] = time.monotonic_ns,
) -> Run:
    """Runs one flow over a link that is up, under the daemon's control loop, and returns the run."""
    done = drive(link, agent, scenario.target, scenario.seconds, progress, clock_ns)
    invalid_reason = "; ".join(filter(None, (done.link.invalid_reason, done.problem))) or None
    return _run_of(agent, scenario, done, invalid_reason, done.uncapped_reason if agent.sets_caps else None)


def _run_of(
    agent: Agent, scenario: Scenario, done: LiveRun | GatedRun, invalid_reason: str | None, uncapped_reason: str | None
) -> Run:
    return Run(
        agent=agent.name,
        scenario=scenario,
        metrics=done.link.metrics,
        log=done.link.log,
        records=done.records,
        caps_pkts=done.caps_pkts,
        invalid_reason=invalid_reason,
        uncapped_reason=uncapped_reason,
        sender_cpu_us=done.link.sender_cpu_us,
    )
