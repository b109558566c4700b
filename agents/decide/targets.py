"""The targets of a loop's flows: one for all, and those that somebody set for single flows while the loop runs."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from reinet.core.target import Target
from reinet.kshim.shim import FlowStatsArray

MOST_OWN = 1024
"""So many flows may have targets of their own: they are set by hand, and each costs a comparison per batch."""

_NONE: Mapping[int, Target] = MappingProxyType({})


class Targets:
    """Resolves the target of each record. Any thread may set; what one batch sees is of one moment."""

    def __init__(self, common: Target) -> None:
        self.common = common
        """The target of every flow that has none of its own."""
        self._own = _NONE  # replaced as a whole, never changed in place: its readers hold no lock

    def of(self, cookie: int) -> Target:
        """Returns what a flow is asked for."""
        return self._own.get(cookie, self.common)

    def has_own(self, cookie: int) -> bool:
        """Returns whether a target was set for this flow alone."""
        return cookie in self._own

    def set(self, cookie: int, target: Target | None) -> None:
        """Sets a flow's own target, None takes it back; raises ValueError where too many flows have one."""
        own = {other: kept for other, kept in self._own.items() if other != cookie}
        if target is not None:
            if len(own) >= MOST_OWN:
                raise ValueError(f"{MOST_OWN} flows have targets of their own already: take some back first")
            own[cookie] = target
        self._own = MappingProxyType(own)

    def ask(self, cookie: int, text: str, live: NDArray[np.uint64]) -> None:
        """Sets the target of one of the ``live`` flows, an empty text takes it back; for cookie 0 the common one.

        Raises ConfigError for a text that is no target, LookupError where there is no such flow, ValueError where too
        many flows have their own.
        """
        if not cookie:
            self.common = Target.parse(text)
            return
        target = Target.parse(text) if text else None
        if not (live == np.uint64(cookie)).any():
            raise LookupError(f"no flow {cookie} is open; `reinet ctl flows` lists them")
        self.set(cookie, target)

    def forget(self, cookies: Iterable[int]) -> None:
        """Drops the own targets of flows that ended."""
        if self._own and (ended := {int(cookie) for cookie in cookies} & self._own.keys()):
            self._own = MappingProxyType({c: target for c, target in self._own.items() if c not in ended})

    def resolve_us(self, records: FlowStatsArray) -> NDArray[np.uint32]:
        """Returns the RTT to stay below of each record's flow (N,), 0 while it is unknown: ``Target.resolve_us``."""
        resolved_us = self.common.resolve_us(records["min_rtt_us"])
        for cookie, target in self._own.items():
            mine = records["cookie"] == np.uint64(cookie)
            if mine.any():
                resolved_us[mine] = target.resolve_us(records["min_rtt_us"][mine])
        return resolved_us
