"""The decision loop: records from the shim -> states -> decider -> caps with leases; for the daemon and evaluation.

Fail open is the rule. A cap lives only while ticks complete: an agent that hangs stops the renewals and every cap
lapses in the kernel; one that raises loses its caps at once; a flow whose decision fails the guard runs uncapped, with
the reason kept for whoever asks; a record that is older than a lease is not decided on. Nothing here knows of signals,
sockets or files, and time comes from outside, so all of it runs against ``FakeShim``.

A tick costs by the record, not by the flow: nothing in it walks over flows in Python or over all rows of a table.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from reinet.agents.decide.active_policies import ActivePolicies
from reinet.agents.decide.active_policy import ActivePolicy, PolicyStatus, Ruling
from reinet.agents.decide.decider import Rows
from reinet.agents.decide.flows import FlowTable
from reinet.agents.decide.inspection.memory import LoopMemory
from reinet.agents.decide.inspection.observed import Observed
from reinet.agents.decide.modes import PLAIN_SHARE, Mode, Placer, PolicySpec
from reinet.agents.decide.protocol import Agent
from reinet.agents.decide.swap import SHARE, Canary
from reinet.agents.decide.verdicts import Why, refused, text
from reinet.core import MAX_CAP_PKTS
from reinet.core.guard import Guard
from reinet.core.records import FlowStatsArray
from reinet.core.states.reflex import Answered, Reflex
from reinet.core.target import Target
from reinet.kshim.gathering import Gathering
from reinet.kshim.leases import LEASE_MS, RENEWALS_PER_LEASE, LeaseKeeper
from reinet.kshim.shim import Answering, Shim

TICK_MS = 50
"""The longest wait for records; it bounds how late a renewal, a pause or a stop may be."""
HOLD_MS, HOLD_RECORDS = 100, 512
"""A reflex goes on for so long, or for so many records, before the loop takes up what it did: nothing that is asked of
the loop waits for longer, and what it does for so many records takes less than a decision may. Renewals wait too, so
that short leases ask for less."""
REST_US = 500
"""And where records come often it rests so long between two looks: half of what a decision may take, for half of the
wake-ups and more."""
REFUSAL_LOG_INTERVAL_S = 1.0
"""Each flow's first refusal is logged, but of many at once one in this time; `reinet ctl flows` shows them all."""

_SHADOW = Mode.SHADOW  # Python 3.11 takes long to look members up
_NO_QUEUE, _PAUSED, _NO_DECISION = int(Why.NO_QUEUE), int(Why.PAUSED), int(Why.NO_DECISION)

log = structlog.get_logger("reinet.loop")


class RecordSink(Protocol):
    """Who is shown what was decided, without ever holding the loop up."""

    def offer(self, records: FlowStatsArray, caps_pkts: NDArray[np.uint32]) -> None:
        """Takes N records, FLOW_STATS_DTYPE (N,), with the caps now decided for their flows.

        In shadow these are the caps that would have been applied.
        """


@dataclass(frozen=True)
class Status:
    """The loop's own health, and its counts since the start."""

    ok: bool
    paused: bool
    problem: str  # empty when ok
    target: str  # what every flow is asked for, as text
    decisions: int
    records: int
    flows: int
    uptime_s: float
    stale: int = 0  # decisions that were dropped because the record was older than a lease
    policies: tuple[PolicyStatus, ...] = ()  # the policies, the default first

    @property
    def state(self) -> str:
        """Returns ``paused``, or what the policies do: ``enforcing``, ``shadow``, ``hold-out``, ``stood down``."""
        states = dict.fromkeys(policy.state for policy in self.policies)
        return "paused" if self.paused else ", ".join(states) or "enforcing"

    @property
    def model(self) -> str:
        """Returns what decides for most flows of the first policy; empty where that is not known."""
        return self.policies[0].model if self.policies else ""


