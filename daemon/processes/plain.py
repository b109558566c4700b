"""Plain data between processes that do not trust each other: JSON and arrays, in frames of bounded length.

No pickle: whoever reads must be able to read whatever a process gone mad writes. A frame is two lengths, JSON, and the
bytes of the arrays that the JSON speaks of. Dataclasses travel by name; the reader says which ones it knows.
"""

import dataclasses
import json
import socket as sockets
import struct
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

MAX_FRAME_BYTES = 32 * 2**20
"""Room for five times the largest answer, a page of flows (``answers.MOST_FLOWS``): each takes some 300 bytes, of which
152 are its record, where the reason is the longest one, that of a target which is too tight."""
_LENGTHS = struct.Struct("<II")


class BrokenError(Exception):
    """The other end is gone, or does not keep to the protocol."""


def send(socket: sockets.socket, value: Any) -> None:
    """Sends plain data: None, bool, int, float, str, list, tuple, dict with str keys, arrays and dataclasses of these.

    Raises TypeError for anything else, ValueError for what is longer than a frame may be, BrokenError when nobody reads
    any more, TimeoutError after the socket's time.
    """
    arrays: list[bytes] = []
    text = json.dumps(_lay_out(value, arrays), separators=(",", ":")).encode()
    size = sum(map(len, arrays))
    if len(text) + size > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(text) + size} bytes is longer than {MAX_FRAME_BYTES}")
    try:
        socket.sendall(b"".join([_LENGTHS.pack(len(text), size), text, *arrays]))
    except TimeoutError:
        raise
    except OSError as error:
        raise BrokenError(str(error)) from None


def receive(socket: sockets.socket, known: Mapping[str, type] | None = None, most_bytes: int = MAX_FRAME_BYTES) -> Any:
    """Returns what the next frame says; ``known`` are the dataclasses it may contain, by name.

    Raises BrokenError when the other end is gone or writes nonsense; only a new connection helps then.
    """
    text_bytes, size = _LENGTHS.unpack(_exactly(socket, _LENGTHS.size))
    if text_bytes + size > most_bytes:
        raise BrokenError(f"a message of {text_bytes + size} bytes is longer than {most_bytes}")
    text, data = _exactly(socket, text_bytes), bytes(_exactly(socket, size))
    try:
        return _build(json.loads(text), data, known or {})
    except Exception as error:  # whatever numpy, JSON and dataclasses make of nonsense
        raise BrokenError(f"a message that means nothing: {error!r:.200}") from None


def dataclasses_in(hints: Iterable[Any]) -> dict[str, type]:
    """Returns the dataclasses that type hints speak of, and those that their fields do, by name."""
    found: dict[str, type] = {}
    waiting = list(hints)
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint.__name__ not in found:
            found[hint.__name__] = hint
            waiting += typing.get_type_hints(hint).values()
    return found


def fits(value: Any, hint: Any) -> bool:
    """Returns whether a value is what a type hint says, and so are its fields and what it holds."""
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if alias := getattr(kind, "__value__", None):  # a name for a type, as NDArray is from Python 3.12 and NumPy 2.5 on
        return fits(value, alias)
    if kind in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if kind is float:
        return isinstance(value, float | int)
    if not isinstance(kind, type):
        return kind is not None or value is None
    if not isinstance(value, kind):
        return False
    if dataclasses.is_dataclass(kind):
        return all(fits(getattr(value, name), own) for name, own in typing.get_type_hints(kind).items())
    if isinstance(value, dict) and inner:
        return all(fits(one, inner[1]) for one in value.values())
    if isinstance(value, list) and inner:
        return all(fits(one, inner[0]) for one in value)
    return True


def _lay_out(value: Any, arrays: list[bytes]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return {"$objects": [_lay_out(one, arrays) for one in value.tolist()]}
        at = sum(map(len, arrays))
        arrays.append(np.ascontiguousarray(value).tobytes())
        return {"$array": [at, np.lib.format.dtype_to_descr(value.dtype), list(value.shape)]}
    if isinstance(value, list | tuple):
        parts = [_lay_out(one, arrays) for one in value]
        return parts if isinstance(value, list) else {"$tuple": parts}
    if isinstance(value, dict):
        if any(not isinstance(key, str) or key.startswith("$") for key in value):
            raise TypeError("keys are text that does not begin with $")
        return {key: _lay_out(one, arrays) for key, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _lay_out(getattr(value, field.name), arrays) for field in dataclasses.fields(value)}
        return {"$of": type(value).__name__, **fields}
    raise TypeError(f"{type(value).__name__} is no plain data")


def _build(value: Any, data: bytes, known: Mapping[str, type]) -> Any:
    if isinstance(value, list):
        return [_build(one, data, known) for one in value]
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        at, descr, shape = value["$array"]
        dtype = np.dtype([tuple(field) for field in descr] if isinstance(descr, list) else descr)
        if dtype.hasobject or min([at, *shape]) < 0:
            raise ValueError("an array of objects, or of a size below 0")
        return np.frombuffer(data, dtype, int(np.prod(shape, dtype=np.int64)), at).reshape(shape).copy()
    if "$objects" in value:
        objects = np.empty(len(value["$objects"]), object)
        objects[:] = [_build(one, data, known) for one in value["$objects"]]
        return objects
    if "$tuple" in value:
        return tuple(_build(one, data, known) for one in value["$tuple"])
    fields = {key: _build(one, data, known) for key, one in value.items() if key != "$of"}
    return known[value["$of"]](**fields) if "$of" in value else fields


def _exactly(socket: sockets.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            got = socket.recv_into(view)
        except OSError as error:
            raise BrokenError(str(error)) from None
        if not got:
            raise BrokenError("the other end is gone")
        view = view[got:]
    return data
