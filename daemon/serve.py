"""The daemon as a process: everything checked before anything is attached, and nothing left when it ends.

This is the process with capabilities, which loads and watches (``supervisor``); what decides, and what talks to
callers, run in processes of their own, so that neither a model that hangs nor a caller that floods keeps this one from
obeying a signal.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TextIO, cast

import structlog
from structlog.typing import EventDict

from reinet.agents.decide.active_policies import require_period
from reinet.agents.decide.loop import Status
from reinet.agents.decide.protocol import MODEL_IDENTITY, Agent
from reinet.core.errors import DaemonError, ShimError
from reinet.core.period import PeriodConfig
from reinet.core.target import Form, Target
from reinet.core.visible import some_of, visible
from reinet.daemon import cgroups
from reinet.daemon.config import DaemonConfig
from reinet.daemon.endpoint import Endpoint
from reinet.daemon.log_lines import LINES
from reinet.daemon.notify import Watchdog, notify
from reinet.daemon.processes import child
from reinet.daemon.processes.child import StoppedError
from reinet.daemon.processes.claim import METRICS, PROGRAMS, SocketClaim
from reinet.daemon.processes.decide import open_mapped_shim, with_folder
from reinet.daemon.processes.descriptors import allow_descriptors
from reinet.daemon.processes.supervisor import Loader, Supervisor, fetched_folder
from reinet.daemon.reload import policy_specs
from reinet.kshim.probe import features, lacking
from reinet.kshim.shim import WRAPPED_CC

WATCH_S = 0.2
"""Processes and cgroups are looked at so often, with a system call each; a process that dies has left caps behind that
would live for half a second."""
ASK_S = 1.0
"""The decision process is asked so often: for completed ticks, and whether its file changed: calls wake threads."""
COUNTERS_S = 10.0
"""What the kernel side had to leave out is asked for, and logged where it grew, so often."""
LEFT_OUT = ("flows_without_slot", "flows_not_switched", "leases_too_long", "records_lost")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = structlog.get_logger("reinet.serve")

_SAID: set[tuple[str, Target]] = set()
"""Identities of models with the targets for which ``agent_for`` has looked at them."""


class Checked(NamedTuple):
    """What would decide, and the digest by which the configuration can pin it: empty for what is no model."""

    model: str
    model_sha256: str


def check(config: DaemonConfig) -> Checked:
    """Looks at host, cgroups and models, the policies' too, touches nothing, and returns what would decide.

    Models are looked at in a confined process. Raises ShimError, ConfigError, ModelError or DaemonError with cure.
    """
    check_host(config)
    config = with_folder(config, fetched_folder(config))

    def look() -> tuple[str, str]:
        agent = agent_for(config, config.model, config.asked)
        for spec in policy_specs(config, agent, agent_for)[1:]:
            require_period(spec.agent, agent.view.period)
        digest = agent.identity.removeprefix(MODEL_IDENTITY)
        return agent.called, digest if digest != agent.identity else ""

    return Checked(*child.ask("checking", look))


def check_host(config: DaemonConfig) -> None:
    """Looks at host and cgroups and touches nothing. Raises ShimError or ConfigError with the cure."""
    if missing := lacking(features()):
        raise ShimError(f"this host cannot serve: {missing}")
    cgroups.check(config.cgroups)
    cgroups.check_policies(config.policies)


def agent_for(config: DaemonConfig, model: str, target: Target) -> Agent:
    """Returns the agent of that name for a target; logs where it is put to a use that it was not trained for.

    A process logs that once for a model and a target, however many policies have them. The configuration's pin is that
    of its own model.
    """
    from reinet.agents.decide.names import make_agent  # with the inference library, which only a confined process loads

    pin = config.model_sha256 if model == config.model else None
    agent = make_agent(model, link="kernel", manifest_sha256=pin)
    if (agent.identity, target) not in _SAID:
        _SAID.add((agent.identity, target))
        _check_use(agent, target)
    return agent


def _check_use(agent: Agent, target: Target) -> None:
    """Logs where the model was not trained for a target, or for what it caps."""
    _check_target(agent, target)
    trained_cc = WRAPPED_CC if agent.congestion_controls is None else agent.congestion_controls
    if untrained := [cc for cc in WRAPPED_CC if cc not in trained_cc]:
        log.info("the model was not trained for every congestion control that it caps", untrained=untrained)


def _check_target(agent: Agent, target: Target) -> None:
    """Logs where the model was not trained for a target (``Agent.untrained_range_ms``)."""
    trained_ms = agent.queueing_target_range_ms
    if trained_ms is not None and target.form is Form.MULTIPLE:  # a server's clients have paths of all kinds
        low_ms, high_ms = (round(limit_ms / (target.amount - 1), 1) for limit_ms in trained_ms)
        log.warning("the model was trained for this target on some paths only",
                    target=str(target), paths_ms=(low_ms, high_ms), trained_queueing_ms=trained_ms)  # fmt: skip
    elif untrained_ms := agent.untrained_range_ms(target):
        log.warning("the model was not trained for this target", target=str(target), trained_ms=untrained_ms)


def serve(config: DaemonConfig, path: Path | None = None) -> Status:
    """Runs the daemon until SIGTERM or SIGINT; belongs to the main thread. Returns what it did.

    ``path`` is the configuration's file, which is taken up again when it changes and on SIGHUP. On the way out every
    cap is lifted and nothing stays but, on idle flows, an inert wrapper. Raises a ReinetError where it cannot start,
    and DaemonError where it had to give up.
    """
    with ExitStack() as stack:
        wake = _Wake(stack)
        allow_descriptors()
        check_host(config)
        followed = cgroups.Cgroups(config.cgroups)
        taken = stack.enter_context(cgroups.CgroupClaim(followed.here()))
        claim = stack.enter_context(SocketClaim(config.socket))
        if claim.replaced:
            log.info("replaced the socket of a daemon that is gone", socket=str(config.socket))
        metrics = None if config.metrics is None else Endpoint.parse(config.metrics).path
        beside = [
            stack.enter_context(SocketClaim(place, purpose))
            for place, purpose in ((config.processes, PROGRAMS), (metrics, METRICS))
            if place is not None
        ]
        supervisor = Supervisor(config, path, claim, agent_for, open_shim, load_kernel, beside)
        stack.callback(supervisor.close)
        try:
            supervisor.start(wake.wait)
        except StoppedError:
            log.info("stopped before it served")
            return Status(True, False, "", str(config.asked), decisions=0, records=0, flows=0, uptime_s=0.0)
        log.info(
            "serving",
            model=supervisor.called,
            cgroups=some_of(config.cgroups),  # a line that lists hundreds is longer than a journal's may be
            target=str(config.asked),
            mode=config.mode.value,
            policies=some_of([policy.name for policy in config.policies]),
            lease_ms=config.lease_ms,
            max_flows=config.max_flows,
            socket=str(config.socket),
            log_dir=supervisor.log_folder,
            metrics=config.metrics,
        )
        told = _status_line(supervisor.called, str(config.asked))
        notify("READY=1", told)
        _watch(supervisor, wake, followed, taken, told)
        notify("STOPPING=1")
        status, counters = supervisor.stop()
        log.info(
            "stopping",
            decisions=status.decisions,
            records=status.records,
            uptime_s=round(status.uptime_s, 3),
            **counters,
        )
    log.info("stopped")
    return status


def load_kernel(config: DaemonConfig, period: PeriodConfig) -> Loader:
    """Loads the BPF programs; they choose no flows yet."""
    from reinet.kshim.kernel import KernelLoader  # serving on a fake needs no native loader

    return KernelLoader(
        cgroups.standing_for(config.cgroups),
        period=period,
        max_flows=config.max_flows,
        records_bytes=config.records_mb * 2**20,
    )


open_shim = open_mapped_shim
"""What the decision process opens: the memory of the programs that ``load_kernel`` has loaded, at its request."""


def configure_logging() -> None:
    """Sends structured logs to standard error: readable on a terminal, one JSON object per line elsewhere."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=not terminal),
            *([_obeyed_by_no_terminal] if terminal else [structlog.processors.format_exc_info]),
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(default=str),
        ],
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, LINES)),
        cache_logger_on_first_use=False,
    )


