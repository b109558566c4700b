"""Targets that somebody set for single flows while the loop runs; every other flow has its policy's."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from reinet.core.records import FlowStatsArray
from reinet.core.target import Target

MOST_OWN = 1024
"""So many flows may have targets of their own: they are set by hand, and each costs a comparison per batch."""

_NONE: Mapping[int, Target] = MappingProxyType({})


class OwnTargets:
    """Writes the target of each record; what one batch sees is of one moment.

    Any thread may set: who sets or forgets holds the table's lock.
    """

    def __init__(self) -> None:
        self._own = _NONE  # replaced as a whole, never changed in place: its readers hold no lock
        self._expected: dict[int, Target] = {}  # of flows that a loop before this one knew

    def of(self, cookie: int) -> Target | None:
        """Returns a flow's own target, None where it has none."""
        return self._own.get(cookie)

    def set(self, cookie: int, target: Target | None) -> None:
        """Sets a flow's own target, None takes it back; raises ValueError where too many flows have one."""
        own = {other: kept for other, kept in self._own.items() if other != cookie}
        if target is not None:
            if len(own) >= MOST_OWN:
                raise ValueError(f"{MOST_OWN} flows have targets of their own already: take some back first")
            own[cookie] = target
        self._own = MappingProxyType(own)

    def expect(self, targets: Mapping[int, Target]) -> None:
        """Sets the targets of flows that have given no record yet, for when they do: ``take_expected``."""
        self._expected.update(targets)

    def take_expected(self, cookies: Iterable[int]) -> None:
        """Has those of the flows that are new here and were expected go by their targets from now on."""
        if self._expected:
            for cookie in {int(cookie) for cookie in cookies} & self._expected.keys():
                self._own = MappingProxyType({**self._own, cookie: self._expected.pop(cookie)})

    def all(self) -> dict[int, Target]:
        """Returns the targets that were set, by cookie: those of expected flows too, as far as there may be so many."""
        return dict([*self._expected.items(), *self._own.items()][-MOST_OWN:])

    def any(self) -> bool:
        """Returns whether any flow has one."""
        return bool(self._own)

    def forget(self, cookies: Iterable[int]) -> None:
        """Drops the own targets of flows that ended."""
        if self._own and (ended := {int(cookie) for cookie in cookies} & self._own.keys()):
            self._own = MappingProxyType({c: target for c, target in self._own.items() if c not in ended})

    def write(self, records: FlowStatsArray, longer_us: NDArray[np.uint32], common: Target) -> None:
        """Writes each flow's own target, or the common one, into N records: ``Target.write``."""
        common.write(records, longer_us)
        for cookie, target in self._own.items():
            mine = records["cookie"] == np.uint64(cookie)
            if mine.any():
                own = records[mine]
                target.write(own, longer_us[mine])
                records[mine] = own
