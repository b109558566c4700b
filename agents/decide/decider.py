"""The one decider: an agent behind gate and guard, for many flows, each of which keeps its cap through silences.

    records, states -> agent -> gate -> guard -> the caps in force

The gate (``core/guard/gate.hpp``) says of each record whether its flow has a queue of its own, which a cap could
shorten; the guard checks the caps themselves.

Rollouts, evaluation and the daemon all decide here. A flow is a row: in a simulation the link's, in the daemon the
shim's slot.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.protocol import Agent, CapArray, FloatArray
from reinet.agents.decide.verdicts import Verdicts, Why
from reinet.core.guard import VERDICT_DTYPE, Guard
from reinet.core.records import FlowStatsArray

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]


class Decision(NamedTuple):
    """The answer of agent, gate and guard to N records."""

    caps_pkts: CapArray
    """(N,), 0 = none."""
    verdicts: Verdicts
    """(N,), why a flow is uncapped, with what tells of it."""


class Decider:
    """Decides for ``rows`` flows and holds what it decided.

    ``decide`` does all; ``ask`` and ``hold`` are its halves, for a caller whose agent may fail or hang while others
    read the tables: ``ask`` changes none. The arrays are the decider's own: read them, copy what is to be kept.
    """

    def __init__(self, agent: Agent, rows: int, guard: Guard | None) -> None:
        """Makes a decider whose rows are all uncapped; ``guard`` None leaves it out, which only rollouts do."""
        self.agent = agent
        self.caps_pkts: CapArray = np.zeros(rows, np.uint32)
        """(rows,), the caps in force, 0 = none."""
        self.verdicts: Verdicts = np.zeros(rows, VERDICT_DTYPE)
        """(rows,), what was said of each flow's latest cap."""
        self._guard = guard
        agent.reset()

    def decide(
        self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray, decided: Mask, may_cap: Mask
    ) -> CapArray:
        """Returns the caps in force (rows,) after one record of every row.

        ``decided`` (rows,) is False for a record without an RTT sample: its row's cap stays. ``may_cap`` (rows,) is
        False for a flow whose gate is closed. Raises what the agent raises, and ValueError for an answer that is no row
        of caps.
        """
        if decided.all():
            self.hold(slice(None), self.ask(stats, states, rule_pkts, may_cap))
        elif decided.any():
            self.hold(np.flatnonzero(decided), self.ask(stats, states, rule_pkts, may_cap, decided))
        return self.caps_pkts

    def ask(
        self,
        stats: FlowStatsArray,
        states: FloatArray,
        rule_pkts: FloatArray,
        may_cap: Mask,
        decided: Mask | None = None,
    ) -> Decision:
        """Returns what agent, gate and guard say to those of N records that are ``decided`` (None = all of them).

        The agent is shown all of them: one that knows its flows by their place must find them there.
        """
        wanted = np.asarray(self.agent.decide(stats, states, rule_pkts))
        if wanted.shape != (len(stats),) or wanted.dtype != np.uint32:
            raise ValueError(f"{len(stats)} caps as uint32 were due, {wanted.dtype}{list(wanted.shape)} came")
        if decided is not None:
            stats, wanted, may_cap = stats[decided], wanted[decided], may_cap[decided]
        if self._guard is not None:
            return Decision(*self._guard.judge(stats, wanted, may_cap, self.agent.aims_at_target))
        caps_pkts = np.where(may_cap, wanted, np.uint32(0))
        verdicts = np.zeros(len(stats), VERDICT_DTYPE)
        verdicts["code"][caps_pkts == 0] = Why.AGENT_CHOSE_NONE
        verdicts["code"][~may_cap & (wanted != 0)] = Why.NO_QUEUE
        verdicts["wanted_pkts"], verdicts["allowed_pkts"] = wanted, caps_pkts
        verdicts["target_us"], verdicts["min_rtt_us"] = stats["target_us"], stats["min_rtt_us"]
        return Decision(caps_pkts, verdicts)

    def see(self, stats: FlowStatsArray) -> None:
        """Shows the guard N records with RTT samples that nobody is asked about, for later ones of their flows are."""
        if self._guard is not None:
            self._guard.see(stats, self.agent.aims_at_target)

    def hold(self, rows: Rows | slice, decision: Decision) -> None:
        """Puts a decision in force for these rows."""
        self.caps_pkts[rows] = decision.caps_pkts
        self.verdicts[rows] = decision.verdicts

    def clear(self, rows: Rows | slice) -> None:
        """Puts no cap in force for these rows."""
        self.caps_pkts[rows] = 0
        self.verdicts[rows] = 0

    def forget(self, slots: Rows, cookies: NDArray[np.uint64]) -> None:
        """Drops what the guard knows of flows that ended, each named by its slot and its cookie."""
        if self._guard is not None:
            self._guard.forget(slots, cookies)
