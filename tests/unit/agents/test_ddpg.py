"""DDPG: its networks, what must not be averaged, and that it learns where the answer is known."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from reinet.agents.learn import hidden
from reinet.agents.learn.config import DdpgSection
from reinet.agents.learn.ddpg import Adam, Ddpg
from reinet.agents.learn.export import onnx_bytes
from reinet.agents.learn.replay import Batch
from reinet.agents.model.mlp import act

SIZE = 12


pytestmark = pytest.mark.usefixtures("one_thread")


def batch(rng: np.random.Generator, size: int = 64, gamma: float = 0.995, hidden_size: int = 0) -> Batch:
    """A bandit of sorts: the best action is 0.5 where the first input is positive, else -0.5."""
    states = rng.normal(size=(size, SIZE)).astype(np.float32)
    actions = rng.uniform(-1, 1, (size, 1)).astype(np.float32)
    best = np.where(states[:, :1] > 0, 0.5, -0.5)
    rewards = (-((actions - best) ** 2)).astype(np.float32)
    next_states = rng.normal(size=(size, SIZE)).astype(np.float32)
    seen, next_seen = (rng.normal(size=(size, hidden_size)).astype(np.float32) for _ in range(2))
    taught = np.zeros((size, 1), np.float32)
    discounts = np.full((size, 1), gamma, np.float32)
    return Batch(states, seen, actions, taught, rewards, discounts, next_states, next_seen)


def trained(updates: int, **changes: object) -> Ddpg:
    settings = DdpgSection(**{"hidden": [32, 32], "batch": 64, **changes})  # type: ignore[arg-type]
    learner, rng = Ddpg(settings, SIZE, seed=1), np.random.default_rng(2)
    for _ in range(updates):
        drawn = batch(rng, gamma=settings.gamma, hidden_size=hidden.SIZE if settings.privileged else 0)
        learner.update(drawn, rng.standard_normal((64, 1), np.float32) if settings.smoothing else None)
    return learner


@pytest.mark.parametrize("batch_norm", [True, False])
def test_it_finds_the_best_action(batch_norm: bool) -> None:
    learner = trained(800, batch_norm=batch_norm, actor_lr=6e-4, critic_lr=5e-3, critic_l2=0.0, gamma=0.5, tau=0.01)
    states = batch(np.random.default_rng(3), 500).states
    best = np.where(states[:, 0] > 0, 0.5, -0.5)
    assert np.mean((act(learner.actor.folded(), states) - best) ** 2) < 0.12  # the best constant has 0.25


def test_values_bootstrap_through_every_transition() -> None:
    """With a constant reward of 1 the value is 1 / (1 - gamma): a hidden end of episode would lower it."""
    learner = Ddpg(DdpgSection(hidden=[16], gamma=0.8, tau=0.05, critic_l2=0.0, critic_lr=1e-2), SIZE, seed=1)
    rng = np.random.default_rng(0)
    for _ in range(800):
        drawn = batch(rng, gamma=0.8)
        losses = learner.update(dataclasses.replace(drawn, rewards=np.ones_like(drawn.rewards)))
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


def test_every_option_together_still_finds_the_best_action() -> None:
    learner = trained(
        900, actor_lr=1.2e-3, critic_lr=5e-3, critic_l2=0.0, gamma=0.5, tau=0.01,
        critics=2, smoothing=0.1, actor_delay=2, privileged=True, saturation=1e-3, averaging=0.98,
    )  # fmt: skip
    states = batch(np.random.default_rng(3), 500).states
    best = np.where(states[:, 0] > 0, 0.5, -0.5)
    assert np.mean((act(learner.best_actor().folded(), states) - best) ** 2) < 0.12


def critic_of(learner: Ddpg, value: float, number: int) -> None:
    """Makes a target critic say the same of everything."""
    out = learner.critic_target.each[number].get_submodule("out")
    with torch.no_grad():
        out.get_parameter("weight").zero_()
        out.get_parameter("bias").fill_(value)


def test_of_two_critics_the_lower_one_is_believed_and_the_discount_is_the_transitions_own() -> None:
    learner = trained(0, critics=2, critic_lr=1e-2, critic_l2=0.0, tau=1e-9)
    critic_of(learner, 7.0, 0)
    critic_of(learner, 3.0, 1)
    drawn = batch(np.random.default_rng(0))
    for _ in range(400):
        losses = learner.update(
            dataclasses.replace(drawn, rewards=np.ones_like(drawn.rewards), discounts=np.full((64, 1), 0.5, np.float32))
        )
    assert float(losses["losses/q_mean"]) == pytest.approx(1 + 0.5 * 3.0, rel=0.02)
    assert float(losses["losses/q_target_sd"]) == pytest.approx(0.0, abs=1e-5)


def test_two_critics_learn_apart() -> None:
    first, second = (trained(5, critics=2).critic.each[i].get_submodule("first") for i in (0, 1))
    assert not torch.equal(first.get_parameter("weight"), second.get_parameter("weight"))


def test_a_privileged_critic_sees_what_the_actor_does_not() -> None:
    """The reward is the hidden input alone: only a critic that sees it can tell it."""
    losses = {}
    for privileged in (False, True):
        learner = trained(0, privileged=privileged, critic_lr=5e-3, critic_l2=0.0)
        rng = np.random.default_rng(0)
        for _ in range(250):
            drawn = batch(rng, gamma=0.0, hidden_size=hidden.SIZE)
            drawn = dataclasses.replace(drawn, rewards=drawn.hidden[:, :1])
            if not privileged:
                drawn = dataclasses.replace(drawn, hidden=drawn.hidden[:, :0], next_hidden=drawn.next_hidden[:, :0])
            losses[privileged] = float(learner.update(drawn)["losses/critic"])
        assert learner.actor.folded().layers[0][0].shape[1] == SIZE
    assert losses[True] < 0.2 < 0.6 < losses[False]


def test_smoothing_moves_the_targets_and_is_off_without_noise() -> None:
    drawn, noise = batch(np.random.default_rng(0)), np.random.default_rng(1).standard_normal((64, 1), np.float32)
    twins = [trained(30, smoothing=share) for share in (0.0, 0.5)]
    for twin in twins:
        twin.load(twins[0].state())
    plain, smoothed = (twin.update(drawn, noise)["losses/q_target_sd"] for twin in twins)
    assert plain != smoothed
    assert trained(30).update(drawn, noise).keys() == twins[0].update(drawn).keys()


def test_a_delayed_actor_waits_for_its_critic() -> None:
    learner, rng = trained(0, actor_delay=3), np.random.default_rng(0)
    moved = []
    for _ in range(6):
        before = learner.actor.out.weight.detach().clone()
        losses = learner.update(batch(rng))
        moved.append(not torch.equal(before, learner.actor.out.weight))
        assert ("losses/actor" in losses) is moved[-1]
    assert moved == [False, False, True] * 2


def test_the_average_follows_the_actor_and_begins_as_a_plain_mean() -> None:
    learner, rng = trained(0, averaging=0.9, actor_lr=1e-2), np.random.default_rng(0)
    weights, expected = [], torch.zeros(1)
    for number in range(1, 31):
        learner.update(batch(rng))
        weights.append(learner.actor.out.weight.detach().clone())
        share = max(0.1, 1 / number)
        expected = (1 - share) * expected + share * weights[-1]
        if number <= 10:
            torch.testing.assert_close(expected, torch.stack(weights).mean(0))
    torch.testing.assert_close(learner.best_actor().out.weight, expected)
    assert learner.best_actor() is not learner.actor
    for copied, running in zip(learner.actor_average.buffers(), learner.actor.buffers(), strict=True):
        assert torch.equal(copied, running)
    plain = trained(0)
    assert plain.best_actor() is plain.actor


def test_learning_rates_fall_to_their_end() -> None:
    learner = trained(0, lr_end=0.1, actor_lr=1e-3, critic_lr=1e-2)
    for iteration, factor in ((0, 1.0), (100, 0.55), (200, 0.1)):
        learner.set_progress(iteration, 200)
        assert [g["lr"] for g in learner.actor_optimiser.param_groups] == pytest.approx([1e-3 * factor])
        assert [g["lr"] for g in learner.critic_optimiser.param_groups] == pytest.approx([1e-2 * factor] * 2)
    constant = trained(0, actor_lr=1e-3)
    constant.set_progress(200, 200)
    assert constant.actor_optimiser.param_groups[0]["lr"] == 1e-3


def test_saturation_keeps_the_output_before_the_tanh_small() -> None:
    outputs = []
    for weight in (0.0, 0.5):
        learner = trained(200, saturation=weight, actor_lr=1e-2, critic_lr=5e-3)
        states = torch.from_numpy(batch(np.random.default_rng(3), 200).states)
        with torch.no_grad():
            outputs.append(float(learner.actor.eval().before_tanh(states).square().mean()))
    assert outputs[1] < outputs[0] / 2


def test_its_optimiser_is_pytorchs_bit_for_bit() -> None:
    def optimised(kind: type[torch.optim.Adam]) -> tuple[list[torch.Tensor], str]:
        rng = torch.Generator().manual_seed(1)
        weights = [torch.nn.Parameter(torch.randn(shape, generator=rng)) for shape in (12, 3)]
        groups = [{"params": weights[:1], "weight_decay": 0.01}, {"params": weights[1:]}]
        first, second = (kind(groups, lr=0.01, fused=True) for _ in range(2))
        for step in range(20):
            optimiser = first if step < 10 else second
            optimiser.zero_grad(set_to_none=True)
            torch.stack([(weight**2).sum() for weight in weights]).sum().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if step == 9:
                second.load_state_dict(first.state_dict())
        return [weight.detach() for weight in weights], str(second.state_dict())

    (own, own_state), (theirs, their_state) = optimised(Adam), optimised(torch.optim.Adam)
    assert own_state == their_state
    assert all(torch.equal(one, other) for one, other in zip(own, theirs, strict=True))


def test_an_update_imports_nothing_of_what_compiles() -> None:
    """It takes two seconds of every start; ``torch.optim`` imports it to say that it is not to be compiled."""
    code = """
import sys
import torch
from reinet.agents.learn.ddpg import Adam
weight = torch.nn.Parameter(torch.ones(3))
optimiser = Adam([weight], fused=True)
optimiser.zero_grad()
weight.sum().backward()
optimiser.step()
optimiser.load_state_dict(optimiser.state_dict())
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
