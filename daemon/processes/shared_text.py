"""A text that processes share."""

import mmap
import struct

_LENGTH = struct.Struct("<I")


class SharedText:
    """A text in memory of its maker and of all that are forked from it later: it outlives each of these.

    It is written into the half that does not count, and counts by one byte: of a process that dies while it writes the
    text before is left, whole. One process writes at a time, and none while another reads.
    """

    def __init__(self, most_bytes: int) -> None:
        """Makes an empty one, with room for texts of so many bytes."""
        self._half_bytes = _LENGTH.size + most_bytes
        self._memory = mmap.mmap(-1, 1 + 2 * self._half_bytes)

    def read(self) -> str:
        """Returns the text that was written last."""
        at = self._place(self._memory[0])
        (length,) = _LENGTH.unpack_from(self._memory, at)
        return self._memory[at + _LENGTH.size : at + _LENGTH.size + length].decode()

    def write(self, text: str) -> None:
        """Has every process that reads from now on see this text; raises ValueError where there is no room for it."""
        data, other = text.encode(), 1 - self._memory[0]
        if _LENGTH.size + len(data) > self._half_bytes:
            raise ValueError(f"a text of {len(data)} bytes, where there is room for {self._half_bytes - _LENGTH.size}")
        at = self._place(other)
        _LENGTH.pack_into(self._memory, at, len(data))
        self._memory[at + _LENGTH.size : at + _LENGTH.size + len(data)] = data
        self._memory[0] = other

    def _place(self, half: int) -> int:
        return 1 + half * self._half_bytes
