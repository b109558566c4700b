"""A policy in force: it rules on its flows' records, by its agent and its mode, and swaps its agent for another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.decider import Mask, Rows
from reinet.agents.decide.evidence import CAPPED, NEITHER, PLAIN, Comparison, Evidence
from reinet.agents.decide.flows import FlowTable
from reinet.agents.decide.modes import Mode, PolicySpec, lots
from reinet.agents.decide.pipeline import Pipeline
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray
from reinet.agents.decide.swap import Stage, Trial
from reinet.agents.decide.verdicts import Verdicts, Why, faults
from reinet.core.guard import VERDICT_DTYPE, Guard
from reinet.core.records import FlowStatsArray
from reinet.core.states.reflex import ANSWER_DECIDED, ANSWER_NONE, ANSWER_STALE, Answered, Reflex

COMPARE_NS = 2_000_000_000
"""The groups are compared so often: flows tell little more after less, and it takes a millisecond."""
EPISODE_NS = 600_000_000_000
"""Evidence begins anew every ten minutes, so that a good morning does not outweigh a bad afternoon."""
_HOLD_OUT_SALT, _SWAP_SALT = 0, 1  # who is held out says nothing about who gets the new model


# Python 3.11 takes long to look members up.
_CAPPED, _ENFORCE, _SHADOW, _HOLD_OUT = Why.CAPPED, Mode.ENFORCE, Mode.SHADOW, Mode.HOLD_OUT


class Cases(NamedTuple):
    """M flows to decide on, each of which is in it once, with what their records made of their states."""

    rows: Rows
    stats: FlowStatsArray
    states: FloatArray
    rule_pkts: FloatArray
    may_cap: Mask

    def of(self, chosen: NDArray[np.intp]) -> "Cases":
        """Returns some of them."""
        return Cases(
            self.rows[chosen], self.stats[chosen], self.states[chosen], self.rule_pkts[chosen], self.may_cap[chosen]
        )


class Ruling(NamedTuple):
    """What is to become of M flows, each of which is in it once."""

    rows: Rows
    stats: FlowStatsArray
    """(M,), the records that were decided on."""
    caps_pkts: CapArray
    """(M,), to be applied, 0 = none."""
    verdicts: Verdicts
    uncap_all: Why
    """Why every flow of the policy is to be uncapped; CAPPED = none but as above."""
    stored_ns: NDArray[np.uint64] | None = None
    """(M,), when each cap was stored; None = it is to be."""


class Part(NamedTuple):
    """Who is asked about which of M flows."""

    pipeline: Pipeline
    cases: Cases
    """The M flows with the states of this pipeline."""
    asked: Mask | None
    """(M,), None = about all of them."""


@dataclass(frozen=True)
class PolicyStatus:
    """How a policy is, as plain data."""

    name: str
    mode: str
    model: str
    target: str
    state: str
    """``enforcing``, ``shadow``, ``hold-out`` or ``stood down``."""
    quarantined: str
    """Why the hand rule decides in the model's place; empty while the model does."""
    stood_down: str
    """Why the hold-out stood down; empty while it did not."""
    swap: str
    """The swap under way (``share: MODEL``, ``watch: MODEL``); empty when there is none."""
    latest_swap: str
    """How the latest swap ended; empty before the first."""
    comparison: Comparison
    """Capped flows beside plain ones under hold-out; of a swap's first stage the new model's beside the old one's."""


