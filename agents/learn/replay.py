"""Experience is kept as a ring of frames from which states are cut, so that nothing is stored twenty times.

A state is the last ``history`` frames, newest first, and two successive states of a flow share all but one of them.
The ring holds frames; a transition is named by the row of its newest frame: its state ends there, the next state one
row later. Only records with an RTT sample become frames, so a transition that spans an outage closes at the first
record after it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """B transitions. They have no end-of-episode flag: flows do not end, fragments are truncated and bootstrap."""

    states: FloatArray  # (B, S)
    actions: FloatArray  # (B, 1)
    rewards: FloatArray  # (B, 1)
    next_states: FloatArray  # (B, S)


@dataclass(frozen=True)
class Fragment:
    """One flow's decided records in order: n transitions from n + 1 of them, after history - 1 older frames."""

    frames: FloatArray  # (history - 1 + n + 1, F), oldest first
    actions: FloatArray  # (n,)
    rewards: FloatArray  # (n,)


class Replay:
    """A ring of ``capacity`` frames; a full one overwrites its oldest fragments."""

    def __init__(self, capacity: int, history: int, frame_size: int) -> None:
        self.history = history
        self.frames = np.zeros((capacity, frame_size), np.float32)
        self.actions = np.zeros(capacity, np.float32)
        self.rewards = np.zeros(capacity, np.float32)
        self.usable = np.zeros(capacity, np.bool_)
        """(capacity,), True for rows that name a transition whose frames are all still here."""
        self.position = 0
        self._rows = np.empty(0, np.int64)  # of the usable transitions

    def __len__(self) -> int:
        """Returns the number of transitions to draw from."""
        return len(self._rows)

    def add(self, fragment: Fragment) -> None:
        """Stores one flow's transitions."""
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
        self.actions[first : first + count] = fragment.actions
        self.rewards[first : first + count] = fragment.rewards
        self.usable[first : first + count] = True
        self.position = end
        self._rows = np.empty(0, np.int64)

    def index(self) -> None:
        """Makes what was added available; call it once after a number of ``add``."""
        self._rows = np.flatnonzero(self.usable)

    def sample(self, size: int, rng: np.random.Generator) -> Batch:
        """Returns ``size`` transitions, drawn uniformly with replacement."""
        rows = self._rows[rng.integers(0, len(self._rows), size)]
        window = self.frames[
            rows[:, None] + 1 - np.arange(self.history + 1)
        ]  # newest first, from the next state's newest
        return Batch(
            np.ascontiguousarray(window[:, 1:]).reshape(size, -1),
            self.actions[rows, None],
            self.rewards[rows, None],
            np.ascontiguousarray(window[:, :-1]).reshape(size, -1),
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """Returns everything that it holds, for a checkpoint."""
        return {
            "frames": self.frames,
            "actions": self.actions,
            "rewards": self.rewards,
            "usable": self.usable,
            "position": np.array([self.position], np.int64),
        }

    def load(self, state: dict[str, NDArray[Any]]) -> None:
        """Takes the frames and transitions of a checkpoint, as ``state`` returned them."""
        if state["frames"].shape != self.frames.shape:
            raise ValueError(f"replay holds {self.frames.shape} frames, the checkpoint {state['frames'].shape}")
        self.frames[:] = state["frames"]
        self.actions[:] = state["actions"]
        self.rewards[:] = state["rewards"]
        self.usable[:] = state["usable"]
        self.position = int(state["position"][0])
        self.index()
