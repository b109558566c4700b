"""A client of the control service, for the command line and for tests."""

import socket as sockets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc

from reinet.core.closing import Closing
from reinet.core.errors import ConfigError, DaemonError
from reinet.core.visible import utf8
from reinet.daemon.endpoint import grpc_target
from reinet.proto import control_pb2, control_pb2_grpc

TIMEOUT_S = 5.0
"""It is longer than the two seconds that the daemon itself waits for its loop."""
MAX_REPLY_BYTES = 64 * 1024 * 1024
"""A page of flows takes 6 MB; a daemon of a release before there were pages sends all in one, some 600 000."""
CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0))
"""Neither a proxy nor a second try that gRPC (1.85) makes by itself: where the first met a server that shuts down, the
call may wait for ever, though its status is known and whatever its time; to cancel it changes nothing then."""

FOREIGN = ("Method not found!", "Exception deserializing response!", "failed to connect to all addresses")
"""What gRPC (1.85) says where another program or another version's daemon listens: it does not know the call, its reply
is none, or it speaks another protocol. What a daemon says itself begins otherwise."""

Reply = TypeVar("Reply")
Request = TypeVar("Request")


def request_of(kind: Callable[..., Request], **fields: Any) -> Request:
    """Returns a message of these fields; raises ConfigError for text that no message can hold.

    An argument of the command line may have bytes that are no UTF-8, typed where the terminal's encoding is another.
    """
    for name, value in fields.items():
        if isinstance(value, str) and utf8(value) != value:
            raise ConfigError(f"{name} '{utf8(value)}': has bytes that are no UTF-8; write it in UTF-8, or in ASCII")
    return kind(**fields)


class ControlClient(Closing):
    """Calls the daemon that listens at ``path``; every method raises DaemonError with what to do."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._look()
        self._channel = grpc.insecure_channel(
            grpc_target(self._path),
            options=[("grpc.max_receive_message_length", MAX_REPLY_BYTES), *CHANNEL_OPTIONS],
        )
        make_stub: Any = control_pb2_grpc.ControlStub  # generated code carries no types
        self._stub = make_stub(self._channel)

    def health(self) -> control_pb2.HealthReply:
        """Returns how the decision loop is and what it runs."""
        return self._call("Health", control_pb2.HealthRequest(), control_pb2.HealthReply)

    def flows(self, most: int = 0, order: str = "") -> control_pb2.FlowsReply:
        """Returns the flows with their caps: so many at most, 0 = all, by their cookies.

        With one of ``order.ORDERS`` they are those that come first by it, a page of the daemon's at most.
        """
        reply = self._call("Flows", control_pb2.FlowsRequest(most=most, order=order), control_pb2.FlowsReply)
        while reply.next and (not most or len(reply.flows) < most):
            request = control_pb2.FlowsRequest(most=most and most - len(reply.flows), after=reply.next)
            page = self._call("Flows", request, control_pb2.FlowsReply)
            reply.flows.extend(page.flows)
            reply.next, reply.live = page.next, page.live
        return reply

    def why(self, cookie: int) -> control_pb2.WhyReply:
        """Returns what is known of one flow."""
        return self._call("Why", control_pb2.WhyRequest(cookie=cookie), control_pb2.WhyReply)

    def model(self) -> control_pb2.ModelReply:
        """Returns who decides."""
        return self._call("Model", control_pb2.ModelRequest(), control_pb2.ModelReply)

    def set_target(self, cookie: int, target: str) -> str:
        """Sets a flow's target, of all flows for cookie 0, and returns what is in force now; empty takes one back."""
        request = control_pb2.SetTargetRequest(cookie=cookie, target=target)
        return self._call("SetTarget", request, control_pb2.SetTargetReply).target

    def swap(self, model: str, policy: str) -> control_pb2.SwapReply:
        """Puts another model in the place of a policy's, of the first for an empty name."""
        request = request_of(control_pb2.SwapRequest, model=model, policy=policy)
        return self._call("Swap", request, control_pb2.SwapReply)

    def pause(self) -> control_pb2.PauseReply:
        """Lifts every cap until ``resume``; the reply says how many."""
        return self._call("Pause", control_pb2.PauseRequest(), control_pb2.PauseReply)

    def resume(self) -> control_pb2.ResumeReply:
        """Ends a pause; flows get caps again with their next records."""
        return self._call("Resume", control_pb2.ResumeRequest(), control_pb2.ResumeReply)

    def close(self) -> None:
        """Hangs up."""
        self._channel.close()

    def _look(self) -> None:
        """Raises DaemonError, which tells a missing daemon from a forbidden one; gRPC reports both alike."""
        try:
            with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
                probe.settimeout(TIMEOUT_S)
                probe.connect(str(self._path))
        except (FileNotFoundError, ConnectionRefusedError):
            raise DaemonError(
                f"no daemon is listening at {self._path}: start one with `reinet serve CONFIG`, "
                "or give its socket with --socket"
            ) from None
        except PermissionError:
            raise DaemonError(
                f"{self._path}: only the user who runs the daemon may control it; run as that user (sudo)"
            ) from None
        except OSError as error:
            why = error.strerror or error
            raise DaemonError(f"{self._path}: {why}; give the daemon's socket with --socket") from None

    def _call(self, name: str, request: object, kind: type[Reply]) -> Reply:
        try:
            reply = getattr(self._stub, name)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            why = error.details()
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                why = (
                    f"no answer within {TIMEOUT_S:g} s, so its answering process stands still or has no CPU; caps are "
                    "another one's and need no answer. If this lasts, restart the daemon"
                )
            elif why is not None and why.startswith(FOREIGN):
                why = (
                    f"what listens there does not answer {name} as a daemon of this version does ({why}); give the "
                    "daemon's socket with --socket, or call with the version of reinet that the daemon is of"
                )
            raise DaemonError(f"daemon at {self._path}: {why}") from None
        assert isinstance(reply, kind)
        return reply
