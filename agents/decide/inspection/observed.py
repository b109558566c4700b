"""What a decision loop tells of itself and takes from whoever looks at it: a part of ``ControlLoop``."""

from collections.abc import Callable, Mapping

import numpy as np

from reinet.agents.decide.active_policies import ActivePolicies
from reinet.agents.decide.flows import FlowTable
from reinet.agents.decide.inspection.facts import Figures, FlowReport, ModelFacts, Snapshot, facts_of
from reinet.agents.decide.inspection.memory import LoopMemory
from reinet.agents.decide.inspection.order import chosen
from reinet.agents.decide.verdicts import text
from reinet.core.period import PeriodConfig
from reinet.core.target import Target
from reinet.kshim.leases import LeaseKeeper
from reinet.kshim.shim import OfProcesses, Shim


class Observed:
    """Any thread may ask; the answers are copies."""

    _flows: FlowTable
    _policies: ActivePolicies
    _keeper: LeaseKeeper
    _shim: Shim
    _clock_ns: Callable[[], int]
    _ceiling_pkts: int
    _memory: LoopMemory

    def ticks(self) -> int:
        """Returns how many ticks were completed."""
        return self._memory.ticks

    def snapshot(self, most: int = 0, order: str = "", after: int = 0) -> Snapshot:
        """Returns live flows with their latest records and caps: all, or those that ``order.chosen`` picks."""
        flows = self._flows
        told = chosen(flows, most, order, after)
        with flows.lock:
            rows = told.rows[flows.stats["cookie"][told.rows] == told.cookies]  # not those that ended meanwhile
            stats, caps_pkts = flows.stats[rows], flows.caps_pkts[rows]
            verdicts, places = flows.verdicts[rows], flows.places[rows]
            own_words = {place: policy.words() for place, policy in enumerate(self._policies.all)}
            now_ns = self._clock_ns()
        reasons = [
            own_words[int(place)].get(int(verdict["code"])) or text(verdict, self._ceiling_pkts)
            for verdict, place in zip(verdicts, np.maximum(places, 0), strict=True)
        ]
        shim = self._shim
        pids = shim.pids(rows.astype(np.uint32)) if isinstance(shim, OfProcesses) else np.zeros(0, np.uint32)
        return Snapshot(stats, caps_pkts, reasons, now_ns, told.live, verdicts=verdicts, pids=pids, next=told.next)

    def why(self, cookie: int) -> FlowReport | None:
        """Returns what is known of one live flow and its cap, None where there is no such flow.

        A model is asked once more, in the caller's thread, for its output.
        """
        flows = self._flows
        with flows.lock:
            row = self._row_of(cookie)
            if row is None:
                return None
            policy = self._policies.all[max(int(flows.places[row]), 0)]
            cap_pkts, verdict = int(flows.caps_pkts[row]), flows.verdicts[row].copy()
        seen, now_ns = self._memory.seen(row, cookie), self._clock_ns()
        pipeline = policy.pipeline_of(cookie)
        shown, features = pipeline.shown(row), pipeline.agent.view.bank(1).feature_set.features
        decided = bool(seen.decided_ns)
        state = shown.state[None] if decided else shown.state[None][:0]
        outputs = pipeline.agent.outputs(state) if decided else None
        own = flows.own_targets.of(cookie)
        code = int(verdict["code"])
        return FlowReport(
            records=seen.records,
            now_ns=now_ns,
            cap_pkts=cap_pkts,
            verdict=policy.words().get(code) or text(verdict, self._ceiling_pkts),
            lease_left_ms=max(self._keeper.expires_ns(row, cookie) - now_ns, 0) / 1e6 if cap_pkts else 0.0,
            target=str(own or policy.spec.target),
            own_target=own is not None,
            policy=policy.spec.name,
            feature_set=pipeline.agent.view.feature_set,
            features=tuple(feature.name for feature in features),
            units=tuple(feature.unit for feature in features),
            state=state.reshape(-1, len(features)),
            decided_ns=seen.decided_ns,
            rule_pkts=shown.rule_pkts if decided else 0.0,
            head=facts_of(pipeline.agent).head,
            action=None if outputs is None else float(outputs[0]),
            wanted_pkts=int(verdict["wanted_pkts"]) if decided else None,
        )

    def measured_by(self, period: PeriodConfig) -> None:
        """Says, before the first tick, which period models must decide by: none need be at work that tells of it."""
        self._policies.measured = period

    def set_target(self, cookie: int, target: str) -> str:
        """Sets a flow's own target, an empty one takes it back; for cookie 0 that of the first policy.

        Returns the target in force for whom it was set; it holds from each flow's next record on. Raises ConfigError
        for a text that is no target, LookupError where there is no such flow, ValueError where too many flows have
        their own.
        """
        wanted = Target.parse(target) if target or not cookie else None
        if wanted is not None and not cookie:
            self._policies.set_target(wanted)
            return str(wanted)
        flows = self._flows
        with flows.lock:
            row = self._row_of(cookie)
            if row is None:
                raise LookupError(f"no flow {cookie} is open; `reinet ctl flows` lists them")
            flows.own_targets.set(cookie, wanted)
            return str(wanted or self._policies.all[max(int(flows.places[row]), 0)].spec.target)

    def own_targets(self) -> dict[int, str]:
        """Returns the targets that were set for single flows, by cookie."""
        with self._flows.lock:
            return {cookie: str(target) for cookie, target in self._flows.own_targets.all().items()}

    def go_on_with(self, target: str, own: Mapping[int, str]) -> None:
        """Has a loop that does not run yet go by what was set in one before it; an empty target is the policy's own."""
        if target:
            self._policies.set_target(Target.parse(target))
        with self._flows.lock:
            self._flows.own_targets.expect({cookie: Target.parse(text) for cookie, text in own.items()})

    def model(self) -> ModelFacts:
        """Returns who decides for most flows of the first policy."""
        return facts_of(self._policies.all[0].agent)

    def figures(self) -> Figures:
        """Returns what was counted since the start, and how the flows stand."""
        with self._flows.lock:
            codes = self._flows.verdicts["code"][self._flows.live()]
        return self._memory.figures(codes)

    def _row_of(self, cookie: int) -> int | None:
        """Returns the row of a live flow; the caller holds the lock."""
        found = np.flatnonzero(self._flows.stats["cookie"] == np.uint64(cookie))
        return int(found[0]) if cookie and found.size else None
