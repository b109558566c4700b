"""The laws outside the simulator: the driver against the simulator's sender, and which packets are given up."""

import pytest

from reinet.alcc._alcc import law_names
from reinet.envs.sim._driven import given_up, windows_side_by_side

LAWS = ["copa", "copa-default", "verus", "sprout"]


def test_the_laws_of_datagrams_run_outside_the_simulator_and_no_others() -> None:
    assert sorted(law_names()) == sorted(LAWS)
    assert windows_side_by_side("cubic", 1.0, 0, 3) == []


@pytest.mark.parametrize("law", LAWS)
def test_the_same_acks_make_the_same_windows_as_in_the_simulator(law: str) -> None:
    windows = windows_side_by_side(law, 8.0, 0, 3)
    assert len(windows) > 1000
    assert len({simulated for simulated, _ in windows}) > 5, "the law was to move its window"
    assert [driven for _, driven in windows] == [simulated for simulated, _ in windows]


@pytest.mark.parametrize("law", LAWS)
def test_losses_make_the_same_windows_too(law: str) -> None:
    """With the simulator's own threshold: a packet that a later one overtook is lost."""
    windows = windows_side_by_side(law, 8.0, 97, 1)
    assert [driven for _, driven in windows] == [simulated for simulated, _ in windows]
    assert windows != windows_side_by_side(law, 8.0, 0, 1), "the losses were to matter"


def test_a_packet_is_given_up_when_three_later_ones_are_acknowledged() -> None:
    assert given_up(6, [0, 2, 3], 3) == []
    assert given_up(6, [0, 2, 3, 4], 3) == [1]
    assert given_up(6, [0, 2, 3, 1, 4, 5], 3) == [], "it came late, but before that"
    assert given_up(9, [8], 3) == [0, 1, 2, 3, 4, 5]
    assert given_up(6, [0, 2], 1) == [1]
    assert given_up(6, [0, 4, 1, 1, 9, 5], 3) == [1, 2], "what is settled or was never sent says nothing"
