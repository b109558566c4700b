"""A model takes another's place while flows go on: first recorded states, then a share of flows, then all of them.

  swap                 SHARE_NS and SHARE_DECISIONS            WATCH_NS
-------> canary -------> a share of flows -----------> all flows -------> done
           |                     |                         |
           | refuses: raises     +--- rolled back: it failed or was refused too often, or its flows surely
           v                     |    fared worse than the old model's (share) or than plain ones (all,
       nothing changed           v    under hold-out)
                            the old model, which saw every record meanwhile
"""

import time
from dataclasses import dataclass
from enum import Enum

import numpy as np

from reinet.agents.decide.decider import Decider
from reinet.agents.decide.evidence import Evidence
from reinet.agents.decide.pipeline import Pipeline
from reinet.agents.decide.protocol import Agent
from reinet.agents.decide.quarantine import MOST_REFUSED
from reinet.agents.decide.verdicts import faults
from reinet.core.errors import ModelError
from reinet.core.guard import Guard
from reinet.core.records import FlowStatsArray
from reinet.core.target import Target

SHARE = 0.1
"""One flow in ten is risked first."""
SHARE_NS = 20_000_000_000
SHARE_DECISIONS = 1000
"""It lasts 20 s at least, and until the model made so many decisions; ten flows of 20 ms RTT make them in 2 s."""
WATCH_NS = 60_000_000_000
"""The old model stays at hand for a minute after all flows changed over: evidence of a fifth more delay takes less."""
MOST_BATCH_US = 50_000
"""A tick waits so long for records; a model that takes longer for one decision holds up leases."""
MOST_DECISION_US = 20
"""With 10 us for each decision a core makes 100 000 a second; twice that is for a host that lags."""
_ATTEMPTS = 3


class Stage(str, Enum):
    """How far a swap is."""

    SHARE = "share"
    WATCH = "watch"


@dataclass(frozen=True)
class Canary:
    """What a model made of recorded states."""

    states: int
    refused: int
    """Outputs that the guard refused for the model's own fault."""
    us_per_state: float


def canary(agent: Agent, records: FlowStatsArray, target: Target, guard: Guard) -> Canary:
    """Shows recorded records to a model that is to take over, and returns how it answered.

    Belongs to the caller's thread, so that a model that hangs hangs there. Raises ModelError for a model that must not
    be let near flows: one that raises, whose answers are no caps or are refused too often, or that takes too long.
    """
    slots, rows = np.unique(records["slot"], return_inverse=True)
    records = np.array(records)
    target.write(records, np.zeros(len(records), np.uint32))
    batch = agent.view.bank(max(len(slots), 1)).update(rows.astype(np.int32), records)
    asked = np.flatnonzero(batch.decided)
    if not asked.size:
        return Canary(0, 0, 0.0)
    open_gates = np.ones(len(asked), np.bool_)
    decider = Decider(agent, 0, guard)
    took_us = []
    for _ in range(_ATTEMPTS):
        start_ns = time.perf_counter_ns()
        try:
            decision = decider.ask(records[asked], batch.states[asked], batch.rule_pkts[asked], open_gates)
        except Exception as error:  # whatever it raises: it is not to take over
            raise ModelError(f"{agent.name}: refused, it failed on recorded states: {error!r}") from error
        took_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    bad = faults(decision.verdicts["code"])
    if bad > MOST_REFUSED * asked.size:
        raise ModelError(f"{agent.name}: refused, {bad} of {asked.size} answers to recorded states are no valid caps")
    if min(took_us) > MOST_BATCH_US + MOST_DECISION_US * asked.size:
        raise ModelError(
            f"{agent.name}: refused, it took {min(took_us) / 1e3:.0f} ms for {asked.size} recorded states; "
            "use a smaller network"
        )
    return Canary(int(asked.size), bad, min(took_us) / asked.size)


class Trial:
    """A swap under way: the pipeline that is to take over, the one that it replaces, and what is known of both."""

    def __init__(self, candidate: Pipeline, incumbent: Pipeline, share: float, rows: int, now_ns: int) -> None:
        self.candidate, self.incumbent = candidate, incumbent
        self.share = share
        self.stage = Stage.SHARE
        self.since_ns = now_ns
        self._decided = 0  # decisions under a pause, which were not put in force
        self.evidence = Evidence(rows)

    @property
    def name(self) -> str:
        """Returns what the model is called that is to take over."""
        return self.candidate.agent.called

    @property
    def beside(self) -> Pipeline:
        """Returns the pipeline beside the policy's own: the candidate, for its share of flows, or the incumbent."""
        return self.candidate if self.stage is Stage.SHARE else self.incumbent

    def fault(self) -> str:
        """Returns why the candidate must go whatever its flows say; empty when it may stay."""
        return self.candidate.quarantined or self.candidate.problem

    def share_is_over(self, now_ns: int) -> bool:
        """Returns whether the candidate has been under way for long enough to get all flows."""
        decided = self.candidate.decisions - self._decided
        return now_ns - self.since_ns >= SHARE_NS and decided >= SHARE_DECISIONS

    def begin_stage_again(self, now_ns: int) -> None:
        """Begins the present stage anew, as under a pause: what is under no cap shows nothing of a model."""
        self.since_ns, self._decided = now_ns, self.candidate.decisions
        self.evidence.restart()

    def watch(self, now_ns: int) -> None:
        """Begins the last stage."""
        self.stage, self.since_ns = Stage.WATCH, now_ns

    def watch_is_over(self, now_ns: int) -> bool:
        """Returns whether the old model may go."""
        return self.stage is Stage.WATCH and now_ns - self.since_ns >= WATCH_NS
