"""A count that processes share."""

import mmap

_COUNT_BYTES = 8


class SharedCount:
    """A count in memory of its maker and of all that are forked from it later: it outlives each of these.

    Every process counts in a place of its own, since two that added to one number at once would lose some. Who comes in
    the place of one that is gone goes on where that one was.
    """

    def __init__(self, places: int) -> None:
        """Makes one of 0."""
        self._counts = memoryview(mmap.mmap(-1, _COUNT_BYTES * places)).cast("Q")

    @property
    def total(self) -> int:
        """Returns what all have counted."""
        return sum(self._counts)

    def add(self, place: int) -> None:
        """Counts one more; only one thread of one process may count in a place at a time."""
        self._counts[place] += 1
