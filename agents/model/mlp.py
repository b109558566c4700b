"""A trained actor as plain layers, in NumPy: what rollouts run and what is exported. Needs no torch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
Layer = tuple[FloatArray, FloatArray]
"""The weight (out, in) and bias (out,) of one fully connected layer."""
Layers = Sequence[Layer]


def act(layers: Layers, states: FloatArray) -> FloatArray:
    """Returns actions (N,) in [-1, 1] for states (N, S): ReLU stands between the layers, tanh after the last."""
    x = states
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight.T + bias, np.float32(0))
    weight, bias = layers[-1]
    return np.asarray(np.tanh(x @ weight.T + bias)[:, 0], np.float32)
