"""What an agent is: it sees flows through a view of its own and turns them into caps.

An agent is a subclass of ``Agent`` with a name and a ``decide``. What else a caller may want to know of it (which
traces shaped it, what it was trained for, whether it needs a link's future) has a default here, so that nobody asks
what kind of agent it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reinet.agents.model.artifact import Manifest, TraceUse
from reinet.agents.model.mlp import Layers
from reinet.alcc.launch import Law
from reinet.core.errors import ConfigError
from reinet.core.features import DEFAULT_FEATURE_SET
from reinet.core.normaliser import Normaliser
from reinet.core.period import PeriodConfig
from reinet.core.records import FlowStatsArray
from reinet.core.state import StateBank
from reinet.core.states.caps import MAX_CAP_PKTS
from reinet.core.target import Form, Target

FloatArray = NDArray[np.float32]
CapArray = NDArray[np.uint32]
Future = Callable[[int | NDArray[np.uint64]], CapArray]
"""For a horizon in milliseconds, or one for each link, the clairvoyant caps of all links, as
``SimBatch.clairvoyant_caps`` gives them."""


@dataclass(frozen=True)
class View:
    """How an agent sees flows. The defaults suit an agent that reads records alone."""

    feature_set: str = DEFAULT_FEATURE_SET
    """It names the states that the agent is shown."""
    normaliser: Normaliser = field(default_factory=Normaliser.reference)
    """The statistics that its states are normalised with."""
    period: PeriodConfig = field(default_factory=PeriodConfig)
    """It says when the agent's records are due."""
    room_beyond_ms: float | None = None
    """Its states tell of as much room for queueing as a path's minimum RTT is longer than this."""

    def bank(self, flows: int) -> StateBank:
        """Returns an empty bank of the states that this view shows, for so many flows."""
        return StateBank(flows, self.feature_set, self.normaliser, room_beyond_ms=self.room_beyond_ms)


class Network(NamedTuple):
    """An actor as plain layers, and how its actions become caps."""

    layers: Layers
    head: str
    calm_rtts: float


MODEL_IDENTITY = "sha256:"
"""So begins the identity of an agent that is a model; the hash of its manifest follows."""


class Agent(ABC):
    """Turns flows' records and states into caps."""

    sets_caps = True
    """False for the agent that leaves every flow to its congestion control, also where caps cannot be had."""
    aims_at_target = False
    """True for one that wants RTTs below the target, so that RTTs above it say that a cap does not help."""
    draws = False
    """True for one that throws dice, so that what a link gets hangs on how many it is asked about at once."""
    needs_future = False
    """True where ``bind`` must be called before ``decide``: such an agent decides in a simulator alone."""
    trace_uses: Sequence[TraceUse] = ()
    """Traces that shaped it; they cannot judge it."""
    target_range_ms: tuple[float, float] | None = None
    """Targets that it was trained for, None = any will do."""
    queueing_target_range_ms: tuple[float, float] | None = None
    """What those targets left for queueing, above the minimum RTT of each path; None = any will do, or unknown."""
    congestion_controls: Sequence[str] | None = None
    """Congestion controls that it was trained with, None = any will do."""
    ceiling_pkts: int = MAX_CAP_PKTS
    """Its owner sets it; no cap is above."""

    def __init__(self, name: str, view: View | None = None) -> None:
        self.name = name
        self.view = view or View()

    @property
    def manifest(self) -> Manifest | None:
        """Returns what is known of the model behind it; None where there is none."""
        return None

    @property
    def called(self) -> str:
        """Returns how replies and logs call it."""
        return self.name

    @property
    def identity(self) -> str:
        """Returns what says whether two agents are the same: the name, of a model the hash of its manifest."""
        return self.name

    def untrained_range_ms(self, target: Target, min_rtt_ms: float | None = None) -> tuple[float, float] | None:
        """Returns the range of targets that it was trained for where this is none of them; None where it is one.

        An absolute target goes by its RTT, others by what they leave above the path's minimum RTT. For a multiple that
        is known with the path alone: without one it is taken for one of them.
        """
        trained_ms = self.queueing_target_range_ms if target.is_relative else self.target_range_ms
        if trained_ms is None:
            return None
        asked_ms = target.amount
        if target.form is Form.MULTIPLE:
            if min_rtt_ms is None:
                return None
            asked_ms = round(target.resolve_ms(min_rtt_ms) - min_rtt_ms, 3)  # whole microseconds, as flows have it
        return None if trained_ms[0] <= asked_ms <= trained_ms[1] else trained_ms

    def bind(self, future: Future) -> None:  # noqa: B027  (optional)
        """Takes a link's future, which only a simulator has; most agents have no use for it."""

    def law_of_the_gate(self) -> Law:
        """Returns the agent as the application's gate (``alcc/``) runs it; raises ReinetError where that cannot."""
        raise ConfigError(f"{self.name} does not run in a process of its own: rule[:G], fixed:N, none and models do")

    def network(self) -> Network | None:
        """Returns the plain layers that decide, for whoever runs them without the interpreter; None where it has none.

        What they say is what ``decide`` does, but for the last bits of a sum.
        """
        return None

    def reset(self) -> None:  # noqa: B027  (optional)
        """Forgets everything about earlier flows; most agents hold nothing."""

    def outputs(self, states: FloatArray) -> FloatArray | None:
        """Returns a learned actor's output (N,) for states (N, S); None where the agent is none."""
        return None

    @abstractmethod
    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns caps in packets, 0 = none, for N flows: FLOW_STATS_DTYPE[N], states (N, S), rule_pkts (N,).

        rule_pkts is the hand rule's product as the view's feature set has it, 0 while unknown. At least one of the
        records has an RTT sample; answers to those without are not used: the cap in force stays.
        """
