"""The decision loop: records from the shim -> states -> decider -> caps with leases; for the daemon and evaluation.

Fail open is the rule. A cap lives only while ticks complete: an agent that hangs stops the renewals and every cap
lapses in the kernel; one that raises loses its caps at once; a flow whose decision fails the guard runs uncapped, with
the reason kept for whoever asks. Nothing here knows of signals, sockets or files, and time comes from outside, so all
of it runs against ``FakeShim``.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from reinet.agents.decide.decider import NO_QUEUE, Decider
from reinet.agents.decide.facts import Figures, ModelFacts, Story, facts_of
from reinet.agents.decide.guard import Guard
from reinet.agents.decide.protocol import Agent
from reinet.agents.decide.sight import Sight
from reinet.agents.decide.story import Asked, story_of
from reinet.agents.decide.targets import Targets
from reinet.core import MAX_CAP_PKTS
from reinet.core.records import FLOW_STATS_DTYPE, Flag
from reinet.core.target import Target
from reinet.kshim.leases import LEASE_MS, LeaseKeeper
from reinet.kshim.shim import FlowStatsArray, Shim

TICK_MS = 50
"""The longest wait for records; it bounds how late a renewal, a pause or a stop may be."""
FIRST_ROWS = 64
"""The tables hold so many flows before they first grow; they double from there."""
REPEATED_ERROR_S = 10.0
"""An agent that fails on every tick is logged this often, not every time."""
REFUSAL_LOG_INTERVAL_S = 1.0
"""Each flow's first refusal is logged, but of many at once one in this time; `reinet ctl flows` shows them all."""

NO_DECISION = "no RTT sample yet: flow stays uncapped until the first"
PAUSED = "paused: no caps until `reinet ctl resume`"
RESUMED = "resumed: a cap comes with the flow's next RTT sample"
AGENT_CHOSE_NONE = "the agent set no cap"
IDLE = "idle: its cap has lapsed; the flow's next records decide anew"

log = structlog.get_logger("reinet.loop")


class RecordSink(Protocol):
    """Who is shown what was decided, without ever holding the loop up."""

    def offer(self, records: FlowStatsArray, caps_pkts: NDArray[np.uint32]) -> None:
        """Takes N records, FLOW_STATS_DTYPE (N,), with the caps now decided for their flows."""


@dataclass(frozen=True)
class Snapshot:
    """The flows as the loop knew them after its latest tick; the arrays are copies."""

    stats: FlowStatsArray  # (N,), each flow's latest record
    caps_pkts: NDArray[np.uint32]  # (N,), decided; 0 = none
    reasons: list[str]  # (N,), why a flow is uncapped, empty when it is capped
    now_ns: int  # the loop's clock now


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


