"""Two services that every gRPC tool knows, beside our own: health (grpc.health.v1) and reflection.

A stream of either would hold one of the few threads for as long as its caller likes. So health answers calls and has
no ``Watch``, for which its protocol allows, and a reflection stream is few and short.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from reinet.proto import control_pb2

CONTROL = control_pb2.DESCRIPTOR.services_by_name["Control"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
SERVICES = (CONTROL, HEALTH, reflection.SERVICE_NAME)

MOST_REFLECTIONS = 2
"""A person with grpcurl opens one; the other threads are left to calls."""
REFLECTION_S = 5.0
"""A tool asks its questions at once and hangs up."""


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated code carries no types
    """SERVING while ``is_well`` says so, asked anew at every call."""

    def __init__(self, is_well: Callable[[], bool]) -> None:
        self._is_well = is_well

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Says whether the daemon, the empty name, or one of its services does its work."""
        if request.service and request.service not in SERVICES:
            context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service; leave the name empty for the daemon")
        statuses = health_pb2.HealthCheckResponse
        return statuses(status=statuses.SERVING if self._is_well() else statuses.NOT_SERVING)


class ReflectionService:
    """Tells the services and their messages; at most two at a time, for five seconds each."""

    def __init__(self) -> None:
        self._reflection: Any = reflection.ReflectionServicer(SERVICES)
        self._free = threading.BoundedSemaphore(MOST_REFLECTIONS)

    def ServerReflectionInfo(self, request_iterator: Iterable[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        """Answers each question of a stream."""
        if not self._free.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "others are asking; try again in a few seconds")
        end = threading.Timer(REFLECTION_S, context.cancel)
        end.daemon = True
        end.start()
        try:
            yield from self._reflection.ServerReflectionInfo(request_iterator, context)
        finally:
            end.cancel()
            self._free.release()


def add_standard_services(server: grpc.Server, is_well: Callable[[], bool]) -> None:
    """Adds both to a server that was not started yet."""
    health_pb2_grpc.add_HealthServicer_to_server(HealthService(is_well), server)
    register: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
    register(ReflectionService(), server)
