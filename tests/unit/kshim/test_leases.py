"""Leases over the fake shim: caps hold while renewed, lapse when not, and never hit a slot's next owner."""

import numpy as np
import pytest

from reinet.core.records import FLOW_STATS_DTYPE, Flag
from reinet.kshim.fake import FakeShim
from reinet.kshim.leases import IDLE_AFTER_NS, RENEWALS_PER_LEASE, LeaseKeeper
from reinet.kshim.shim import Shim

COOKIE = 71
OTHER = 72


@pytest.fixture
def shim():
    fake = FakeShim()
    fake.open_flow(COOKIE)
    fake.open_flow(OTHER)
    return fake


@pytest.fixture
def keeper(shim):
    return LeaseKeeper(shim, lease_ms=500, clock_ns=lambda: shim.now_ns)


def records_of(shim, *cookies, **fields):
    for cookie in cookies:
        shim.feed(cookie, **fields)
    return shim.poll(0)


def caps(*caps_pkts):
    return np.array(caps_pkts, np.uint32)


def named(shim, cookie):
    return np.array([cookie], np.uint64), records_of(shim, cookie)["slot"]


def test_fake_is_a_shim(shim):
    assert isinstance(shim, Shim)
    with shim as same:
        assert same is shim
    assert shim.closed


def test_poll_gives_records_in_order_once(shim):
    shim.feed(COOKIE, rtt_mean_us=20_000)
    shim.feed(OTHER, rtt_mean_us=30_000)
    records = shim.poll(0)
    assert records.dtype == FLOW_STATS_DTYPE
    assert records["cookie"].tolist() == [COOKIE, OTHER]
    assert records["slot"].tolist() == [0, 1]
    assert records["time_ns"].tolist() == [shim.now_ns] * 2
    assert shim.poll(0).size == 0


def test_cap_lapses_at_the_end_of_its_lease(shim, keeper):
    keeper.set(records_of(shim, COOKIE), caps(25))
    shim.advance_ms(499)
    assert shim.cap_pkts(COOKIE) == 25
    shim.advance_ms(1)
    assert shim.cap_pkts(COOKIE) == 0


def test_tick_renews_without_any_event_of_the_flow(shim, keeper):
    keeper.set(records_of(shim, COOKIE, OTHER), caps(25, 40))
    for _ in range(60):  # three seconds of outage
        shim.advance_ms(50)
        keeper.tick(shim.now_ns)
        assert (shim.cap_pkts(COOKIE), shim.cap_pkts(OTHER)) == (25, 40)


def test_the_cap_of_an_idle_flow_lapses_and_the_others_stay(shim, keeper):
    keeper.set(records_of(shim, COOKIE, OTHER), caps(25, 40))
    shim.set_outstanding(COOKIE, False)
    lapsed_ms = None
    for ms in range(50, 1001, 50):
        shim.advance_ms(50)
        idle = keeper.tick(shim.now_ns)
        assert shim.cap_pkts(OTHER) == 40
        if idle.size:
            assert idle.tolist() == [0]
            assert lapsed_ms is None, "it lapses once"
            lapsed_ms = ms
        assert shim.cap_pkts(COOKIE) == (25 if lapsed_ms is None else 0)
    assert IDLE_AFTER_NS / 1e6 < lapsed_ms < IDLE_AFTER_NS / 1e6 + 500 / RENEWALS_PER_LEASE + 50
    keeper.set(records_of(shim, COOKIE, flags=int(Flag.NO_SAMPLE)), caps(25))
    assert shim.cap_pkts(COOKIE) == 0, "a record without a sample decides nothing"
    keeper.set(records_of(shim, COOKIE), caps(30))
    assert shim.cap_pkts(COOKIE) == 30


def test_records_of_any_kind_keep_a_flow_from_counting_as_idle(shim, keeper):
    """An application that writes now and then has nothing outstanding at many a tick."""
    keeper.set(records_of(shim, COOKIE), caps(25))
    shim.set_outstanding(COOKIE, False)
    for _ in range(10):
        shim.advance_ms(450)
        keeper.see_alive(records_of(shim, COOKIE, OTHER, flags=int(Flag.NO_SAMPLE)))
        assert keeper.tick(shim.now_ns).size == 0
        assert shim.cap_pkts(COOKIE) == 25


