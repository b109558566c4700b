"""How long records gather before a tick."""

import pytest

from reinet.kshim.gathering import LEAST_NS, WORTH_RECORDS, Gathering

MS = 1_000_000


def pauses(most_ms: float, ticks: list[tuple[int, int]]) -> list[float]:
    """The waits in ms before each tick of (moment in ns, records found)."""
    waits: list[float] = []
    gathering = Gathering(most_ms, lambda seconds: waits.append(seconds * 1e3))
    told = []
    for now_ns, records in ticks:
        waits.clear()
        gathering.wait(now_ns)
        told.append(sum(waits))
        gathering.note(now_ns, records)
    return told


def test_the_first_record_after_a_silence_is_not_kept_waiting() -> None:
    assert pauses(10, [(1000 * MS, 0), (1050 * MS, 1), (2000 * MS, 1)]) == [0, 0, 0]


def test_few_records_wait_for_others_as_long_as_they_may() -> None:
    waits = pauses(10, [(1000 * MS, 1), (1002 * MS, 1)])
    assert waits[1] == pytest.approx(8)


def test_of_many_records_twenty_are_waited_for_and_no_more() -> None:
    five_a_ms = [(1000 * MS, 5), (1001 * MS, 5), (1001 * MS, 5)]
    assert pauses(10, five_a_ms)[2] == pytest.approx(WORTH_RECORDS / 5)


def test_nothing_is_waited_for_where_twenty_come_in_less_than_a_tick_takes() -> None:
    busy = [(1000 * MS + k * MS // 2, 25) for k in range(5)]
    assert pauses(10, busy)[2:] == [0] * 3
    assert pauses(0, [(1000 * MS, 1), (1001 * MS, 1)]) == [0, 0], "0 = never"


def test_a_wait_too_short_to_gain_by_is_left_out() -> None:
    assert pauses(10, [(1000 * MS, 1), (1010 * MS - LEAST_NS + 1, 1)]) == [0, 0]
