"""A policy in force: it rules on its flows' records, by its agent and its mode."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.decider import Mask
from reinet.agents.decide.desk import Desk
from reinet.agents.decide.flows import FlowTable, Rows
from reinet.agents.decide.guard import Guard
from reinet.agents.decide.modes import Mode, Order
from reinet.agents.decide.protocol import CapArray, FloatArray, StatsArray
from reinet.agents.decide.verdicts import VERDICT_DTYPE, Verdicts, Why


class Ruling(NamedTuple):
    """What is to become of M flows, each of which is in it once."""

    rows: Rows
    stats: StatsArray
    """(M,), the records that were decided on."""
    caps_pkts: CapArray
    """(M,), to be applied, 0 = none."""
    verdicts: Verdicts
    failed: bool
    """The agent failed: every flow of the course is to be uncapped."""


class Cases(NamedTuple):
    """M flows to decide on, each of which is in it once, with what their records made of their states."""

    rows: Rows
    stats: StatsArray
    states: FloatArray
    rule_pkts: FloatArray
    may_cap: Mask

    def of(self, chosen: NDArray[np.intp]) -> "Cases":
        """Returns some of them."""
        return Cases(
            self.rows[chosen], self.stats[chosen], self.states[chosen], self.rule_pkts[chosen], self.may_cap[chosen]
        )


def _asked(desk: Desk, cases: Cases, now_ns: int) -> Ruling:
    """Returns what a desk says."""
    decision = desk.ask(cases.stats, cases.states, cases.rule_pkts, cases.may_cap, now_ns)
    if decision is not None:
        return Ruling(cases.rows, cases.stats, decision.caps_pkts, decision.verdicts, False)
    verdicts = np.zeros(len(cases.rows), VERDICT_DTYPE)
    verdicts["code"] = Why.AGENT_FAILED
    return Ruling(cases.rows, cases.stats, np.zeros(len(cases.rows), np.uint32), verdicts, True)


class Course:
    """One order at work."""

    def __init__(self, order: Order, rows: int, make_guard: Callable[[], Guard], lease_ns: int, log: Any) -> None:
        order.agent.reset()
        self.order = order
        self._lease_ns = lease_ns
        self._desk = Desk(order.agent, rows, make_guard(), log)
        self.stale = 0
        """Records that were too old to decide on."""

    @property
    def agent_problem(self) -> str:
        """Returns how the agent failed in its latest answer; empty when it did not."""
        return self._desk.problem

    @property
    def problem(self) -> str:
        """Returns what somebody ought to mend; empty when all is well."""
        return self._desk.problem or self._desk.quarantined

    def words(self) -> dict[int, str]:
        """Returns the course's own words for some verdicts, by their code."""
        return {int(Why.AGENT_FAILED): self._desk.problem}

    @property
    def decisions(self) -> int:
        """Returns how many decisions were made."""
        return self._desk.decisions

    def rule(self, records: StatsArray, rows: Rows, flows: FlowTable, now_ns: int) -> Ruling:
        """Takes N records of flows in these rows, writes their targets into them and says what becomes of the flows."""
        # Anew for each record, whatever the kernel says: a relative target falls with the flow's minimum RTT.
        records["target_us"] = self.order.target.resolve_us(records["min_rtt_us"])
        batch = self._desk.see(rows, records)
        latest = flows.last_of_each(rows, np.flatnonzero(batch.decided))
        if len(latest) == len(rows):  # as most often: each flow once, each with a sample
            cases = Cases(rows, records, batch.states, batch.rule_pkts, batch.may_cap)
        else:
            cases = Cases(rows, records, batch.states, batch.rule_pkts, batch.may_cap).of(latest)
        if not len(latest):
            return Ruling(cases.rows, cases.stats, np.zeros(0, np.uint32), np.zeros(0, VERDICT_DTYPE), False)
        oldest_ns = now_ns - self._lease_ns
        if int(cases.stats["time_ns"].min()) >= oldest_ns:
            ruling = self._decide(cases, now_ns)
        else:
            ruling = self._decide_fresh(cases, cases.stats["time_ns"].astype(np.int64) >= oldest_ns, now_ns)
        if self.order.mode is Mode.SHADOW:
            ruling.verdicts["code"][ruling.caps_pkts != 0] = Why.SHADOW
            ruling.caps_pkts[:] = 0
        return ruling

    def _decide(self, cases: "Cases", now_ns: int) -> Ruling:
        """Returns what is decided for flows whose records are fresh."""
        return _asked(self._desk, cases, now_ns)

    def _decide_fresh(self, cases: "Cases", fresh: Mask, now_ns: int) -> Ruling:
        """Returns what is decided where some records are too old to decide on: their flows are uncapped."""
        self.stale += int(np.count_nonzero(~fresh))
        verdicts = np.zeros(len(fresh), VERDICT_DTYPE)
        verdicts["code"] = Why.STALE
        caps_pkts = np.zeros(len(fresh), np.uint32)
        failed = False
        if fresh.any():
            ruling = self._decide(cases.of(np.flatnonzero(fresh)), now_ns)
            caps_pkts[fresh], verdicts[fresh], failed = ruling.caps_pkts, ruling.verdicts, ruling.failed
        return Ruling(cases.rows, cases.stats, caps_pkts, verdicts, failed)

    def reset(self, rows: Rows, cookies: NDArray[np.uint64]) -> None:
        """Empties rows for new flows, and forgets those that had them, named by their cookies."""
        self._desk.reset(rows, cookies)

    def forget(self, rows: Rows, cookies: NDArray[np.uint64]) -> None:
        """Forgets flows that ended."""
        self._desk.forget(rows, cookies)

    def grow(self, rows: int) -> None:
        """Adds rows, up to ``rows``."""
        self._desk.grow(rows)
