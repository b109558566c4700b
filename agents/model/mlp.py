"""A trained actor in NumPy: what rollouts run and what is exported. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reinet.agents.model.gru import Gru

FloatArray = NDArray[np.float32]
Layer = tuple[FloatArray, FloatArray]
"""The weight (out, in) and bias (out,) of one fully connected layer."""
Layers = Sequence[Layer]


@dataclass(frozen=True)
class Folded:
    """An actor in evaluation mode: plain layers, behind a GRU where the training has one."""

    layers: Layers
    gru: Gru | None = None


def hidden_units(actor: Folded, states: FloatArray) -> FloatArray:
    """Returns what enters the last layer (N, H) for states (N, S): ReLU stands between the layers."""
    x = states if actor.gru is None else actor.gru.seen(states)
    for weight, bias in actor.layers[:-1]:
        x = np.maximum(x @ weight.T + bias, np.float32(0))
    return x


def act(actor: Folded, states: FloatArray) -> FloatArray:
    """Returns actions (N,) in [-1, 1] for states (N, S): tanh stands after the last layer."""
    weight, bias = actor.layers[-1]
    return np.asarray(np.tanh(hidden_units(actor, states) @ weight.T + bias)[:, 0], np.float32)
