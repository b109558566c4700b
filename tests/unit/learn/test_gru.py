"""A GRU before an actor's layers: torch's, NumPy's and the graph's are one, and no other graph passes for it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from helpers.models import FEATURES, SIZE, write_model
from reinet.agents.decide.policy import Policy
from reinet.agents.learn.config import DdpgSection, HindsightSection
from reinet.agents.learn.ddpg import Actor, Ddpg
from reinet.agents.learn.export import onnx_bytes
from reinet.agents.learn.replay import Batch
from reinet.agents.model import gru
from reinet.agents.model.artifact import MAX_PARAMETERS, check_onnx
from reinet.agents.model.mlp import act
from reinet.core import FEATURE_SETS
from reinet.core.errors import ModelError

HISTORY = FEATURE_SETS[FEATURES].history
FRAME = SIZE // HISTORY
UNITS = 6

pytestmark = pytest.mark.usefixtures("one_thread")


def learner(seed: int = 1, **section: Any) -> Ddpg:
    settings = DdpgSection(hidden=[16], batch_norm=False, gru=UNITS)
    return Ddpg(settings, SIZE, seed, HindsightSection(iterations=100, quantile=0.5, **section), HISTORY)


def graph() -> Any:
    return onnx.load_model_from_string(onnx_bytes(learner().actor.folded(), HISTORY))


def test_torch_numpy_and_the_graph_are_one_network(tmp_path: Path) -> None:
    made = learner()
    with torch.no_grad():
        made.actor.out.weight.mul_(300)  # it begins near 0
    states = np.random.default_rng(0).normal(size=(50, SIZE)).astype(np.float32)
    with torch.no_grad():
        expected = made.actor(torch.from_numpy(states)).numpy()[:, 0]
    assert expected.std() > 0.05
    folded = made.actor.folded()
    np.testing.assert_allclose(act(folded, states), expected, atol=2e-6)
    policy = Policy.load(write_model(tmp_path, onnx_data=onnx_bytes(folded, HISTORY)))
    for count in (1, 50):
        np.testing.assert_allclose(policy.outputs(states[:count]), expected[:count], atol=2e-6)
    assert len(policy.outputs(states[:0])) == 0


def test_extreme_inputs_overflow_nothing() -> None:
    states = np.full((2, SIZE), 1e30, np.float32) * np.array([[1], [-1]], np.float32)
    with np.errstate(over="raise", invalid="raise"):
        assert np.isfinite(act(learner().actor.folded(), states / 1e10)).all()


def test_it_learns_what_only_the_order_of_the_records_tells() -> None:
    """The right action is the sign of the newest record's first number less that of the third newest."""
    made, rng = learner(), np.random.default_rng(0)
    made.set_progress(0, 100)

    def drawn(count: int) -> Batch:
        states = rng.normal(size=(count, SIZE)).astype(np.float32)
        taught = np.stack([right(states), np.ones(count, np.float32)], axis=1)
        none = np.zeros((count, 1), np.float32)
        return Batch(states, none[:, :0], none, taught, none, none, states, none[:, :0])

    def right(states: np.ndarray) -> np.ndarray:
        return np.asarray(0.5 * np.sign(states[:, 0] - states[:, 2 * FRAME]), np.float32)

    for _ in range(700):
        made.update(drawn(256))
    states = drawn(500).states
    error = np.abs(act(made.actor.folded(), states) - right(states)).mean()
    assert error < 0.25  # the newest record alone gives 0.5 in a quarter of the cases, and no better than 0.25


def test_a_checkpoint_holds_it() -> None:
    made, other = learner(1), learner(2)
    states = np.random.default_rng(0).normal(size=(9, SIZE)).astype(np.float32)
    other.load(made.state())
    np.testing.assert_array_equal(act(other.actor.folded(), states), act(made.actor.folded(), states))


def test_a_model_with_one_decides_in_onnxruntime_alone(tmp_path: Path) -> None:
    policy = Policy.load(write_model(tmp_path, onnx_data=onnx_bytes(learner().actor.folded(), HISTORY)))
    assert policy.network() is None  # so that the daemon asks the session
    with pytest.raises(
        ModelError, match=r"has a GRU, which runs in onnxruntime alone.*train a model without ddpg\.gru"
    ):
        policy.law_of_the_gate()


