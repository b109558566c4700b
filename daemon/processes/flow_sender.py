"""Sends recorded flows to the training service, where ``[daemon.record]`` asks for it.

A recording goes when nothing was written to it for a while; one that grew since goes again and takes its own place
there. A service that is away, that knows no such call or that says no costs nothing but the try: files stay where they
are, and the next round begins with what is missing. What has gone is remembered in a file beside them.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import structlog

from reinet.core.errors import ServiceError
from reinet.daemon.registry import Address, service_error
from reinet.kshim.recorded import SUFFIX
from reinet.proto import trainer_pb2 as pb
from reinet.proto import trainer_pb2_grpc

EVERY_S = 300.0
"""Trainings ask for last week's flows, not for the last minutes'."""
QUIET_S = 120.0
"""A recording that is written to no more is over, or its flow is silent for longer than any that counts."""
ROUND_S = 240.0
"""A round is over before the next; what did not go in this one goes in that."""
LAST_S = 2.0
"""At the daemon's end nobody waits for a service for longer."""
CHUNK_BYTES = 256 * 1024
SENT_FILE = "sent.json"

log = structlog.get_logger("reinet.flow_sender")


class FlowSender:
    """Sends in a thread of its own, from ``start`` to ``close``."""

    def __init__(self, address: Address, daemon: str, folder: Path) -> None:
        self._address, self._daemon, self._folder = address, daemon, folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow sender", daemon=True)
        self.problem = ""
        """Why the latest round sent less than there was."""

    def start(self) -> None:
        """Begins to send."""
        self._thread.start()

    def close(self) -> None:
        """Sends what is over by now, as far as that is a matter of a moment, and ends."""
        self._stop.set()
        self._thread.join(LAST_S)
        if not self._thread.is_alive():
            self.round(0.0, LAST_S)

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.round(QUIET_S, ROUND_S)

    def round(self, quiet_s: float, most_s: float) -> None:
        """Sends the recordings that have been quiet for so long and did not go yet, for so long; never raises."""
        problem, sent, end_s = "", None, time.monotonic() + most_s
        try:
            wanted, sent = self._left(quiet_s)
            if wanted:
                self._send(wanted, sent, end_s)
        except grpc.RpcError as error:
            problem = str(service_error(self._address, error))
        except (ServiceError, OSError) as error:
            problem = str(error)
        if sent is not None:
            with suppress(OSError):
                self._remember(sent)
        if problem and not self.problem:
            log.warning("recorded flows are not sent for now", problem=problem)
        elif self.problem and not problem:
            log.info("recorded flows are sent again")
        self.problem = problem

    def _send(self, wanted: dict[Path, int], sent: dict[str, int], end_s: float) -> None:
        with self._address.channel() as channel:
            stubs: Any = trainer_pb2_grpc  # generated code carries no types
            stub = stubs.JobsStub(channel)
            for path, size in wanted.items():
                if (left_s := end_s - time.monotonic()) <= 0:
                    return
                with suppress(FileNotFoundError):  # it made room for another
                    stub.SendFlow(_parts(self._daemon, path.stem, path.read_bytes()[:size]), timeout=left_s)
                    sent[path.name] = size

    def _left(self, quiet_s: float) -> tuple[dict[Path, int], dict[str, int]]:
        """Returns what is to go, the oldest first, and what of what is still there has gone, with its bytes then."""
        before: dict[str, int] = {}
        with suppress(OSError, ValueError, TypeError):
            before = dict(json.loads((self._folder / SENT_FILE).read_bytes()))
        states = {path: path.stat() for path in self._folder.glob(f"*{SUFFIX}")}
        sent = {path.name: before[path.name] for path in states if path.name in before}
        over = sorted(
            (state.st_mtime, path, state.st_size) for path, state in states.items()
            if time.time() - state.st_mtime >= quiet_s and state.st_size > sent.get(path.name, 0)
        )  # fmt: skip
        return {path: size for _, path, size in over}, sent

    def _remember(self, sent: dict[str, int]) -> None:
        staged = self._folder / f".{SENT_FILE}"
        staged.write_text(json.dumps(sent))
        staged.replace(self._folder / SENT_FILE)


def _parts(daemon: str, flow: str, data: bytes) -> Iterator[pb.FlowRequest]:
    header = pb.FlowHeader(daemon=daemon, flow=flow, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    yield pb.FlowRequest(header=header)
    for start in range(0, len(data), CHUNK_BYTES):
        yield pb.FlowRequest(chunk=data[start : start + CHUNK_BYTES])


def sending(address: Address, daemon: str, folder: Path) -> Callable[[], None]:
    """Begins to send a folder's recordings under a daemon's name; returns what ends that."""
    sender = FlowSender(address, daemon, folder)
    sender.start()
    return sender.close
