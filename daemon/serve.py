"""The daemon as a process: everything checked before anything is attached, and nothing left when it ends.

The decision loop runs in a thread of its own, so that a model that hangs cannot keep the process from obeying a signal:
then it ends at once, as if killed, and what it held in the kernel goes with it.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict

from reinet.agents.decide.loop import ControlLoop, Status
from reinet.agents.decide.names import make_agent
from reinet.agents.decide.protocol import Agent
from reinet.core.errors import ConfigError, DaemonError, ShimError
from reinet.core.period import PeriodConfig
from reinet.core.target import Form, Target
from reinet.core.visible import visible
from reinet.daemon.config import DaemonConfig
from reinet.daemon.control import ControlServer, SocketClaim
from reinet.daemon.event_log import EventLog
from reinet.daemon.followed import follow, resolved
from reinet.kshim.probe import cgroup2_mount, features
from reinet.kshim.shim import WRAPPED_CC, Shim

JOIN_S = 2.0
"""It is longer than any tick of a loop that is well."""
CGROUP_CHECK_S = 1.0
"""The cgroups are looked at so often, with a stat each."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = structlog.get_logger("reinet.serve")


def check(config: DaemonConfig) -> Agent:
    """Looks at host, cgroups and model, touches nothing, and returns the agent.

    Raises ShimError, ConfigError or ModelError with the cure.
    """
    lacking = [f"{name}: {found.why}; cure: {found.cure}" for name, found in features().items() if not found.ok]
    if lacking:
        raise ShimError("this host cannot serve: " + "; ".join(lacking))
    for cgroup in config.cgroups:
        _check_cgroup(cgroup)
    return load_agent(resolved(config))


def load_agent(config: DaemonConfig) -> Agent:
    """Returns the agent that the configuration names; logs where it is put to a use that it was not trained for."""
    agent = make_agent(config.model, link="kernel")
    agent.ceiling_pkts = config.ceiling_pkts
    _check_target(agent, config.asked)
    trained_cc = WRAPPED_CC if agent.congestion_controls is None else agent.congestion_controls
    if untrained := [cc for cc in WRAPPED_CC if cc not in trained_cc]:
        log.info("the model was not trained for every congestion control that it caps", untrained=untrained)
    return agent


def _check_target(agent: Agent, target: Target) -> None:
    """Logs where the model was not trained for a target: an absolute one goes by its RTT, others by what they add."""
    trained_ms = agent.queueing_target_range_ms if target.is_relative else agent.target_range_ms
    if trained_ms is None:
        return
    if target.form is Form.MULTIPLE:  # what it leaves hangs on the path, and a server's clients have paths of all kinds
        low_ms, high_ms = (round(limit_ms / (target.amount - 1), 1) for limit_ms in trained_ms)
        log.warning("the model was trained for this target on some paths only",
                    target=str(target), paths_ms=(low_ms, high_ms), trained_queueing_ms=trained_ms)  # fmt: skip
    elif not trained_ms[0] <= target.amount <= trained_ms[1]:
        log.warning("the model was not trained for this target", target=str(target), trained_ms=trained_ms)


def serve(config: DaemonConfig, open_shim: Callable[[DaemonConfig, PeriodConfig], Shim] | None = None) -> Status:
    """Runs the daemon until SIGTERM, SIGINT or SIGHUP; belongs to the main thread. Returns what it did.

    On the way out every cap is lifted and the host is left as it was found. Raises a ReinetError where it cannot start,
    and DaemonError where it had to give up.
    """
    with ExitStack() as stack:
        wake = _Wake(stack)
        agent = check(config)
        cgroups = _Cgroups(config.cgroups)
        claim = stack.enter_context(SocketClaim(config.socket))
        if claim.replaced:
            log.info("replaced the socket of a daemon that is gone", socket=str(config.socket))
        sink = _open_event_log(config)
        if sink is not None:
            stack.callback(sink.close)
        shim = stack.enter_context((open_shim or open_kernel_shim)(config, _period(config, agent)))
        loop = ControlLoop(shim, agent, config.asked, config.lease_ms, config.ceiling_pkts, sink)
        server = ControlServer(claim, loop, agent.called)
        stack.callback(server.close)
        stack.callback(follow(config, agent, load_agent, getattr(loop, "swap", None)))
        log.info(
            "serving",
            model=agent.called,
            cgroups=[str(cgroup) for cgroup in config.cgroups],
            target=str(config.asked),
            lease_ms=config.lease_ms,
            socket=str(config.socket),
            log_dir=str(sink.folder) if sink else None,
        )
        _run(loop, wake, cgroups, config.tick_ms, lambda: _abandon(claim))
        status = loop.status()
        log.info("stopping", decisions=status.decisions, records=status.records, uptime_s=round(status.uptime_s, 3))
    log.info("stopped")
    return status


