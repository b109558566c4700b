"""What a model may cost is bounded before it is used, and by the bytes that are then used."""

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from helpers.models import SIZE, actor, onnx_bytes, write_model
from reinet.agents.decide import policy
from reinet.agents.decide.policy import Policy
from reinet.agents.model.artifact import (
    INPUT_NAME,
    MAX_NODES,
    MAX_PARAMETERS,
    OUTPUT_NAME,
    check_onnx,
    load_artifact,
)
from reinet.core.errors import ModelError

WHERE = Path("policy.onnx")


def zeros(shapes: dict[str, Sequence[int]]) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape) for name, shape in shapes.items()}


def gemm(given: str, weight: str, out: str, **attributes: int) -> Any:
    return helper.make_node("Gemm", [given, weight], [out], **attributes)


def test_a_small_actor_passes() -> None:
    check_onnx(actor(), SIZE, WHERE)


@pytest.mark.parametrize(
    ("nodes", "shapes", "message"),
    [
        (
            [helper.make_node("Relu", [INPUT_NAME], [OUTPUT_NAME])] * (MAX_NODES + 1),
            {},
            f"has {MAX_NODES + 1} nodes; an actor has at most {MAX_NODES}",
        ),
        (
            [gemm(INPUT_NAME, "w", "wide"), gemm("wide", "v", OUTPUT_NAME)],
            {"w": (SIZE, MAX_PARAMETERS // SIZE), "v": (MAX_PARAMETERS // SIZE, 1)},
            f"parameters; an actor has at most {MAX_PARAMETERS}",
        ),
        (
            [gemm(INPUT_NAME, INPUT_NAME, "square", transB=1), gemm("square", "w", OUTPUT_NAME)],
            {"w": (SIZE, 1)},
            "layer 'square' does not multiply states by its own weights",
        ),
        (
            [gemm(INPUT_NAME, "w", "across", transA=1), gemm("across", "v", OUTPUT_NAME)],
            {"w": (SIZE, 4), "v": (4, 1)},
            "layer 'across' mixes the states of different flows",
        ),
        (
            [gemm(INPUT_NAME, "w", "a"), gemm("a", "w", "b"), gemm("b", "v", OUTPUT_NAME)],
            {"w": (SIZE, SIZE), "v": (SIZE, 1)},
            "layer 'b' uses another layer's weights",
        ),
        ([helper.make_node("Gemm", [], ["sum"])], {}, "layer '' reads or makes nothing"),
        ([helper.make_node("Gemm", [INPUT_NAME, "w"], [])], {}, "layer '' reads or makes nothing"),
    ],
)
def test_a_costly_network_is_refused_before_it_is_loaded(
    nodes: Sequence[Any], shapes: dict[str, Sequence[int]], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        check_onnx(onnx_bytes(nodes, zeros(shapes)), SIZE, WHERE)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def test_a_batch_that_takes_too_long_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Policy.load(model)
    monkeypatch.setattr(policy, "MAX_COST_MS", 0.0)
    with pytest.raises(ModelError, match=r"a batch of 256 states takes .* at most 0 ms are allowed"):
        Policy.load(model)


def test_the_bytes_that_were_checked_are_the_bytes_that_are_used(model: Path) -> None:
    artifact = load_artifact(model)
    for file in model.iterdir():
        file.write_bytes(b"swapped after the check")
    agent = Policy(artifact)
    assert agent.outputs(np.zeros((2, SIZE), np.float32)).tolist() == [0.0, 0.0]


def test_a_model_can_be_handed_to_another_process(model: Path) -> None:
    """onnxruntime's session cannot, so that a pool of processes took every agent but the learned one."""
    here = Policy.load(model)
    here.ceiling_pkts = 100
    (model / WHERE).write_bytes(b"another model, which nobody has checked")
    there = pickle.loads(pickle.dumps(here))
    states = np.random.default_rng(1).normal(size=(5, SIZE)).astype(np.float32)
    assert np.array_equal(there.outputs(states), here.outputs(states))
    assert (there.name, there.identity, there.ceiling_pkts) == (here.name, here.identity, 100)


@pytest.mark.parametrize("name", [b"\x1b]0;x", b"\xff\xfe\xfd\xfc\xfb"], ids=["for the terminal", "no text"])
def test_of_a_file_that_onnxruntime_refuses_it_writes_nothing_by_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: bytes
) -> None:
    """It wrote names of the file to the terminal, which obeyed them, and to standard output that it tries again."""
    layers = [helper.make_node("Gemm", [INPUT_NAME, "w", "names"], ["sum"]), gemm("sum", "v", OUTPUT_NAME)]
    network = onnx.load_model_from_string(onnx_bytes(layers, {"names": [0.0], "w": [[0.0]] * SIZE, "v": [[0.0]]}))
    network.graph.initializer[0].raw_data = b"cut"
    folder = write_model(tmp_path, onnx_data=network.SerializeToString().replace(b"names", name))
    with pytest.raises(ModelError, match="onnxruntime refuses the model"):
        Policy.load(folder)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["manifest.json", "policy.onnx"])
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """Whoever loaded such a model waited for somebody to write, and said nothing."""
    model = write_model(tmp_path)
    (model / name).unlink()
    os.mkfifo(model / name)
    code = "import sys; from reinet.agents.model.artifact import load_artifact; load_artifact(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, text=True, timeout=60, check=False
    )
    assert f"{name}: is no regular file" in done.stderr
