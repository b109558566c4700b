"""DDPG: its networks, what must not be averaged, and that it learns where the answer is known."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from reinet.agents.learn.config import DdpgSection
from reinet.agents.learn.ddpg import Ddpg
from reinet.agents.learn.export import onnx_bytes
from reinet.agents.learn.replay import Batch
from reinet.agents.model.mlp import act

SIZE = 12


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """As in training; on a loaded machine two threads that wait for each other take twenty times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batch(rng: np.random.Generator, size: int = 64) -> Batch:
    """A bandit of sorts: the best action is 0.5 where the first input is positive, else -0.5."""
    states = rng.normal(size=(size, SIZE)).astype(np.float32)
    actions = rng.uniform(-1, 1, (size, 1)).astype(np.float32)
    best = np.where(states[:, :1] > 0, 0.5, -0.5)
    rewards = (-((actions - best) ** 2)).astype(np.float32)
    return Batch(states, actions, rewards, rng.normal(size=(size, SIZE)).astype(np.float32))


def trained(updates: int, **changes: object) -> Ddpg:
    settings = DdpgSection(**{"hidden": [32, 32], "batch": 64, **changes})  # type: ignore[arg-type]
    learner, rng = Ddpg(settings, SIZE, seed=1), np.random.default_rng(2)
    for _ in range(updates):
        learner.update(batch(rng))
    return learner


@pytest.mark.parametrize("batch_norm", [True, False])
def test_it_finds_the_best_action(batch_norm: bool) -> None:
    learner = trained(1500, batch_norm=batch_norm, actor_lr=3e-4, critic_lr=5e-3, critic_l2=0.0, gamma=0.5, tau=0.01)
    states = batch(np.random.default_rng(3), 500).states
    best = np.where(states[:, 0] > 0, 0.5, -0.5)
    assert np.mean((act(learner.actor.folded(), states) - best) ** 2) < 0.12  # the best constant has 0.25


def test_values_bootstrap_through_every_transition() -> None:
    """With a constant reward of 1 the value is 1 / (1 - gamma): a hidden end of episode would lower it."""
    learner = Ddpg(DdpgSection(hidden=[16], gamma=0.8, tau=0.05, critic_l2=0.0, critic_lr=1e-2), SIZE, seed=1)
    rng = np.random.default_rng(0)
    for _ in range(800):
        drawn = batch(rng)
        losses = learner.update(Batch(drawn.states, drawn.actions, np.ones_like(drawn.rewards), drawn.next_states))
    assert float(losses["losses/q_mean"]) == pytest.approx(5.0, rel=0.02)


@pytest.mark.parametrize("batch_norm", [True, False])
def test_folded_layers_and_onnx_equal_the_network(batch_norm: bool) -> None:
    import onnxruntime

    learner = trained(50, batch_norm=batch_norm, actor_lr=1e-2)
    states = np.random.default_rng(4).normal(size=(100, SIZE)).astype(np.float32)
    with torch.no_grad():
        expected = learner.actor.eval()(torch.from_numpy(states)).numpy()[:, 0]
    assert expected.std() > 0.01
    folded = learner.actor.folded()
    np.testing.assert_allclose(act(folded, states), expected, atol=2e-6)
    session = onnxruntime.InferenceSession(onnx_bytes(folded), providers=["CPUExecutionProvider"])
    for count in (1, 100):
        (actions,) = session.run(["actions"], {"states": states[:count]})
        np.testing.assert_allclose(actions[:, 0], expected[:count], atol=2e-6)


def test_targets_copy_batch_norms_statistics_and_lag_in_their_weights() -> None:
    learner = trained(20, tau=0.001)
    for copied, running in zip(learner.actor_target.buffers(), learner.actor.buffers(), strict=True):
        assert torch.equal(copied, running)
    online, target = learner.actor.hidden[0].weight, learner.actor_target.hidden[0].weight
    assert not torch.equal(online, target)
    assert not learner.actor_target.training
    assert not learner.actor.training


def test_l2_acts_on_weights_and_not_on_biases() -> None:
    groups = trained(0, critic_l2=0.25).critic_optimiser.param_groups
    assert [group["weight_decay"] for group in groups] == [0.25, 0]
    assert {p.ndim for p in groups[0]["params"]} == {2}
    assert {p.ndim for p in groups[1]["params"]} == {1}


def test_an_untrained_actor_is_the_hand_rule() -> None:
    states = np.random.default_rng(4).normal(size=(100, SIZE)).astype(np.float32)
    assert np.abs(act(trained(0).actor.folded(), states)).max() < 0.1


def test_state_restores_every_tensor() -> None:
    learner, twin = trained(20), trained(0)
    twin.load(learner.state())
    drawn = batch(np.random.default_rng(9))
    for either in (learner, twin):
        for _ in range(3):
            either.update(drawn)
    ours, theirs = learner.state(), twin.state()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert sum("optimiser" in name for name in ours) == 3 * (6 + 4 + 6)
