"""One agent at work in the loop: its flows' states, its guard, and what is to happen when it fails.

records -> states -> agent -> gate -> guard -> decision        (the agent well)
                \\--> failed: no decision, every flow of the pipeline uncapped
                 \\-> refused or failed too often: in quarantine, the hand rule decides from then on
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.baselines import Rule
from reinet.agents.decide.decider import Decider, Decision, Mask
from reinet.agents.decide.protocol import Agent, FloatArray
from reinet.agents.decide.quarantine import Quarantine
from reinet.agents.decide.verdicts import faults
from reinet.core.guard import Guard
from reinet.core.records import FlowStatsArray
from reinet.core.state import Batch
from reinet.core.states.reflex import Reflex

REPEATED_ERROR_S = 10.0
"""An agent that fails on every tick is logged this often, not every time."""


class Shown(NamedTuple):
    """What an agent was shown of a flow at its latest record with a sample."""

    state: NDArray[np.float32]  # (S,)
    rule_pkts: float


class Pipeline:
    """An agent with the states of ``rows`` flows."""

    def __init__(self, agent: Agent, rows: int, guard: Guard, lease_ns: int, log: Any) -> None:
        self.agent = agent
        self.problem = ""
        """How the agent failed in its latest answer; empty when it did not."""
        self.quarantined = ""
        """Why the hand rule decides in the agent's place; empty while the agent does."""
        self.decisions = 0
        self._log = log
        self._bank = agent.view.bank(rows)
        self._decider = Decider(agent, 0, guard)
        self._quarantine = Quarantine()
        self._logged_ns: int | None = None
        network = agent.network()
        self._reflex = None if network is None else Reflex(
            self._bank, guard, network.layers, network.head, network.calm_rtts, agent.ceiling_pkts, lease_ns
        )  # fmt: skip

    @property
    def reflex(self) -> Reflex | None:
        """Returns what answers records in the agent's place, by the same network, states and guard; None where nothing
        may.
        """
        return None if self.quarantined or self.problem else self._reflex

    def see(self, rows: NDArray[np.intp], records: FlowStatsArray) -> Batch:
        """Takes N records, of several of a flow the oldest first, and returns what they made of the states."""
        return self._bank.update(rows.astype(np.int32), records)

    def longer_us(self, rows: NDArray[np.intp]) -> NDArray[np.uint32]:
        """Returns the least RTT (N,) of each flow's path where that has become longer than the kernel's, else 0."""
        return self._bank.longer_us(rows)

    def pass_over(self, records: FlowStatsArray) -> None:
        """Takes N records with RTT samples that nobody is asked about, for later ones of their flows are there."""
        self._decider.see(records)

    def shown(self, row: int) -> Shown:
        """Returns what the agent was shown of a row's flow; any thread may ask."""
        return Shown(*(self._bank if self._reflex is None else self._reflex).show(row))

    def ask(
        self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray, may_cap: Mask, now_ns: int
    ) -> Decision | None:
        """Returns what is decided for N flows; None where the agent failed, and ``problem`` says how."""
        try:
            decision = self._decider.ask(stats, states, rule_pkts, may_cap)
        except Exception as error:  # whatever a model does must not take the flows' caps out of our hands
            self._failed(error, now_ns)
            self._note(len(stats), len(stats), now_ns)
            return None
        self.problem = ""
        self.decisions += len(stats)
        self._note(int(np.count_nonzero(may_cap)), faults(decision.verdicts["code"]), now_ns)
        return decision

    def answered(self, decisions: int, asked: int, refused: int, now_ns: int) -> None:
        """Takes what the reflex did: its decisions, those on flows whose gate is open, and the refusals for the agent's
        own fault.
        """
        self.problem = ""
        self.decisions += decisions
        self._note(asked, refused, now_ns)

    def reset(self, rows: NDArray[np.intp], cookies: NDArray[np.uint64], answered: bool = False) -> None:
        """Empties rows for new flows, and forgets those that had them, named by their cookies.

        Those that the reflex has ``answered`` it has emptied before.
        """
        if not answered:
            self._bank.reset(rows.astype(np.int32))
        self._decider.forget(rows, cookies)

    def forget(self, rows: NDArray[np.intp], cookies: NDArray[np.uint64]) -> None:
        """Forgets flows that ended."""
        self._decider.forget(rows, cookies)

    def grow(self, rows: int) -> None:
        """Adds rows, up to ``rows``."""
        self._bank.grow(max(rows, self._bank.capacity))

    def _note(self, decided: int, refused: int, now_ns: int) -> None:
        if self.quarantined or not (why := self._quarantine.note(decided, refused, now_ns)):
            return
        rule = Rule()
        rule.ceiling_pkts = self.agent.ceiling_pkts
        self.quarantined = (
            f"the agent {self.agent.name} is in quarantine, {rule.name} caps in its place: {why}; replace the model"
        )
        self.problem = ""
        self._decider.agent = rule
        self._log.error("agent in quarantine", agent=self.agent.name, reason=why, instead=rule.name)

    def _failed(self, error: Exception, now_ns: int) -> None:
        name = self._decider.agent.name
        problem = f"the agent {name} failed: {type(error).__name__}: {error}; all flows are uncapped"
        if problem != self.problem and (self._logged_ns is None or now_ns - self._logged_ns > REPEATED_ERROR_S * 1e9):
            self._log.error("agent failed", agent=name, error=repr(error), exc_info=error)
            self._logged_ns = now_ns
        self.problem = problem
