"""The shim: what a control loop needs of the machinery that measures flows and caps their congestion windows."""

from types import TracebackType
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from reinet.core.records import FlowStatsArray
from reinet.core.states.reflex import Answered, Reflex

WRAPPED_CC = ("cubic", "reno", "bbr")
"""The shim measures and caps flows of these, where the kernel has them; any other runs unobserved."""

MOSTS = ("slots_used",)
"""Of a shim's counters those that are no counts: each is the most that there was at the same time, and stays there."""

NO_CAP_PKTS = 0
"""The cap that caps nothing."""


@runtime_checkable
class Answering(Protocol):
    """A shim that lets a loop's reflex answer records as they come."""

    def answer(self, reflex: Reflex, timeout_ms: int, hold_ms: int, rest_us: int, most: int) -> Answered:
        """Waits for a record as ``poll`` does, answers it and all that come until ``hold_ms`` later, or ``most`` of
        them, and stores each cap at once with the reflex's lease; returns them with what was said.

        Where records come often, some are waited for between two looks, for ``rest_us`` at most.
        """
        ...


@runtime_checkable
class OfProcesses(Protocol):
    """A shim some of whose flows are capped by the programs that send, at its word."""

    def pids(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Returns (N,) the process that caps each slot's flow itself, 0 = the kernel does."""
        ...


@runtime_checkable
class Shim(Protocol):
    """Measures chosen flows and caps their congestion windows; one reader, one writer, one thread.

    A flow is named by its cookie for its life; the slot, also in every record, is where its cap is written. A cap whose
    cookie is not the slot's present owner has no effect, so a decision that comes after its flow's end hits nobody.
    """

    def poll(self, timeout_ms: int) -> FlowStatsArray:
        """Waits until there is at least one record or the time is over; returns all there are, oldest first.

        A record flagged ``NO_SAMPLE`` reports a silence or a period without an RTT sample and asks for no decision. A
        flow that had a record ends with exactly one flagged ``CLOSED``, in which only cookie, slot and time_ns count.
        """
        ...

    def apply(
        self,
        cookies: npt.NDArray[np.uint64],
        slots: npt.NDArray[np.uint32],
        caps_pkts: npt.NDArray[np.uint32],
        expires_ns: int,
        targets_us: npt.NDArray[np.uint32],
        renews: bool = False,
    ) -> None:
        """Caps N flows until expires_ns (CLOCK_MONOTONIC), when caps lapse unless applied again; a cap of 0 lifts one.

        A cap whose end lies more than a second ahead is a mistake and never acts; one below MIN_CAP_PKTS acts as that.

        targets_us is what the flows' next records say in ``target_us``; it does nothing to the flow and does not lapse.
        With ``renews`` nobody has decided: a cap that answers what was before an idle time stays void.
        """
        ...

    def release(self, cookies: npt.NDArray[np.uint64], slots: npt.NDArray[np.uint32]) -> None:
        """Lifts the caps of N flows now."""
        ...

    def outstanding(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Returns (N,) whether data of each slot's flow awaits an ACK; without any a flow that says nothing is idle."""
        ...

    def counters(self) -> dict[str, int]:
        """Returns what happened to the flows since the shim was loaded, and what was left out: ``slot.h``."""
        ...

    def close(self) -> None:
        """Lifts every cap and leaves the host as it was found. Further calls do nothing."""
        ...

    def __enter__(self) -> "Shim": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
