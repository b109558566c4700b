"""The decision process: model, states, decisions and caps, by mapped memory, without a capability or a way out.

It reads and writes nothing but the memory that the loader and programs under the gate hand it, and sockets: to the
loader, to the process that answers callers, for the records that this one keeps, and to such programs. When it
crashes or hangs, caps lapse.
"""

import socket as sockets
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.active_policies import require_period
from reinet.agents.decide.inspection.facts import Snapshot
from reinet.agents.decide.loop import ControlLoop
from reinet.agents.decide.modes import Placer, PolicySpec
from reinet.agents.decide.protocol import Agent
from reinet.agents.decide.swap import Canary
from reinet.alcc.joined import with_programs
from reinet.alcc.processes import listen
from reinet.core.errors import ConfigError, DaemonError, ModelError
from reinet.core.period import PeriodConfig
from reinet.core.records import FLOW_STATS_DTYPE, FlowStatsArray
from reinet.core.target import Target
from reinet.daemon.config import DaemonConfig
from reinet.daemon.policies import REGISTRY_PREFIX
from reinet.daemon.processes import plain, sandbox
from reinet.daemon.processes.asked import Asked
from reinet.daemon.processes.controlled import Served, Supervised
from reinet.daemon.processes.remote import Responder
from reinet.daemon.reload import LoadAgent, Reloader, Stamp
from reinet.daemon.sockets import KernelSockets
from reinet.kshim.mapped import DESCRIPTORS, LAYOUT, MappedShim
from reinet.kshim.shim import Shim

if TYPE_CHECKING:
    from reinet.kshim import _kshim

BATCH_RECORDS = 1024
"""So many records of 152 bytes go into one message, below what a socket takes at once."""

OpenShim = Callable[[DaemonConfig, PeriodConfig, sockets.socket], Shim]


@dataclass(frozen=True)
class Sockets:
    """What the decision process has beside the link to the loader."""

    supervisor: sockets.socket  # calls of ``Supervised``
    callers: sockets.socket  # calls of ``Served``
    records: sockets.socket  # out, datagrams


def decide(
    link: sockets.socket,
    config: DaemonConfig,
    path: Path | None,
    ends: Sockets,
    agent_for: LoadAgent,
    open_shim: OpenShim,
    folder: str,
    asked: Asked,
    stamp: Stamp = None,
    measured: PeriodConfig | None = None,
) -> None:
    """Runs the loop until the loader says stop or is gone; the loader hears when it begins, and that it has ended.

    ``folder`` is the registry's model where ``config`` names one, else empty. ``stamp`` is the file's when it was
    loaded. It begins with the pause and the targets that were ``asked`` of the former one,
    and models must decide by the period that flows were ``measured`` by then; None = the first one says, by its model.
    """
    kernel_sockets = KernelSockets()  # what it asks on cannot be opened any more once it is confined
    programs = listen(config.processes) if config.processes is not None else None
    sandbox.confine_decisions()
    followed = Followed(config, folder, agent_for)
    agent = followed.load(config, config.model, config.asked)
    sink = RecordSender(ends.records) if config.keeps_records else None
    measured = measured or agent.view.period
    require_period(agent, measured)
    period = _period(config, measured)
    with closing(with_programs(open_shim(config, period, link), programs, period)) as shim:
        loop = ControlLoop(
            shim, agent, config.asked, config.lease_ms, config.ceiling_pkts, sink,
            mode=config.mode, plain_share=config.hold_out_share, bounds_steps=True,
            gather_ms=config.gather_ms, shared_uplink=config.shared_uplink,
        )  # fmt: skip
        loop.measured_by(measured)
        kept = _Kept(loop, followed, asked)
        kept.reloader = Reloader(path, config, kept, followed.load, kernel_sockets, stamp, waits=True)
        kept.begin(agent)
        Responder(ends.supervisor, kept, Supervised)
        Responder(ends.callers, kept, Served)
        stop = threading.Event()
        threading.Thread(target=_wait_for_stop, args=(link, stop), name="stop", daemon=True).start()
        plain.send(link, {"ready": agent.called, "measured": asdict(measured)})
        loop.run(stop, config.tick_ms)


