"""A GRU (Cho et al. 2014) before an actor's layers, in NumPy and as the start of an ONNX graph. Needs no torch.

It reads a state's records one by one, the oldest first, and what it holds after the newest goes to the layers beside
that record itself. Nothing outlives a decision: a state (history x F numbers, the newest record first) says it all, as
it does for layers alone, so whoever serves a model keeps no memory for it.

With s the logistic function, memory h (0 before the oldest record) and a record x, as torch.nn.GRU has it:

    r = s(Wr x + br + Ur h + cr)    z = s(Wz x + bz + Uz h + cz)
    n = tanh(Wn x + bn + r (Un h + cn))    h' = (1 - z) n + z h
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
NODES = 6
"""So many nodes of a graph are its GRU's."""
SEEN = "seen"
"""The tensor (batch, F + H) that they make: the newest record, then the memory."""


@dataclass(frozen=True)
class Gru:
    """The weights of H units over records of F numbers; gates lie in torch's order, r, z, n."""

    records: FloatArray  # W, (3H, F)
    memory: FloatArray  # U, (3H, H)
    records_bias: FloatArray  # b, (3H,)
    memory_bias: FloatArray  # c, (3H,)

    @property
    def units(self) -> int:
        """Returns H."""
        return int(self.memory.shape[1])

    def seen(self, states: FloatArray) -> FloatArray:
        """Returns what the layers are given (N, F + H) for states (N, history x F)."""
        size, units = self.records.shape[1], self.units
        frames = states.reshape(len(states), -1, size)
        inputs = frames @ self.records.T + self.records_bias
        memory = np.zeros((len(states), units), np.float32)
        for age in range(frames.shape[1] - 1, -1, -1):
            gates, own = inputs[:, age], memory @ self.memory.T + self.memory_bias
            reset, update = np.split(_logistic(gates[:, : 2 * units] + own[:, : 2 * units]), 2, axis=1)
            new = np.tanh(gates[:, 2 * units :] + reset * own[:, 2 * units :])
            memory = (1 - update) * new + update * memory
        return np.concatenate([frames[:, 0], memory], axis=1)

    def tensors(self) -> dict[str, FloatArray]:
        """Returns the weights by their names in a graph, in ONNX's order of gates: z, r, n."""

        def ordered(values: FloatArray) -> FloatArray:
            reset, update, new = np.split(values, 3)
            return np.concatenate([update, reset, new])

        bias = np.concatenate([ordered(self.records_bias), ordered(self.memory_bias)])
        return {
            "gru_records": ordered(self.records)[None],
            "gru_memory": ordered(self.memory)[None],
            "gru_bias": bias[None],
        }


def _logistic(x: FloatArray) -> FloatArray:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)), np.float32)  # no exponential that could overflow


def multiplications(history: int, frame: int, units: int) -> int:
    """Returns how many a state costs."""
    return history * 3 * units * (frame + units)


def seen_size(history: int, frame: int, units: int) -> int:
    """Returns how many numbers the layers are given: without units, all of the state."""
    return frame + units if units else history * frame


def parameters_of(history: int, frame: int, units: int, hidden: Sequence[int]) -> int:
    """Returns how many parameters an actor counts as where they are limited: those of its layers, and of a GRU those
    that its graph has and what it costs.
    """
    sizes = [seen_size(history, frame, units), *hidden, 1]
    layers = sum((before + 1) * after for before, after in pairwise(sizes))
    if not units:
        return layers
    own = sum(math.prod(shape) for shape in shapes(frame, units).values())
    cut = sum(len(value) for value in constants(history, frame).values())
    return layers + own + cut + multiplications(history, frame, units)


def shapes(frame: int, units: int) -> dict[str, tuple[int, ...]]:
    """Returns what shape the graph's weights have (``Gru.tensors``)."""
    return {
        "gru_records": (1, 3 * units, frame),
        "gru_memory": (1, 3 * units, units),
        "gru_bias": (1, 6 * units),
    }


def constants(history: int, frame: int) -> dict[str, NDArray[np.int64]]:
    """Returns the tensors by which the graph cuts a state into records, by name."""
    return {
        "records_shape": np.array([0, history, frame], np.int64),  # 0 = as many states as there are
        "axis_of_directions": np.array([0], np.int64),
        "newest_start": np.array([0], np.int64),
        "newest_end": np.array([frame], np.int64),
        "axis_of_numbers": np.array([1], np.int64),
    }


def nodes(states: str, units: int) -> list[Any]:
    """Returns the graph's first nodes, from ``states`` to ``SEEN``.

    A state has its newest record first, so the GRU runs in reverse.
    """
    from onnx import helper  # here, for its import takes a while

    return [
        helper.make_node("Reshape", [states, "records_shape"], ["records_of_states"]),
        helper.make_node("Transpose", ["records_of_states"], ["records"], perm=[1, 0, 2]),
        helper.make_node(
            "GRU", ["records", "gru_records", "gru_memory", "gru_bias"], ["", "memory_of_directions"],
            hidden_size=units, direction="reverse", linear_before_reset=1,
        ),
        helper.make_node("Squeeze", ["memory_of_directions", "axis_of_directions"], ["memory"]),
        helper.make_node("Slice", [states, "newest_start", "newest_end", "axis_of_numbers"], ["newest"]),
        helper.make_node("Concat", ["newest", "memory"], [SEEN], axis=1),
    ]  # fmt: skip


def units_of(graph: Any, states: str, history: int, frame: int) -> int:
    """Returns how many units a graph's GRU has, 0 where it has none; raises ValueError where it is any but what
    ``nodes`` makes, over states of this shape.
    """
    from onnx import numpy_helper

    if not any(node.op_type == "GRU" for node in graph.node):
        return 0
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    sizes = {name: tuple(tensor.dims) for name, tensor in tensors.items()}
    units = int((sizes.get("gru_memory") or (0,))[-1])
    if (
        list(graph.node[:NODES]) != nodes(states, units)
        or any(sizes.get(name) != shape for name, shape in shapes(frame, units).items())
        or any(
            tensors.get(name) != numpy_helper.from_array(value, name)  # nothing hostile is decoded
            for name, value in constants(history, frame).items()
        )
    ):
        raise ValueError(f"its GRU does not read {history} records of {frame} numbers as `reinet export` writes it")
    return units
