"""The control service on a Unix socket: who may open the socket's file may call, and is not trusted beyond that.

A caller can ask, pause, set targets and name another model, which is checked where it would decide, and nothing more:
requests are small and checked, replies are made from copies, and a flood of calls is turned away before it can take the
decision loop's time.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from reinet.agents.decide.swap import Canary
from reinet.core.errors import ConfigError, DaemonError, ModelError
from reinet.core.visible import utf8
from reinet.daemon.answers import MOST_FLOWS, flows_reply, model_reply, swaps_reply, why_reply
from reinet.daemon.endpoint import listen_privately
from reinet.daemon.processes.claim import SocketClaim
from reinet.daemon.processes.controlled import Controlled
from reinet.daemon.standard_services import add_standard_services
from reinet.proto import control_pb2, control_pb2_grpc

MAX_REQUEST_BYTES = 1024
"""The largest request of today, a target, takes some 30; this leaves room for what later versions may add."""
MAX_CALLS = 8
"""So many calls are served at once, each in a thread; a person and a few monitors need two or three."""
STOP_GRACE_S = 0.5


SwapModel = Callable[[str, str], Canary]


class ControlService(control_pb2_grpc.ControlServicer):
    """Answers the calls of ``control.proto``."""

    def __init__(self, loop: Controlled, model: str, swap: SwapModel | None) -> None:
        """Takes what decided at the start: the answer until the loop says what does."""
        self._loop = loop
        self._model = model
        self._swap = swap

    def Health(self, request: control_pb2.HealthRequest, context: grpc.ServicerContext) -> control_pb2.HealthReply:  # noqa: N802
        """Says whether the decision loop is alive, and what it runs."""
        status = self._loop.status()
        return control_pb2.HealthReply(
            ok=status.ok,
            state=status.state,
            model=status.model or self._model,
            decisions=status.decisions,
            records=status.records,
            uptime_s=status.uptime_s,
            flows=status.flows,
            problem=utf8(status.problem),  # a cgroup's name may be of any bytes
            target=status.target,
            swaps=swaps_reply(status.policies),
        )

    def Flows(self, request: control_pb2.FlowsRequest, context: grpc.ServicerContext) -> control_pb2.FlowsReply:  # noqa: N802
        """Returns live flows with their latest records, so many at most, in the order that is asked for."""
        with _Told(context):
            most = min(request.most or MOST_FLOWS, MOST_FLOWS)
            return flows_reply(self._loop.snapshot(most, request.order, request.after))

    def Why(self, request: control_pb2.WhyRequest, context: grpc.ServicerContext) -> control_pb2.WhyReply:  # noqa: N802
        """Returns one flow's story."""
        with _Told(context):
            story = self._loop.why(request.cookie)
            if story is None:
                raise LookupError(f"no flow {request.cookie} is open; `reinet ctl flows` lists them")
            return why_reply(story)

    def Model(self, request: control_pb2.ModelRequest, context: grpc.ServicerContext) -> control_pb2.ModelReply:  # noqa: N802
        """Says who decides."""
        with _Told(context):
            return model_reply(self._loop.model())

    def SetTarget(  # noqa: N802
        self, request: control_pb2.SetTargetRequest, context: grpc.ServicerContext
    ) -> control_pb2.SetTargetReply:
        """Sets a target and says which is in force now."""
        with _Told(context, "; it goes by that target as soon as it goes on"):
            return control_pb2.SetTargetReply(target=self._loop.set_target(request.cookie, request.target))

    def Swap(self, request: control_pb2.SwapRequest, context: grpc.ServicerContext) -> control_pb2.SwapReply:  # noqa: N802
        """Puts another model in, and says how it answered to recorded states."""
        if self._swap is None:
            _abort(context, "this daemon takes no model from callers", grpc.StatusCode.UNIMPLEMENTED)
        try:
            found = self._swap(request.model, request.policy)
        except (ModelError, ConfigError) as error:
            _abort(context, str(error), grpc.StatusCode.FAILED_PRECONDITION)
        except (TimeoutError, DaemonError) as error:
            _abort(context, f"{error}; `reinet ctl health` and the log say what came of it")
        return control_pb2.SwapReply(states=found.states, refused=found.refused, us_per_state=found.us_per_state)

    def Pause(self, request: control_pb2.PauseRequest, context: grpc.ServicerContext) -> control_pb2.PauseReply:  # noqa: N802
        """Lifts every cap and writes none until Resume; the reply says how many were lifted."""
        with _Told(context, "; its caps lapse by themselves, and it pauses as soon as it goes on"):
            return control_pb2.PauseReply(released=self._loop.pause())

    def Resume(self, request: control_pb2.ResumeRequest, context: grpc.ServicerContext) -> control_pb2.ResumeReply:  # noqa: N802
        """Ends a pause; the reply is empty."""
        with _Told(context, "; it resumes as soon as it goes on"):
            self._loop.resume()
            return control_pb2.ResumeReply()


