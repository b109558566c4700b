"""The control service on a Unix socket: who may open the socket's file may call, and is not trusted beyond that.

A caller can ask, can pause and can set targets, nothing more: requests are small and checked, replies are made from
copies, and a flood of calls is turned away before it can take the decision loop's time.
"""

import fcntl
import os
import socket as sockets
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Protocol
from urllib.parse import quote

import grpc

from reinet.agents.decide.loop import Snapshot, Status
from reinet.agents.decide.sight.facts import Figures, ModelFacts, Story
from reinet.core.errors import ConfigError, DaemonError
from reinet.daemon.answers import flows_reply, model_reply, why_reply
from reinet.daemon.standard_services import add_standard_services
from reinet.proto import control_pb2, control_pb2_grpc

MAX_REQUEST_BYTES = 1024
"""The largest request of today, a target, takes some 30; this leaves room for what later versions may add."""
MAX_CALLS = 8
"""So many calls are served at once, each in a thread; a person and a few monitors need two or three."""
STOP_GRACE_S = 0.5


class Controlled(Protocol):
    """A decision loop as callers may see and use it; ``ControlLoop`` is one."""

    def status(self) -> Status:
        """Returns how the loop is."""

    def snapshot(self) -> Snapshot:
        """Returns the flows with their records and caps."""

    def pause(self) -> int:
        """Lifts every cap and returns how many; raises TimeoutError if the loop hangs."""

    def resume(self) -> None:
        """Ends a pause; raises TimeoutError if the loop hangs."""

    def ticks(self) -> int:
        """Returns how many ticks were completed."""

    def why(self, cookie: int) -> Story | None:
        """Returns what is known of one live flow and its cap, None where there is no such flow."""

    def set_target(self, cookie: int, target: str) -> str:
        """Sets a flow's own target, an empty one takes it back; for cookie 0 that of the first policy.

        Returns the target in force for whom it was set.
        Raises ConfigError for a text that is no target, LookupError where there is no such flow, ValueError where too
        many flows have their own.
        """

    def model(self) -> ModelFacts:
        """Returns who decides."""

    def figures(self) -> Figures:
        """Returns what was counted since the start."""


class ControlService(control_pb2_grpc.ControlServicer):
    """Answers the calls of ``control.proto``."""

    def __init__(self, loop: Controlled, model: str) -> None:
        self._loop = loop
        self._model = model

    def Health(self, request: control_pb2.HealthRequest, context: grpc.ServicerContext) -> control_pb2.HealthReply:  # noqa: N802
        """Says whether the decision loop is alive, and what it runs."""
        status = self._loop.status()
        return control_pb2.HealthReply(
            ok=status.ok,
            state=status.state,
            model=self._model,
            decisions=status.decisions,
            records=status.records,
            uptime_s=status.uptime_s,
            flows=status.flows,
            problem=status.problem,
            target=status.target,
        )

    def Flows(self, request: control_pb2.FlowsRequest, context: grpc.ServicerContext) -> control_pb2.FlowsReply:  # noqa: N802
        """Returns live flows with their latest records, all or so many, in the order that is asked for."""
        try:
            return flows_reply(self._loop.snapshot(), request.most, request.order)
        except ConfigError as error:
            _abort(context, str(error), grpc.StatusCode.INVALID_ARGUMENT)

    def Why(self, request: control_pb2.WhyRequest, context: grpc.ServicerContext) -> control_pb2.WhyReply:  # noqa: N802
        """Returns one flow's story."""
        story = self._loop.why(request.cookie)
        if story is None:
            _abort(
                context, f"no flow {request.cookie} is open; `reinet ctl flows` lists them", grpc.StatusCode.NOT_FOUND
            )
        return why_reply(story)

    def Model(self, request: control_pb2.ModelRequest, context: grpc.ServicerContext) -> control_pb2.ModelReply:  # noqa: N802
        """Says who decides."""
        return model_reply(self._loop.model())

    def SetTarget(  # noqa: N802
        self, request: control_pb2.SetTargetRequest, context: grpc.ServicerContext
    ) -> control_pb2.SetTargetReply:
        """Sets a target and says which is in force now."""
        try:
            return control_pb2.SetTargetReply(target=self._loop.set_target(request.cookie, request.target))
        except (ConfigError, ValueError) as error:
            _abort(context, str(error), grpc.StatusCode.INVALID_ARGUMENT)
        except LookupError as error:
            _abort(context, str(error.args[0]), grpc.StatusCode.NOT_FOUND)

    def Pause(self, request: control_pb2.PauseRequest, context: grpc.ServicerContext) -> control_pb2.PauseReply:  # noqa: N802
        """Lifts every cap and writes none until Resume; the reply says how many were lifted."""
        try:
            return control_pb2.PauseReply(released=self._loop.pause())
        except TimeoutError as error:
            _abort(context, f"{error}; its caps lapse by themselves, and it pauses as soon as it goes on")

    def Resume(self, request: control_pb2.ResumeRequest, context: grpc.ServicerContext) -> control_pb2.ResumeReply:  # noqa: N802
        """Ends a pause; the reply is empty."""
        try:
            self._loop.resume()
            return control_pb2.ResumeReply()
        except TimeoutError as error:
            _abort(context, f"{error}; it resumes as soon as it goes on")


