"""How long records gather before a look, or a tick."""

import pytest

from reinet.core.states.reflex import Rest
from reinet.kshim.gathering import LEAST_NS, Gathering

MS = 1_000_000


@pytest.mark.parametrize(
    ("apart_ns", "rest_ns"),
    [
        (1_000, 20_000),  # twenty records come sooner than the longest rest
        (50_000, MS // 2),
        (250_000, MS // 2),
        (250_001, 0),  # two do not come in it
        (5 * MS, 0),
    ],
)
def test_a_rest_is_worth_at_least_two_records_and_waits_for_no_more_than_twenty(apart_ns: int, rest_ns: int) -> None:
    for records in (1, 7, 100):
        rest = Rest()
        rest.after(came_ns=MS, records=1, most_ns=MS // 2)
        assert rest.after(came_ns=MS + records * apart_ns, records=records, most_ns=MS // 2) == rest_ns


def test_there_is_no_rest_after_nothing() -> None:
    with pytest.raises(ValueError, match="after records"):
        Rest().after(came_ns=MS, records=0, most_ns=MS)


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
    waits = pauses(10, [(1000 * MS, 1), (1002 * MS, 1), (1003 * MS, 1)])
    assert waits[2] == pytest.approx(9)


def test_of_many_records_twenty_are_waited_for_and_no_more() -> None:
    five_a_ms = [(1000 * MS, 5), (1001 * MS, 5), (1001 * MS, 5)]
    assert pauses(10, five_a_ms)[2] == pytest.approx(20 / 5)


def test_nothing_is_waited_for_where_twenty_come_in_less_than_a_tick_takes() -> None:
    busy = [(1000 * MS + k * MS // 2, 25) for k in range(5)]
    assert pauses(10, busy)[2:] == [0] * 3
    assert pauses(0, [(1000 * MS, 1), (1001 * MS, 1)]) == [0, 0], "0 = never"


def test_a_wait_too_short_to_gain_by_is_left_out() -> None:
    for left_ns, waited_ms in ((LEAST_NS - 1, 0), (LEAST_NS, LEAST_NS / MS)):
        waits = pauses(10, [(1000 * MS, 1), (1002 * MS, 1), (1012 * MS - left_ns, 1)])
        assert waits[2] == pytest.approx(waited_ms)