class ControlLoop(Observed):
    """Owns the shim, the flows' states and their leases. ``tick`` and ``run`` belong to one thread, the rest to any."""

    def __init__(
        self,
        shim: Shim,
        agent: Agent,
        target: Target,
        lease_ms: int = LEASE_MS,
        ceiling_pkts: int = MAX_CAP_PKTS,
        sink: RecordSink | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        log: Any = log,
        mode: Mode = Mode.ENFORCE,
        plain_share: float = PLAIN_SHARE,
        bounds_steps: bool = False,
        gather_ms: float = 0.0,
        shared_uplink: bool = False,
    ) -> None:
        """Makes a loop of one policy.

        ``bounds_steps`` keeps each cap near the one in force (``core/guard/guard.hpp``). ``gather_ms`` lets records
        gather so long at most from one tick to the next (``gathering.py``). ``shared_uplink``: all flows share a queue
        (``core/peers/``).
        """
        self._shim = shim
        self._ceiling_pkts = ceiling_pkts
        self._lease_ns = lease_ms * 1_000_000
        self._sink = sink
        self._clock_ns = clock_ns
        self._log = log
        self._gathering = Gathering(gather_ms)
        self._keeper = LeaseKeeper(shim, lease_ms, clock_ns)
        self._flows = FlowTable(self._grow)
        self._lock = self._flows.lock  # guards what other threads read or set; notified when a pause is obeyed
        self._memory = LoopMemory(len(self._flows), clock_ns)
        self._policies = ActivePolicies(
            PolicySpec(agent, target, mode, plain_share), self._flows, partial(Guard, ceiling_pkts, bounds_steps),
            ceiling_pkts, self._lease_ns, clock_ns, log, shared_uplink,
        )  # fmt: skip
        self._pause_wanted = False
        self._paused = False
        self._lifted = 0  # caps that the latest pause lifted
        self._records = 0
        self._started_ns = self._last_tick_ns = clock_ns()
        self._outside_problem = ""
        self._refusal_logged_ns: int | None = None
        self._answering = shim if isinstance(shim, Answering) else None
        self._rest_us = max(REST_US, round(gather_ms * 1000))
        self._between_renewals_ms = lease_ms // RENEWALS_PER_LEASE
        self._reflex: Reflex | None = None

    def run(self, stop: threading.Event, tick_ms: int = TICK_MS) -> None:
        """Ticks until ``stop`` is set, then lifts every cap. Raises what the shim raises, which ends it."""
        try:
            while not stop.is_set():
                self.tick(tick_ms)
        finally:
            self.release()

    def release(self) -> None:
        """Lifts every cap, at the loop's end."""
        self._keeper.release_all()

    def tick(self, timeout_ms: int = 0) -> None:
        """Waits up to ``timeout_ms`` for records, decides, renews leases. Raises what the shim raises."""
        reflex = self._reflex_now()
        if reflex is not None and self._answering is not None:
            hold_ms = max(min(HOLD_MS, self._between_renewals_ms - timeout_ms), 0)
            answered = self._answering.answer(reflex, timeout_ms, hold_ms, self._rest_us, HOLD_RECORDS)
            self._note_lapse(self._clock_ns())
            if len(answered.records):
                self._take(answered.records, answered)  # before anything changes: it was answered as things were
            self._change()
            self._obey_pause()
        else:
            self._gathering.wait(self._clock_ns())
            records = self._shim.poll(timeout_ms)
            self._gathering.note(self._clock_ns(), len(records))
            self._change()
            self._obey_pause()
            self._note_lapse(self._clock_ns())
            if len(records):
                self._take(records)
        now_ns = self._clock_ns()
        self._note_idle(self._keeper.tick(now_ns))
        self._last_tick_ns = now_ns
        self._memory.tick(self._shim, now_ns)

    def pause(self, timeout_s: float = 2.0) -> int:
        """Lifts every cap and writes none until ``resume``; returns how many were lifted.

        Raises TimeoutError if the loop hangs; it then pauses as soon as it goes on.
        """
        return self._ask(True, timeout_s)

    def begin_paused(self) -> None:
        """Has a loop that does not run yet begin with a pause: no cap is written before ``resume``."""
        self._pause_wanted = True

    def resume(self, timeout_s: float = 2.0) -> None:
        """Ends a pause; each flow gets a cap with its next record. Raises TimeoutError if the loop hangs.

        A hold-out that stood down gets another chance.
        """
        self._policies.resume()
        self._ask(False, timeout_s)

    def swap(self, agent: Agent, policy: str = "", share: float = SHARE) -> Canary:
        """Puts another agent in the place of a policy's, the first one's if none is named, in steps (``swap.py``).

        Shows it recorded states first, in the caller's thread, and returns how it answered; what becomes of it later is
        in ``status().policies``. share is that of the flows that it gets first; 1 = all at once. Raises ModelError, and
        ConfigError where there is no such policy; nothing is changed then.
        """
        return self._policies.swap(agent, policy, share)

    def replace_agents(self, agents: Mapping[str, Agent]) -> None:
        """Has policies, by their names, go by other agents from now on, as if ``command`` had said so from the start.

        Each takes over as by ``swap``, unless it is there already. Raises ModelError where one of them must not, and
        ConfigError where there is no such policy; nothing is changed then.
        """
        self._policies.replace_agents(agents)

    def command(self, specs: Sequence[PolicySpec], placer: Placer | None = None) -> None:
        """Puts these policies in the place of all; ``placer`` says which flow is under which of them, None = the first.

        A policy that has its name already goes on: its agent, if it is another one, takes over as by ``swap``. Raises
        ModelError where one of them must not, and ConfigError for specs that make no sense; nothing is changed then.
        """
        self._policies.command(specs, placer)

    def report(self, problem: str) -> None:
        """Puts what somebody else found wrong into ``status``; empty takes it back."""
        with self._lock:
            self._outside_problem = problem

    def counters(self) -> dict[str, int]:
        """Returns what the kernel side counted, also what it had to leave out: ``Shim.counters``."""
        return self._shim.counters()

    def status(self) -> Status:
        """Returns whether ticks complete, and what has been done since the start."""
        with self._lock:
            now_ns = self._clock_ns()
            late_ns = now_ns - self._last_tick_ns
            problem = next((policy.agent_problem for policy in self._policies.all if policy.agent_problem), "")
            if not problem and late_ns > self._lease_ns:
                problem = (
                    f"no tick completed for {late_ns / 1e9:.1f} s, longer than a lease: every cap has lapsed; "
                    "if this lasts, restart the daemon"
                )
            problem = problem or next((policy.problem for policy in self._policies.all if policy.problem), "")
            problem = problem or self._outside_problem
            return Status(
                ok=not problem,
                paused=self._paused,
                problem=problem,
                target=str(self._policies.all[0].spec.target),
                decisions=self._policies.decisions,
                records=self._records,
                flows=self._flows.count(),
                uptime_s=(now_ns - self._started_ns) / 1e9,
                stale=self._policies.stale,
                policies=tuple(policy.status() for policy in self._policies.all),
            )

    def _reflex_now(self) -> Reflex | None:
        """Returns what is to answer the next records in the shim; None where the loop does, itself."""
        decides_itself = self._answering is None or self._pause_wanted or self._paused
        reflex = None if decides_itself else self._policies.reflex()
        if reflex is not None and reflex is not self._reflex:
            reflex.begin(self._flows.stats["cookie"], self._policies.peers)
        self._reflex = reflex
        return reflex

    def _take(self, records: FlowStatsArray, answered: Answered | None = None) -> None:
        """Brings the tables up to date and decides, unless that was done."""
        goes_on = self._forget_closed(records, answered is not None)
        if answered is not None and not goes_on.all():
            answered = answered.of(goes_on)
        heard = np.array(records[goes_on])
        live, rows, fresh = self._flows.admit(heard, _PAUSED if self._pause_wanted else _NO_DECISION)
        if not len(live):
            return
        if answered is not None and len(live) < len(heard):
            answered = answered.of(self._flows.owned(heard))
        if fresh.size:
            self._policies.reset(fresh, answered is not None)
            self._memory.reset(fresh)
        now_ns = self._clock_ns()
        for policy, its_records, its_rows in self._policies.split(live, rows, answered is not None):
            if policy is not None:
                self._serve(policy, its_records, its_rows, now_ns, answered)
                continue
            with self._lock:
                self._flows.stats[its_rows] = its_records
                self._flows.verdicts["code"][its_rows] = Why.UNPLACED

    def _serve(
        self, policy: ActivePolicy, live: FlowStatsArray, rows: Rows, now_ns: int, answered: Answered | None = None
    ) -> None:
        """Decides for the flows of one policy and puts it in force, unless that was done."""
        flows = self._flows
        if answered is not None:
            ruling = policy.take_answers(answered, rows, flows, now_ns)
        else:
            ruling = policy.rule(live, rows, flows, now_ns, self._pause_wanted)
        self._memory.record(rows, live)
        if self._pause_wanted and answered is None:
            ruling.caps_pkts[:] = 0
            ruling.verdicts["code"] = Why.PAUSED
        if ruling.uncap_all:
            self._uncap_policy(policy, live, rows, ruling.uncap_all)
        elif len(ruling.rows):
            if policy.spec.mode is not _SHADOW:
                caps = (
                    ruling.stats["cookie"],
                    ruling.rows.astype(np.uint32),
                    ruling.caps_pkts,
                    ruling.stats["target_us"],
                )
                if answered is None:
                    self._keeper.put(*caps)
                else:
                    self._keeper.keep(*caps, now_ns)
            self._log_refusals(ruling)
            self._memory.decide(ruling.rows, ruling.stats, ruling.verdicts, ruling.stored_ns)
        if len(ruling.rows) < len(live):
            self._keeper.see_alive(live)
        then = flows.caps_pkts_then(rows, answered) if answered is not None and self._sink is not None else None
        with self._lock:
            flows.stats[rows] = live  # of several records of one flow the last one stays
            if not ruling.uncap_all:
                flows.caps_pkts[ruling.rows] = ruling.caps_pkts
                flows.verdicts[ruling.rows] = ruling.verdicts
        if self._sink is not None and not ruling.uncap_all:
            shown = flows.caps_pkts[rows] if then is None else then
            if policy.spec.mode is _SHADOW:
                shown = flows.verdicts["allowed_pkts"][rows]
            self._sink.offer(live, shown)

    def _uncap_policy(self, policy: ActivePolicy, live: FlowStatsArray, rows: Rows, why: Why) -> None:
        """Uncaps all of a policy's flows at once instead of waiting for the leases."""
        with self._lock:
            self._flows.stats[rows] = live
            own = self._policies.under(policy)
            self._flows.uncap(own, why)
        self._keeper.release(own.astype(np.uint32))

    def _log_refusals(self, ruling: Ruling) -> None:
        """Logs flows that are refused now and were not before; called before the ruling is put in force."""
        if not ruling.verdicts["code"].any():
            return
        is_refused = refused(ruling.verdicts["code"]) & (ruling.verdicts["code"] != _NO_QUEUE)
        if not is_refused.any():
            return
        before = self._flows.verdicts["code"][ruling.rows]
        new = np.flatnonzero(is_refused & (~refused(before) | (before == _NO_QUEUE)))
        now_ns = self._clock_ns()
        last_ns = self._refusal_logged_ns
        if new.size and (last_ns is None or now_ns - last_ns >= REFUSAL_LOG_INTERVAL_S * 1e9):
            self._refusal_logged_ns = now_ns
            first = int(new[0])
            reason = text(ruling.verdicts[first], self._ceiling_pkts)
            self._log.warning(
                "flow refused", cookie=int(ruling.stats["cookie"][first]), reason=reason, flows=int(new.size)
            )

    def _change(self) -> None:
        """Does what other threads asked for; flows that are under another policy now lose their caps first."""
        moved = self._policies.run_requests()
        if moved.size:
            self._keeper.release(moved.astype(np.uint32))
            with self._lock:
                self._flows.uncap(moved, Why.CHANGED)

    def _note_lapse(self, now_ns: int) -> None:
        """Lets go of caps that lapsed because no tick completed for a lease: nobody may renew what was decided then."""
        if now_ns - self._last_tick_ns <= self._lease_ns:
            return
        self._keeper.release_all()
        with self._lock:
            self._flows.uncap(np.flatnonzero(self._flows.caps_pkts), Why.LAPSED)

    def _note_idle(self, slots: NDArray[np.uint32]) -> None:
        """Marks flows uncapped whose caps lapsed because they are idle."""
        if not slots.size:
            return
        with self._lock:  # those without a cap have reasons of their own
            self._flows.uncap(slots[self._flows.caps_pkts[slots] != 0].astype(np.intp), Why.IDLE)

    def _forget_closed(self, records: FlowStatsArray, answered: bool) -> NDArray[np.bool_]:
        """Forgets flows that ended; returns which records are of those that go on.

        A reflex that has ``answered`` them forgot each flow in its turn: a socket that has connected anew meanwhile has
        the slot and the cookie of the one that ended.
        """
        with self._lock:
            self._records += len(records)
        goes_on, closed = self._flows.forget_closed(records)
        if len(closed):
            self._keeper.drop(closed["cookie"], closed["slot"])
            if not answered:
                self._policies.forget(closed["slot"].astype(np.intp), closed["cookie"])
            if self._sink is not None:
                self._sink.offer(closed, np.zeros(len(closed), np.uint32))
        return goes_on

    def _grow(self, rows: int) -> None:
        self._policies.grow(rows)
        self._memory.grow(rows)

    def _ask(self, pause: bool, timeout_s: float) -> int:
        with self._lock:
            if self._pause_wanted == self._paused == pause:
                return 0
            self._pause_wanted = pause
            if not self._lock.wait_for(lambda: self._paused == pause, timeout_s):
                raise TimeoutError(f"the decision loop did not answer within {timeout_s:g} s")
            return self._lifted

    def _obey_pause(self) -> None:
        """Starts or ends a pause that another thread asked for."""
        if self._pause_wanted == self._paused:
            return
        pause = self._pause_wanted
        if pause:
            self._keeper.release_all()
        with self._lock:
            self._lifted = int(np.count_nonzero(self._flows.caps_pkts)) if pause else 0
            self._flows.uncap(self._flows.live(), Why.PAUSED if pause else Why.RESUMED)
            self._paused = pause
            self._lock.notify_all()
        self._log.info("paused" if pause else "resumed", released=self._lifted)
