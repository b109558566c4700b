"""Calls of one object's methods from another process, over a socket, with plain data; a protocol class says which.

Whoever adds a method to the protocol needs nothing here: its arguments and its result have to be plain data (see
``plain``). A caller that floods waits for itself; one that hangs hangs alone.
"""

import inspect
import socket as sockets
import threading
import typing
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from reinet.core import errors
from reinet.daemon.processes import plain

ANSWER_S = 3.0
"""The object itself may wait two seconds for its loop."""
MAX_WORKING = 4
"""So many calls of one caller are worked on at once; one that waits for a loop that hangs leaves room for others."""
MAX_WAITING = 64
"""So many calls of one caller are open at once; more are refused. One that nobody waits for any more is open until it
is answered."""


def methods_of(protocol: type) -> dict[str, Any]:
    """Returns the public methods of a protocol class, with their type hints."""
    return {
        name: typing.get_type_hints(member)
        for base in reversed(protocol.__mro__)
        for name, member in vars(base).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


MAX_CALL_BYTES = 64 * 1024
"""A call's arguments are a name, a number, a short text."""


class Remote:
    """An object in another process: has the methods of the protocol, each of which waits ``ANSWER_S`` at most.

    It owns the socket, and closes it when the other end is gone.

    Raises what the object raised, where that is an error of reinet's or a built-in one; TimeoutError when there is no
    answer, and DaemonError when the process is gone. Any thread may call.
    """

    def __init__(self, socket: sockets.socket, protocol: type, most_bytes: int = plain.MAX_FRAME_BYTES) -> None:
        methods = methods_of(protocol)
        self._socket = socket
        self._most_bytes = most_bytes
        self._returns = {name: hints.get("return") for name, hints in methods.items()}
        self._known = plain.dataclasses_in(self._returns.values())
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[str, Future[Any]]] = {}
        self._calls = 0
        self.gone = ""
        """Why no call will be answered any more; empty while calls may be."""
        for name in methods:
            if name not in dir(type(self)):
                setattr(self, name, self._caller(name))
        threading.Thread(target=self._listen, name="answers", daemon=True).start()

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method by its name."""
        answer: Future[Any] = Future()
        with self._lock:
            if self.gone:
                raise errors.DaemonError(f"the decision process is gone ({self.gone}); it is being started anew")
            if len(self._waiting) >= MAX_WAITING:  # or a stopped process's socket would fill, and sending hang for good
                raise TimeoutError("too many calls wait for the decision process")
            self._calls += 1
            number = self._calls
            self._waiting[number] = name, answer
            try:
                plain.send(self._socket, [number, name, list(args), kwargs])
            except plain.BrokenError as error:
                self._waiting.pop(number)
                raise errors.DaemonError(f"the decision process is gone ({error})") from None
        try:
            return answer.result(ANSWER_S)
        except FutureTimeoutError:
            if answer.done():  # the object itself raised it
                raise
            raise TimeoutError(f"the decision process did not answer within {ANSWER_S:g} s") from None
        finally:
            # What it raised has this frame in its traceback, and this frame what it raised: they would keep each other,
            # and with them the caller's stream, of which a connection has few, until the interpreter looks for such.
            del answer

    def _caller(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.call(name, *args, **kwargs)

    def _listen(self) -> None:
        why = ""
        try:
            while True:
                number, error, result = plain.receive(self._socket, self._known, self._most_bytes)
                with self._lock:
                    if number not in self._waiting:  # nobody asked
                        continue
                    name, answer = self._waiting[number]
                    if error is None and not plain.fits(result, self._returns[name]):
                        raise plain.BrokenError(f"it answers {name} with {result!r:.100}")
                    del self._waiting[number]
                if error is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(_error(*error))
        except (plain.BrokenError, ValueError, TypeError) as error:
            why = str(error)
        with self._lock:
            self.gone = why or "unknown"
            for _, answer in self._waiting.values():
                answer.set_exception(errors.DaemonError(f"the decision process is gone ({why})"))
            self._waiting.clear()
            self._socket.close()


class Responder:
    """Answers the calls of one caller from threads of its own, until the caller is gone; owns the socket."""

    def __init__(self, socket: sockets.socket, target: object, protocol: type) -> None:
        self._socket = socket
        self._target = target
        self._methods = frozenset(methods_of(protocol))
        self._known = plain.dataclasses_in(
            hint for hints in methods_of(protocol).values() for name, hint in hints.items() if name != "return"
        )
        self._lock = threading.Lock()
        self._open = threading.BoundedSemaphore(MAX_WAITING)
        self._workers = ThreadPoolExecutor(MAX_WORKING, thread_name_prefix="answers")
        threading.Thread(target=self._listen, name="calls", daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                number, name, args, kwargs = plain.receive(self._socket, self._known, MAX_CALL_BYTES)
                self._open.acquire()
                self._workers.submit(self._work, number, name, args, kwargs)
        except (plain.BrokenError, ValueError, TypeError, RuntimeError):  # the caller is gone, or we are going
            with self._lock:
                self._socket.close()
            self._workers.shutdown(wait=False, cancel_futures=True)

    def _work(self, number: int, name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        error, result = None, None
        try:
            if name not in self._methods:
                raise errors.DaemonError(f"there is no call {name!r:.40}")
            result = getattr(self._target, name)(*args, **kwargs)
        except Exception as raised:
            error = [type(raised).__name__, str(raised)]
        finally:
            self._open.release()
        try:
            with self._lock:
                try:
                    plain.send(self._socket, [number, error, result])
                except (TypeError, ValueError) as unsent:  # who called is not to wait for it
                    plain.send(self._socket, [number, [type(unsent).__name__, f"{name}: {unsent}"], None])
        except (plain.BrokenError, TimeoutError):
            return


_BUILT_IN = {kind.__name__: kind for kind in (TimeoutError, ValueError, LookupError, KeyError, TypeError)}


def _error(name: str, text: str) -> Exception:
    """Returns an error as it was raised on the other side."""
    kind = _BUILT_IN.get(name) or getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(text)
    return errors.DaemonError(f"{name}: {text}")