class ControlLoop:
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
    ) -> None:
        self._shim = shim
        self._bank = agent.view.bank(FIRST_ROWS)
        self._decider = Decider(agent, FIRST_ROWS, Guard(ceiling_pkts))
        self._targets = Targets(target)
        self._lease_ns = lease_ms * 1_000_000
        self._sink = sink
        self._clock_ns = clock_ns
        self._log = log
        self._keeper = LeaseKeeper(shim, lease_ms, clock_ns)
        self._sight = Sight(FIRST_ROWS, self._bank.feature_set.state_size, clock_ns)

        # One row per slot of the shim: a slot has one live flow, and a new cookie in it means that the old one is gone.
        self._lock = threading.Condition()  # guards what other threads read or set; notified when a pause is obeyed
        self._stats = np.zeros(FIRST_ROWS, FLOW_STATS_DTYPE)  # cookie 0 = row is free
        self._reasons: NDArray[np.object_] = np.full(FIRST_ROWS, "", object)
        self._pause_wanted = False
        self._paused = False
        self._lifted = 0  # caps that the latest pause lifted
        self._decisions = 0
        self._records = 0
        self._started_ns = self._last_tick_ns = clock_ns()
        self._agent_problem = ""
        self._outside_problem = ""
        self._agent_logged_ns: int | None = None
        self._refusal_logged_ns: int | None = None

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
        records = self._shim.poll(timeout_ms)
        self._obey_pause()
        healthy = self._take(records) if len(records) else not self._agent_problem
        if not healthy:
            return
        now_ns = self._clock_ns()
        self._note_idle(self._keeper.tick(now_ns))
        self._last_tick_ns = now_ns
        self._sight.tick(self._shim, now_ns)

    def pause(self, timeout_s: float = 2.0) -> int:
        """Lifts every cap and writes none until ``resume``; returns how many were lifted.

        Raises TimeoutError if the loop hangs; it then pauses as soon as it goes on.
        """
        return self._ask(True, timeout_s)

    def resume(self, timeout_s: float = 2.0) -> None:
        """Ends a pause; each flow gets a cap with its next record. Raises TimeoutError if the loop hangs."""
        self._ask(False, timeout_s)

    def report(self, problem: str) -> None:
        """Puts what somebody else found wrong into ``status``; empty takes it back."""
        with self._lock:
            self._outside_problem = problem

    def snapshot(self) -> Snapshot:
        """Returns every live flow with its latest record and cap."""
        with self._lock:
            rows = np.flatnonzero(self._stats["cookie"])
            return Snapshot(
                self._stats[rows],
                self._decider.caps_pkts[rows],
                [str(reason) for reason in self._reasons[rows]],
                self._clock_ns(),
            )

    @property
    def ticks(self) -> int:
        """Returns how many ticks were completed."""
        return self._sight.ticks

    def why(self, cookie: int) -> Story | None:
        """Returns what is known of one live flow and its cap, None where there is no such flow."""
        with self._lock:
            found = np.flatnonzero(self._stats["cookie"] == np.uint64(cookie))
            if not cookie or not found.size:
                return None
            row, agent = int(found[0]), self._decider.agent
            cap_pkts, verdict = int(self._decider.caps_pkts[row]), str(self._reasons[row])
        asked = Asked(
            str(self._targets.of(cookie)), self._targets.has_own(cookie), self._keeper.expires_ns(row, cookie)
        )
        seen = self._sight.seen(row, cookie)
        return story_of(seen, agent, self._bank.feature_set, cap_pkts, verdict, asked, self._clock_ns())

    def set_target(self, cookie: int, target: str) -> None:
        """Sets a flow's own target, an empty one takes it back; for cookie 0 sets that of all flows without one.

        It holds from each flow's next record on. Raises ConfigError for a text that is no target, LookupError where
        there is no such flow, ValueError where too many flows have their own.
        """
        with self._lock:
            self._targets.ask(cookie, target, self._stats["cookie"])
        self._log.info("target set", cookie=cookie or None, target=target or None)

    def model(self) -> ModelFacts:
        """Returns who decides."""
        return facts_of(self._decider.agent)

    def figures(self) -> Figures:
        """Returns what was counted since the start, and how the flows stand."""
        with self._lock:
            reasons = Counter(self._reasons[self._stats["cookie"] != 0].tolist())
        return self._sight.figures(reasons)

    def status(self) -> Status:
        """Returns whether ticks complete, and what has been done since the start."""
        with self._lock:
            now_ns = self._clock_ns()
            late_ns = now_ns - self._last_tick_ns
            problem = self._agent_problem
            if not problem and late_ns > self._lease_ns:
                problem = (
                    f"no tick completed for {late_ns / 1e9:.1f} s, longer than a lease: every cap has lapsed; "
                    "if this lasts, restart the daemon"
                )
            problem = problem or self._outside_problem
            return Status(
                ok=not problem,
                paused=self._paused,
                problem=problem,
                target=str(self._targets.common),
                decisions=self._decisions,
                records=self._records,
                flows=int(np.count_nonzero(self._stats["cookie"])),
                uptime_s=(now_ns - self._started_ns) / 1e9,
            )

    def _take(self, records: FlowStatsArray) -> bool:
        """Brings the tables up to date and decides; returns False when the agent failed."""
        records = np.array(records)
        # Anew for each record, whatever the kernel says: a relative target falls with the flow's minimum RTT.
        records["target_us"] = self._targets.resolve_us(records)
        live = self._forget_closed(records)
        if not len(live):
            return not self._agent_problem
        rows = live["slot"].astype(np.intp)
        if rows.max() >= len(self._stats):
            self._grow(int(rows.max()) + 1)
        live, rows = self._admit(live, rows)
        self._keeper.hear(live)
        self._sight.hear(rows, live)
        batch = self._bank.update(rows.astype(np.int32), live)
        latest = _last_of_each(rows, np.flatnonzero(batch.decided))
        with self._lock:
            self._stats[rows] = live  # of several records of one flow the last one stays
        return self._decide(
            live[latest], rows[latest], batch.states[latest], batch.rule_pkts[latest], batch.may_cap[latest], live
        )

    def _decide(
        self,
        stats: FlowStatsArray,
        rows: NDArray[np.intp],
        states: NDArray[np.float32],
        rule_pkts: NDArray[np.float32],
        may_cap: NDArray[np.bool_],
        live: FlowStatsArray,
    ) -> bool:
        if len(stats):
            try:
                decision = self._decider.ask(stats, states, rule_pkts, may_cap)
            except Exception as error:  # whatever a model does must not take the flows' caps out of our hands
                self._agent_failed(error)
                return False
            caps_pkts, refusals = decision
            reasons = np.array(
                [why or ("" if cap else AGENT_CHOSE_NONE) for why, cap in zip(refusals, caps_pkts, strict=True)], object
            )
            if self._pause_wanted:
                caps_pkts[:] = 0
                reasons[:] = PAUSED
            self._keeper.set(stats, caps_pkts)
            self._sight.decide(rows, stats, states, rule_pkts, refusals)
            self._log_refusals(stats, rows, refusals)
            with self._lock:
                self._agent_problem = ""
                self._decisions += len(stats)
                self._decider.hold(rows, decision)
                self._reasons[rows] = reasons
        if self._sink is not None:
            self._sink.offer(live, self._decider.caps_pkts[live["slot"]])
        return not self._agent_problem

    def _log_refusals(self, stats: FlowStatsArray, rows: NDArray[np.intp], refusals: NDArray[np.object_]) -> None:
        """Logs flows that are refused now and were not before; called before the refusals are held."""
        refused = refusals.astype(np.bool_) & np.not_equal(refusals, NO_QUEUE)
        if not refused.any():
            return
        before = self._decider.refusals[rows]
        new = np.flatnonzero(refused & (~before.astype(np.bool_) | np.equal(before, NO_QUEUE)))
        now_ns = self._clock_ns()
        last_ns = self._refusal_logged_ns
        if new.size and (last_ns is None or now_ns - last_ns >= REFUSAL_LOG_INTERVAL_S * 1e9):
            self._refusal_logged_ns = now_ns
            first = int(new[0])
            self._log.warning(
                "flow refused", cookie=int(stats["cookie"][first]), reason=refusals[first], flows=int(new.size)
            )

    def _note_idle(self, slots: NDArray[np.uint32]) -> None:
        """Marks flows uncapped whose caps lapsed because they are idle."""
        if not slots.size:
            return
        with self._lock:
            capped = slots[self._decider.caps_pkts[slots] != 0]  # the others have reasons of their own
            self._decider.clear(capped.astype(np.intp))
            self._reasons[capped] = IDLE

    def _agent_failed(self, error: Exception) -> None:
        """Fails open at once instead of waiting for the leases; the next records give the agent another chance."""
        self._keeper.release_all()
        name = self._decider.agent.name
        problem = f"the agent {name} failed: {type(error).__name__}: {error}; all flows are uncapped"
        now_ns = self._clock_ns()
        if problem != self._agent_problem and (
            self._agent_logged_ns is None or now_ns - self._agent_logged_ns > REPEATED_ERROR_S * 1e9
        ):
            self._log.error("agent failed", agent=name, error=repr(error), exc_info=error)
            self._agent_logged_ns = now_ns
        with self._lock:
            self._agent_problem = problem
            self._uncap_all(problem)

    def _forget_closed(self, records: FlowStatsArray) -> FlowStatsArray:
        """Frees the rows of flows that ended; returns the records of those that go on."""
        closed = (records["flags"] & Flag.CLOSED) != 0
        with self._lock:
            self._records += len(records)
        if not closed.any():
            return records
        self._decider.forget(records["cookie"][closed])
        self._targets.forget(records["cookie"][closed])
        for record in records[closed]:
            self._keeper.drop(int(record["cookie"]))
            row = int(record["slot"])
            with self._lock:
                if row < len(self._stats) and self._stats["cookie"][row] == record["cookie"]:
                    self._stats["cookie"][row] = 0
                    self._decider.clear(slice(row, row + 1))
                    self._reasons[row] = ""
        if self._sink is not None:
            self._sink.offer(records[closed], np.zeros(int(closed.sum()), np.uint32))
        return records[~np.isin(records["cookie"], records["cookie"][closed])]

    def _admit(self, live: FlowStatsArray, rows: NDArray[np.intp]) -> tuple[FlowStatsArray, NDArray[np.intp]]:
        """Gives new flows fresh rows; returns the records and rows of flows that own their slot.

        Where a CLOSED record was lost the slot's new owner takes the row over.
        """
        owners = np.zeros(len(self._stats), np.uint64)
        owners[rows] = live["cookie"]  # of several owners of one slot the last one stays
        present = owners[rows] == live["cookie"]
        live, rows = live[present], rows[present]
        new = self._stats["cookie"][rows] != live["cookie"]
        if new.any():
            fresh = np.unique(rows[new])
            self._bank.reset(fresh.astype(np.int32))
            self._decider.forget(self._stats["cookie"][fresh])
            with self._lock:
                self._decider.clear(fresh)
                self._reasons[fresh] = PAUSED if self._pause_wanted else NO_DECISION
        return live, rows

    def _grow(self, least_rows: int) -> None:
        rows = max(least_rows, 2 * len(self._stats))
        missing = rows - len(self._stats)
        self._bank.grow(rows)
        self._sight.grow(rows)
        with self._lock:
            self._stats = np.concatenate([self._stats, np.zeros(missing, FLOW_STATS_DTYPE)])
            self._decider.grow(rows)
            self._reasons = np.concatenate([self._reasons, np.full(missing, "", object)])

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
            self._lifted = int(np.count_nonzero(self._decider.caps_pkts)) if pause else 0
            self._uncap_all(PAUSED if pause else RESUMED)
            self._paused = pause
            self._lock.notify_all()
        self._log.info("paused" if pause else "resumed", released=self._lifted)

    def _uncap_all(self, reason: str) -> None:
        """Marks every live flow uncapped; the caller holds the lock."""
        self._decider.caps_pkts[:] = 0
        self._reasons[self._stats["cookie"] != 0] = reason


def _last_of_each(rows: NDArray[np.intp], among: NDArray[np.intp]) -> NDArray[np.intp]:
    """Returns the indices in ``among`` of the records that are the last of their row, in order."""
    _, last_from_the_end = np.unique(rows[among][::-1], return_index=True)
    return np.sort(among[::-1][last_from_the_end])
