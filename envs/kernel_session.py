"""Real kernel flows through an emulated link, as a plain loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from reinet.core import (
    FLOW_STATS_DTYPE,
    ConfigError,
    Flag,
    LinkError,
    PeriodConfig,
    ShimError,
)
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun, MahimahiLink
from reinet.envs.mahimahi.namespace import own_cgroup
from reinet.kshim.kernel import KernelShim
from reinet.kshim.leases import LEASE_MS, LeaseKeeper
from reinet.kshim.probe import cgroup2_mount, wrapper_names
from reinet.kshim.shim import FlowStatsArray

RECORD_TIMEOUT_S = 5.0
"""A flow with data outstanding gives a record every 250 ms at least; none for this long means that a part has died."""

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
    """A flow under the path's congestion control and target over an emulated link, its records and its caps.

    ``start`` begins a flow, ``next_record`` waits for its next record while caps are kept alive, ``set_cap`` answers
    it, ``stop`` ends the flow and gives the run; ``run`` does all four. One thread. Everything ends with ``close``, or
    with this process, however that ends. Raises LinkError or ShimError where the host lacks something.
    """

    def __init__(
        self,
        spec: LinkSpec,
        *,
        lease_ms: int = LEASE_MS,
        period: PeriodConfig | None = None,
    ) -> None:
        self.observed = spec.cc in wrapper_names()
        """False for a congestion control that the shim cannot wrap here: there are no records then, and no caps."""
        self._records: deque[FlowStatsArray] = deque()
        self._seen: list[FlowStatsArray] = []
        self._caps: list[int] = []
        self._lease_ms = lease_ms
        self._cookie = 0
        self._running = False
        self._polled_ns = 0
        self._longest_pause_ms = 0.0
        self._shim: KernelShim | None = None
        self._link = MahimahiLink(spec, cgroup=_new_cgroup() if self.observed else None)
        try:
            if self._link.cgroup is not None:
                self._shim = KernelShim([self._link.cgroup], target_us=spec.target_us, period=period)
                self._keeper = LeaseKeeper(self._shim, lease_ms)
        except BaseException:
            self.close()
            raise

    @property
    def spec(self) -> LinkSpec:
        """The path that the present or latest flow runs over."""
        return self._link.spec

    @property
    def zero_ns(self) -> int:
        """CLOCK_MONOTONIC at the trace's start."""
        return self._link.zero_ns

    @property
    def started_ns(self) -> int:
        """CLOCK_MONOTONIC when the flow began to send."""
        return self._link.started_ns

    def start(self, spec: LinkSpec | None = None) -> None:
        """Begin a new flow without a cap, over another path than before if given; the one before ends.

        Raises ConfigError for a path with another congestion control or target: the session's shim has these.
        """
        if spec is not None and (spec.cc, spec.target_us) != (self.spec.cc, self.spec.target_us):
            raise ConfigError("cc, target_us: a session keeps its own; make another one for another")
        self._running = False
        if self._shim is not None:
            self._keeper.release_all()
        (flow,) = self._link.start(spec)
        self._records.clear()
        self._seen.clear()
        self._caps.clear()
        if self._shim is not None and flow.cc != (wrapper := self._shim.wrappers[self.spec.cc]):
            raise ShimError(
                f"flow {flow.cookie} runs {flow.cc}, not {wrapper}: the shim did not choose it although "
                "it is in the cgroup; is another program attached that changes congestion controls?"
            )
        self._cookie = flow.cookie
        self._polled_ns = time.monotonic_ns()
        self._longest_pause_ms = 0.0
        self._running = True

    def next_record(self, until_ns: int | None = None) -> FlowStatsArray | None:
        """Wait for the flow's next record, FLOW_STATS_DTYPE (1,); None when CLOCK_MONOTONIC reaches ``until_ns`` first.

        Raises LinkError when the flow or its link has died.
        """
        patience_ns = time.monotonic_ns() + int(RECORD_TIMEOUT_S * 1e9)
        while True:
            now_ns = time.monotonic_ns()
            left_ms = _POLL_MS if until_ns is None else min(_POLL_MS, max(0, -(-(until_ns - now_ns) // 1_000_000)))
            if not self._records:
                self._poll(left_ms)
            if self._records:
                record = self._records.popleft()
                self._seen.append(record)
                self._caps.append(self._caps[-1] if self._caps else 0)
                return record
            if until_ns is not None and time.monotonic_ns() >= until_ns:
                return None
            self._link.check()
            if self.observed and now_ns > patience_ns:
                raise LinkError(
                    f"flow {self._cookie}: no record for {RECORD_TIMEOUT_S:g} s, although even a silent flow gives one "
                    "every 250 ms; is the host overloaded?"
                )

    def set_cap(self, record: FlowStatsArray, cap_pkts: int) -> None:
        """Answer the latest record: cap the flow from now on, 0 = not at all; without a sample in it, the cap stays."""
        if not record["flags"][0] & Flag.NO_SAMPLE:
            self._keeper.set(record, np.array([cap_pkts], np.uint32))
            self._caps[-1] = cap_pkts

    def waiting(self) -> bool:
        """Tell whether records are there that nobody took yet; renews the leases."""
        self._poll(0)
        return bool(self._records)

    def stop(self) -> KernelRun:
        """End the flow, and give what was recorded of it."""
        self._running = False
        run = self._link.stop()
        if self._shim is not None:
            self._keeper.release_all()
        if self._longest_pause_ms > self._lease_ms:
            reason = (
                f"the loop lagged: the cap lapsed, because nothing renewed its lease of {self._lease_ms} ms for "
                f"{self._longest_pause_ms:.0f} ms"
            )
            run = replace(run, invalid_reason="; ".join(filter(None, (run.invalid_reason, reason))))
        records = np.concatenate(self._seen) if self._seen else np.zeros(0, FLOW_STATS_DTYPE)
        records["time_ns"] -= np.uint64(run.zero_ns)
        return KernelRun(run, records, np.array(self._caps, np.uint32))

    def run(
        self,
        seconds: float,
        decide: Callable[[FlowStatsArray], int] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> KernelRun:
        """Run one flow for ``seconds``; ``decide`` turns each record (1,) into a cap, None = never cap.

        ``progress`` is told the seconds that have passed, at every record.
        """
        self.start()
        until_ns = self.started_ns + round(seconds * 1e9)
        while (record := self.next_record(until_ns)) is not None:
            cap_pkts = decide(record) if decide is not None else 0
            self.set_cap(record, cap_pkts)
            if progress is not None:
                progress((int(record["time_ns"][0]) - self.started_ns) / 1e9)
        return self.stop()

    def close(self) -> None:
        """Lift the cap, end flow and link, unload the shim; bounded in time, further calls do nothing."""
        self._running = False
        try:
            self._link.close()  # first, so that no socket runs on the shim any more when it is unloaded
        finally:
            if self._shim is not None:
                self._shim.close()

    def _poll(self, timeout_ms: int) -> None:
        if self._shim is None:
            time.sleep(timeout_ms / 1000)
            return
        found = self._shim.poll(timeout_ms)
        now_ns = time.monotonic_ns()
        self._keeper.tick(now_ns)
        if self._caps and self._caps[-1]:
            self._longest_pause_ms = max(self._longest_pause_ms, (now_ns - self._polled_ns) / 1e6)
        self._polled_ns = now_ns
        own = found[found["cookie"] == self._cookie]
        if self._running and (own["flags"] & Flag.CLOSED).any():
            self._link.check()
            raise LinkError(f"flow {self._cookie} was closed while it was to send; did something else end it?")
        self._records.extend(own[index : index + 1] for index in range(len(own)))

    def __enter__(self) -> KernelSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _new_cgroup() -> Path:
    mount = cgroup2_mount()
    if mount is None:
        raise ShimError("no cgroup v2 hierarchy is mounted; mount -t cgroup2 none /sys/fs/cgroup/unified")
    return own_cgroup(mount)
