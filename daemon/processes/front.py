"""The process that answers callers and keeps curves and recorded flows, away from decisions and capabilities."""

import socket as sockets
import threading
from dataclasses import dataclass, replace
from typing import cast

from reinet.agents.decide.loop import Status
from reinet.core.errors import ConfigError, DaemonError
from reinet.daemon.config import DaemonConfig
from reinet.daemon.endpoint import Endpoint
from reinet.daemon.event_log import EventLog
from reinet.daemon.log_lines import LINES
from reinet.daemon.metrics import LoopCollector
from reinet.daemon.metrics_server import MetricsServer
from reinet.daemon.processes import plain, sandbox
from reinet.daemon.processes.claim import SocketClaim
from reinet.daemon.processes.controlled import Controlled, Served
from reinet.daemon.processes.decide import received_records
from reinet.daemon.processes.flow_recorder import FlowRecorder, site_key
from reinet.daemon.processes.remote import Remote

CLOSE_S = 2.0
"""A stuck disk holds the end up for so long."""


@dataclass(frozen=True)
class Sockets:
    """What the process has beside the link to the loader."""

    loop: sockets.socket  # calls of ``Served``
    records: sockets.socket  # in, datagrams


class LoopAfar(Remote):
    """A decision loop in another process. ``status`` always has an answer: that there is none is one, too."""

    def __init__(self, socket: sockets.socket, protocol: type, most_bytes: int = plain.MAX_FRAME_BYTES) -> None:
        super().__init__(socket, protocol, most_bytes)
        self._last = Status(
            ok=False, paused=False, problem="", target="", decisions=0, records=0, flows=0, uptime_s=0.0
        )

    def status(self) -> Status:
        """Returns how the loop is; as it was, with the problem said, where it does not answer."""
        try:
            self._last = self.call("status")
        except (TimeoutError, DaemonError) as error:
            return replace(self._last, ok=False, problem=f"{error}; caps lapse with their leases")
        return self._last


def answer(
    link: sockets.socket, config: DaemonConfig, claim: SocketClaim, called: str, running: str, ends: Sockets
) -> None:
    """Answers callers until the loader says stop or is gone; the loader hears where the curves go.

    ``running`` is the sha256 of the registry's model that decides, empty where the configuration names another.
    """
    sandbox.confine_answers()
    from reinet.daemon.control import ControlServer  # with gRPC, which no other process imports
    from reinet.daemon.followed import address_of, follow
    from reinet.daemon.processes.flow_sender import FlowSender

    afar = cast(Served, LoopAfar(ends.loop, Served))
    # Before any thread makes files: its socket is made under a narrow umask, which is the whole process'.
    server = ControlServer(claim, afar, called, afar.swap_model)
    sink = _open_event_log(config)
    recorder = _open_recorder(config)
    keeper = threading.Thread(target=_keep, args=(ends.records, sink, recorder), name="records", daemon=True)
    if sink is not None or recorder is not None:
        keeper.start()
    metrics = None
    if config.metrics is not None:
        metrics = MetricsServer(Endpoint.parse(config.metrics), _collector(afar, sink, recorder))
    unfollow = follow(config, running, lambda folder, sha256: afar.take_model(str(folder), sha256), afar.status)
    sender = None
    if recorder is not None and config.record is not None and config.record.send and config.registry is not None:
        own = config.registry.called, config.record.folder, recorder.has_folder
        sender = FlowSender(address_of(config), *own)
        sender.start()
    plain.send(link, {"ready": str(sink.folder) if sink is not None else None})
    try:
        plain.receive(link)
    except plain.BrokenError:  # the loader is gone: the socket stays for whoever comes next, as after any kill -9
        return
    # The loader waits two seconds: what belongs to this host first, then those who may wait for a service far away.
    server.close()
    if metrics is not None:
        metrics.close()
    if keeper.is_alive():
        ends.records.shutdown(sockets.SHUT_RD)
        keeper.join(CLOSE_S)
    if sink is not None:
        sink.close()
    unfollow()
    if sender is not None:
        sender.close()


def _collector(loop: Controlled, sink: EventLog | None, recorder: FlowRecorder | None) -> LoopCollector:
    more = {"log_lines_dropped": ("log lines lost because nobody read them or a disk took none", lambda: LINES.dropped)}
    if sink is not None:
        more["event_log_dropped_points"] = ("points of curves left out", lambda: sink.dropped_points)
        more["event_log_dropped_batches"] = ("ticks left out of the curves", lambda: sink.dropped_batches)
    if recorder is not None:
        more["flow_recorder_left_out"] = ("records of sampled flows that were not written", lambda: recorder.left_out)
    return LoopCollector(loop, more)


def _open_event_log(config: DaemonConfig) -> EventLog | None:
    if config.log_dir is None:
        return None
    try:
        return EventLog(config.log_dir, config.log_max_mb * 1_000_000)
    except OSError as error:
        where = f"{error.filename}: {error.strerror}"
        raise ConfigError(f"daemon.log_dir: {where}; name a folder that can be written") from None


def _open_recorder(config: DaemonConfig) -> FlowRecorder | None:
    if (wanted := config.record) is None:
        return None
    try:
        return FlowRecorder(wanted.folder, wanted.share, wanted.most_mb * 1_000_000, site_key(wanted.key_file))
    except OSError as error:
        where = f"{error.filename}: {error.strerror}"
        raise ConfigError(f"daemon.record.folder: {where}; name a folder that can be written") from None


def _keep(records: sockets.socket, sink: EventLog | None, recorder: FlowRecorder | None) -> None:
    """Keeps curves and recordings of what comes until nobody sends any more."""
    while (batch := received_records(records)) is not None:
        if sink is not None:
            sink.offer(batch)
        if recorder is not None:
            recorder.take(batch)
    if recorder is not None:
        recorder.end_all()