def _obeyed_by_no_terminal(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Returns the event with control characters, as a model's name may have, written out; JSON does so by itself."""
    return {key: visible(value, keep="\n") if isinstance(value, str) else value for key, value in event.items()}


class _Wake:
    """Wakes the main thread from signal handlers and other threads; a pipe, since no lock is safe in a handler."""

    def __init__(self, stack: ExitStack) -> None:
        self._read_fd, self._write_fd = os.pipe()
        stack.callback(os.close, self._read_fd)
        stack.callback(os.close, self._write_fd)
        os.set_blocking(self._write_fd, False)
        self.reload_wanted = False
        for number in (*STOP_SIGNALS, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, self._on_signal))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.reload_wanted |= number == signal.SIGHUP
        self.set(b"r" if number == signal.SIGHUP else b"!")

    def set(self, word: bytes = b"!") -> None:
        with suppress(BlockingIOError):  # full: it is awake
            os.write(self._write_fd, word)

    def wait(self, timeout_s: float) -> bool:
        """Returns True when told to end; False when the time is over, or SIGHUP came."""
        return bool(select.select([self._read_fd], [], [], timeout_s)[0]) and b"!" in os.read(self._read_fd, 4096)


def _watch(
    supervisor: Supervisor, wake: _Wake, followed: cgroups.Cgroups, taken: cgroups.CgroupClaim, told: str
) -> None:
    """Looks after processes, cgroups and counters until woken; raises DaemonError where it has to give up.

    ``told`` is what the service manager was told of what decides.
    """
    known = refused = ""
    counters: Mapping[str, int] = {}
    attached: list[Path] | None = followed.here()
    asked_s, counted_s, followed_s = 0.0, time.monotonic(), 0.0
    watchdog = Watchdog(lambda: supervisor.loop.ticks())
    while not wake.wait(WATCH_S):
        if how := supervisor.ended():
            if not supervisor.restart(how, watchdog.beside(wake.wait)):
                raise DaemonError(f"{how}, and the daemon was told to stop before it was started anew")
            known = ""
        supervisor.adopt()
        try:
            if wake.reload_wanted:
                wake.reload_wanted = False
                supervisor.loop.reload()
                asked_s = 0.0  # what came of it is looked at now
            if time.monotonic() - asked_s >= ASK_S:
                asked_s = time.monotonic()
                watchdog.feed()
                supervisor.look()
                told = _tell(supervisor, told)
            changed = followed.changed()
            if changed or (refused and time.monotonic() - followed_s >= ASK_S):
                followed_s = time.monotonic()
                if changed:  # a cgroup that was made anew has its former path, and nothing attached
                    attached = None
                attached, refused = _follow(supervisor, followed, attached, taken)
            if (problem := followed.problem() or refused) != known:
                supervisor.report(problem)
                known = problem
                if problem:
                    log.error("cgroups lost", problem=problem)
            if time.monotonic() - counted_s >= COUNTERS_S:
                counted_s = time.monotonic()
                before, counters = counters, supervisor.loop.counters()
                _log_counters(counters, before)
        except (DaemonError, TimeoutError):  # hangs or has just died; the next look tells
            continue
        except (ValueError, LookupError, TypeError) as error:  # what the decision process raised
            log.error("the decision process answered with an error", error=repr(error))


