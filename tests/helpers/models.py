"""Small models: networks of a few nodes, and folders that hold one."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from reinet.agents.model.artifact import INPUT_NAME, MANIFEST_FILE, OUTPUT_NAME, PINNED_FILES, Manifest, write_artifact
from reinet.core import FEATURE_SETS, Normaliser, schema_hash

FEATURES = "deepcc-5x20"
SIZE = FEATURE_SETS[FEATURES].state_size


def onnx_bytes(nodes: Sequence[Any], weights: Mapping[str, npt.ArrayLike]) -> bytes:
    """A network from states to one action, whether or not it makes sense."""
    graph = helper.make_graph(
        list(nodes),
        "actor",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.FLOAT, ["batch", SIZE])],
        [helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(np.asarray(weight, np.float32), name) for name, weight in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def actor(bias: float = 0.0) -> bytes:
    """A network whose action is always tanh(bias)."""
    found = onnx_bytes(
        [helper.make_node("Gemm", [INPUT_NAME, "w", "b"], ["sum"]), helper.make_node("Tanh", ["sum"], [OUTPUT_NAME])],
        {"w": np.zeros((SIZE, 1)), "b": [bias]},
    )
    onnx.checker.check_model(found)
    return found


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes what a model folder's manifest says, for better or worse."""
    data = json.loads((folder / MANIFEST_FILE).read_text())
    change(data)
    (folder / MANIFEST_FILE).write_text(json.dumps(data))


def write_model(folder: Path, actions_bias: float = 0.0, onnx_data: bytes | None = None, **schema: str) -> Path:
    """A model below a folder, head bdp, whose action is always tanh(actions_bias) or what a graph of yours says."""
    manifest = Manifest.model_validate(
        {
            "format": 1,
            "name": "test",
            "schema": {"feature_set": FEATURES, "head": "bdp", "hash": schema_hash(FEATURES, "bdp")} | schema,
            "period": {"min_ms": 10, "packet_timed": True},
            "normaliser": Normaliser.reference().to_dict(),
            "target_range_ms": [25, 100],
            "congestion_controls": ["cubic"],
            "training": {"seed": 0, "env_steps": 0, "updates": 0, "config": {}, "traces": []},
            "versions": {},
            "metrics": {},
            "files": dict.fromkeys(PINNED_FILES, ""),
        }
    )
    content = dict.fromkeys(PINNED_FILES, b"") | {"policy.onnx": onnx_data or actor(actions_bias)}
    write_artifact(folder / "model", content, manifest)
    return folder / "model"