def test_another_flows_record_is_no_sign_of_life(shim, keeper):
    keeper.set(records_of(shim, COOKIE), caps(25))
    shim.set_outstanding(COOKIE, False)
    for _ in range(3):
        shim.advance_ms(240)
        record = records_of(shim, OTHER)
        record["slot"] = 0  # the slot's next owner, while the end of the one before is still to be read
        keeper.see_alive(record)
        keeper.tick(shim.now_ns)
    assert len(keeper) == 0


def test_renewal_every_third_of_a_lease(shim, keeper, monkeypatch):
    keeper.set(records_of(shim, COOKIE), caps(25))
    written_ns = []
    monkeypatch.setattr(shim, "apply", lambda *_, **__: written_ns.append(shim.now_ns))
    start_ns = shim.now_ns
    for _ in range(1000):
        keeper.tick(shim.now_ns)
        shim.advance_ms(1)
    gaps_ms = np.diff(written_ns) / 1e6
    assert written_ns[0] == start_ns
    assert gaps_ms.min() >= 166
    assert gaps_ms.max() <= 167


def test_what_became_void_is_not_renewed_and_what_is_decided_anew_is(shim, keeper):
    keeper.set(records_of(shim, COOKIE, OTHER), caps(25, 40))
    shim.void_cap(COOKIE)
    for _ in range(10):
        shim.advance_ms(100)
        keeper.see_alive(records_of(shim, COOKIE, OTHER))
        keeper.tick(shim.now_ns)
        assert (shim.cap_pkts(COOKIE), shim.cap_pkts(OTHER)) == (0, 40)
    keeper.set(records_of(shim, COOKIE), caps(25))
    for _ in range(10):
        assert shim.cap_pkts(COOKIE) == 25
        shim.advance_ms(100)
        keeper.tick(shim.now_ns)


def test_cap_of_zero_lifts(shim, keeper):
    keeper.set(records_of(shim, COOKIE), caps(25))
    keeper.set(records_of(shim, COOKIE), caps(0))
    assert shim.cap_pkts(COOKIE) == 0


def test_record_without_sample_keeps_the_cap(shim, keeper):
    keeper.set(records_of(shim, COOKIE), caps(25))
    keeper.set(records_of(shim, COOKIE, flags=int(Flag.NO_SAMPLE)), caps(0))
    assert shim.cap_pkts(COOKIE) == 25


def test_the_later_of_two_records_of_a_flow_counts(shim, keeper):
    keeper.set(records_of(shim, COOKIE, COOKIE), caps(25, 30))
    assert shim.cap_pkts(COOKIE) == 30


def test_target_reaches_the_next_record(shim, keeper):
    keeper.set(records_of(shim, COOKIE, target_us=50_000), caps(25))
    record = records_of(shim, COOKIE)[0]
    assert (record["target_us"], record["cap_pkts"]) == (50_000, 25)


def test_closed_flow_is_dropped_and_its_slots_next_owner_spared(shim, keeper):
    keeper.set(records_of(shim, COOKIE), caps(25))
    shim.close_flow(COOKIE)
    assert shim.open_flow(73) == 0
    keeper.tick(shim.now_ns)  # has not yet read that the flow closed
    assert shim.cap_pkts(73) == 0
    keeper.set(shim.poll(0), caps(0))
    assert len(keeper) == 0


def test_drop_stops_renewal(shim, keeper):
    keeper.set(records_of(shim, COOKIE, OTHER), caps(25, 40))
    keeper.drop(*named(shim, COOKIE))
    shim.advance_ms(400)
    keeper.tick(shim.now_ns)
    shim.advance_ms(200)
    assert (shim.cap_pkts(COOKIE), shim.cap_pkts(OTHER)) == (0, 40)


def test_release_all_lifts_now(shim, keeper):
    keeper.set(records_of(shim, COOKIE, OTHER), caps(25, 40))
    keeper.release_all()
    assert (shim.cap_pkts(COOKIE), shim.cap_pkts(OTHER)) == (0, 0)
    keeper.tick(shim.now_ns + 10**9)
    assert (shim.cap_pkts(COOKIE), shim.cap_pkts(OTHER)) == (0, 0)


def test_lease_must_be_positive(shim):
    with pytest.raises(ValueError, match="at least 1 ms, not 0 ms"):
        LeaseKeeper(shim, lease_ms=0)
