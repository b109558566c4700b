"""The shim in memory keeps the kernel's rules about caps, so that what holds on it holds on the kernel."""

import numpy as np
import pytest

from reinet.core import MIN_CAP_PKTS
from reinet.kshim.fake import FakeShim
from reinet.kshim.shim import Shim

MS = 1_000_000


@pytest.fixture
def shim() -> FakeShim:
    fake = FakeShim()
    fake.open_flow(7)
    return fake


def apply(shim: FakeShim, cap_pkts: int, lease_ms: int) -> None:
    target_us = np.array([40_000], np.uint32)
    shim.apply(
        np.array([7], np.uint64),
        np.array([0], np.uint32),
        np.array([cap_pkts], np.uint32),
        shim.now_ns + lease_ms * MS,
        target_us,
    )


def test_it_is_a_shim(shim: FakeShim) -> None:
    assert isinstance(shim, Shim)


@pytest.mark.parametrize(("written_pkts", "seen_pkts"), [(0, 0), (1, MIN_CAP_PKTS), (25, 25)])
def test_a_cap_below_the_floor_acts_as_the_floor(shim: FakeShim, written_pkts: int, seen_pkts: int) -> None:
    apply(shim, written_pkts, 500)
    assert shim.cap_pkts(7) == seen_pkts


def test_a_lease_beyond_a_second_never_acts_and_is_counted_once(shim: FakeShim) -> None:
    apply(shim, 25, 1_600)
    assert shim.cap_pkts(7) == 0
    shim.advance_ms(1_000)
    assert shim.cap_pkts(7) == 0
    assert shim.counters()["leases_too_long"] == 1


def test_it_counts_flows_and_slots(shim: FakeShim) -> None:
    shim.close_flow(7)
    shim.open_flow(8)
    shim.open_flow(9)
    counters = shim.counters()
    assert (counters["flows_chosen"], counters["slots_used"], counters["records_lost"]) == (3, 2, 0)
