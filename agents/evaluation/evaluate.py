"""Runs agents side by side over the same links and measures every run with the one metrics module."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.baselines import Agent, Clairvoyant, StatsArray
from reinet.agents.decide.guard import Guard
from reinet.agents.decide.names import make_agent, split_names
from reinet.agents.decide.policy import Policy
from reinet.agents.model.artifact import used_traces
from reinet.core import DEFAULT_FEATURE_SET, FLOW_STATS_DTYPE, Normaliser, PeriodConfig, StateBank
from reinet.core.errors import ConfigError
from reinet.envs.link.metrics import LinkLog, Metrics, compute, first_data_ms
from reinet.envs.mahimahi.link import LinkSpec
from reinet.envs.sim import LinkConfig, SimBatch
from reinet.envs.trace import Trace
from reinet.kshim.probe import why_not_capped

LinkKind = Literal["sim", "mahimahi"]
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

SCENARIO_KEYS = ("trace", "cc", "target_us", "mrtt_ms", "buffer_bytes", "start_offset_ms", "seed")
"""Keys of ``LinkConfig`` that a scenario says in its own fields."""
LINK_OPTIONS = tuple(f.name for f in fields(LinkConfig) if f.name not in SCENARIO_KEYS)
MAHIMAHI_OPTIONS = ("queue",)
"""Of these, what a link of Mahimahi can do too."""


def link_options(texts: Sequence[str]) -> dict[str, Any]:
    """Options of a link from ``key=value`` texts; values are JSON where they can be read as such, else plain text."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"link option {text!r}: give key=value, such as queue=codel")
        if key in options:
            raise ConfigError(f"link option {key}: is given twice")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


