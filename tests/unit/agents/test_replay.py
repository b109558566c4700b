"""The replay: states cut from frames are the states that were, whatever was overwritten since."""

import dataclasses

import numpy as np
import pytest

from reinet.agents.learn.replay import Fragment, Replay

HISTORY, FRAME = 4, 2


def fragment(start: int, count: int, span: int = 1) -> Fragment:
    """Frames start, start + 1, ...; the other fields say to which newest frame they belong.

    Transitions span ``span`` steps, or as many as are left.
    """
    numbers = np.arange(start, start + HISTORY + count, dtype=np.float32)
    newest = numbers[HISTORY - 1 : -1]
    steps = np.minimum(span, count - np.arange(count))
    return Fragment(
        np.stack([numbers, -numbers], 1), numbers[HISTORY - 1 :, None] * 7, newest * 10, newest[:, None] * 5,
        newest * 100, newest * 3, steps,
    )  # fmt: skip


def check(replay: Replay, size: int = 200, ends: dict[int, int] | None = None) -> set[int]:
    """Every drawn transition is one that was added; returns the newest frames seen.

    ``ends`` are the newest frames of the next states, by that of the state; without it each follows the other.
    """
    batch = replay.sample(size, np.random.default_rng(0))
    newest = batch.states[:, 0]
    expected = newest[:, None] - np.arange(HISTORY)
    np.testing.assert_array_equal(batch.states[:, 0::2], expected)
    np.testing.assert_array_equal(batch.states[:, 1::2], -expected)
    end = newest + 1 if ends is None else np.array([ends[int(n)] for n in newest], np.float32)
    np.testing.assert_array_equal(batch.next_states[:, 0::2], end[:, None] - np.arange(HISTORY))
    np.testing.assert_array_equal(batch.hidden, 7 * newest[:, None])
    np.testing.assert_array_equal(batch.next_hidden, 7 * end[:, None])
    np.testing.assert_array_equal(batch.discounts[:, 0], newest * 3)
    np.testing.assert_array_equal(batch.actions[:, 0], newest * 10)
    np.testing.assert_array_equal(batch.taught[:, 0], newest * 5)
    np.testing.assert_array_equal(batch.rewards[:, 0], newest * 100)
    return {int(n) for n in newest}


def test_every_transition_comes_back() -> None:
    replay = Replay(100, HISTORY, FRAME, 1)
    replay.add(fragment(0, 5))
    replay.add(fragment(1000, 7))
    replay.index()
    assert len(replay) == 12
    assert check(replay) == {*range(3, 8), *range(1003, 1010)}


@pytest.mark.parametrize("capacity", range(30, 61, 3))
def test_a_full_ring_forgets_whole_histories(capacity: int) -> None:
    replay = Replay(capacity, HISTORY, FRAME, 1)
    rng = np.random.default_rng(capacity)
    counts = []
    for index in range(40):
        counts.append(int(rng.integers(0, 20)))
        replay.add(fragment(1000 * index, counts[-1]))
        replay.index()
        if len(replay):
            seen = check(replay, size=2000)  # the chance that it misses one of at most 60 is 1e-13
            newest = max(number for number, count in enumerate(counts) if count)
            first = 1000 * newest + HISTORY - 1
            assert {n for n in seen if n >= 1000 * newest} == set(range(first, first + counts[newest])), "all of it"
            assert len(seen) == len(replay)
    # A ring holds its latest frames, and of those up to one fragment fewer where one did not fit before its end.
    least = next(n for n in range(40) if sum(count + HISTORY for count in counts[n:] if count) <= capacity)
    assert min(seen) // 1000 >= least - 1


def test_a_transition_of_several_steps_ends_where_they_do() -> None:
    replay = Replay(100, HISTORY, FRAME, 1)
    replay.add(fragment(0, 8, span=5))
    replay.index()
    assert check(replay, ends={n: min(n + 5, 11) for n in range(3, 11)}) == set(range(3, 11))


@pytest.mark.parametrize("capacity", range(30, 61, 6))
def test_a_full_ring_forgets_transitions_of_several_steps_whole(capacity: int) -> None:
    replay, ends = Replay(capacity, HISTORY, FRAME, 1), {}
    rng = np.random.default_rng(capacity)
    for index in range(40):
        start, count = 1000 * index, int(rng.integers(0, 20))
        replay.add(fragment(start, count, span=6))
        first, last = start + HISTORY - 1, start + HISTORY - 1 + count
        ends |= {n: min(n + 6, last) for n in range(first, last)}
        replay.index()
        if len(replay):
            check(replay, ends=ends)


def test_an_empty_fragment_adds_nothing() -> None:
    replay = Replay(20, HISTORY, FRAME, 1)
    replay.add(fragment(0, 0))
    replay.index()
    assert (len(replay), replay.position) == (0, 0)


def test_a_checkpoint_restores_the_ring() -> None:
    replay, twin = (Replay(50, HISTORY, FRAME, 1) for _ in range(2))
    for index in range(9):
        replay.add(fragment(100 * index, 6))
    replay.index()
    twin.load(replay.state())
    for ring in (replay, twin):
        ring.add(fragment(5000, 6))
        ring.index()
    a, b = (ring.sample(64, np.random.default_rng(1)) for ring in (replay, twin))
    for field in dataclasses.fields(a):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def test_wrong_fragments_are_refused() -> None:
    replay = Replay(20, HISTORY, FRAME, 1)
    with pytest.raises(ValueError, match=r"enlarge ddpg\.replay"):
        replay.add(fragment(0, 30))
    good = fragment(0, 5)
    with pytest.raises(ValueError, match="need 9 frames"):
        replay.add(dataclasses.replace(good, frames=good.frames[1:]))
    with pytest.raises(ValueError, match="the checkpoint"):
        replay.load(Replay(21, HISTORY, FRAME, 1).state())
