"""The decision loop as others see it, from whichever process; its results are plain data (see ``plain``)."""

from typing import Protocol

from reinet.agents.decide.loop import Snapshot, Status


class Controlled(Protocol):
    """A decision loop as callers may see and use it; ``ControlLoop`` is one."""

    def status(self) -> Status:
        """Returns how the loop is."""

    def snapshot(self) -> Snapshot:
        """Returns the flows with their records and caps."""

    def pause(self) -> int:
        """Lifts every cap and returns how many; raises TimeoutError if the loop hangs."""

    def resume(self) -> None:
        """Ends a pause; raises TimeoutError if the loop hangs."""

    def counters(self) -> dict[str, int]:
        """Returns what the kernel side counted since the shim was loaded: ``REINET_COUNTERS`` of ``slot.h``."""


class Supervised(Controlled, Protocol):
    """What the loop's supervisor may call beside that."""

    def report(self, problem: str) -> None:
        """Puts what somebody else found wrong into ``status``; empty takes it back."""
