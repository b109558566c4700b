"""How long the loop lets records gather: a tick costs about as much for one record as for twenty.

The rule is that of whoever answers records without the interpreter (``Rest``). Where records come seldom the first one
is answered at once. Where they come often, twenty of them are waited for, but no longer than ``most_ms`` from one tick
to the next. With 1000 flows of 20 ms twenty come in 0.4 ms, which is less than a tick takes, so nothing is waited for;
with a hundred it is the host that gains, and a decision is some milliseconds later than it might be.
"""

import time
from collections.abc import Callable

from reinet.core.states.reflex import Rest

GATHER_MS = 0.0
"""By default nothing waits: what it costs a flow whose model was made for 5 ms has not been measured on sockets."""
LEAST_NS = 200_000
"""The kernel wakes a sleeper 60 us late and with some work: shorter waits gain nothing."""
_NS_PER_MS = 1_000_000


class Gathering:
    """The pause between two ticks, from how many records the latest one found and since when."""

    def __init__(self, most_ms: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Waits for ``most_ms`` at most from one tick to the next; 0 = never."""
        self._most_ns = round(most_ms * _NS_PER_MS)
        self._sleep = sleep
        self._rest = Rest()
        self._next_ns = 0

    def wait(self, now_ns: int) -> None:
        """Waits until the next tick is worth it; call it before records are asked for."""
        if self._next_ns - now_ns >= LEAST_NS:
            self._sleep((self._next_ns - now_ns) / 1e9)

    def note(self, now_ns: int, records: int) -> None:
        """Takes how many records a tick found, and when it did."""
        if records:
            self._next_ns = now_ns + self._rest.after(now_ns, records, self._most_ns)