def attribute(model: Any, name: str, value: Any) -> None:
    node = model.graph.node[2]
    kept = [one for one in node.attribute if one.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def tensor(model: Any, name: str, value: np.ndarray) -> None:
    for index, one in enumerate(model.graph.initializer):
        if one.name == name:
            model.graph.initializer[index].CopyFrom(numpy_helper.from_array(value, name))


def of_type(model: Any, name: str, data_type: int) -> None:
    for one in model.graph.initializer:
        if one.name == name:
            one.data_type = data_type


def without(model: Any, name: str) -> None:
    kept = [one for one in model.graph.initializer if one.name != name]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def nodes(model: Any, made: list[Any]) -> None:
    del model.graph.node[:]
    model.graph.node.extend(made)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: attribute(m, "direction", "forward"),
        lambda m: attribute(m, "linear_before_reset", 0),
        lambda m: attribute(m, "clip", 0.5),
        lambda m: attribute(m, "activations", ["Relu", "Relu"]),
        lambda m: tensor(m, "records_shape", np.array([-1, 1, FRAME], np.int64)),
        lambda m: tensor(m, "newest_end", np.array([SIZE], np.int64)),
        lambda m: of_type(m, "records_shape", 0),
        lambda m: of_type(m, "records_shape", 99),
        lambda m: tensor(m, "gru_records", np.zeros((1, 3 * UNITS, FRAME + 1), np.float32)),
        lambda m: tensor(m, "gru_memory", np.zeros((3 * UNITS, 0), np.float32)),
        lambda m: tensor(m, "gru_memory", np.array(1, np.float32)),
        lambda m: without(m, "gru_bias"),
        lambda m: without(m, "records_shape"),
        lambda m: without(m, "gru_memory"),
        lambda m: nodes(m, [*m.graph.node[6:], *m.graph.node[:6]]),
        lambda m: nodes(m, [m.graph.node[2]]),
    ],
)
def test_any_other_gru_is_refused(change: Any) -> None:
    model = graph()
    check_onnx(model.SerializeToString(), SIZE, Path("policy.onnx"), HISTORY)
    change(model)
    with pytest.raises(ModelError, match=r"policy\.onnx: its GRU does not read 20 records of 5 numbers"):
        check_onnx(model.SerializeToString(), SIZE, Path("policy.onnx"), HISTORY)


def test_a_second_gru_and_its_operators_elsewhere_are_refused() -> None:
    for more in (graph().graph.node[2], helper.make_node("Concat", ["newest", "memory"], ["twice"], axis=1)):
        model = graph()
        model.graph.node.extend([more])
        with pytest.raises(ModelError, match=r"uses operator (GRU|Concat); an actor needs only Gemm, Relu, Tanh"):
            check_onnx(model.SerializeToString(), SIZE, Path("policy.onnx"), HISTORY)


def test_a_configuration_counts_what_the_graph_holds() -> None:
    """Else a network that may be trained could not be loaded."""
    held = sum(int(np.prod(tensor.dims)) for tensor in graph().graph.initializer)
    counted = gru.parameters_of(HISTORY, FRAME, UNITS, [16])
    assert counted == held + gru.multiplications(HISTORY, FRAME, UNITS)
    assert gru.parameters_of(HISTORY, FRAME, 0, [16]) == (HISTORY * FRAME + 1) * 16 + 17


def test_a_gru_costs_its_weights_once_for_each_record() -> None:
    units = 300
    assert 3 * units * (FRAME + units) < MAX_PARAMETERS < gru.multiplications(HISTORY, FRAME, units)
    made = Actor(SIZE, [4], batch_norm=False, gru=units, history=HISTORY)
    with pytest.raises(ModelError, match=f"parameters; an actor has at most {MAX_PARAMETERS}"):
        check_onnx(onnx_bytes(made.folded(), HISTORY), SIZE, Path("policy.onnx"), HISTORY)