class ActivePolicy:
    """A ``PolicySpec`` at work."""

    def __init__(self, spec: PolicySpec, rows: int, make_guard: Callable[[], Guard], lease_ns: int, log: Any) -> None:
        spec.agent.reset()
        self.spec = spec
        self.stale = 0
        """Records that were too old to decide on."""
        self._lease_ns, self._rows, self._make_guard, self._log = lease_ns, rows, make_guard, log
        self._pipeline = self._make_pipeline(spec.agent)
        self._retired_decisions = 0  # of pipelines that are gone
        self._trial: Trial | None = None
        self._latest_swap = ""
        self._stood_down = ""
        self._evidence = Evidence(rows)
        self._comparison = Comparison()
        self._compared_ns = self._episode_ns = 0

    @property
    def agent_problem(self) -> str:
        """Returns how the agent failed in its latest answer; empty when it did not."""
        return self._pipeline.problem

    @property
    def problem(self) -> str:
        """Returns what somebody ought to mend; empty when all is well."""
        return self._pipeline.problem or self._pipeline.quarantined or self._stood_down

    @property
    def decisions(self) -> int:
        """Returns how many decisions were made."""
        return self._retired_decisions + sum(pipeline.decisions for pipeline in self._pipelines())

    @property
    def agent(self) -> Agent:
        """Returns the agent that decides for most flows."""
        return self._pipeline.agent

    def pipeline_of(self, cookie: int) -> Pipeline:
        """Returns the pipeline that decides for a flow; other threads may ask."""
        trial = self._trial
        if trial is None or trial.stage is not Stage.SHARE:
            return self._pipeline
        cookies = np.array([cookie], np.uint64)
        plain = self.spec.mode is Mode.HOLD_OUT and lots(cookies, _HOLD_OUT_SALT)[0] < self.spec.plain_share
        return trial.candidate if not plain and lots(cookies, _SWAP_SALT)[0] < trial.share else self._pipeline

    def must_swap(self, spec: PolicySpec) -> bool:
        """Returns whether a new spec asks for another agent than the present one does, and than is here by now.

        What was swapped in or rolled back meanwhile stays when a new spec names the same agent again.
        """
        trial = self._trial  # the loop's thread may end it meanwhile
        here = self._pipeline.agent if trial is None else trial.candidate.agent
        return spec.agent.identity not in (self.spec.agent.identity, here.identity)

    def words(self) -> dict[int, str]:
        """Returns the policy's own words for some verdicts, by their code."""
        return {int(Why.AGENT_FAILED): self._pipeline.problem, int(Why.STOOD_DOWN): self._stood_down}

    def status(self) -> PolicyStatus:
        """Returns how it is."""
        trial = self._trial
        state = {Mode.ENFORCE: "enforcing", Mode.SHADOW: "shadow", Mode.HOLD_OUT: "hold-out"}[self.spec.mode]
        return PolicyStatus(
            name=self.spec.name,
            mode=self.spec.mode.value,
            model=self._pipeline.agent.called,
            target=str(self.spec.target),
            state="stood down" if self._stood_down else state,
            quarantined=self._pipeline.quarantined,
            stood_down=self._stood_down,
            swap="" if trial is None else f"{trial.stage.value}: {trial.name}",
            latest_swap=self._latest_swap,
            comparison=self._comparison,
        )

    def rule(self, records: FlowStatsArray, rows: Rows, flows: FlowTable, now_ns: int, paused: bool = False) -> Ruling:
        """Takes N records of flows in these rows, writes their targets into them and says what becomes of the flows."""
        # Anew for each record, whatever the kernel says: a relative target falls with the flow's minimum RTT.
        longer_us = self._pipeline.longer_us(rows)
        flows.own_targets.write(records, longer_us, self.spec.target)
        batch = self._pipeline.see(rows, records)
        seen = Cases(rows, records, batch.states, batch.rule_pkts, batch.may_cap)
        latest = flows.last_of_each(rows, np.flatnonzero(batch.decided))
        cases = seen.of(latest) if len(latest) < len(rows) else seen
        passed = np.array(batch.decided)  # the guard counts round trips: it misses no record
        passed[latest] = False
        if self._trial is None and self.spec.mode is not _HOLD_OUT:
            if passed.any():
                self._pipeline.pass_over(records[passed])
            return self._shown(self._merged(cases, [Part(self._pipeline, cases, None)], now_ns))
        return self._shown(self._rule_in_groups(seen, latest, passed, cases, now_ns, paused))

    def reflex(self) -> Reflex | None:
        """Returns what answers the flows' records as they come; None where the policy has to look at each."""
        if self._trial is not None or self.spec.mode is not _ENFORCE or self._stood_down:
            return None
        found = self._pipeline.reflex
        if found is not None:
            found.set_target(*self.spec.target.line())
        return found

    def take_answers(self, answered: Answered, rows: Rows, flows: FlowTable, now_ns: int) -> Ruling:
        """Takes N records that the reflex has answered, of flows in these rows; returns what became of the flows."""
        latest = flows.last_of_each(rows, np.flatnonzero(answered.answers != ANSWER_NONE))
        answers = answered.answers[latest]
        verdicts = answered.verdicts[latest]
        is_stale = answers == ANSWER_STALE
        verdicts["code"][is_stale] = Why.STALE
        stale = int(np.count_nonzero(is_stale))
        self.stale += stale
        asked = int(np.count_nonzero(answers == ANSWER_DECIDED))
        self._pipeline.answered(len(latest) - stale, asked, faults(verdicts["code"]), now_ns)
        caps_pkts = np.array(verdicts["allowed_pkts"])
        return Ruling(rows[latest], answered.records[latest], caps_pkts, verdicts, _CAPPED, answered.stored_ns[latest])

    def swap(self, agent: Agent, share: float, recorded: FlowStatsArray, now_ns: int) -> None:
        """Puts another agent on trial, whose states are made of what was recorded; ``canary`` has passed it.

        A swap that is under way ends: what it had come to stays. After the hold-out stood down there is no old model to
        compare with or to go back to: the new one gets all flows at once, with the hold-out to judge it.
        """
        self._end_trial("replaced by another swap")
        pipeline = self._make_pipeline(agent)
        if len(recorded):
            pipeline.see(recorded["slot"].astype(np.intp), np.array(recorded))
        self._log.info("swap begins", policy=self.spec.name, model=agent.called, share=share)
        if self._stood_down:
            self._retired_decisions += self._pipeline.decisions
            self._pipeline, self._stood_down = pipeline, ""
            self._begin_evidence(now_ns)
            return
        self._trial = Trial(pipeline, self._pipeline, share, self._rows, now_ns)
        if share >= 1.0:
            self._promote(now_ns)

    def amend(self, spec: PolicySpec, now_ns: int) -> None:
        """Takes another target, mode and share from the next record on; the agent comes by ``swap``."""
        if (spec.mode, spec.plain_share) != (self.spec.mode, self.spec.plain_share):
            self._stood_down = ""
            self._begin_evidence(now_ns)
        self.spec = spec

    def resume(self, now_ns: int) -> None:
        """Gives a hold-out that stood down another chance; its evidence begins anew."""
        self._stood_down = ""
        self._begin_evidence(now_ns)

    def roll_back(self, why: str, now_ns: int) -> None:
        """Goes back to the model before the swap that is under way."""
        trial = self._trial
        assert trial is not None
        self._retired_decisions += trial.candidate.decisions
        self._pipeline, self._trial = trial.incumbent, None
        self._latest_swap = f"rolled back from {trial.name} to {self._pipeline.agent.called}: {why}"
        self._begin_evidence(now_ns)
        self._log.error(
            "rolled back", policy=self.spec.name, model=trial.name, to=self._pipeline.agent.called, reason=why
        )

    def reset(self, rows: Rows, cookies: NDArray[np.uint64], answered: bool = False) -> None:
        """Empties rows for new flows, which the reflex may have ``answered``, and forgets those that had them, named by
        their cookies.
        """
        for pipeline in self._pipelines():
            pipeline.reset(rows, cookies, answered and pipeline is self._pipeline)

    def forget(self, rows: Rows, cookies: NDArray[np.uint64]) -> None:
        """Forgets flows that ended."""
        for pipeline in self._pipelines():
            pipeline.forget(rows, cookies)
        if self.spec.mode is _HOLD_OUT:
            self._evidence.close(rows, cookies)
        if self._trial is not None:
            self._trial.evidence.close(rows, cookies)

    def grow(self, rows: int) -> None:
        """Adds rows, up to ``rows``."""
        self._rows = rows
        for pipeline in self._pipelines():
            pipeline.grow(rows)

    def _rule_in_groups(
        self, seen: Cases, latest: NDArray[np.intp], passed: Mask, cases: Cases, now_ns: int, paused: bool
    ) -> Ruling:
        """Rules where some flows stay plain, or some are under another model."""
        cookies, trial = seen.stats["cookie"], self._trial
        plain = tried = np.zeros(len(cookies), np.bool_)
        if self.spec.mode is _HOLD_OUT:
            plain = lots(cookies, _HOLD_OUT_SALT) < self.spec.plain_share
        parts = []
        if trial is not None:
            beside = trial.beside
            batch = beside.see(seen.rows, seen.stats)  # the other pipeline knows every flow as well
            if trial.stage is Stage.SHARE:
                tried = ~plain & (lots(cookies, _SWAP_SALT) < trial.share)
                its = Cases(seen.rows, seen.stats, batch.states, batch.rule_pkts, batch.may_cap).of(latest)
                beside.pass_over(seen.stats[passed & tried])
                parts = [Part(beside, its, tried[latest])]
        self._pipeline.pass_over(seen.stats[passed & ~plain & ~tried])
        parts.append(Part(self._pipeline, cases, (~plain & ~tried)[latest]))
        ruling = self._merged(cases, [] if self._stood_down else parts, now_ns)
        if paused:  # flows under no cap prove nothing
            self._begin_evidence(now_ns)
            if trial is not None:
                trial.begin_stage_again(now_ns)
            return ruling
        if not self._stood_down:
            self._gather(seen, plain, tried)
            self._conclude(now_ns)
            if self._stood_down:
                return ruling._replace(uncap_all=Why.STOOD_DOWN)
        return ruling

    def _merged(self, cases: Cases, parts: list[Part], now_ns: int) -> Ruling:
        """Returns what the pipelines say of their parts of the cases; a flow whose record is too old is uncapped."""
        count, oldest_ns = len(cases.rows), now_ns - self._lease_ns
        all_fresh = not count or int(cases.stats["time_ns"].min()) >= oldest_ns
        if all_fresh and count and len(parts) == 1 and parts[0].asked is None:
            return _asked(self._pipeline, cases, now_ns)
        fresh = cases.stats["time_ns"].astype(np.int64) >= oldest_ns
        self.stale += int(np.count_nonzero(~fresh))
        verdicts, caps_pkts = np.zeros(count, VERDICT_DTYPE), np.zeros(count, np.uint32)
        verdicts["code"] = np.where(fresh, Why.STOOD_DOWN if self._stood_down else Why.HELD_OUT, Why.STALE)
        uncap_all = Why.CAPPED
        for pipeline, its, asked in parts:
            chosen = np.flatnonzero(fresh if asked is None else fresh & asked)
            if not chosen.size:
                continue
            said = _asked(pipeline, its.of(chosen), now_ns)
            caps_pkts[chosen], verdicts[chosen] = said.caps_pkts, said.verdicts
            if pipeline is self._pipeline:
                uncap_all = said.uncap_all
        return Ruling(cases.rows, cases.stats, caps_pkts, verdicts, uncap_all)

    def _shown(self, ruling: Ruling) -> Ruling:
        """Returns what is applied of a ruling: in shadow nothing."""
        if self.spec.mode is _SHADOW:
            ruling.verdicts["code"][ruling.caps_pkts != 0] = Why.SHADOW
            ruling.caps_pkts[:] = 0
        return ruling

    def _gather(self, seen: Cases, plain: Mask, tried: Mask) -> None:
        if self.spec.mode is _HOLD_OUT:
            groups = np.where(plain, PLAIN, np.where(tried, NEITHER, CAPPED)).astype(np.int8)
            self._evidence.take(seen.stats, seen.rows, groups, seen.may_cap)
        if self._trial is not None and self._trial.stage is Stage.SHARE:
            groups = np.where(plain, NEITHER, np.where(tried, CAPPED, PLAIN)).astype(np.int8)
            self._trial.evidence.take(seen.stats, seen.rows, groups, seen.may_cap)

    def _conclude(self, now_ns: int) -> None:
        """Rolls back, promotes or stands down, as the evidence says."""
        trial = self._trial
        if trial is not None and (fault := trial.fault()):
            self.roll_back(fault, now_ns)
            return
        if now_ns - self._compared_ns < COMPARE_NS:
            return
        self._compared_ns = now_ns
        of_trial = trial.evidence.compare() if trial is not None and trial.stage is Stage.SHARE else None
        if of_trial is not None and of_trial.harm:
            self.roll_back(f"beside the old model's flows {of_trial.harm}", now_ns)
            return
        if self.spec.mode is _HOLD_OUT:
            self._comparison = self._evidence.compare()
            if harm := self._comparison.harm:
                if trial is not None and trial.stage is Stage.WATCH:
                    self.roll_back(harm, now_ns)
                else:
                    self._stand_down(harm)
                return
            if now_ns - self._episode_ns >= EPISODE_NS:
                self._begin_evidence(now_ns)
        if trial is None:
            return
        if of_trial is not None:
            self._comparison = of_trial
            if trial.share_is_over(now_ns):
                self._promote(now_ns)
        elif trial.watch_is_over(now_ns):
            self._end_trial("done")

    def _stand_down(self, harm: str) -> None:
        self._end_trial("the hold-out stood down meanwhile")
        self._stood_down = (
            f"the hold-out stood down, capped flows fared worse than plain ones: {harm}; every flow is plain until "
            "another model comes or the daemon is resumed"
        )
        self._log.error("stood down", policy=self.spec.name, model=self._pipeline.agent.called, reason=harm)

    def _promote(self, now_ns: int) -> None:
        """Gives all flows to the model that is on trial."""
        trial = self._trial
        assert trial is not None
        self._pipeline = trial.candidate
        trial.watch(now_ns)
        self._begin_evidence(now_ns)
        self._log.info("swap goes on to all flows", policy=self.spec.name, model=trial.name)

    def _end_trial(self, how: str) -> None:
        """Ends the swap that is under way, if there is one; what it had come to stays."""
        trial = self._trial
        if trial is None:
            return
        self._retired_decisions += trial.beside.decisions
        self._trial = None
        self._latest_swap = f"{trial.name}: {how}"
        self._log.info("swap ends", policy=self.spec.name, model=trial.name, how=how)

    def _begin_evidence(self, now_ns: int) -> None:
        self._evidence.restart()
        self._comparison = Comparison()
        self._episode_ns = self._compared_ns = now_ns

    def _pipelines(self) -> list[Pipeline]:
        trial = self._trial
        return [self._pipeline] if trial is None else [self._pipeline, trial.beside]

    def _make_pipeline(self, agent: Agent) -> Pipeline:
        return Pipeline(agent, self._rows, self._make_guard(), self._lease_ns, self._log)


def _asked(pipeline: Pipeline, cases: Cases, now_ns: int) -> Ruling:
    """Returns what a pipeline says."""
    decision = pipeline.ask(cases.stats, cases.states, cases.rule_pkts, cases.may_cap, now_ns)
    if decision is not None:
        return Ruling(cases.rows, cases.stats, decision.caps_pkts, decision.verdicts, _CAPPED)
    verdicts = np.zeros(len(cases.rows), VERDICT_DTYPE)
    verdicts["code"] = Why.AGENT_FAILED
    return Ruling(cases.rows, cases.stats, np.zeros(len(cases.rows), np.uint32), verdicts, Why.AGENT_FAILED)
