"""System calls with the gate and without: the same bytes, the same errno, the same end."""

from pathlib import Path

import pytest

from helpers.gated.fuzz import differences
from reinet.alcc.sums import Sums

LEAST_CLOSINGS = 10
"""Without a cap there is none, on a quiet host there are 400; how many depends on when the gate's thread runs, and with
five workers on two cores there were 49 once."""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_system_calls_come_to_the_same(seed: int, tmp_path: Path) -> None:
    report = Sums()
    assert differences(seed, 700, report) == []
    assert report.total()["closings"] >= LEAST_CLOSINGS, (
        f"the gate hardly closed, so little was tested: {report.total()}"
    )
