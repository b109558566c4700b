"""Sends recorded flows to the training service, where ``[daemon.record]`` asks for it.

A recording goes when nothing was written to it for a while; one that grew since goes again and takes its own place
there. A service that is away or knows no such call costs nothing but the try: files stay where they are, and the next
round begins with what is missing. A recording that the service refuses is left out, and the others go on. What has gone
is remembered in a file beside them.
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
AGAIN_S = 3600.0
"""What was refused is tried again after so long, or when it grew: the service refuses damaged recordings, and also
sound ones while too many uploads wait there."""
REFUSALS = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
"""With these the service speaks of the one recording; with any other it is the service or the way to it."""
CHUNK_BYTES = 256 * 1024
SENT_FILE = "sent.json"

log = structlog.get_logger("reinet.flow_sender")


class FlowSender:
    """Sends in a thread of its own, from ``start`` to ``close``."""

    def __init__(self, address: Address, daemon: str, folder: Path, is_ours: Callable[[], bool] = lambda: True) -> None:
        """Takes what tells whether the folder is this daemon's: what another records there is for that one to send."""
        self._address, self._daemon, self._folder, self._is_ours = address, daemon, folder, is_ours
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow sender", daemon=True)
        self._refused: dict[str, tuple[int, float]] = {}
        """The bytes of what was refused, and from when on it is tried again."""
        self._away = False
        self.problem = ""
        """Why the latest round sent less than it tried to; of what was refused before it says nothing."""

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
        if not self._is_ours():
            return
        problem, sent, end_s = "", None, time.monotonic() + most_s
        refused: dict[str, str] = {}
        try:
            wanted, sent = self._left(quiet_s)
            if wanted:
                self._send(wanted, sent, refused, end_s)
        except grpc.RpcError as error:
            problem = str(service_error(self._address, error))
        except (ServiceError, OSError) as error:
            problem = str(error)
        if sent is not None:
            with suppress(OSError):
                self._remember(sent)
        first, why = next(iter(refused.items()), ("", ""))
        if refused:
            log.warning("recorded flows are refused and left out", count=len(refused), first=first, why=why)
        if problem and not self._away:
            log.warning("recorded flows are not sent for now", problem=problem)
        elif self._away and not problem:
            log.info("recorded flows are sent again")
        self._away = bool(problem)
        self.problem = problem or why

    def _send(self, wanted: dict[Path, int], sent: dict[str, int], refused: dict[str, str], end_s: float) -> None:
        """Sends what is wanted; ``sent`` and ``refused`` get what became of each. Raises grpc.RpcError where no other
        recording would fare better.

        ``refused`` gets those alone that were not refused before: each is said once.
        """
        with self._address.channel() as channel:
            stubs: Any = trainer_pb2_grpc  # generated code carries no types
            stub = stubs.JobsStub(channel)
            for path, size in wanted.items():
                if (left_s := end_s - time.monotonic()) <= 0:
                    return
                try:
                    stub.SendFlow(_parts(self._daemon, path.stem, path.read_bytes()[:size]), timeout=left_s)
                    sent[path.name] = size
                except FileNotFoundError:  # it made room for another
                    continue
                except OSError as error:
                    self._refuse(path.name, size, str(error), refused)
                except grpc.RpcError as error:
                    if error.code() not in REFUSALS:
                        raise
                    self._refuse(path.name, size, str(service_error(self._address, error)), refused)

    def _refuse(self, name: str, size: int, why: str, refused: dict[str, str]) -> None:
        before, _ = self._refused.get(name, (None, 0.0))
        self._refused[name] = (size, time.monotonic() + AGAIN_S)
        if before != size:
            refused[name] = why

    def _left(self, quiet_s: float) -> tuple[dict[Path, int], dict[str, int]]:
        """Returns what is to go, the oldest first, and what of what is still there has gone, with its bytes then."""
        before: dict[str, int] = {}
        with suppress(OSError, ValueError, TypeError):
            before = dict(json.loads((self._folder / SENT_FILE).read_bytes()))
        states = {}
        for path in self._folder.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):  # it made room for another
                states[path] = path.stat()
        sent = {path.name: before[path.name] for path in states if path.name in before}
        names, now_s = {path.name for path in states}, time.monotonic()
        self._refused = {name: one for name, one in self._refused.items() if name in names}
        out = {name: size for name, (size, again_s) in self._refused.items() if now_s < again_s}
        # One of a later time is from before the clock was set back: it would wait for days, and make room meanwhile.
        wall_s = time.time()
        over = sorted(
            (state.st_mtime, path, state.st_size) for path, state in states.items()
            if not wall_s - quiet_s < state.st_mtime <= wall_s and state.st_size > sent.get(path.name, 0)
            and state.st_size != out.get(path.name)
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
