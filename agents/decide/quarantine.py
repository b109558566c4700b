"""The quarantine: a model whose outputs are refused too often loses its office, and the hand rule takes over.

A learned head can only give caps within its limits, or no number at all; so a refused output that is the model's own
fault is a sign of broken weights or of states that it was never shown, and rarely stays alone. What gate and guard
refuse for the flow's or the target's sake does not count, nor do flows whose gate is closed: there nothing was asked.
"""

from collections import deque

WINDOW_NS = 10_000_000_000
"""Ten seconds: a single odd flow is gone by then, and users feel a broken model for no longer."""
MOST_REFUSED = 0.1
"""One decision in ten. Each refused decision leaves its flow uncapped, which is safe, so a few are no emergency; the
models that are shipped have none in all that they were evaluated on."""
LEAST_DECISIONS = 50
"""Fewer decisions say too little: ten flows give so many in a tenth of a second."""
_BUCKETS = 20


class Quarantine:
    """Counts an agent's decisions over a sliding window."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int, int]] = deque()  # (number of the bucket, decisions, refused)
        self._decided = self._refused = 0

    def note(self, decided: int, refused: int, now_ns: int) -> str:
        """Takes the decisions of a tick; returns why the agent must go, empty when it may stay."""
        number = now_ns * _BUCKETS // WINDOW_NS
        while self._buckets and self._buckets[0][0] <= number - _BUCKETS:
            _, old_decided, old_refused = self._buckets.popleft()
            self._decided -= old_decided
            self._refused -= old_refused
        if self._buckets and self._buckets[-1][0] == number:
            _, earlier_decided, earlier_refused = self._buckets.pop()
            self._buckets.append((number, earlier_decided + decided, earlier_refused + refused))
        else:
            self._buckets.append((number, decided, refused))
        self._decided += decided
        self._refused += refused
        if self._decided < LEAST_DECISIONS or self._refused <= MOST_REFUSED * self._decided:
            return ""
        return (
            f"{self._refused} of its {self._decided} decisions in the last {WINDOW_NS / 1e9:g} s were refused or failed"
        )
