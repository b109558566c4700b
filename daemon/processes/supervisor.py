"""The daemon's processes: a loader with capabilities, and two without that it forks, watches and starts anew.

::

    loader      CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON   BPF programs, signals, cgroups; no model, no gRPC
      |-- decide    none, seccomp: memory only        model, states, caps
      |-- answer    none, seccomp: sockets and files  control socket, curves

The loader makes every ``bpf()`` call. Decide asks it for memory, since the period is the model's; answer asks decide
for whatever a caller wants to know. Where one of the two dies, every lease is ended at once and both are started anew,
a few times; where the loader dies, the kernel ends the others.
"""

import socket as sockets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import structlog

from reinet.agents.decide.loop import Status
from reinet.core.errors import DaemonError, ReinetError, ShimError
from reinet.core.period import PeriodConfig
from reinet.daemon.config import DaemonConfig, load_config
from reinet.daemon.policies import REGISTRY_PREFIX
from reinet.daemon.processes.asked import Asked
from reinet.daemon.processes.child import GOING_S, Child, Pause, StoppedError, ask
from reinet.daemon.processes.claim import SocketClaim
from reinet.daemon.processes.controlled import Supervised
from reinet.daemon.processes.decide import OpenShim, decide, hand_over
from reinet.daemon.processes.decide import Sockets as DecideSockets
from reinet.daemon.processes.front import LoopAfar, answer
from reinet.daemon.processes.front import Sockets as FrontSockets
from reinet.daemon.processes.plain import BrokenError
from reinet.daemon.processes.sandbox import confine_answers
from reinet.daemon.reload import CHANGEABLE, LoadAgent, stamp_of

if TYPE_CHECKING:
    from reinet.kshim import _kshim
    from reinet.kshim.kernel import Adopted

MOST_RESTARTS = 3
"""So many deaths in ``FORGIVEN_S`` are bad luck; more are a fault that a further start does not mend."""
FORGIVEN_S = 600.0
PAUSE_S = 0.5
"""The first pause before a start; each further one lasts twice as long."""
ADOPTIONS = 10
ADOPT_EVERY_S = 1.0
"""Flows recover from a loss within a round trip or a few; one that is at it whenever it is looked at, so often and so
far apart, stays alone."""
JOIN_S = 2.0
"""It is longer than any tick of a loop that is well."""
MAX_ANSWER_BYTES = 4 * 2**20
"""A status takes a kilobyte for each policy, of which there are as many as an operator writes; thousands have room."""
MOST_PROBLEM_CHARS = 4000
"""What is reported is cut after so many: a character takes 12 bytes at most on the way, and a call has 64 KiB."""

log = structlog.get_logger("reinet.serve")


def fetched_folder(config: DaemonConfig, pause: Pause | None = None) -> str:
    """Returns the folder of a registry's model, which a confined process fetches; empty where no registry is named.

    Raises DaemonError where neither the service nor what it said last can be had, and StoppedError where ``pause`` is
    cut short meanwhile.
    """
    if not config.model.startswith(REGISTRY_PREFIX):
        return ""

    def fetched() -> str:
        from reinet.daemon.followed import resolved  # with gRPC, which no process imports that forks

        return resolved(config).model

    return str(ask("fetching", fetched, confine_answers, pause))


class Loader(Protocol):
    """What the supervisor needs of ``KernelLoader``."""

    descriptors: "_kshim.Descriptors"

    def attach(self) -> None:
        """Chooses flows from now on."""

    def follow(self, cgroups: Sequence[Path]) -> None:
        """Chooses the flows of these cgroups from now on, in place of those before; raises ShimError."""

    def adopt(self) -> "Adopted":
        """Takes over open flows."""

    def lift_caps(self) -> None:
        """Ends every lease."""

    def close(self) -> None:
        """Detaches and unloads."""


