"""The latest records of all flows, kept so that a model that is to take over can be shown what the old one saw."""

from collections import deque

import numpy as np

from reinet.core.records import FLOW_STATS_DTYPE, FlowStatsArray

RECORDS = 1 << 14
"""2.5 MB: of a thousand flows sixteen records each, which most of a history is; of a hundred all of it."""


class RecentRecords:
    """Batches of records that nobody changes any more, the latest ``records`` at least; one thread at a time."""

    def __init__(self, records: int = RECORDS) -> None:
        self._most = records
        self._kept = 0
        self._batches: deque[FlowStatsArray] = deque()

    def add(self, records: FlowStatsArray) -> None:
        """Takes N records, the oldest first, and keeps them as they are: no copy is made."""
        self._batches.append(records)
        self._kept += len(records)
        while self._kept - len(self._batches[0]) >= self._most:
            self._kept -= len(self._batches.popleft())

    def all(self) -> FlowStatsArray:
        """Returns a copy of the latest, the oldest first.

        The loop waits for it. NumPy itself looks at every field of each batch: of a few flows, whose records come one
        by one, that took 350 ms.
        """
        found = np.frombuffer(bytearray(b"".join(batch.tobytes() for batch in self._batches)), FLOW_STATS_DTYPE)
        return found[-self._most :]