@dataclass(frozen=True)
class Scenario:
    """One link and what runs over it. Defaults are DeepCC's evaluation: 20 ms path, 150 KB droptail, 50 ms target."""

    trace: Trace
    link: LinkKind = "mahimahi"
    cc: str = "cubic"
    target_ms: float = 50.0
    mrtt_ms: float = 20.0
    buffer_bytes: int = 150_000
    seconds: float = 60.0
    start_offset_ms: int = 0
    """Where in the trace the link starts."""
    seed: int = 0
    """Of the simulator's jitter; the real host brings its own."""
    link_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Other keys of ``LinkConfig``: the queue, losses, jitter, further flows; of Mahimahi, MAHIMAHI_OPTIONS."""

    def __post_init__(self) -> None:
        for name in ("target_ms", "mrtt_ms", "seconds"):
            if not 0 < getattr(self, name) < 1e6:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0 and finite")
        LinkSpec(self.trace, mrtt_ms=self.mrtt_ms, buffer_bytes=self.buffer_bytes)  # the same limits for every link
        if self.start_offset_ms < 0 or self.seed < 0:
            raise ConfigError(f"start_offset_ms {self.start_offset_ms} and seed {self.seed} count from 0")
        for key in self.link_options:
            if key in SCENARIO_KEYS:
                raise ConfigError(f"link option {key}: it is said beside the link's options, not among them")
            if key not in LINK_OPTIONS:
                near = get_close_matches(key, LINK_OPTIONS, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ConfigError(f"link option {key}: unknown; {hint}There are {', '.join(LINK_OPTIONS)}")
            if self.link == "mahimahi" and key not in MAHIMAHI_OPTIONS:
                raise ConfigError(
                    f"link option {key}: Mahimahi's link has no such thing, only the simulated one (--link sim) has; "
                    f"with --link mahimahi there is {', '.join(MAHIMAHI_OPTIONS)}"
                )
        if self.link == "sim":
            self.simulated()  # refuses values that no link has
        else:
            self.emulated()

    def simulated(self) -> LinkConfig:
        """The link for the simulator."""
        return LinkConfig(
            trace=self.trace.opportunities_ms,
            buffer_bytes=self.buffer_bytes,
            mrtt_ms=self.mrtt_ms,
            target_us=round(self.target_ms * 1000),
            cc=self.cc,
            start_offset_ms=self.start_offset_ms,
            seed=self.seed,
            **self.link_options,
        )

    def emulated(self) -> LinkSpec:
        """The link for Mahimahi."""
        return LinkSpec(
            self.trace,
            mrtt_ms=self.mrtt_ms,
            buffer_bytes=self.buffer_bytes,
            start_offset_ms=self.start_offset_ms,
            **self.link_options,
        )


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
        s, m = self.scenario, self.metrics
        return {
            "agent": self.agent,
            "cc": s.cc,
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
            "mrtt_ms": s.mrtt_ms,
            "buffer_bytes": s.buffer_bytes,
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
    batch = SimBatch(
        [scenario.simulated()], period=period, feature_set=feature_set, normaliser=normaliser, record_log=True
    )
    if isinstance(agent, Clairvoyant):
        agent.bind(batch.clairvoyant_caps)
    decider = Decider(agent)
    records, caps = [], []
    batch.reset()
    end_ms = scenario.start_offset_ms + scenario.seconds * 1000
    while batch.stats["time_ns"][0] < end_ms * NS_PER_MS:
        cap = decider.cap(batch.stats.copy(), batch.states, batch.rule_pkts, bool(batch.decided[0]))
        records.append(batch.stats.copy())
        caps.append(cap)
        batch.step_caps(cap)
        if progress is not None:
            progress(float(batch.stats["time_ns"][0]) / NS_PER_S - scenario.start_offset_ms / 1000)
    link_log = LinkLog.of_flow(batch.log(0))
    return Run(
        agent=agent.name,
        scenario=scenario,
        metrics=compute(link_log, scenario.mrtt_ms, end_ms),
        log=link_log,
        start_ms=first_data_ms(link_log),
        records=np.concatenate(records) if records else np.zeros(0, FLOW_STATS_DTYPE),
        caps_pkts=np.concatenate(caps) if caps else np.zeros(0, np.uint32),
        invalid_reason=None,
        uncapped_reason=decider.uncapped_reason,
    )


def _run_mahimahi(agent: Agent, scenario: Scenario, progress: Callable[[float], None] | None) -> Run:
    from reinet.envs.kernel_link import KernelSession  # loads the kernel shim

    if agent.name != "none" and (reason := why_not_capped(scenario.cc)):
        raise ConfigError(
            f"cc {scenario.cc!r} cannot be capped in the kernel: {reason}; without a cap it runs under --agents none"
        )
    feature_set, normaliser, period = wanted_view(agent)
    bank = StateBank(1, feature_set, normaliser)
    decider = Decider(agent)

    def decide(record: StatsArray) -> int:
        batch = bank.update([0], record)
        return int(decider.cap(record, batch.states, batch.rule_pkts, bool(batch.decided[0]))[0])

    target_us = round(scenario.target_ms * 1000)
    with KernelSession(scenario.emulated(), scenario.cc, target_us=target_us, period=period) as session:
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


class Plan:
    """Every combination of agent, scenario and repetition; iterating runs them one by one.

    The agents are made, and everything that can be refused is refused, before the first run.
    """

    def __init__(
        self, agents: str, scenarios: Sequence[Scenario], repeat: int = 1, allow_training_traces: bool = False
    ) -> None:
        (link,) = {scenario.link for scenario in scenarios}
        self._agents = [make_agent(name, link=link) for name in split_names(agents)]
        self._scenarios = scenarios
        self._repeat = repeat
        traces = [scenario.trace for scenario in scenarios]
        self._trained_on = {agent.name: _shaped_by(agent, traces, allow_training_traces) for agent in self._agents}
        self.progress: Callable[[float], None] | None = None
        """Is told the seconds that have passed of the present run."""

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self._jobs())

    def __iter__(self) -> Iterator[tuple[Run, dict[str, object]]]:
        """Runs each in turn; gives the run and its row."""
        for repetition, scenario, agent in self._jobs():
            done = run(agent, scenario, self.progress)
            trained_on = scenario.trace.sha256 in self._trained_on[agent.name]
            yield done, {**done.row(), "repetition": repetition, "trained_on": trained_on}

    def _jobs(self) -> list[tuple[int, Scenario, Agent]]:
        return [
            (repetition, scenario, agent)
            for scenario in self._scenarios
            for repetition in range(self._repeat)  # agents next to each other in time: the host's load drifts
            for agent in self._agents
        ]


def _shaped_by(agent: Agent, traces: Sequence[Trace], allow: bool) -> set[str]:
    """Hashes of the traces that shaped a model. Raises ConfigError for any, unless that was explicitly allowed."""
    if not isinstance(agent, Policy):
        return set()
    found = used_traces(agent.manifest, {trace.name: trace.sha256 for trace in traces})
    if found and not allow:
        name, use = found[0]
        raise ConfigError(
            f"agent {agent.name}: trace {name} has the content of {use.name}, which the model was "
            f"{'trained' if use.role == 'train' else 'selected'} on; evaluate on other traces, or say "
            "--allow-training-traces and have the rows labelled"
        )
    return {use.sha256 for _, use in found}
