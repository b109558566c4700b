"""The policies in force, who is under which, and their change while flows go on.

Whoever wants a change is answered in its own thread, by what recorded states show; what it asks for is done by the
loop's thread, at the next tick.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.active_policy import ActivePolicy
from reinet.agents.decide.decider import Rows
from reinet.agents.decide.flows import FlowTable
from reinet.agents.decide.modes import Mode, Placer, PolicySpec
from reinet.agents.decide.protocol import Agent
from reinet.agents.decide.recent import RecentRecords
from reinet.agents.decide.swap import SHARE, Canary, canary
from reinet.core.errors import ConfigError, ModelError
from reinet.core.guard import Guard
from reinet.core.peers import Peers
from reinet.core.period import PeriodConfig
from reinet.core.records import FlowStatsArray
from reinet.core.states.reflex import Reflex
from reinet.core.target import Target
from reinet.core.visible import some_of

UNKNOWN = -1
"""The place of a flow whose policy is not known yet."""
_NO_ROWS: Rows = np.zeros(0, np.intp)


class ActivePolicies:
    """The policies of a loop; any thread may ask for a change."""

    def __init__(
        self,
        first: PolicySpec,
        flows: FlowTable,
        make_guard: Callable[[], Guard],
        ceiling_pkts: int,
        lease_ns: int,
        clock_ns: Callable[[], int],
        log: Any,
        shared_uplink: bool = False,
    ) -> None:
        self._flows, self._make_guard, self._ceiling_pkts = flows, make_guard, ceiling_pkts
        self._lease_ns, self._clock_ns, self._log = lease_ns, clock_ns, log
        self.measured = first.agent.view.period
        """The period of models that may decide: whoever takes over from whom, nobody loads the shim anew."""
        self.all = [self._made(first)]
        """In the order of their places; replaced as a whole, under the flows' lock."""
        self.peers = Peers(shared_uplink)
        """What flows know together, whichever policies they are under."""
        self._placer: Placer | None = None
        self._recent = RecentRecords()
        self._requests: deque[Callable[[], Rows]] = deque()
        self._gone_decisions = self._gone_stale = 0  # of policies that were dropped: a count never falls

    @property
    def decisions(self) -> int:
        """Returns how many decisions were made, also by policies that are gone."""
        return self._gone_decisions + sum(policy.decisions for policy in self.all)

    @property
    def stale(self) -> int:
        """Returns how many records were too old to decide on, also of policies that are gone."""
        return self._gone_stale + sum(policy.stale for policy in self.all)

    def swap(self, agent: Agent, policy: str, share: float) -> Canary:
        """Does what ``ControlLoop.swap`` says."""
        named = self._named(policy)
        name, found = named.spec.name, self._try(agent, named)

        def begin() -> Rows:
            # As it is by then: what was asked for before may have made it anew, or taken it out.
            active = next((one for one in self.all if one.spec.name == name), None)
            if active is None:
                self._log.warning("no swap: its policy has gone meanwhile", policy=name, model=agent.called)
                return _NO_ROWS
            active.swap(agent, share, self._recorded(active, self._latest()), self._clock_ns())
            return _NO_ROWS

        self._requests.append(begin)
        return found

    def replace_agents(self, agents: Mapping[str, Agent]) -> None:
        """Does what ``ControlLoop.replace_agents`` says."""
        for name, agent in agents.items():
            self._try(agent, self._named(name))

        def begin() -> Rows:
            now_ns, latest = self._clock_ns(), self._latest()
            for policy in self.all:
                if (agent := agents.get(policy.spec.name)) is not None:
                    self._ask_for(policy, replace(policy.spec, agent=agent), latest, now_ns)
            return _NO_ROWS

        self._requests.append(begin)

    def set_target(self, target: Target) -> None:
        """Sets the target of the first policy, until the configuration is read again."""

        def amend() -> Rows:
            first = self.all[0]  # as it is by then: what was asked for before may have changed it
            first.amend(replace(first.spec, target=target), self._clock_ns())
            return _NO_ROWS

        self._requests.append(amend)

    def command(self, specs: Sequence[PolicySpec], placer: Placer | None) -> None:
        """Does what ``ControlLoop.command`` says."""
        names = [spec.name for spec in specs]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"policies {names}: at least one is needed, and each needs a name of its own")
        with self._flows.lock:
            known = {policy.spec.name: policy for policy in self.all}
        for spec in specs:
            policy = known.get(spec.name, self.all[0])
            if spec.name not in known or policy.must_swap(spec):
                self._try(spec.agent, policy)
        self._requests.append(lambda: self._change(specs, placer))

    def resume(self) -> None:
        """Gives every hold-out that stood down another chance."""

        def again() -> Rows:
            for policy in self.all:
                policy.resume(self._clock_ns())
            return _NO_ROWS

        self._requests.append(again)

    def run_requests(self) -> Rows:
        """Does what was asked for; returns the rows of flows whose caps must go."""
        if not self._requests:
            return _NO_ROWS
        gone = [_NO_ROWS]
        while self._requests:
            gone.append(self._requests.popleft()())
        return np.unique(np.concatenate(gone))

    def reflex(self) -> Reflex | None:
        """Returns what answers records as they come; None where there are several policies, or own targets."""
        if self._placer is not None or self._flows.own_targets.any():
            return None
        return self.all[0].reflex()

    def split(
        self, live: FlowStatsArray, rows: Rows, answered: bool
    ) -> Iterator[tuple[ActivePolicy | None, FlowStatsArray, Rows]]:
        """Gives each policy the records of its flows; None stands for flows whose policy is not known yet.

        What flows know together is written into the records, unless a reflex has ``answered`` them, and so done that.
        """
        if not answered:
            self.peers.annotate(live)
        with self._flows.lock:
            self._recent.add(live)
        if self._placer is None:
            yield self.all[0], live, rows
            return
        unknown = self._flows.places[rows] == UNKNOWN
        if unknown.any():
            found = self._placer.place(live["cookie"][unknown])
            with self._flows.lock:
                self._flows.places[rows[unknown]] = found
        places = self._flows.places[rows]
        for place in np.unique(places).tolist():
            own = places == place
            yield (None if place == UNKNOWN else self.all[place]), live[own], rows[own]

    def reset(self, rows: Rows, answered: bool = False) -> None:
        """Empties rows for new flows; ``answered`` are those whose records a reflex has answered."""
        self._flows.places[rows] = 0 if self._placer is None else UNKNOWN
        for policy in self.all:
            policy.reset(rows, self._flows.stats["cookie"][rows], answered)

    def forget(self, rows: Rows, cookies: NDArray[np.uint64]) -> None:
        """Forgets flows that ended."""
        self.peers.forget(rows, cookies)
        for policy in self.all:
            policy.forget(rows, cookies)

    def grow(self, rows: int) -> None:
        """Adds rows, up to ``rows``."""
        for policy in self.all:
            policy.grow(rows)

    def under(self, policy: ActivePolicy) -> Rows:
        """Returns the rows of a policy's flows."""
        return self._flows.under(self.all.index(policy))

    def _change(self, specs: Sequence[PolicySpec], placer: Placer | None) -> Rows:
        """Puts policies in the place of all; returns the rows of flows that are under another one now, or in shadow."""
        now_ns, latest = self._clock_ns(), self._latest()
        before = list(self.all)
        known = {policy.spec.name: policy for policy in before}
        policies = [known.get(spec.name) or self._made(spec) for spec in specs]
        for policy, spec in zip(policies, specs, strict=True):
            self._ask_for(policy, spec, latest, now_ns)
        rows = self._flows.live()
        cookies = self._flows.stats["cookie"][rows]
        places = np.zeros(len(rows), np.int32) if placer is None else placer.place(cookies)
        stays_at = np.array([policies.index(policy) if policy in policies else -2 for policy in before], np.int32)
        moved = stays_at[np.maximum(self._flows.places[rows], 0)] != places
        for policy in policies:
            policy.reset(rows[moved], cookies[moved])
        in_shadow = np.array([policy.spec.mode is Mode.SHADOW for policy in policies], np.bool_)
        gone = [policy for policy in before if policy not in policies]
        with self._flows.lock:
            self._gone_decisions += sum(policy.decisions for policy in gone)
            self._gone_stale += sum(policy.stale for policy in gone)
            self.all, self._placer = policies, placer
            self._flows.places[rows] = places
        self._log.info(
            "policies", policies=some_of([policy.spec.name for policy in policies]), flows_moved=int(moved.sum())
        )
        return np.asarray(rows[moved | in_shadow[np.maximum(places, 0)]], np.intp)

    def _ask_for(self, policy: ActivePolicy, spec: PolicySpec, latest: FlowStatsArray, now_ns: int) -> None:
        if policy.must_swap(spec):
            policy.swap(spec.agent, SHARE, self._recorded(policy, latest), now_ns)
        policy.amend(spec, now_ns)

    def _try(self, agent: Agent, policy: ActivePolicy) -> Canary:
        """Shows an agent what was recorded of a policy's flows; raises ModelError for one that must not take over."""
        require_period(agent, self.measured)
        agent.ceiling_pkts = self._ceiling_pkts
        with self._flows.lock:
            recorded = self._recorded(policy, self._latest())
        return canary(agent, recorded, policy.spec.target, self._make_guard())

    def _latest(self) -> FlowStatsArray:
        """Returns the latest records of flows that are still there, the oldest first."""
        records = self._recent.all()
        found: FlowStatsArray = records[self._flows.stats["cookie"][records["slot"]] == records["cookie"]]
        return found

    def _recorded(self, policy: ActivePolicy, latest: FlowStatsArray) -> FlowStatsArray:
        """Returns those of the latest records that are a policy's flows'."""
        if policy not in self.all:
            return latest
        found: FlowStatsArray = latest[self._flows.places[latest["slot"]] == self.all.index(policy)]
        return found

    def _named(self, name: str) -> ActivePolicy:
        with self._flows.lock:
            for policy in self.all:
                if name in ("", policy.spec.name):
                    return policy
            known = ", ".join(policy.spec.name for policy in self.all)
        raise ConfigError(f"there is no policy {name!r}; there are {known}")

    def _made(self, spec: PolicySpec) -> ActivePolicy:
        spec.agent.ceiling_pkts = self._ceiling_pkts
        return ActivePolicy(spec, len(self._flows), self._make_guard, self._lease_ns, self._log)


def require_period(agent: Agent, measured: PeriodConfig) -> None:
    """Raises ModelError for a learned agent that decides by other periods than flows are measured by."""
    if agent.manifest is not None and agent.view.period != measured:
        raise ModelError(
            f"{agent.name}: refused, it decides by periods of its own ({agent.view.period}), flows are measured by "
            f"others ({measured}): restart the daemon with it"
        )
