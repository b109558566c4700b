"""Experience is kept as a ring of frames from which states are cut, so that nothing is stored twenty times.

A state is the last ``history`` frames, newest first, and two successive states of a flow share all but one of them.
The ring holds frames; a transition is named by the row of its newest frame: its state ends there, the next state as
many rows later as the transition has steps. Only records with an RTT sample become frames, so a transition that spans
an outage closes at the first record after it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
_KEPT = ("frames", "hidden", "actions", "taught", "rewards", "discounts", "steps", "usable")
"""The arrays that a checkpoint has of a replay, by name."""


@dataclass(frozen=True)
class Batch:
    """B transitions. They have no end-of-episode flag: flows do not end, fragments are truncated and bootstrap."""

    states: FloatArray  # (B, S)
    hidden: FloatArray  # (B, H), see ``hidden.py``; H = 0 where no critic asks
    actions: FloatArray  # (B, 1)
    taught: FloatArray  # (B, K + 1), what hindsight would have done, see ``hindsight.py``
    rewards: FloatArray  # (B, 1), discounted sums up to the next state
    discounts: FloatArray  # (B, 1), of the next state's value
    next_states: FloatArray  # (B, S)
    next_hidden: FloatArray  # (B, H)


@dataclass(frozen=True)
class Fragment:
    """One flow's decided records in order: n transitions from n + 1 of them, after history - 1 older frames.

    A transition spans ``steps`` decisions: its reward is the discounted sum of theirs, its next state lies so many
    frames later.
    """

    frames: FloatArray  # (history - 1 + n + 1, F), oldest first
    hidden: FloatArray  # (n + 1, H), oldest first
    actions: FloatArray  # (n,)
    taught: FloatArray  # (n, K + 1)
    rewards: FloatArray  # (n,)
    discounts: FloatArray  # (n,)
    steps: NDArray[np.int64]  # (n,)


class Replay:
    """A ring of ``capacity`` frames; a full one overwrites its oldest fragments."""

    def __init__(
        self, capacity: int, history: int, frame_size: int, hidden_size: int = 0, taught_size: int = 1
    ) -> None:
        self.history = history
        self.frames = np.zeros((capacity, frame_size), np.float32)
        self.hidden = np.zeros((capacity, hidden_size), np.float32)
        self.actions = np.zeros(capacity, np.float32)
        self.taught = np.zeros((capacity, taught_size), np.float32)
        self.rewards = np.zeros(capacity, np.float32)
        self.discounts = np.zeros(capacity, np.float32)
        self.steps = np.zeros(capacity, np.int64)
        self.usable = np.zeros(capacity, np.bool_)
        """(capacity,), True for rows that name a transition whose frames are all still here."""
        self.position = 0
        self._rows = np.empty(0, np.int64)  # of the usable transitions

    def __len__(self) -> int:
        """Returns the number of transitions to draw from."""
        return len(self._rows)

    def add(self, fragment: Fragment) -> None:
        """Stores one flow's transitions; raises ValueError for parts that do not fit together, or for too many."""
        size, count, capacity = len(fragment.frames), len(fragment.actions), len(self.frames)
        if size != self.history + count:
            raise ValueError(f"{count} transitions need {self.history + count} frames, not {size}")
        if size > capacity:
            raise ValueError(
                f"a fragment of {size} frames does not fit into a replay of {capacity}; enlarge ddpg.replay"
            )
        if count == 0:
            return
        if self.position + size > capacity:  # a fragment stays in one piece
            self.usable[self.position :] = False
            self.position = 0
        start, end = self.position, self.position + size
        self.usable[start : end + self.history] = False  # what follows loses the older part of its history
        first = start + self.history - 1
        self.frames[start:end] = fragment.frames
        self.hidden[first : first + count + 1] = fragment.hidden
        self.actions[first : first + count] = fragment.actions
        self.taught[first : first + count] = fragment.taught
        self.rewards[first : first + count] = fragment.rewards
        self.discounts[first : first + count] = fragment.discounts
        self.steps[first : first + count] = fragment.steps
        self.usable[first : first + count] = True
        self.position = end
        self._rows = np.empty(0, np.int64)

    def index(self) -> None:
        """Makes what was added available; call it once after a number of ``add``."""
        self._rows = np.flatnonzero(self.usable)

    def sample(self, size: int, rng: np.random.Generator) -> Batch:
        """Returns ``size`` transitions, drawn uniformly with replacement."""
        rows = self._rows[rng.integers(0, len(self._rows), size)]
        next_rows = rows + self.steps[rows]
        return Batch(
            states=self._states(rows),
            hidden=self.hidden[rows],
            actions=self.actions[rows, None],
            taught=self.taught[rows],
            rewards=self.rewards[rows, None],
            discounts=self.discounts[rows, None],
            next_states=self._states(next_rows),
            next_hidden=self.hidden[next_rows],
        )

    def _states(self, rows: NDArray[np.int64]) -> FloatArray:
        """Returns the states (B, S) whose newest frames are these, newest first."""
        states: FloatArray = self.frames[rows[:, None] - np.arange(self.history)].reshape(len(rows), -1)
        return states

    def state(self) -> dict[str, NDArray[Any]]:
        """Returns everything that it holds, for a checkpoint."""
        return {name: getattr(self, name) for name in _KEPT} | {"position": np.array([self.position], np.int64)}

    def load(self, state: dict[str, NDArray[Any]]) -> None:
        """Takes what ``state`` returned; raises ValueError where a replay of another size did."""
        if state["frames"].shape != self.frames.shape:
            raise ValueError(f"replay holds {self.frames.shape} frames, the checkpoint {state['frames'].shape}")
        if state["taught"].shape != self.taught.shape:  # NumPy would spread one number over a row
            raise ValueError(f"replay holds {self.taught.shape} of hindsight's, the checkpoint {state['taught'].shape}")
        for name in _KEPT:
            getattr(self, name)[:] = state[name]
        self.position = int(state["position"][0])
        self.index()
