"""One agent over one scenario, measured with the one metrics module."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.baselines import Agent, Clairvoyant, StatsArray
from reinet.agents.decide.guard import Guard
from reinet.agents.decide.policy import Policy
from reinet.agents.evaluation.scenario import Scenario
from reinet.core import DEFAULT_FEATURE_SET, FLOW_STATS_DTYPE, Normaliser, PeriodConfig, StateBank
from reinet.core.errors import ConfigError
from reinet.envs.link.metrics import LinkLog, Metrics, compute, first_data_ms
from reinet.envs.sim import SimBatch
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
    start_ms: float
    """First data packet at the link, in the trace's time."""
    records: StatsArray
    """FLOW_STATS_DTYPE: what the agent saw, one record a period; time_ns counts from the link's start."""
    caps_pkts: NDArray[np.uint32]
    """The cap set after each record, 0 = none."""
    invalid_reason: str | None
    """Why the run must not be believed (the host lagged, the flow stalled), None = valid."""
    uncapped_reason: str | None
    """Why the guard refused a cap, None = it never did after the first RTT sample."""

    def row(self) -> dict[str, object]:
        """The run as one row of a table; units are in the keys."""
        s, path, m = self.scenario, self.scenario.path, self.metrics
        return {
            "agent": self.agent,
            "cc": path.cc,
            "trace": s.trace.name,
            "link": s.link,
            "throughput_mbps": m.throughput_mbps,
            "utilization": m.utilization,
            "qdelay_mean_ms": m.qdelay_mean_ms,
            "qdelay_p95_ms": m.qdelay_p95_ms,
            "delay_mean_ms": m.delay_mean_ms,
            "valid": self.invalid_reason is None,
            "invalid_reason": self.invalid_reason,
            "uncapped_reason": self.uncapped_reason,
            "capacity_mbps": m.capacity_mbps,
            "decisions": int(np.count_nonzero(self.caps_pkts)),
            "target_ms": s.target_ms,
            "mrtt_ms": path.mrtt_ms,
            "buffer_bytes": path.buffer_bytes,
            "link_options": dict(s.link_options),
            "seconds": s.seconds,
            "trace_sha256": s.trace.sha256,
        }


class Decider:
    """An agent behind the guard, for one flow: turns a record and a state into the cap to apply."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._guard = Guard()
        self._cap_pkts = np.zeros(1, np.uint32)
        self.uncapped_reason: str | None = None
        agent.reset()

    def cap(
        self, record: StatsArray, state: NDArray[np.float32], rule_pkts: NDArray[np.float32], decided: bool
    ) -> NDArray[np.uint32]:
        """Cap (1,) for a record (1,); without a decision (no RTT sample) the one before it stays."""
        if decided:
            self._cap_pkts, (reason,) = self._guard.check(record, self._agent.decide(record, state, rule_pkts))
            self.uncapped_reason = reason if self._agent.name != "none" else None
        return self._cap_pkts


def wanted_view(agent: Agent) -> tuple[str, Normaliser, PeriodConfig]:
    """Feature set and normaliser of the states, and the period of the records, that an agent wants to see."""
    if isinstance(agent, Policy):
        return agent.feature_set, agent.normaliser, agent.period
    return DEFAULT_FEATURE_SET, Normaliser.reference(), PeriodConfig()


def run(agent: Agent, scenario: Scenario, progress: Callable[[float], None] | None = None) -> Run:
    """Runs one flow for the scenario's time; ``progress`` is told the seconds that have passed.

    Raises LinkError or ShimError where a real link cannot be had.
    """
    return (_run_sim if scenario.link == "sim" else _run_mahimahi)(agent, scenario, progress)


def _run_sim(agent: Agent, scenario: Scenario, progress: Callable[[float], None] | None) -> Run:
    feature_set, normaliser, period = wanted_view(agent)
    batch = SimBatch([scenario.path], period=period, feature_set=feature_set, normaliser=normaliser, record_log=True)
    if isinstance(agent, Clairvoyant):
        agent.bind(batch.clairvoyant_caps)
    decider = Decider(agent)
    records, caps = [], []
    batch.reset()
    end_ms = scenario.path.start_offset_ms + scenario.seconds * 1000
    while batch.stats["time_ns"][0] < end_ms * NS_PER_MS:
        cap = decider.cap(batch.stats.copy(), batch.states, batch.rule_pkts, bool(batch.decided[0]))
        records.append(batch.stats.copy())
        caps.append(cap)
        batch.step_caps(cap)
        if progress is not None:
            progress(float(batch.stats["time_ns"][0]) / NS_PER_S - scenario.path.start_offset_ms / 1000)
    link_log = LinkLog.of_flow(batch.log(0))
    return Run(
        agent=agent.name,
        scenario=scenario,
        metrics=compute(link_log, scenario.path.mrtt_ms, end_ms),
        log=link_log,
        start_ms=first_data_ms(link_log),
        records=np.concatenate(records) if records else np.zeros(0, FLOW_STATS_DTYPE),
        caps_pkts=np.concatenate(caps) if caps else np.zeros(0, np.uint32),
        invalid_reason=None,
        uncapped_reason=decider.uncapped_reason,
    )


def _run_mahimahi(agent: Agent, scenario: Scenario, progress: Callable[[float], None] | None) -> Run:
    from reinet.envs.kernel_session import KernelSession

    if agent.name != "none" and (reason := why_not_capped(scenario.path.cc)):
        raise ConfigError(
            f"cc {scenario.path.cc!r} cannot be capped in the kernel: {reason}; "
            "without a cap it runs under --agents none"
        )
    feature_set, normaliser, period = wanted_view(agent)
    bank = StateBank(1, feature_set, normaliser)
    decider = Decider(agent)

    def decide(record: StatsArray) -> int:
        batch = bank.update([0], record)
        return int(decider.cap(record, batch.states, batch.rule_pkts, bool(batch.decided[0]))[0])

    with KernelSession(scenario.path, period=period) as session:
        done = session.run(scenario.seconds, decide, progress)
    return Run(
        agent=agent.name,
        scenario=scenario,
        metrics=done.link.metrics,
        log=done.link.log,
        start_ms=done.link.start_ms,
        records=done.records,
        caps_pkts=done.caps_pkts,
        invalid_reason=done.link.invalid_reason,
        uncapped_reason=decider.uncapped_reason,
    )
