"""Places of which there are so many, and of which no identity gets all: whoever takes them keeps nobody else out."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from reinet.core.errors import ServiceError

SHARE = 0.9
"""One identity has so much of them at most: all of a fleet's daemons may have one, and the others still find room."""


class Places:
    """Streams that are open at the same time, counted by whose they are; used in one thread."""

    def __init__(self, most: int, full: str) -> None:
        """``full`` says what they are taken by, and what to do where they are taken."""
        self._most, self._full = most, full
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one(self, owner: str) -> Iterator[None]:
        """Takes a place for as long as the context lasts; raises ServiceError where none is left."""
        check(owner, self._taken[owner], self._taken.total(), self._most, self._full)
        self._taken[owner] += 1
        try:
            yield
        finally:
            self._taken[owner] -= 1


def check(owner: str, own: int, taken: int, most: int, full: str) -> None:
    """Raises ServiceError where ``taken`` of the ``most`` places are all, or ``own`` the owner's share of them."""
    if taken >= most:
        raise ServiceError(f"{most} {full}")
    if own >= SHARE * most:
        raise ServiceError(f"{own} of {owner}, of {most} that may be, {full}")
