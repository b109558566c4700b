"""The shim by mapped memory alone: records are read and caps are written without a capability and without ``bpf()``."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from reinet.core.closing import Closing
from reinet.core.guard import VERDICT_DTYPE
from reinet.core.records import ACK_DTYPE, FLOW_STATS_DTYPE, FlowStatsArray
from reinet.core.states.reflex import Answered, Reflex

if TYPE_CHECKING:
    from reinet.kshim import _kshim

EVENT_DTYPE = np.dtype([("cookie", "<u8"), ("kind", "<u8"), ("ack", ACK_DTYPE)])
"""What moves a flow's period, as ``MappedShim.take_events`` gives it: ``struct reinet_event`` of ``slot.h``."""

DESCRIPTORS = ("slots", "caps", "counters", "records")
"""The BPF maps that are needed; of these only ``caps`` can be written, and the reader's position in ``records``."""

LAYOUT = ("max_flows", "records_bytes", "default_target_us")
"""What the maps do not say of themselves."""


class MappedShim(Closing):
    """A ``Shim`` over the memory of BPF programs that somebody else has loaded: ``kernel.KernelLoader``.

    The descriptors stay open as long as the shim is used, and are the caller's to close. Records from before are not
    given out. Raises OSError where the memory cannot be mapped.
    """

    def __init__(self, descriptors: "_kshim.Descriptors") -> None:
        from reinet.kshim import _kshim  # not built everywhere

        self._flows = _kshim.Flows(descriptors)
        self.records_fd: int = descriptors.records
        """It is readable while there are records."""

    def poll(self, timeout_ms: int) -> FlowStatsArray:
        """Returns records as ``Shim.poll`` does; a signal ends the wait early."""
        return self._flows.poll(timeout_ms).view(FLOW_STATS_DTYPE)

    def answer(self, reflex: Reflex, timeout_ms: int, hold_ms: int, rest_us: int, most: int) -> Answered:
        """Answers records as ``Answering.answer`` does, without the interpreter."""
        records, verdicts, answers, stored_ns = self._flows.answer(reflex.core, timeout_ms, hold_ms, rest_us, most)
        return Answered(
            records.view(FLOW_STATS_DTYPE), verdicts.view(VERDICT_DTYPE), answers, stored_ns.view(np.uint64)
        )

    def apply(
        self,
        cookies: npt.NDArray[np.uint64],
        slots: npt.NDArray[np.uint32],
        caps_pkts: npt.NDArray[np.uint32],
        expires_ns: int,
        targets_us: npt.NDArray[np.uint32],
        renews: bool = False,
    ) -> None:
        """Writes caps as ``Shim.apply`` does; they act at each flow's next ACK. Raises IndexError for no such slot."""
        self._flows.apply(
            np.ascontiguousarray(cookies, np.uint64),
            np.ascontiguousarray(slots, np.uint32),
            np.ascontiguousarray(caps_pkts, np.uint32),
            expires_ns,
            np.ascontiguousarray(targets_us, np.uint32),
            renews,
        )

    def release(self, cookies: npt.NDArray[np.uint64], slots: npt.NDArray[np.uint32]) -> None:
        """Lifts caps as ``Shim.release`` does, in the memory that the BPF programs read."""
        self._flows.release(np.ascontiguousarray(cookies, np.uint64), np.ascontiguousarray(slots, np.uint32))

    def outstanding(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Returns what ``Shim.outstanding`` does, as of the latest ACK or restart. Raises IndexError for no slot."""
        return self._flows.outstanding(np.ascontiguousarray(slots, np.uint32)).view(np.bool_)

    def counters(self) -> dict[str, int]:
        """Returns what happened to the flows so far; ``_kshim.COUNTERS`` says what each means."""
        return dict(self._flows.counters())

    def take_events(self) -> npt.NDArray[np.void]:
        """Returns the recorded ACKs and restarts so far (EVENT_DTYPE), once; the loader has to record them."""
        return self._flows.take_events().view(EVENT_DTYPE)

    def close(self) -> None:
        """Unmaps the memory. Caps that were written live on until their leases end."""
        self._flows.close()