def _period(config: DaemonConfig, agent: Agent) -> PeriodConfig:
    if config.min_period_ms is None:
        return agent.view.period
    return replace(agent.view.period, min_period_ns=config.min_period_ms * 1_000_000)


def open_kernel_shim(config: DaemonConfig, period: PeriodConfig) -> Shim:
    """Loads and attaches the BPF programs; returns the shim."""
    from reinet.kshim.kernel import KernelShim  # serving on a fake needs no native loader

    return KernelShim(config.cgroups, period=period)


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
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Unbreakable())),
        cache_logger_on_first_use=False,
    )


def _obeyed_by_no_terminal(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Returns the event with control characters, as a model's name may have, written out; JSON does so by itself."""
    return {key: visible(value, keep="\n") if isinstance(value, str) else value for key, value in event.items()}


class _Unbreakable:
    """Standard error whose reader may go away: losing a log line must not cost a cap."""

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


def _check_cgroup(cgroup: Path) -> None:
    mount = cgroup2_mount()
    if not cgroup.is_dir():
        raise ConfigError(f"daemon.cgroups: {cgroup} does not exist; make it with mkdir, below {mount}")
    if not (cgroup / "cgroup.procs").exists():
        raise ConfigError(f"daemon.cgroups: {cgroup} is not a cgroup; name a folder below {mount}")
    if not (cgroup / "cgroup.controllers").exists():
        raise ConfigError(f"daemon.cgroups: {cgroup} is a cgroup of version 1; name a folder below {mount}")
    if cgroup == mount:
        log.warning("this cgroup holds the whole host; usually only chosen services are capped", cgroup=str(cgroup))


def _open_event_log(config: DaemonConfig) -> EventLog | None:
    if config.log_dir is None:
        return None
    try:
        return EventLog(config.log_dir, config.log_max_mb * 1_000_000)
    except OSError as error:
        where = f"{error.filename}: {error.strerror}"
        raise ConfigError(f"daemon.log_dir: {where}; name a folder that can be written") from None


class _Wake:
    """Wakes the main thread from signal handlers and other threads; a pipe, since no lock is safe in a handler."""

    def __init__(self, stack: ExitStack) -> None:
        self._read_fd, self._write_fd = os.pipe()
        stack.callback(os.close, self._read_fd)
        stack.callback(os.close, self._write_fd)
        os.set_blocking(self._write_fd, False)
        for number in STOP_SIGNALS:
            stack.callback(signal.signal, number, signal.signal(number, self._on_signal))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.set()

    def set(self) -> None:
        with suppress(BlockingIOError):  # full: it is awake
            os.write(self._write_fd, b"!")

    def wait(self, timeout_s: float) -> bool:
        """Returns True when woken, False when the time is over."""
        return bool(select.select([self._read_fd], [], [], timeout_s)[0])


class _Cgroups:
    """Notices that a cgroup went away, and with it what was attached: service managers do that at a restart."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._identities = {path: _identity(path) for path in paths}

    def problem(self) -> str:
        """Returns which cgroups are not those of the start any more, and the cure; empty when all are."""
        lost = [str(path) for path, identity in self._identities.items() if _identity(path) != identity]
        if not lost:
            return ""
        return (
            f"cgroup {', '.join(lost)} was removed or made anew since the start, flows in it are not capped; restart "
            "the daemon, and name a cgroup that outlives its services (a systemd slice)"
        )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _run(loop: ControlLoop, wake: _Wake, cgroups: _Cgroups, tick_ms: int, abandon: Callable[[], None]) -> None:
    """Runs the loop in a thread until woken; raises DaemonError if it ends by itself, calls ``abandon`` if it hangs."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def body() -> None:
        try:
            loop.run(stop, tick_ms)
        except BaseException as error:
            failures.append(error)
            wake.set()

    worker = threading.Thread(target=body, name="decision-loop", daemon=True)
    worker.start()
    known = ""
    while not wake.wait(CGROUP_CHECK_S):
        if (problem := cgroups.problem()) != known:
            known = problem
            loop.report(problem)
            log.error("cgroups lost", problem=problem)
    stop.set()
    worker.join(JOIN_S)
    if worker.is_alive():
        abandon()
    if failures:
        log.error("the decision loop failed", exc_info=failures[0])
        raise DaemonError(f"the decision loop failed, every cap is lifted: {failures[0]!r}") from failures[0]


def _abandon(claim: SocketClaim) -> None:
    """Ends the process while its loop hangs: the kernel takes programs and leases away as after kill -9."""
    log.critical(f"the decision loop hangs; leaving without it after {JOIN_S:g} s, caps lapse with their leases")
    claim.close()
    os._exit(1)