class _Told:
    """Tells the caller what the loop raises; ``hangs`` is what comes of the call where it does not answer in time.

    An error that nobody takes would be written to standard error by gRPC itself, which waits for whoever reads that.
    No generator of contextlib's: from Python 3.12 on what was raised and the generator's frame keep each other, and
    with them the call's stream, of which a connection has few, until the interpreter looks for such.
    """

    def __init__(self, context: grpc.ServicerContext, hangs: str = "") -> None:
        self._context = context
        self._hangs = hangs

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _where: object) -> None:
        if isinstance(error, ConfigError | ValueError):
            _abort(self._context, str(error), grpc.StatusCode.INVALID_ARGUMENT)
        if isinstance(error, LookupError):
            _abort(self._context, str(error.args[0]), grpc.StatusCode.NOT_FOUND)
        if isinstance(error, TimeoutError):
            _abort(self._context, f"{error}{self._hangs}")
        if isinstance(error, DaemonError):  # it is being started anew
            _abort(self._context, str(error))


class Parsed(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Parses requests where the caller can be told that one is no message.

    gRPC parses before it calls, and of a request that it cannot parse it keeps the call's stream, of which a connection
    has few, and 10 to 20 KiB, until the process ends.
    """

    def intercept_service(self, continuation: Callable[[Any], Any], call: grpc.HandlerCallDetails) -> Any:
        """Returns what answers a method, None where there is no such method."""
        handler = continuation(call)
        if handler is None:
            return None

        def parsed(request: bytes, context: grpc.ServicerContext) -> Any:
            try:
                return handler.request_deserializer(request)
            except DecodeError:
                _abort(context, f"this is no request of {call.method}'s", grpc.StatusCode.INVALID_ARGUMENT)

        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: handler.stream_stream((parsed(one, context) for one in requests), context),
                None,
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: handler.unary_unary(parsed(request, context), context),
            None,
            handler.response_serializer,
        )


def _abort(
    context: grpc.ServicerContext, message: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
) -> NoReturn:
    context.abort(code, message)
    raise AssertionError("abort raises")


class ControlServer:
    """The service, listening at a claimed path."""

    def __init__(self, claim: SocketClaim, loop: Controlled, model: str, swap: SwapModel | None = None) -> None:
        """Starts to listen; raises DaemonError. Without ``swap`` nobody may put another model in."""
        self._server = grpc.server(
            ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="control"),
            interceptors=[Parsed()],
            maximum_concurrent_rpcs=MAX_CALLS,
            options=[
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_concurrent_streams", MAX_CALLS),
                ("grpc.so_reuseport", 0),
            ],
        )
        register: Any = control_pb2_grpc.add_ControlServicer_to_server  # generated code carries no types
        register(ControlService(loop, model, swap), self._server)
        add_standard_services(self._server, lambda: loop.status().ok)
        try:
            listen_privately(self._server, claim.path)
        except (OSError, RuntimeError) as error:
            raise DaemonError(f"control socket {claim.path}: {error}; set `socket` to another path") from None
        self._server.start()

    def close(self) -> None:
        """Ends the service; calls in progress have a moment's grace."""
        self._server.stop(STOP_GRACE_S).wait(4 * STOP_GRACE_S)