class Followed:
    """The registry's name that a daemon follows from its start on, and the folder of the model that it stands for."""

    def __init__(self, config: DaemonConfig, folder: str, agent_for: LoadAgent) -> None:
        """``config`` is that of the start; where it names no model of the registry, ``folder`` is empty."""
        self.name, self.folder = config.model, folder
        self._registry, self._agent_for = config.registry, agent_for

    def load(self, config: DaemonConfig, model: str, target: Target) -> Agent:
        """Returns the agent of a model's name, by its digest where that is the registry's.

        Raises ConfigError for a name of the registry that was not the file's at the start: nobody follows that one.
        """
        if not config.model.startswith(REGISTRY_PREFIX):
            return self._agent_for(config, model, target)
        if config.model != self.name:
            raise ConfigError(
                f'model = "{config.model}": a name of the registry is followed from the start on, '
                f"and this daemon started with {self.name!r}; restart it"
            )
        return self._agent_for(with_folder(config, self.folder), self.folder if model == self.name else model, target)

    def require(self, config: DaemonConfig, folder: str, sha256: str) -> None:
        """Raises ModelError for what is no model of the registry, and where a configuration does not go by its name."""
        if self._registry is None or Path(folder) != self._registry.folder / sha256:
            raise ModelError(f"{folder!r:.200} is no folder of the registry's models")
        if config.model != self.name:
            raise ModelError(f'the file says model = "{config.model}", so what {self.name} points to is left alone')

    def agents(self, config: DaemonConfig) -> dict[str, Agent]:
        """Returns the agents of a configuration's policies that go by its name, by the policies' names."""
        own = {policy.name: policy.target or config.asked for policy in config.policies if policy.model is None}
        wanted = {PolicySpec.name: config.asked, **own}
        return {name: self.load(config, config.model, target) for name, target in wanted.items()}


def with_folder(config: DaemonConfig, folder: str) -> DaemonConfig:
    """Returns the configuration with a registry's model, by its digest, in place of the name; none is an empty one."""
    return config.model_copy(update={"model": folder, "model_sha256": Path(folder).name}) if folder else config