def _abort(
    context: grpc.ServicerContext, message: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
) -> NoReturn:
    context.abort(code, message)
    raise AssertionError("abort raises")


class SocketClaim:
    """The right to listen at a path, held until ``close``; raises DaemonError where it cannot be had.

    The folder is made, with mode 0700, where it is missing. A lock beside the socket decides between two daemons that
    start at once; it goes with its process, so a killed daemon's socket is stale and is replaced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replaced = False
        """True where the socket of a daemon that was killed was in the way."""
        self._lock_path = path.with_name(path.name + ".lock")
        self._made_folder = False
        self._lock_fd = -1
        self._prepare_folder()
        try:
            self._lock_fd = self._take_lock()
            self._remove_stale()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Removes the socket, the lock and, where it was made here and is empty, the folder."""
        if self._lock_fd >= 0:
            with suppress(FileNotFoundError):
                self.path.unlink()
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock_fd)
            self._lock_fd = -1
        if self._made_folder:
            with suppress(OSError):
                self.path.parent.rmdir()
            self._made_folder = False

    def __enter__(self) -> "SocketClaim":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare_folder(self) -> None:
        folder = self.path.parent
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                self._made_folder = True
            found = folder.stat()
        except OSError as error:
            raise DaemonError(
                f"control socket {self.path}: {folder}: {error.strerror}; set `socket` to a path this user may write"
            ) from None
        others_may_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid not in (0, os.geteuid()) or (others_may_write and not found.st_mode & stat.S_ISVTX):
            raise DaemonError(
                f"control socket {self.path}: other users may replace files in {folder}; use a folder of your own"
            )

    def _take_lock(self) -> int:
        while True:
            try:
                fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise DaemonError(
                    f"control socket {self.path}: {self._lock_path}: {error.strerror}; set `socket` to another path"
                ) from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                raise DaemonError(self._in_use()) from None
            # The former owner may have removed the file between our open and our lock.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self._lock_path), os.fstat(fd)):
                    return fd
            os.close(fd)

    def _remove_stale(self) -> None:
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            self._forget_lock()
            raise DaemonError(f"control socket {self.path}: something else is there; move it away or set `socket`")
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:
                self.path.unlink()
                self.replaced = True
                return
            except OSError as error:
                self._forget_lock()
                raise DaemonError(
                    f"control socket {self.path}: {error.strerror}; set `socket` to another path"
                ) from None
        self._forget_lock()
        raise DaemonError(self._in_use())

    def _forget_lock(self) -> None:
        """Gives the lock back without touching what is at the socket's path."""
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _in_use(self) -> str:
        return (
            f"control socket {self.path}: another daemon is listening there; "
            f"stop it, or set `socket` to another path (`reinet ctl health --socket {self.path}` asks it)"
        )


def remove_stale_socket(path: Path) -> bool:
    """Removes the socket of a daemon that is gone; returns False when there is none or its daemon lives."""
    if not path.is_socket():
        return False
    try:
        with SocketClaim(path) as claim:
            return claim.replaced
    except DaemonError:
        return False


class ControlServer:
    """The service, listening at a claimed path."""

    def __init__(self, claim: SocketClaim, loop: Controlled, model: str) -> None:
        """Starts to listen; raises DaemonError."""
        self._server = grpc.server(
            ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="control"),
            maximum_concurrent_rpcs=MAX_CALLS,
            options=[
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_concurrent_streams", MAX_CALLS),
                ("grpc.so_reuseport", 0),
            ],
        )
        register: Any = control_pb2_grpc.add_ControlServicer_to_server  # generated code carries no types
        register(ControlService(loop, model), self._server)
        add_standard_services(self._server, lambda: loop.status().ok)
        before = os.umask(0o177)  # the socket must never exist with wider permissions, not even for a moment
        try:
            self._server.add_insecure_port("unix:" + quote(str(claim.path)))
            mode = claim.path.stat().st_mode
        except (OSError, RuntimeError) as error:
            raise DaemonError(f"control socket {claim.path}: {error}; set `socket` to another path") from None
        finally:
            os.umask(before)
        if stat.S_IMODE(mode) & 0o077:
            raise DaemonError(
                f"control socket {claim.path}: made with mode {stat.S_IMODE(mode):o}, which others may use"
            )
        self._server.start()

    def close(self) -> None:
        """Ends the service; calls in progress have a moment's grace."""
        self._server.stop(STOP_GRACE_S).wait(4 * STOP_GRACE_S)