def _tell(supervisor: Supervisor, told: str) -> str:
    """Tells the service manager what decides now, where that is not what it was ``told``; returns what it knows."""
    if (status := supervisor.status) is None:
        return told
    line = _status_line(status.model or supervisor.called, status.target, status.state)
    if line != told:
        notify(line)
    return line


def _status_line(model: str, target: str, state: str = "enforcing") -> str:
    return f"STATUS=serving {model}, target {target}" + (f", {state}" if state != "enforcing" else "")


def _follow(
    supervisor: Supervisor, followed: cgroups.Cgroups, attached: Sequence[Path] | None, taken: cgroups.CgroupClaim
) -> tuple[list[Path] | None, str]:
    """Attaches to the cgroups that are there now, but for those that another daemon serves.

    Returns which are attached, None = unknown, and why others stay alone, empty where none does.
    """
    here = followed.here()
    refusals = taken.take(here)
    mine, refused = [path for path in here if path not in refusals], some_of(list(refusals.values()), "; ")
    if mine == attached:  # tried again, and nothing is new
        return mine, refused
    try:
        supervisor.follow(mine)
    except ShimError as error:
        return None, str(error)
    # A line names a few of them: that of a thousand containers would be longer than a journal's may be (LineMax=48K).
    came = followed.came if attached is None else [path for path in mine if path not in attached]
    log.info("cgroups followed", cgroups=len(mine), came=some_of(came))
    return mine, refused


def _log_counters(now: Mapping[str, int], before: Mapping[str, int]) -> None:
    """Logs what the kernel side had to leave out, and took over, since the last look."""
    grown = {name: count for name, count in now.items() if count > before.get(name, 0)}
    if more := {name: grown[name] for name in LEFT_OUT if name in grown}:
        log.warning("the kernel side left something out", **more)
    if "flows_adopted" in grown:
        log.info("took over flows that were open", flows=grown["flows_adopted"])
