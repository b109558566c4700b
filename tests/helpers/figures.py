"""Figures of a real host: a lagging host may spoil them, so only runs in which it did not lag can refute them."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Done = TypeVar("Done")
ATTEMPTS = 4
REFUTING = 2
"""So many valid runs must fail: lag below the threshold of an invalid run can still fall into the wrong moment."""


def figures_hold(
    measure: Callable[[], Done],
    check: Callable[[Done], None],
    reasons: Callable[[Done], Any] = lambda done: done.invalid_reason,
) -> Done:
    """Measures until ``check`` passes. What holds on any host is asserted in ``measure``, figures in ``check``.

    ``reasons`` says why a run is invalid; None or empty means that it is valid, and the second valid run whose check
    fails fails the test. Where no figures held and the host lagged in almost every attempt, nothing is known of the
    code: the test is skipped.
    """
    refuting = 0
    for _ in range(ATTEMPTS):
        done = measure()
        try:
            check(done)
        except AssertionError:
            why = reasons(done)
            refuting += not why
            if refuting == REFUTING:
                raise
        else:
            return done
    pytest.skip(f"the host spoilt {ATTEMPTS - refuting} of {ATTEMPTS} runs: {why}")
