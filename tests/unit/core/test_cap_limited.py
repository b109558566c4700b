"""What a cap held back is no evidence against BBR's path: the rule by itself, and in the simulator's sender."""

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from reinet.core import Flag
from reinet.envs.link.spec import LinkSpec
from reinet.envs.sim import SimBatch
from reinet.envs.sim._driven import cap_limited_until
from reinet.envs.trace import Trace

MBPS = 12.0
BYTES_PER_S = MBPS / 8 * 1e6 * 1448 / 1504
PKTS = st.integers(0, 2**32 - 1)


@given(PKTS, PKTS, PKTS)
def test_the_mark_is_never_none_and_the_applications_own_stays(own: int, delivered: int, in_flight: int) -> None:
    new_own, until = cap_limited_until(own, 0, delivered, in_flight)
    assert until == new_own == (((delivered + in_flight) % 2**32) or 1)
    assert cap_limited_until(until, until, delivered, 0) == (delivered or 1, delivered or 1)
    others = (until + 1) % 2**32 or 2
    assert cap_limited_until(until, others, delivered, in_flight) == (until, others)


STEADY = Trace.constant(MBPS, 1.0)


def capped_between(
    begin_s: float, end_s: float, cap_pkts: int, trace: Trace = STEADY, **link: float
) -> npt.NDArray[np.void]:
    """Returns BBR's records of 8 s, capped in between; the steady path holds 20 packets."""
    batch = SimBatch([LinkSpec(trace, cc="bbr", mrtt_ms=20.0, **link)])  # type: ignore[arg-type]
    batch.reset()
    records = []
    while (now_s := batch.stats["time_ns"][0] / 1e9) < 8:
        records.append(batch.stats.copy())
        batch.step_caps(np.array([cap_pkts if begin_s <= now_s < end_s else 0], np.uint32))
    return np.concatenate(records)


def test_bbr_goes_on_at_its_rate_when_a_cap_has_gone() -> None:
    records = capped_between(3.0, 6.0, 10)
    time_s = records["time_ns"] / 1e9
    held, freed = (time_s > 3.2) & (time_s < 6.0), (time_s > 6.1) & (time_s < 6.2)
    assert np.median(records["delivery_rate_bytes_per_s"][held]) < 0.6 * BYTES_PER_S
    assert np.median(records["pacing_rate_bytes_per_s"][held]) > 0.9 * BYTES_PER_S
    assert np.median(records["delivery_rate_bytes_per_s"][freed]) > 0.95 * BYTES_PER_S


def test_a_link_that_became_slow_under_a_cap_is_learned_in_the_first_round_trips_without() -> None:
    slow = np.arange(3000, 9000, 8)  # 1.5 Mbit/s from the third second on
    trace = Trace(np.concatenate([np.arange(1, 3000), slow]).astype(np.uint32), "falls")
    records = capped_between(2.0, 6.0, 5, trace)
    late = records[records["time_ns"] > 6.5e9]
    assert np.median(late["pacing_rate_bytes_per_s"]) < 1.5 * BYTES_PER_S / 8


def test_a_cap_acts_once_bbrs_start_up_is_over() -> None:
    records = capped_between(0.0, 6.0, 10)  # half of what the path holds
    held = records[(records["time_ns"] > 1e9) & (records["time_ns"] < 6e9)]
    pace = np.median(held["pacing_rate_bytes_per_s"]) / BYTES_PER_S
    assert 0.9 < pace < 1.5, "a start-up that a cap ends stands at the cap; one that goes on has nearly three"
    assert np.median(held["delivery_rate_bytes_per_s"]) < 0.6 * BYTES_PER_S


def test_short_answers_under_a_cap_do_not_hold_bbr_back_for_good() -> None:
    link = LinkSpec(STEADY, cc="bbr", mrtt_ms=150.0, object_bytes=15_000, flow_bytes=300_000, pause_ms=100.0)
    plain, capped = (SimBatch([link]) for _ in range(2))
    for batch, cap_pkts in ((plain, 0), (capped, 4)):
        batch.reset()
        while batch.stats["time_ns"][0] < 2e9:
            batch.step_caps(np.array([cap_pkts], np.uint32))
        while batch.stats["time_ns"][0] < 4e9:
            batch.step_caps(np.zeros(1, np.uint32))
    pace, paced = (b.stats["pacing_rate_bytes_per_s"][0] for b in (plain, capped))
    assert paced > 0.9 * pace


def test_records_tell_of_the_application_alone() -> None:
    records = capped_between(3.0, 6.0, 5)
    busy = records[records["cwnd_pkts"] > 4]  # with four packets BBR looks for the minimum RTT, and holds back itself
    assert not (busy["flags"] & Flag.APP_LIMITED).any()
    idle = capped_between(3.0, 6.0, 15, app_mbps=4.0)
    assert np.mean((idle["flags"] & Flag.APP_LIMITED) != 0) > 0.8
