"""A kernel flow record by record, as the Gymnasium environment steps it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reinet.core import FLOW_STATS_DTYPE, Flag, PeriodConfig
from reinet.core.records import FlowStatsArray
from reinet.envs.capped_link import CappedLink
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun
from reinet.kshim.leases import LeaseKeeper

_POLL_MS = 50
"""A third of a lease must not pass without a tick; also how soon a dead link is noticed."""

Caps = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class KernelRun:
    """One flow over one link, from its first data packet to ``stop``."""

    link: LinkRun
    """The link's log, figures and validity."""
    records: FlowStatsArray
    """FLOW_STATS_DTYPE, one per period or silence; time_ns counts from the trace's start, like the log."""
    caps_pkts: Caps
    """The cap in force after each record, 0 = none."""


class KernelSession:
    """The records and caps of one flow after another over a ``CappedLink``.

    ``start`` begins a flow, ``next_record`` waits for its next record while its cap is kept alive, ``set_cap`` answers
    it, ``stop`` ends the flow and gives the run. One thread. Everything ends with ``close``, or with this process,
    however that ends. Raises LinkError or ShimError where the host lacks something.
    """

    def __init__(self, spec: LinkSpec, *, period: PeriodConfig | None = None) -> None:
        self._link = CappedLink(spec, period=period)
        self._keeper = LeaseKeeper(self._link.shim)
        self._waiting: deque[FlowStatsArray] = deque()
        self._seen: list[FlowStatsArray] = []
        self._caps: list[int] = []

    @property
    def zero_ns(self) -> int:
        """Returns what ``CappedLink.zero_ns`` does."""
        return self._link.zero_ns

    @property
    def started_ns(self) -> int:
        """Returns what ``CappedLink.started_ns`` does."""
        return self._link.started_ns

    def start(self, spec: LinkSpec | None = None) -> None:
        """Begins a new flow without a cap, over another path than before if given; the one before ends."""
        self._keeper.release_all()
        self._waiting.clear()
        self._seen.clear()
        self._caps.clear()
        self._link.start(spec)

    def next_record(self) -> FlowStatsArray:
        """Waits for the flow's next record and returns it, FLOW_STATS_DTYPE (1,).

        Raises LinkError when the flow or its link has died.
        """
        while not self._waiting:
            self._poll(_POLL_MS)
        record = self._waiting.popleft()
        self._seen.append(record)
        self._caps.append(self._caps[-1] if len(self._keeper) else 0)  # an idle flow's cap has lapsed
        return record

    def set_cap(self, record: FlowStatsArray, cap_pkts: int) -> None:
        """Answers the latest record: caps the flow from now on, 0 = not at all; without a sample the cap stays."""
        if not record["flags"][0] & Flag.NO_SAMPLE:
            self._keeper.set(record, np.array([cap_pkts], np.uint32))
            self._caps[-1] = cap_pkts

    def waiting(self) -> bool:
        """Returns whether records are there that nobody took yet; renews the leases."""
        self._poll(0)
        return bool(self._waiting)

    def stop(self) -> KernelRun:
        """Ends the flow; returns what was recorded of it."""
        run = self._link.stop()
        self._keeper.release_all()
        records = np.concatenate(self._seen) if self._seen else np.zeros(0, FLOW_STATS_DTYPE)
        records["time_ns"] -= np.uint64(run.zero_ns)
        return KernelRun(run, records, np.array(self._caps, np.uint32))

    def close(self) -> None:
        """Closes the ``CappedLink``, bounded in time; further calls do nothing."""
        self._link.close()

    def _poll(self, timeout_ms: int) -> None:
        found = self._link.shim.poll(timeout_ms)
        self._keeper.see_alive(found)
        self._keeper.tick(time.monotonic_ns())
        self._waiting.extend(found[index : index + 1] for index in range(len(found)))