class Supervisor:
    """The two processes and the loaded programs; belongs to the loader's main thread."""

    def __init__(
        self,
        config: DaemonConfig,
        path: Path | None,
        claim: SocketClaim,
        agent_for: LoadAgent,
        open_shim: OpenShim,
        load: Callable[[DaemonConfig, PeriodConfig], Loader],
        beside: Sequence[SocketClaim] = (),
    ) -> None:
        """Takes the claim of the control socket, and those of the other sockets of the daemon ``beside`` it."""
        self._config, self._path, self._claim = config, path, claim
        self._claims = (claim, *beside)
        self._stamp = stamp_of(path)
        self._asked = Asked()
        self._agent_for, self._open_shim, self._load = agent_for, open_shim, load
        self._loader: Loader | None = None
        self._period: PeriodConfig | None = None
        self._measured: PeriodConfig | None = None  # the period of its models; ``min_period_ms`` makes another of it
        self._attached = False
        self._tried: list[Path] = []  # the cgroups that were last to be followed
        self._adoptions = ADOPTIONS if config.adopt else 0
        self._adopted_s = -ADOPT_EVERY_S
        self._told_late = False
        self._children: list[Child] = []
        self._afar: LoopAfar | None = None  # what ``loop`` is
        self._deaths_s: list[float] = []
        self.called = ""
        """What decides: folder and schema of the model."""
        self.log_folder: str | None = None
        """Where the curves go."""
        self.status: Status | None = None
        """How the loop was at the latest look."""
        self.loop: Supervised

    def start(self, pause: Pause | None = None) -> None:
        """Starts both processes and attaches; raises a ReinetError, with neither left running, where that fails.

        Raises StoppedError, the same, where ``pause`` is cut short before they run.
        """
        try:
            self._start(pause)
        except BaseException:
            self.kill()
            raise

    def adopt(self) -> bool:
        """Takes over open flows if it is time to; returns whether it was.

        Once more a second after the start: flows that a killed daemon left under other names go back to their own
        congestion control first. Then for as long as some recover from a loss, a few times.
        """
        now_s = time.monotonic()
        if not self._adoptions or self._loader is None or now_s - self._adopted_s < ADOPT_EVERY_S:
            return False
        self._adopted_s = now_s
        first = self._adoptions == ADOPTIONS
        self._adoptions -= 1
        try:
            adopted = self._loader.adopt()
            if not adopted.waiting and not first:
                self._adoptions = 0
            if not adopted.in_time and not self._told_late:
                self._told_late = True
                log.warning("no time to look into every network namespace: flows that were open in others stay alone")
        except ShimError as error:
            self._adoptions = 0
            log.error("flows that were open stay alone", why=str(error))
        return True

    def follow(self, cgroups: Sequence[Path]) -> None:
        """Chooses the flows of these cgroups from now on, and takes over those that are open.

        Raises ShimError where one of them cannot be attached; the others' open flows are taken over all the same, but
        not again at each further try: looking for them locks every socket.
        """
        if self._loader is None:
            return
        tried, self._tried = self._tried, list(cgroups)
        try:
            self._loader.follow(cgroups)
        except ShimError:
            if self._tried != tried:
                self._adoptions = ADOPTIONS if self._config.adopt else 0
            raise
        self._adoptions = ADOPTIONS if self._config.adopt else 0

    def look(self) -> None:
        """Has the file taken up if it has changed, and keeps in mind what is in force, for a process started anew.

        Raises what a call does: DaemonError, TimeoutError.
        """
        stamp = self.loop.look()  # this process asks nothing of the file's disk, which may hang, while it is the same
        if self._path is not None and stamp not in (None, self._stamp):
            with suppress(ReinetError):  # it changed again meanwhile; the next look tells
                found = load_config(self._path)
                if stamp_of(self._path) == stamp:  # else it is one that may never be in force
                    self._config = self._config.model_copy(update={key: getattr(found, key) for key in CHANGEABLE})
                    self._stamp = stamp
        status = self.loop.status()
        if status.policies:  # a loop that never answered says nothing
            self.status = status

    def ended(self) -> str:
        """Returns which process has ended and how; empty while both run.

        A decision process that lives and cannot be called any more counts as one that has ended: nothing else mends it.
        """
        endings = [f"the {child.name} process {how}" for child in self._children if (how := child.end())]
        if not endings and self._children and self._afar is not None and (why := self._afar.gone):
            decider = self._children[0]
            how = decider.end(GOING_S) or f"lives, and its link is broken: {why}"
            endings = [f"the {decider.name} process {how}"]
        return "; ".join(endings)

    def report(self, problem: str) -> None:
        """Puts a problem into ``status``, a long one in part; empty takes it back. Raises what a call does."""
        cut = len(problem) > MOST_PROBLEM_CHARS
        self.loop.report(problem[:MOST_PROBLEM_CHARS] + " ..." if cut else problem)

    def restart(self, why: str, pause: Pause) -> bool:
        """Ends every lease and starts both processes anew, or returns False, with nothing started, where ``pause`` is
        cut short meanwhile.

        Raises DaemonError after too many deaths.
        """
        self.kill()
        if self._loader is not None:
            self._loader.lift_caps()
        now_s = time.monotonic()
        self._deaths_s = [*(at_s for at_s in self._deaths_s if now_s - at_s < FORGIVEN_S), now_s]
        if len(self._deaths_s) > MOST_RESTARTS:
            log.error("giving up", why=why, restarts=MOST_RESTARTS)
            raise DaemonError(f"{why}, for the {len(self._deaths_s)}th time; every cap is lifted; see the log above")
        log.error("starting anew", why=why, caps="lifted")
        if pause(PAUSE_S * 2 ** (len(self._deaths_s) - 1)):
            return False
        try:
            for claim in self._claims:
                claim.prepare_folder()
            self.start(pause)
        except StoppedError:
            return False
        except ReinetError as error:
            raise DaemonError(f"{why}; and it cannot be started anew: {error}") from error
        if self.status is not None and self.status.model != self.called:
            # Swapped in or rolled back to. It may be what ended the process, so the configuration's decides again.
            log.warning("the model before went with its process", model=self.status.model, decides=self.called)
        return True

    def stop(self) -> tuple[Status, dict[str, int]]:
        """Ends both processes in good order; returns what the loop did and what the kernel side counted.

        Raises DaemonError where the loop hung, or was gone.
        """
        try:
            counters, status = self.loop.counters(), self.loop.status()
        except TimeoutError as error:
            self.kill()
            log.critical(f"the decision loop hangs; leaving without it: {error}; every cap is lifted")
            raise DaemonError("the decision loop hung and was killed; every cap is lifted") from None
        decider, answerer = self._children
        decider.send("stop")
        how = decider.end(JOIN_S)
        if not how:
            log.critical(f"the decision loop hangs; leaving without it after {JOIN_S:g} s, every cap is lifted")
            raise DaemonError("the decision loop hung and was killed; every cap is lifted")
        answerer.send("stop")
        if not answerer.end(JOIN_S):
            lost = ": the last of curves and recordings may be lost" if self._config.keeps_records else ""
            log.warning(f"the answering process was killed at the end{lost}", waited_s=JOIN_S)
        return status, counters

    def kill(self) -> None:
        """Ends both processes at once."""
        while self._children:
            self._children.pop().kill()
        with suppress(FileNotFoundError):
            self._claim.path.unlink()

    def close(self) -> None:
        """Ends both processes, lifts every cap and unloads."""
        self.kill()
        if self._loader is not None:
            loader, self._loader = self._loader, None
            loader.close()

    def _start(self, pause: Pause | None) -> None:
        folder = fetched_folder(self._config, pause)
        to_supervisor, supervisor = sockets.socketpair()
        to_callers, callers = sockets.socketpair()
        records_out, records_in = sockets.socketpair(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        ends = DecideSockets(to_supervisor, to_callers, records_out)
        decider = Child(
            "decision",
            lambda link: decide(
                link,
                self._config,
                self._path,
                ends,
                agent_for=self._agent_for,
                open_shim=self._open_shim,
                folder=folder,
                asked=self._asked,
                stamp=self._stamp,
                measured=self._measured,
            ),
            theirs=(to_supervisor, to_callers, records_out),
            ours=(supervisor, callers, records_in),
        )
        self._children = [decider]
        try:
            self.called = self._bring_up(decider, pause)
        except BaseException:
            for socket in (supervisor, callers, records_in):
                socket.close()
            raise
        running = Path(folder).name
        front = FrontSockets(callers, records_in)
        answerer = Child(
            "answering",
            lambda link: answer(link, self._config, self._claim, self.called, running, front),
            theirs=(callers, records_in),
            ours=(supervisor, decider.link),
        )
        self._children.append(answerer)
        self.log_folder = answerer.receive(pause)["ready"]
        # From here on there is a second thread, which listens for answers; children are forked before it is, or anew
        # from a process in which it waits in a system call and holds no lock.
        self._afar = LoopAfar(supervisor, Supervised, MAX_ANSWER_BYTES)
        self.loop = cast(Supervised, self._afar)
        if self._loader is not None and not self._attached:
            self._loader.attach()
            self._attached = True
            self.adopt()

    def _bring_up(self, decider: Child, pause: Pause | None) -> str:
        while "ready" not in (word := decider.receive(pause)):
            self._hand_over(decider, word["load"])
        self._measured = PeriodConfig(**word["measured"])
        return str(word["ready"])

    def _hand_over(self, decider: Child, asked: dict[str, int]) -> None:
        period = PeriodConfig(int(asked["min_period_ns"]), bool(asked["packet_timed"]))
        if not 1_000_000 <= period.min_period_ns <= 1_000_000_000:
            raise DaemonError(f"the decision process asks for a period of {period.min_period_ns} ns")
        if self._loader is None:
            self._loader, self._period = self._load(self._config, period), period
        elif period != self._period:
            raise DaemonError(f"the decision process asks for {period} where {self._period} is loaded")
        with suppress(BrokenPipeError, ConnectionResetError, BrokenError):  # it has ended; the next word says how
            hand_over(decider.link, self._loader.descriptors)
