"""The latest records of all flows, kept so that a model that is to take over can be shown what the old one saw."""

import numpy as np

from reinet.core.records import FLOW_STATS_DTYPE
from reinet.kshim.shim import FlowStatsArray

RECORDS = 1 << 14
"""Two megabytes: of a thousand flows sixteen records each, which most of a history is; of a hundred all of it."""


class RecentRecords:
    """A ring of records; one thread at a time."""

    def __init__(self, records: int = RECORDS) -> None:
        self._ring: FlowStatsArray = np.zeros(records, FLOW_STATS_DTYPE)
        self._given = 0

    def add(self, records: FlowStatsArray) -> None:
        """Takes N records, the oldest first."""
        size = len(self._ring)
        records = records[-size:]
        start = self._given % size
        first = min(len(records), size - start)
        self._ring[start : start + first] = records[:first]
        self._ring[: len(records) - first] = records[first:]
        self._given += len(records)

    def all(self) -> FlowStatsArray:
        """Returns a copy of what is kept, the oldest first."""
        size = len(self._ring)
        if self._given <= size:
            return np.array(self._ring[: self._given])
        start = self._given % size
        found: FlowStatsArray = np.concatenate([self._ring[start:], self._ring[:start]])
        return found
