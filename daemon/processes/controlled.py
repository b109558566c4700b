"""The decision loop as others see it, from whichever process; its results are plain data (see ``plain``)."""

from typing import Protocol

from reinet.agents.decide.inspection.facts import Figures, FlowReport, ModelFacts, Snapshot
from reinet.agents.decide.loop import Status
from reinet.agents.decide.swap import Canary


class Controlled(Protocol):
    """A decision loop as callers may see and use it; ``ControlLoop`` is one."""

    def status(self) -> Status:
        """Returns how the loop is."""

    def snapshot(self, most: int = 0, order: str = "", after: int = 0) -> Snapshot:
        """Returns flows with their records and caps: so many at most, 0 = all, by one of ``order.ORDERS`` or, without,
        by their cookies, those beyond ``after`` alone. Raises ConfigError for an order that is none."""

    def pause(self) -> int:
        """Lifts every cap and returns how many; raises TimeoutError if the loop hangs."""

    def resume(self) -> None:
        """Ends a pause; raises TimeoutError if the loop hangs."""

    def ticks(self) -> int:
        """Returns how many ticks were completed."""

    def why(self, cookie: int) -> FlowReport | None:
        """Returns what is known of one live flow and its cap, None where there is no such flow."""

    def set_target(self, cookie: int, target: str) -> str:
        """Sets a flow's own target, an empty one takes it back; for cookie 0 that of the first policy.

        Returns the target in force for whom it was set.
        Raises ConfigError for a text that is no target, LookupError where there is no such flow, ValueError where too
        many flows have their own.
        """

    def model(self) -> ModelFacts:
        """Returns who decides."""

    def figures(self) -> Figures:
        """Returns what was counted since the start."""

    def counters(self) -> dict[str, int]:
        """Returns what the kernel side counted since the shim was loaded: ``REINET_COUNTERS`` of ``slot.h``."""


class Served(Controlled, Protocol):
    """What the process that answers callers may call beside that, for nobody but itself."""

    def swap_model(self, model: str, policy: str) -> Canary:
        """Swaps the agent of that name in for a policy, the first for an empty name; raises ReinetError.

        A pin of the configuration holds for it too.
        """

    def take_model(self, folder: str, sha256: str) -> None:
        """Swaps the registry's model of this sha256 in, from its folder below the registry's; raises ReinetError."""


class Supervised(Controlled, Protocol):
    """What the loop's supervisor may call beside that."""

    def report(self, problem: str) -> None:
        """Puts what somebody else found wrong into ``status``; empty takes it back."""

    def reload(self) -> None:
        """Takes the configuration's file up again."""

    def look(self) -> tuple[int, int, int] | None:
        """Does so if it is another one than before; returns the stamp of the one in force (``stamp_of``).

        None where the latest is not in force, or is being read.
        """
