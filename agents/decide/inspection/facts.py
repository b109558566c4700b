"""What a decision loop tells of itself, in plain data: whoever asks may sit in another process.

``Snapshot`` is many flows, ``FlowReport`` is one, ``Figures`` what is counted from the start, ``ModelFacts`` an agent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import Agent
from reinet.agents.decide.verdicts import Verdicts, Why
from reinet.core.guard import VERDICT_DTYPE
from reinet.core.records import FlowStatsArray

KINDS = {int(why): why.name.lower() for why in Why}
"""What verdicts are counted under: few words, which a metric's label may be."""
CAPPED_KIND = KINDS[int(Why.CAPPED)]


@dataclass(frozen=True)
class Snapshot:
    """The flows as the loop knew them after its latest tick; the arrays are copies."""

    stats: FlowStatsArray  # (N,), each flow's latest record
    caps_pkts: NDArray[np.uint32]  # (N,), decided; 0 = none
    reasons: list[str]  # (N,), why a flow is uncapped, empty when it is capped
    now_ns: int  # the loop's clock now
    live: int  # how many flows there are, told of here or not
    verdicts: Verdicts = field(default_factory=lambda: np.zeros(0, VERDICT_DTYPE))
    """(N,), the same as numbers, with what the agent wanted."""
    pids: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """(N,), the process that caps the flow itself, 0 = the kernel does; empty where the kernel caps all."""
    next: int = 0
    """Further flows come after this cookie; 0 = none do."""


@dataclass(frozen=True)
class FlowReport:
    """One flow: what was seen of it, what the agent made of that, and what came of it. The arrays are copies."""

    records: FlowStatsArray
    """(K,), the latest records, oldest first."""
    now_ns: int
    """The loop's clock now."""
    cap_pkts: int
    """The cap decided, 0 = none."""
    verdict: str
    """Why the flow is uncapped, empty when it is capped."""
    lease_left_ms: float
    """How long the cap acts if nothing renews it, 0 = no cap acts."""
    target: str
    """What the flow is asked for, as text."""
    own_target: bool
    """Whether that was set for this flow alone."""
    policy: str
    """The name of the policy that the flow is under."""
    feature_set: str
    features: tuple[str, ...]
    units: tuple[str, ...]
    state: NDArray[np.float32]
    """(history, features), what the agent was shown at its latest decision, newest first; (0, features) before it."""
    decided_ns: int
    """When that was, 0 = never."""
    rule_pkts: float
    """The hand rule's product that it was shown, 0 while unknown."""
    head: str
    """What turns the action into packets; empty where the agent has no actions."""
    action: float | None
    """The network's output for that state, None where the agent has no actions."""
    wanted_pkts: int | None
    """The cap that the agent asked for, before gate and guard; None before the first decision."""


@dataclass(frozen=True)
class Distribution:
    """How often values fell below bounds, since the start."""

    bounds: tuple[float, ...]
    counts: NDArray[np.int64]
    """(bounds + 1,), values above the bound before and up to this one; the last are above all bounds."""
    total: float
    """The sum of all values."""


@dataclass(frozen=True)
class Figures:
    """What the loop counted since its start, and how its flows stand now."""

    ticks: int
    verdicts: Mapping[str, int]
    """By kind, how many decisions came to it."""
    flows: Mapping[str, int]
    """By kind, live flows now; ``capped`` are those with a cap in force."""
    decision_latency_s: Distribution
    """From the end of a record's period to just after its flow's cap was stored."""
    rtt_s: Distribution
    """Mean RTT of the records with samples."""
    queueing_delay_s: Distribution
    """The same, above the path's minimum RTT."""
    delivery_rate_bytes_per_s: Distribution
    shim: Mapping[str, int]
    """The shim's own counters (``Shim.counters``), empty until the first tick."""


@dataclass(frozen=True)
class ModelFacts:
    """Who decides, and what it was made for."""

    name: str
    identity: str
    """The hash of a model's manifest; the name of an agent that is no model."""
    feature_set: str
    min_period_ms: float
    packet_timed: bool
    head: str = ""
    schema_hash: str = ""
    target_range_ms: tuple[float, float] | None = None
    queueing_target_range_ms: tuple[float, float] | None = None
    congestion_controls: tuple[str, ...] = field(default=())
    """Empty = any will do."""
    seed: int | None = None
    env_steps: int | None = None


def facts_of(agent: Agent) -> ModelFacts:
    """Returns the facts of an agent."""
    period = agent.view.period
    manifest = agent.manifest
    return ModelFacts(
        name=agent.name,
        identity=agent.identity,
        feature_set=agent.view.feature_set,
        min_period_ms=period.min_period_ns / 1e6,
        packet_timed=period.packet_timed,
        head=manifest.schema_.head if manifest else "",
        schema_hash=manifest.schema_.hash if manifest else "",
        target_range_ms=agent.target_range_ms,
        queueing_target_range_ms=agent.queueing_target_range_ms,
        congestion_controls=tuple(agent.congestion_controls or ()),
        seed=manifest.training.seed if manifest else None,
        env_steps=manifest.training.env_steps if manifest else None,
    )
