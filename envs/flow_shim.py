"""A shim for one flow of a measured run: whoever drives it is told when flow or link died, and whether caps held."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from reinet.core import FLOW_STATS_DTYPE, Flag, LinkError
from reinet.core.closing import Closing
from reinet.core.records import FlowStatsArray
from reinet.kshim.shim import NO_CAP_PKTS, Shim

RECORD_TIMEOUT_S = 5.0
"""A flow with data outstanding gives a record every 250 ms at least; after this long without one a part has died."""
FIRST_RECORD_TIMEOUT_S = 60.0
"""Nothing tells of a flow before its first ACK, which an outage at the flow's start holds up; those of cellular
recordings last up to a dozen seconds, and behind a longer one retransmissions are further apart as well."""


class FlowShim(Closing):
    """A ``Shim`` that passes one flow's records and caps on, whoever drives it: an environment or a control loop.

    ``poll`` raises LinkError when the flow ended, fell silent for too long or never gave a record, and what ``check``
    raises when the link has died. A cap that lapsed, because nobody renewed its lease in time, is remembered for
    ``end``. Without a ``shim`` the flow is not observed: there are no records then, and no caps.
    """

    def __init__(
        self, shim: Shim | None, check: Callable[[], None], clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._shim = shim
        self._check = check
        self._clock_ns = clock_ns
        self._cookie: int | None = None
        self._heard_ns = 0
        self._patience_s = FIRST_RECORD_TIMEOUT_S
        self._applied_ns = self._expires_ns = 0  # of the cap in force; 0 = there is none
        self._lapse: str | None = None

    def follow(self, cookie: int) -> None:
        """Takes up a flow that has just begun."""
        self._cookie = cookie
        self._heard_ns = self._clock_ns()
        self._patience_s = FIRST_RECORD_TIMEOUT_S
        self._applied_ns = self._expires_ns = 0
        self._lapse = None

    def end(self) -> str | None:
        """Lets the flow go, before it is ended on purpose; returns why its run must not be believed, None = it may."""
        self._note_lapse(self._clock_ns())
        self._cookie = None
        return self._lapse

    def poll(self, timeout_ms: int) -> FlowStatsArray:
        """Returns the flow's records as ``Shim.poll`` does."""
        if self._shim is None:
            time.sleep(timeout_ms / 1000)
            self._check()
            return np.zeros(0, FLOW_STATS_DTYPE)
        found = self._shim.poll(timeout_ms)
        own: FlowStatsArray = found[found["cookie"] == (self._cookie or 0)]
        if self._cookie is None:
            return own
        now_ns = self._clock_ns()
        if (own["flags"] & Flag.CLOSED).any():
            self._check()
            raise LinkError(f"flow {self._cookie} was closed while it was to send; did something else end it?")
        if len(own):
            self._heard_ns = now_ns
            self._patience_s = RECORD_TIMEOUT_S
            return own
        self._check()
        if now_ns - self._heard_ns > self._patience_s * 1e9:
            why = (
                "although even a silent flow gives one every 250 ms; is the host overloaded?"
                if self._patience_s == RECORD_TIMEOUT_S
                else "nor any ACK; does the trace begin with a longer outage?"
            )
            raise LinkError(f"flow {self._cookie}: no record for {self._patience_s:g} s, {why}")
        return own

    def apply(
        self,
        cookies: npt.NDArray[np.uint64],
        slots: npt.NDArray[np.uint32],
        caps_pkts: npt.NDArray[np.uint32],
        expires_ns: int,
        targets_us: npt.NDArray[np.uint32],
        renews: bool = False,
    ) -> None:
        """Writes caps as ``Shim.apply`` does."""
        if self._shim is None:
            return
        self._shim.apply(cookies, slots, caps_pkts, expires_ns, targets_us, renews)
        if self._cookie is not None and (own := caps_pkts[cookies == self._cookie]).size:
            now_ns = self._clock_ns()
            self._note_lapse(now_ns)
            self._applied_ns, self._expires_ns = (0, 0) if own[-1] == NO_CAP_PKTS else (now_ns, expires_ns)

    def release(self, cookies: npt.NDArray[np.uint64], slots: npt.NDArray[np.uint32]) -> None:
        """Lifts caps as ``Shim.release`` does."""
        if self._shim is None:
            return
        self._shim.release(cookies, slots)
        if self._cookie in cookies:
            self._note_lapse(self._clock_ns())
            self._applied_ns = self._expires_ns = 0

    def outstanding(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Returns what ``Shim.outstanding`` does."""
        return np.zeros(len(slots), np.bool_) if self._shim is None else self._shim.outstanding(slots)

    def counters(self) -> dict[str, int]:
        """Returns what ``Shim.counters`` does; nothing where no flow is observed."""
        return {} if self._shim is None else self._shim.counters()

    def close(self) -> None:
        """Closes the shim."""
        if self._shim is not None:
            self._shim.close()

    def _note_lapse(self, now_ns: int) -> None:
        if self._expires_ns and now_ns > self._expires_ns and self._lapse is None:
            self._lapse = (
                "the loop lagged: the cap lapsed, because nothing renewed its lease of "
                f"{(self._expires_ns - self._applied_ns) / 1e6:.0f} ms for {(now_ns - self._applied_ns) / 1e6:.0f} ms"
            )
