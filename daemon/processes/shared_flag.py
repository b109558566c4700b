"""A yes or no that processes share."""

import mmap


class SharedFlag:
    """A yes or no in memory of its maker and of all that are forked from it later: it outlives each of these."""

    def __init__(self) -> None:
        """Makes one that says no."""
        self._byte = mmap.mmap(-1, 1)

    def __bool__(self) -> bool:
        return self._byte[0] != 0

    def set(self, value: bool) -> None:
        """Has every process know it from now on."""
        self._byte[0] = value
