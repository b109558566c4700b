"""The memory that the kernel and user space share: its layout, and the rules by which both sides use it."""

import re

import pytest

from helpers.places import ROOT
from reinet.core import MIN_CAP_PKTS
from reinet.core.period import SILENCE_NS
from reinet.envs.sim import _driven
from reinet.kshim.fake import COUNTERS
from reinet.kshim.leases import LONGEST_LEASE_MS
from reinet.kshim.mapped import EVENT_DTYPE
from reinet.kshim.shim import MOSTS

MS = 1_000_000
NOW_NS = 5_000 * MS
UNIT_NS = 1 << 16
"""Leases end at multiples of it."""


def test_the_memory_of_a_flow_is_what_the_configurations_comments_say():
    from reinet.kshim import _kshim

    for file in ("daemon/config.py", "configs/daemon.toml", "kshim/kernel.py", "docs/architecture.md"):
        assert re.search(rf"A flow takes {_kshim.FLOW_BYTES}\s+(# )?bytes", (ROOT / file).read_text()), file


def test_what_python_says_of_the_layout_is_slot_h_s():
    from reinet.kshim import _kshim

    assert EVENT_DTYPE.itemsize == _kshim.EVENT_SIZE
    assert (_kshim.EVENT_ACK, _kshim.EVENT_RESTART) == (0, 1)
    assert _kshim.LONGEST_LEASE_NS == LONGEST_LEASE_MS * MS
    assert tuple(_kshim.COUNTERS) == COUNTERS
    assert tuple(name for name, kind in _kshim.COUNTER_KINDS.items() if kind == "MOST") == MOSTS
    assert set(_kshim.COUNTER_KINDS.values()) == {"COUNT", "MOST"}


@pytest.mark.parametrize(
    ("expires_ns", "seen_pkts"),
    [
        (NOW_NS + 500 * MS, 25),
        (NOW_NS + UNIT_NS, 25),
        (NOW_NS, 0),  # lapsed
        (NOW_NS - 1, 0),
        (0, 0),
        (NOW_NS + 1000 * MS, 25),
        (NOW_NS + 1000 * MS + UNIT_NS, 0),  # a mistake
        (NOW_NS * 1000, 0),
        (2**63, 0),
    ],
)
def test_a_cap_holds_within_its_lease_and_none_reaches_further_than_a_second(expires_ns, seen_pkts):
    assert _driven.cap_seen(written_for=7, expires_ns=expires_ns, cap_pkts=25, seen_by=7, now_ns=NOW_NS) == seen_pkts


def test_a_cap_is_seen_by_its_flow_only_and_a_huge_one_as_the_largest():
    lease = {"expires_ns": NOW_NS + MS, "now_ns": NOW_NS}
    assert _driven.cap_seen(written_for=7, cap_pkts=25, seen_by=8, **lease) == 0
    assert _driven.cap_seen(written_for=7, cap_pkts=2**32 - 1, seen_by=7, **lease) == 2**20 - 1


def test_a_cap_below_the_floor_acts_as_the_floor_and_none_stays_none():
    lease = {"written_for": 7, "seen_by": 7, "expires_ns": NOW_NS + MS, "now_ns": NOW_NS}
    assert [_driven.cap_seen(cap_pkts=pkts, **lease) for pkts in (0, 1, MIN_CAP_PKTS, MIN_CAP_PKTS + 1)] == [
        0,
        MIN_CAP_PKTS,
        MIN_CAP_PKTS,
        MIN_CAP_PKTS + 1,
    ]


def test_a_flow_never_sees_the_cap_of_another_while_its_slot_changes_hands():
    right, wrong = _driven.caps_seen_while_written(seconds=0.5)
    assert right > 0
    assert wrong == 0


@pytest.mark.parametrize("before", [0, 7])
@pytest.mark.parametrize("sequence", [1, 2**32 - 1])
def test_a_writer_that_was_killed_in_the_middle_spoils_no_later_cap(before, sequence):
    """Before or after it had put the flow's name there."""
    lease = {"written_for": 7, "seen_by": 7, "expires_ns": NOW_NS + MS, "now_ns": NOW_NS}
    assert _driven.cap_seen(cap_pkts=25, before=before, sequence=sequence, **lease) == 25


SILENT = {"last_ack_ns": NOW_NS - SILENCE_NS, "now_ns": NOW_NS}


def test_a_silent_flow_is_reported_with_its_cap_and_target():
    assert _driven.silence(seen=7, owner=7, **SILENT) == (7, 10, 50_000)
    assert _driven.silence(seen=7, owner=7, last_ack_ns=NOW_NS - SILENCE_NS + 1, now_ns=NOW_NS) is None


def test_after_an_idle_time_no_cap_is_in_force_until_another_lease_is_written():
    assert _driven.silence(seen=7, owner=7, **SILENT, restarted=True) == (7, 0, 50_000)
    assert _driven.silence(seen=7, owner=7, **SILENT, answered=False) == (7, 0, 50_000)


@pytest.mark.parametrize("owner", [0, 8])
def test_a_slot_given_back_in_the_middle_of_a_scan_is_no_silence(owner):
    """The reader saw flow 7 there, and by the time that it copies the slot the flow has ended."""
    assert _driven.silence(seen=7, owner=owner, **SILENT) is None


def test_a_flow_ends_once_whatever_was_lost():
    given, closed = _driven.account([(7, False), (7, True), (7, True)])
    assert (given, closed) == ([(7, False), (7, True)], True)
    given, closed = _driven.account([(7, False), (8, False)])  # 7's own end was lost
    assert (given, closed) == ([(7, False), (7, True), (8, False)], False)


def test_a_socket_that_connects_anew_is_open_again():
    """It keeps its cookie, and its silences are to be reported."""
    told = [(7, False), (7, True), (7, False)]
    assert _driven.account(told) == (told, False)
    assert _driven.account([*told, (7, True)]) == ([*told, (7, True)], True)


def test_a_flow_that_was_never_heard_of_before_its_end_counts_as_ended():
    """So that the slot, which still names it for a moment, gives no silence of it any more."""
    assert _driven.account([(7, True)]) == ([], True)
