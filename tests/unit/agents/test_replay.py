"""The replay: states cut from frames are the states that were, whatever was overwritten since."""

import numpy as np
import pytest

from reinet.agents.learn.replay import Fragment, Replay

HISTORY, FRAME = 4, 2


def fragment(start: int, count: int) -> Fragment:
    """Frames start, start + 1, ...; action and reward say to which newest frame they belong."""
    numbers = np.arange(start, start + HISTORY + count, dtype=np.float32)
    newest = numbers[HISTORY - 1 : -1]
    return Fragment(np.stack([numbers, -numbers], 1), newest * 10, newest * 100)


def check(replay: Replay, size: int = 200) -> set[int]:
    """Every drawn transition is one that was added; returns the newest frames seen."""
    batch = replay.sample(size, np.random.default_rng(0))
    newest = batch.states[:, 0]
    expected = newest[:, None] - np.arange(HISTORY)
    np.testing.assert_array_equal(batch.states[:, 0::2], expected)
    np.testing.assert_array_equal(batch.states[:, 1::2], -expected)
    np.testing.assert_array_equal(batch.next_states[:, 0::2], expected + 1)
    np.testing.assert_array_equal(batch.actions[:, 0], newest * 10)
    np.testing.assert_array_equal(batch.rewards[:, 0], newest * 100)
    return {int(n) for n in newest}


def test_every_transition_comes_back() -> None:
    replay = Replay(100, HISTORY, FRAME)
    replay.add(fragment(0, 5))
    replay.add(fragment(1000, 7))
    replay.index()
    assert len(replay) == 12
    assert check(replay) == {*range(3, 8), *range(1003, 1010)}


@pytest.mark.parametrize("capacity", range(30, 61, 3))
def test_a_full_ring_forgets_whole_histories(capacity: int) -> None:
    replay = Replay(capacity, HISTORY, FRAME)
    rng = np.random.default_rng(capacity)
    for index in range(40):
        replay.add(fragment(1000 * index, int(rng.integers(0, 20))))
        replay.index()
        if len(replay):
            seen = check(replay)
    assert max(seen) >= 39_000 or len(seen) > 0
    assert min(seen) >= 1000 * (40 - capacity)


def test_a_checkpoint_restores_the_ring() -> None:
    replay, twin = (Replay(50, HISTORY, FRAME) for _ in range(2))
    for index in range(9):
        replay.add(fragment(100 * index, 6))
    replay.index()
    twin.load(replay.state())
    for ring in (replay, twin):
        ring.add(fragment(5000, 6))
        ring.index()
    a, b = (ring.sample(64, np.random.default_rng(1)) for ring in (replay, twin))
    np.testing.assert_array_equal(a.states, b.states)
    np.testing.assert_array_equal(a.rewards, b.rewards)


def test_wrong_fragments_are_refused() -> None:
    replay = Replay(20, HISTORY, FRAME)
    with pytest.raises(ValueError, match=r"enlarge ddpg\.replay"):
        replay.add(fragment(0, 30))
    good = fragment(0, 5)
    with pytest.raises(ValueError, match="need 9 frames"):
        replay.add(Fragment(good.frames[1:], good.actions, good.rewards))
    with pytest.raises(ValueError, match="the checkpoint"):
        replay.load(Replay(21, HISTORY, FRAME).state())
