"""What every call goes through: the caller's role, our errors as gRPC's, and a bound on calls at a time."""

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
import structlog

from reinet.agents.service.files import NoRoomError
from reinet.agents.service.identity import NEEDS, Caller, Callers
from reinet.core.errors import ConfigError, ReinetError
from reinet.core.visible import visible

Method = TypeVar("Method", bound=Callable[..., Any])
MOST_MESSAGE = 2000
"""A client gets so much of an error."""

log = structlog.get_logger("reinet.trainer")


class Guarded:
    """What a servicer derives from to have its methods guarded."""

    callers: Callers


def guarded(method: Method) -> Method:
    """Returns a method that gets the ``Caller`` as its third argument, once the caller's role was checked."""
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def stream(self: Guarded, request: Any, context: Any) -> AsyncIterator[Any]:
            caller = await _caller(self.callers, method.__name__, context)
            try:
                async for reply in method(self, request, caller):
                    yield reply
            except (ReinetError, OSError) as error:
                await _refuse(context, error)

        return stream  # type: ignore[return-value]

    @functools.wraps(method)
    async def unary(self: Guarded, request: Any, context: Any) -> Any:
        caller = await _caller(self.callers, method.__name__, context)
        try:
            return await method(self, request, caller)
        except (ReinetError, OSError) as error:
            return await _refuse(context, error)

    return unary  # type: ignore[return-value]


async def _caller(callers: Callers, method: str, context: Any) -> Caller:
    caller = callers.of(context.peer(), context.auth_context())
    if caller is None:
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED, "no identity of the configuration has the name of this certificate"
        )
    assert caller is not None
    role = NEEDS.get(method)
    if role is None or role not in caller.roles:
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"{caller.name} may not {method}: that needs the role {role}"
        )
    return caller


async def _refuse(context: Any, error: Exception) -> None:
    """Ends a call with what was wrong, as text that a terminal shows and does not obey."""
    if isinstance(error, OSError):  # the service's own trouble: a full disk, a folder that went away
        log.error("a call failed", problem=str(error))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the service cannot store this: {error.strerror}")
    code = grpc.StatusCode.INVALID_ARGUMENT if isinstance(error, ConfigError) else grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, NoRoomError):  # by this a sender of many knows that no other would fare better
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    await context.abort(code, visible(str(error), keep="\n")[:MOST_MESSAGE])
