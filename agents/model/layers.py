"""The layers of a checked model, out of the bytes that were checked: for whoever runs them without onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np

from reinet.agents.model.artifact import INPUT_NAME, OUTPUT_NAME, Artifact
from reinet.agents.model.mlp import Layer
from reinet.core.errors import ModelError


def layers_of(artifact: Artifact) -> list[Layer]:
    """Returns the network's layers as ``mlp.Folded`` has them: what its graph says, not its other files.

    Raises ModelError for a graph that is no plain chain of layers with ReLU between them and tanh at the end.
    """
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model_from_string(artifact.onnx_bytes).graph
    if any(node.op_type == "GRU" for node in graph.node):
        raise ModelError(
            f"{artifact.folder}: its network has a GRU, which runs in onnxruntime alone: the daemon decides by it, a "
            "process of others cannot; train a model without ddpg.gru"
        )
    tensors = {tensor.name: np.asarray(numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    layers: list[Layer] = []
    x = INPUT_NAME
    nodes = list(graph.node)
    for place, (product, bend) in enumerate(zip(nodes[::2], nodes[1::2], strict=False)):
        last = 2 * place + 2 == len(nodes)
        chained = product.op_type == "Gemm" and product.input[0] == x and list(bend.input) == list(product.output)
        if not chained or len(product.input) != 3 or bend.op_type != ("Tanh" if last else "Relu"):
            raise _other(artifact.folder)
        layers.append(_layer(product, tensors, artifact.folder))
        x = bend.output[0]
    widths = [layers[0][0].shape[1] if layers else 0, *(len(bias) for _, bias in layers)]
    fits = all(weight.shape == (out, into) for (weight, _), into, out in zip(layers, widths, widths[1:], strict=False))
    if len(nodes) % 2 or x != OUTPUT_NAME or not fits or widths[-1] != 1:
        raise _other(artifact.folder)
    return layers


def _layer(node: Any, tensors: dict[str, Any], folder: Path) -> Layer:
    options = {attribute.name: attribute.f if attribute.name in ("alpha", "beta") else attribute.i
               for attribute in node.attribute}  # fmt: skip
    transposed = options.pop("transB", 0)
    if options.pop("alpha", 1.0) != 1 or options.pop("beta", 1.0) != 1 or any(options.values()):
        raise _other(folder)
    weight, bias = (tensors[name] for name in node.input[1:])
    if weight.ndim != 2 or bias.ndim != 1 or weight.dtype != np.float32 or bias.dtype != np.float32:
        raise _other(folder)
    return (weight if transposed else weight.T), bias


def _other(folder: Path) -> ModelError:
    return ModelError(
        f"{folder}: its graph is no plain chain of layers with ReLU between and tanh at the end, which is all that "
        "runs without onnxruntime; export the model again with this version"
    )