class _Kept:
    """A loop with its file, as ``Supervised`` and ``Served`` have it; calls come from several threads."""

    reloader: Reloader

    def __init__(self, loop: ControlLoop, followed: Followed, asked: Asked) -> None:
        self._loop, self._followed, self._asked = loop, followed, asked
        self._lock, self._pausing, self._setting = threading.Lock(), threading.Lock(), threading.Lock()
        self._begun = self._reload_wanted = False
        self._reported = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def begin(self, agent: Agent) -> None:
        """Puts the configuration's policies in force, and what was asked of the loop before this one."""
        if self._asked.pause:
            self._loop.begin_paused()
        self.reloader.start(agent)
        self._loop.go_on_with(*self._asked.targets())
        self._begun = True

    def pause(self) -> int:
        """Lifts every cap; the loader knows of it before the caller does, whatever becomes of this process then."""
        with self._pausing:
            self._asked.pause.set(True)
            return self._loop.pause()

    def resume(self) -> None:
        """Ends a pause, and the loader knows of that too."""
        with self._pausing:
            self._asked.pause.set(False)
            self._loop.resume()

    def set_target(self, cookie: int, target: str) -> str:
        """Sets a target, and the loader knows of that too."""
        with self._setting:
            in_force = self._loop.set_target(cookie, target)
            common, _ = self._asked.targets()
            self._asked.keep_targets(common if cookie else in_force, self._loop.own_targets())
            return in_force

    def command(self, specs: Sequence[PolicySpec], placer: Placer | None = None) -> None:
        """Puts policies in force; one whose file was read again has the target that this file says."""
        with self._setting:
            self._loop.command(specs, placer)
            if self._begun:
                self._asked.keep_targets("", self._loop.own_targets())

    def snapshot(self, most: int = 0, order: str = "", after: int = 0) -> Snapshot:
        """Returns the loop's flows."""
        return self._loop.snapshot(most, order, after)

    def swap_model(self, model: str, policy: str) -> Canary:
        """Swaps the agent of that name in."""
        with self._lock:
            config = self.reloader.config.model_copy(update={"model": model})  # whose pin is the file's
            return self._loop.swap(self._followed.load(config, model, config.asked), policy)

    def take_model(self, folder: str, sha256: str) -> None:
        """Has the policies that go by the registry's name go by its model of this sha256 from now on.

        Does nothing where they do already: a caller whom the answer came too late for asks again, and what became of
        the swap is not to begin anew. Raises ModelError where the file does not go by the registry any more.
        """
        with self._lock:
            config, before = self.reloader.config, self._followed.folder
            self._followed.require(config, folder, sha256)
            if folder == before:
                return
            self._followed.folder = folder
            try:
                self._loop.replace_agents(self._followed.agents(config))
            except BaseException:
                self._followed.folder = before
                raise

    def report(self, problem: str) -> None:
        """Puts a problem into ``status``, or else what is wrong with the file."""
        self._reported = problem
        self._loop.report(problem or self.reloader.problem)

    def reload(self) -> None:
        """Takes the file up again, at the next look where this one has to wait."""
        self._reload_wanted = True
        self.look()

    def look(self) -> Stamp:
        """Does so if it has changed; never waits for an earlier look, whose disk may hang, or a swap."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._reload_wanted:
                self._reload_wanted = False
                self.reloader.reload()
            else:
                self.reloader.look()
        finally:
            self._lock.release()
        self.report(self._reported)
        return None if self.reloader.problem else self.reloader.stamp


def open_mapped_shim(config: DaemonConfig, period: PeriodConfig, link: sockets.socket) -> Shim:
    """Asks the loader for the memory of BPF programs that keep this period; returns the shim over it."""
    plain.send(link, {"load": {"min_period_ns": period.min_period_ns, "packet_timed": period.packet_timed}})
    _, fds, _, _ = sockets.recv_fds(link, 1, len(DESCRIPTORS))
    if len(fds) != len(DESCRIPTORS):
        raise DaemonError("the loader handed no memory over")
    return MappedShim(_descriptors(fds, plain.receive(link)))


def hand_over(link: sockets.socket, descriptors: "_kshim.Descriptors") -> None:
    """Gives the decision process what ``open_mapped_shim`` waits for."""
    sockets.send_fds(link, [b"F"], [getattr(descriptors, name) for name in DESCRIPTORS])
    plain.send(link, {name: getattr(descriptors, name) for name in LAYOUT})


class RecordSender:
    """A ``RecordSink`` that hands records to the process that keeps curves, and never waits for it."""

    def __init__(self, socket: sockets.socket) -> None:
        self._socket = socket
        self._socket.setblocking(False)

    def offer(self, records: FlowStatsArray, caps_pkts: NDArray[np.uint32]) -> None:
        """Sends N records with the caps now decided for their flows; what does not fit is left out."""
        batch = np.array(records)
        batch["cap_pkts"] = caps_pkts
        for start in range(0, len(batch), BATCH_RECORDS):
            with suppress(OSError):  # the other end is behind, or gone
                self._socket.send(batch[start : start + BATCH_RECORDS].tobytes())


def received_records(socket: sockets.socket) -> FlowStatsArray | None:
    """Returns the next batch that a ``RecordSender`` sent; None when it is gone."""
    data = socket.recv(BATCH_RECORDS * FLOW_STATS_DTYPE.itemsize)
    if not data:
        return None
    return np.frombuffer(data[: len(data) // FLOW_STATS_DTYPE.itemsize * FLOW_STATS_DTYPE.itemsize], FLOW_STATS_DTYPE)


def _period(config: DaemonConfig, measured: PeriodConfig) -> PeriodConfig:
    if config.min_period_ms is None:
        return measured
    return replace(measured, min_period_ns=config.min_period_ms * 1_000_000)


def _descriptors(fds: list[int], layout: dict[str, int]) -> "_kshim.Descriptors":
    from reinet.kshim import _kshim  # not built everywhere

    found = _kshim.Descriptors()
    for name, fd in zip(DESCRIPTORS, fds, strict=True):
        setattr(found, name, fd)
    for name in LAYOUT:
        setattr(found, name, layout[name])
    return found


def _wait_for_stop(link: sockets.socket, stop: threading.Event) -> None:
    with suppress(plain.BrokenError):
        plain.receive(link)
    stop.set()
