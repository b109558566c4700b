"""What lies at the ends of what may be said of a path: the simulator neither hangs nor tells of what was not."""

import numpy as np
import pytest

from reinet.core import Flag
from reinet.envs.sim import SimBatch

EVERY_MS = np.arange(1, 1001, dtype=np.uint32)


@pytest.mark.parametrize("cc", ["cubic", "bbr"])
def test_a_round_trip_that_no_record_can_tell_counts_as_the_longest(cc: str) -> None:
    """After a gap of 83 minutes an RTT has more microseconds than 32 bits: it was told as 12 minutes, the rest."""
    gap_ms = 5_000_000
    times_ms = np.concatenate([np.arange(1, 3001), gap_ms + np.arange(500)]).astype(np.uint32)
    batch = SimBatch([{"trace": times_ms, "cc": cc}])
    batch.reset()
    while batch.stats["rtt_last_us"][0] < 10_000_000:
        batch.step_caps([0])
        assert batch.stats["time_ns"][0] < (gap_ms + 400) * 1_000_000
    assert batch.stats["rtt_last_us"][0] == 2**31 - 1
    assert not batch.stats["flags"][0] & Flag.NO_SAMPLE


def test_a_handshake_of_more_than_an_hour_counts_as_the_longest_round_trip_too() -> None:
    batch = SimBatch([{"trace": 4_500_000 + EVERY_MS}])
    batch.reset()
    assert batch.stats["time_ns"][0] > 4_500e9
    assert batch.stats["srtt_us"][0] > 5 * 60e6  # smoothed since; it had said three minutes and a half, not 36


@pytest.mark.parametrize("life", [{"start_ms": 1e12}, {"object_bytes": 9000, "pause_ms": 1e11}])
def test_years_without_a_packet_pass_at_once(life: dict[str, float]) -> None:
    """The link looked at every opportunity of those years, for hours."""
    batch = SimBatch([{"trace": EVERY_MS, **life}])
    batch.reset()
    for _ in range(20):
        batch.step_caps([0])
    assert batch.stats["time_ns"][0] > 1e17
