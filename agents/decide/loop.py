"""The decision loop: records from the shim -> states -> decider -> caps with leases; for the daemon and evaluation.

Fail open is the rule. A cap lives only while ticks complete: an agent that hangs stops the renewals and every cap
lapses in the kernel; one that raises loses its caps at once; a flow whose decision fails the guard runs uncapped, with
the reason kept for whoever asks; a record that is older than a lease is not decided on. Nothing here knows of signals,
sockets or files, and time comes from outside, so all of it runs against ``FakeShim``.

A tick costs by the record, not by the flow: nothing in it walks over flows in Python or over all rows of a table.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from reinet.agents.decide.course import Course, CourseStatus
from reinet.agents.decide.flows import FlowTable, Rows
from reinet.agents.decide.guard import Guard
from reinet.agents.decide.modes import PLAIN_SHARE, Mode, Order, Placer
from reinet.agents.decide.protocol import Agent
from reinet.agents.decide.recent import RecentRecords
from reinet.agents.decide.sight.memory import Sight
from reinet.agents.decide.sight.observed import Observed
from reinet.agents.decide.sight.own_targets import OwnTargets
from reinet.agents.decide.sight.refusal_log import RefusalLog
from reinet.agents.decide.swap import SHARE, Canary, canary
from reinet.agents.decide.verdicts import Verdicts, Why, text
from reinet.core import MAX_CAP_PKTS
from reinet.core.errors import ConfigError, ModelError
from reinet.core.target import Target
from reinet.kshim.leases import LEASE_MS, LeaseKeeper
from reinet.kshim.shim import FlowStatsArray, Shim

TICK_MS = 50
"""The longest wait for records; it bounds how late a renewal, a pause or a stop may be."""

_PAUSED, _NO_DECISION = int(Why.PAUSED), int(Why.NO_DECISION)

log = structlog.get_logger("reinet.loop")


class RecordSink(Protocol):
    """Who is shown what was decided, without ever holding the loop up."""

    def offer(self, records: FlowStatsArray, caps_pkts: NDArray[np.uint32]) -> None:
        """Takes N records, FLOW_STATS_DTYPE (N,), with the caps now decided for their flows.

        In shadow these are the caps that would have been applied.
        """


@dataclass(frozen=True)
class Snapshot:
    """The flows as the loop knew them after its latest tick; the arrays are copies."""

    stats: FlowStatsArray  # (N,), each flow's latest record
    caps_pkts: NDArray[np.uint32]  # (N,), decided; 0 = none
    reasons: list[str]  # (N,), why a flow is uncapped, empty when it is capped
    now_ns: int  # the loop's clock now
    verdicts: Verdicts  # (N,), VERDICT_DTYPE: the same as numbers, with what the agent wanted


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
    stale: int  # decisions that were dropped because the record was older than a lease
    courses: tuple[CourseStatus, ...]  # the policies, in the order in which they were given


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
    ) -> None:
        """Makes a loop of one policy. ``bounds_steps`` keeps each cap near the one in force (``guard.py``)."""
        self._shim = shim
        self._ceiling_pkts = ceiling_pkts
        self._lease_ns = lease_ms * 1_000_000
        self._sink = sink
        self._clock_ns = clock_ns
        self._log = log
        self._keeper = LeaseKeeper(shim, lease_ms, clock_ns)
        self._flows = FlowTable(self._grow)
        self._lock = self._flows.lock  # guards what other threads read or set; notified when a pause is obeyed
        self._sight, self._own_targets = Sight(len(self._flows), clock_ns), OwnTargets()
        self._refusals = RefusalLog(log, ceiling_pkts, clock_ns)
        self._make_guard = partial(Guard, ceiling_pkts, bounds_steps)
        self._courses = [self._course(Order(agent, target, mode, plain_share))]
        self._placer: Placer | None = None
        self._recent = RecentRecords()
        self._requests: deque[Callable[[], None]] = deque()  # of other threads, obeyed at the next tick
        self._pause_wanted = False
        self._paused = False
        self._lifted = 0  # caps that the latest pause lifted
        self._records = 0
        self._started_ns = self._last_tick_ns = clock_ns()
        self._outside_problem = ""

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
        while self._requests:
            self._requests.popleft()()
        self._obey_pause()
        self._note_lapse(self._clock_ns())
        if len(records):
            self._take(records)
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
        """Ends a pause; each flow gets a cap with its next record. Raises TimeoutError if the loop hangs.

        A hold-out that stood down gets another chance.
        """
        self._requests.append(self._resume_courses)
        self._ask(False, timeout_s)

    def swap(self, agent: Agent, policy: str = "", share: float = SHARE) -> Canary:
        """Puts another agent in the place of a policy's, the first one's if none is named, in steps (``swap.py``).

        Shows it recorded states first, in the caller's thread, and returns how it answered; what becomes of it later is
        in ``status().courses``. share is that of the flows that it gets first; 1 = all at once. Raises ModelError, and
        ConfigError where there is no such policy; nothing is changed then.
        """
        course = self._course_named(policy)
        found = self._try(agent, course)
        self._requests.append(lambda: course.swap(agent, share, self._recorded(course), self._clock_ns()))
        return found

    def roll_back(self, policy: str = "") -> None:
        """Goes back to the model before the swap under way, if there is one. Raises ConfigError for no such policy."""
        course = self._course_named(policy)
        self._requests.append(lambda: (course.roll_back("as it was told to", self._clock_ns()), None)[1])

    def command(self, orders: Sequence[Order], placer: Placer | None = None) -> None:
        """Puts these policies in the place of all; ``placer`` says which flow is under which of them, None = the first.

        A policy that has its name already goes on: its agent, if it is another one, takes over as by ``swap``. Raises
        ModelError where one of them must not, and ConfigError for orders that make no sense; nothing is changed then.
        """
        names = [order.name for order in orders]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"policies {names}: at least one is needed, and each needs a name of its own")
        with self._lock:
            known = {course.order.name: course for course in self._courses}
        for order in orders:
            course = known.get(order.name, self._courses[0])
            if order.name not in known or course.agent.identity != order.agent.identity:
                self._try(order.agent, course)
        self._requests.append(lambda: self._obey(orders, placer))

    def report(self, problem: str) -> None:
        """Puts what somebody else found wrong into ``status``; empty takes it back."""
        with self._lock:
            self._outside_problem = problem

    def snapshot(self) -> Snapshot:
        """Returns every live flow with its latest record and cap."""
        with self._lock:
            rows = self._flows.live()
            stats, caps_pkts = self._flows.stats[rows], self._flows.caps_pkts[rows]
            verdicts, places = self._flows.verdicts[rows], self._flows.places[rows]
            own_words = {place: course.words() for place, course in enumerate(self._courses)}
            now_ns = self._clock_ns()
        reasons = [
            own_words[int(place)].get(int(verdict["code"])) or text(verdict, self._ceiling_pkts)
            for verdict, place in zip(verdicts, np.maximum(places, 0), strict=True)
        ]
        return Snapshot(stats, caps_pkts, reasons, now_ns, verdicts)

    def status(self) -> Status:
        """Returns whether ticks complete, and what has been done since the start."""
        with self._lock:
            now_ns = self._clock_ns()
            late_ns = now_ns - self._last_tick_ns
            problem = next((course.agent_problem for course in self._courses if course.agent_problem), "")
            if not problem and late_ns > self._lease_ns:
                problem = (
                    f"no tick completed for {late_ns / 1e9:.1f} s, longer than a lease: every cap has lapsed; "
                    "if this lasts, restart the daemon"
                )
            problem = problem or next((course.problem for course in self._courses if course.problem), "")
            problem = problem or self._outside_problem
            return Status(
                ok=not problem,
                paused=self._paused,
                problem=problem,
                target=str(self._courses[0].order.target),
                decisions=sum(course.decisions for course in self._courses),
                records=self._records,
                flows=self._flows.count(),
                uptime_s=(now_ns - self._started_ns) / 1e9,
                stale=sum(course.stale for course in self._courses),
                courses=tuple(course.status() for course in self._courses),
            )

    def _take(self, records: FlowStatsArray) -> None:
        """Brings the tables up to date and decides."""
        live = self._forget_closed(np.array(records))
        live, rows, fresh = self._flows.admit(live, _PAUSED if self._pause_wanted else _NO_DECISION)
        if not len(live):
            return
        if fresh.size:
            self._flows.places[fresh] = 0 if self._placer is None else -1
            for course in self._courses:
                course.reset(fresh, self._flows.stats["cookie"][fresh])
        self._recent.add(live)
        now_ns = self._clock_ns()
        if self._placer is None:
            self._serve(self._courses[0], live, rows, now_ns)
            return
        places = self._placed(live, rows)
        for place in range(-1, len(self._courses)):
            own = places == place
            if not own.any():
                continue
            if place >= 0:
                self._serve(self._courses[place], live[own], rows[own], now_ns)
            else:
                with self._lock:
                    self._flows.stats[rows[own]] = live[own]
                    self._flows.verdicts["code"][rows[own]] = Why.UNPLACED

    def _placed(self, live: FlowStatsArray, rows: Rows) -> NDArray[np.int32]:
        """Returns the policy of each record's flow, -1 = not known yet, asking for those that are not."""
        assert self._placer is not None
        places = self._flows.places
        unknown = places[rows] < 0
        if unknown.any():
            found = self._placer.place(live["cookie"][unknown])
            with self._lock:
                places[rows[unknown]] = found
        return places[rows]

    def _serve(self, course: Course, live: FlowStatsArray, rows: Rows, now_ns: int) -> None:
        """Decides for the flows of one course and puts it in force."""
        flows = self._flows
        ruling = course.rule(live, rows, flows, now_ns, self._pause_wanted)
        self._sight.hear(rows, live)
        if self._pause_wanted:
            ruling.caps_pkts[:] = 0
            ruling.verdicts["code"] = Why.PAUSED
        if ruling.uncap_all:
            self._uncap_course(course, live, rows, ruling.uncap_all)
        elif len(ruling.rows):
            if course.order.mode is not Mode.SHADOW:
                slots = ruling.rows.astype(np.uint32)
                self._keeper.put(ruling.stats["cookie"], slots, ruling.caps_pkts, ruling.stats["target_us"])
            self._refusals.note(ruling.rows, ruling.stats, ruling.verdicts, flows.verdicts["code"])
            self._sight.decide(ruling.rows, ruling.stats["time_ns"], ruling.verdicts["code"])
        if len(ruling.rows) < len(live):
            self._keeper.hear(live)
        with self._lock:
            flows.stats[rows] = live  # of several records of one flow the last one stays
            if not ruling.uncap_all:
                flows.caps_pkts[ruling.rows] = ruling.caps_pkts
                flows.verdicts[ruling.rows] = ruling.verdicts
        if self._sink is not None and not ruling.uncap_all:
            shown = flows.caps_pkts[rows]
            if course.order.mode is Mode.SHADOW:
                shown = flows.verdicts["allowed_pkts"][rows]
            self._sink.offer(live, shown)

    def _uncap_course(self, course: Course, live: FlowStatsArray, rows: Rows, why: Why) -> None:
        """Uncaps all of a course's flows at once instead of waiting for the leases."""
        with self._lock:
            self._flows.stats[rows] = live
            own = self._flows.under(self._courses.index(course))
            self._flows.uncap(own, why)
        self._keeper.release(own.astype(np.uint32))

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

    def _forget_closed(self, records: FlowStatsArray) -> FlowStatsArray:
        """Forgets flows that ended; returns the records of those that go on."""
        with self._lock:
            self._records += len(records)
        live, closed = self._flows.forget_closed(records)
        if len(closed):
            self._keeper.drop(closed["cookie"], closed["slot"])
            self._own_targets.forget(closed["cookie"])
            for course in self._courses:
                course.forget(closed["slot"].astype(np.intp), closed["cookie"])
            if self._sink is not None:
                self._sink.offer(closed, np.zeros(len(closed), np.uint32))
        return live

    def _try(self, agent: Agent, course: Course) -> Canary:
        """Shows an agent what was recorded of a course's flows; raises ModelError for one that must not take over."""
        mine = course.agent.view.period
        if agent.manifest is not None and agent.view.period != mine:
            raise ModelError(
                f"{agent.name}: refused, it decides by periods of its own ({agent.view.period}), flows are measured in "
                f"others ({mine}): restart the daemon with it"
            )
        agent.ceiling_pkts = self._ceiling_pkts
        with self._lock:
            recorded = self._recorded(course)
        return canary(agent, recorded, course.order.target, self._make_guard())

    def _recorded(self, course: Course) -> FlowStatsArray:
        """Returns the latest records of a course's flows that are still there, the oldest first."""
        records = self._recent.all()
        records = records[records["slot"] < len(self._flows)]
        slots = records["slot"]
        own = self._flows.stats["cookie"][slots] == records["cookie"]
        if course in self._courses:
            own &= self._flows.places[slots] == self._courses.index(course)
        return records[own]

    def _obey(self, orders: Sequence[Order], placer: Placer | None) -> None:
        """Puts policies in force."""
        now_ns = self._clock_ns()
        before = list(self._courses)
        known = {course.order.name: course for course in before}
        courses = [known.get(order.name) or self._course(order) for order in orders]
        for course, order in zip(courses, orders, strict=True):
            if course.agent.identity != order.agent.identity:
                course.swap(order.agent, SHARE, self._recorded(course), now_ns)
            course.amend(order, now_ns)
        rows = self._flows.live()
        cookies = self._flows.stats["cookie"][rows]
        places = np.zeros(len(rows), np.int32) if placer is None else placer.place(cookies)
        shadowed = np.array([course.order.mode is Mode.SHADOW for course in courses], np.bool_)
        old = np.array([courses.index(course) if course in courses else -2 for course in before], np.int32)
        moved = old[np.maximum(self._flows.places[rows], 0)] != places
        for course in courses:
            course.reset(rows[moved], cookies[moved])
        moved |= shadowed[np.maximum(places, 0)]  # whose caps go, too
        self._keeper.release(rows[moved].astype(np.uint32))
        with self._lock:
            self._courses, self._placer = courses, placer
            self._flows.places[rows] = places
            self._flows.uncap(rows[moved], Why.CHANGED)
        self._log.info("policies", policies=[course.order.name for course in courses], flows_moved=int(moved.sum()))

    def _resume_courses(self) -> None:
        for course in self._courses:
            course.resume(self._clock_ns())

    def _course_named(self, name: str) -> Course:
        with self._lock:
            found = [course for course in self._courses if name in ("", course.order.name)]
            if not found:
                known = ", ".join(course.order.name for course in self._courses)
                raise ConfigError(f"there is no policy {name!r}; there are {known}")
            return found[0]

    def _course(self, order: Order) -> Course:
        return Course(order, len(self._flows), self._make_guard, self._lease_ns, self._log, self._own_targets)

    def _grow(self, rows: int) -> None:
        self._sight.grow(rows)
        for course in self._courses:
            course.grow(rows)

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
