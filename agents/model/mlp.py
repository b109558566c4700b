"""A trained actor as plain layers, in NumPy: what rollouts run and what is exported. Needs no torch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
Layer = tuple[FloatArray, FloatArray]
"""The weight (out, in) and bias (out,) of one fully connected layer."""
Layers = Sequence[Layer]


def hidden_units(layers: Layers, states: FloatArray) -> FloatArray:
    """Returns what enters the last layer (N, H) for states (N, S): ReLU stands between the layers."""
    x = states
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight.T + bias, np.float32(0))
    return x


def act(layers: Layers, states: FloatArray) -> FloatArray:
    """Returns actions (N,) in [-1, 1] for states (N, S): tanh stands after the last layer."""
    weight, bias = layers[-1]
    return np.asarray(np.tanh(hidden_units(layers, states) @ weight.T + bias)[:, 0], np.float32)
