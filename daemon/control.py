"""The control service on a Unix socket: who may open the socket's file may call, and is not trusted beyond that.

A caller can ask and can pause, nothing more: requests carry no data, replies are made from copies, and a flood of calls
is turned away before it can take the decision loop's time.
"""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn
from urllib.parse import quote

import grpc

from reinet.core.errors import DaemonError
from reinet.daemon.processes.claim import SocketClaim
from reinet.daemon.processes.controlled import Controlled
from reinet.proto import control_pb2, control_pb2_grpc

MAX_REQUEST_BYTES = 1024
"""Every request is empty today; this leaves room for the fields that later versions may add."""
MAX_CALLS = 8
"""So many calls are served at once, each in a thread; a person and a few monitors need two or three."""
STOP_GRACE_S = 0.5


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
            state="paused" if status.paused else "enforcing",
            model=self._model,
            decisions=status.decisions,
            records=status.records,
            uptime_s=status.uptime_s,
            flows=status.flows,
            problem=status.problem,
            target=status.target,
        )

    def Flows(self, request: control_pb2.FlowsRequest, context: grpc.ServicerContext) -> control_pb2.FlowsReply:  # noqa: N802
        """Returns every live flow with its latest record, the flow with the oldest record last."""
        seen = self._loop.snapshot()
        reply = control_pb2.FlowsReply()
        for record, cap_pkts, reason in zip(seen.stats, seen.caps_pkts, seen.reasons, strict=True):
            reply.flows.append(
                control_pb2.Flow(
                    cookie=int(record["cookie"]),
                    cap_pkts=int(cap_pkts),
                    reason=reason,
                    cwnd_pkts=int(record["cwnd_pkts"]),
                    rtt_mean_us=int(record["rtt_mean_us"]),
                    min_rtt_us=int(record["min_rtt_us"]),
                    target_us=int(record["target_us"]),
                    delivery_rate_bytes_per_s=int(record["delivery_rate_bytes_per_s"]),
                    age_s=max(seen.now_ns - int(record["time_ns"]), 0) / 1e9,
                )
            )
        return reply

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


def _abort(context: grpc.ServicerContext, message: str) -> NoReturn:
    context.abort(grpc.StatusCode.UNAVAILABLE, message)
    raise AssertionError("abort raises")


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
