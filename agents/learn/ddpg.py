"""Deep deterministic policy gradient (Lillicrap et al. 2015) with DeepCC's networks, from top to bottom.

1. Critic: Q(s, a) moves towards r + gamma Q'(s', mu'(s')). There is no terminal state: a flow's fragment is
   truncated, and its last transition bootstraps like any other. (DeepCC's published code stores done = 1 every fifth
   step; this does not.)
2. Actor: its weights ascend Q(s, mu(s)).
3. Target networks Q', mu' follow with rate tau.

BatchNorm sits before each non-linearity of the actor. The online actor normalises by its batch while it learns, and
by its running statistics while it acts; the target actor is always in evaluation mode and *copies* the running
statistics, for an average of averages would lag twice.
"""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from reinet.agents.learn.config import DdpgSection
from reinet.agents.learn.replay import Batch
from reinet.agents.model.mlp import Layer

LAST_LAYER_INIT = 3e-3
"""The bound of the last layers' initial weights (Lillicrap et al.): actions start near 0, values near 0."""


class Actor(nn.Module):
    """mu(s): states (B, S) -> actions (B, 1) in [-1, 1]."""

    def __init__(self, state_size: int, hidden: Sequence[int], batch_norm: bool) -> None:
        super().__init__()
        sizes = [state_size, *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) if batch_norm else nn.Identity() for size in hidden)
        self.out = nn.Linear(sizes[-1], 1)
        nn.init.uniform_(self.out.weight, -LAST_LAYER_INIT, LAST_LAYER_INIT)
        nn.init.zeros_(self.out.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Returns actions (B, 1) in [-1, 1] for states (B, S)."""
        x = states
        for linear, norm in zip(self.hidden, self.norms, strict=True):
            x = torch.relu(norm(linear(x)))
        return torch.tanh(self.out(x))

    @torch.no_grad()
    def folded(self) -> list[Layer]:
        """Returns the same function in evaluation mode as plain layers: ReLU between them, tanh after the last."""
        layers: list[Layer] = []
        for linear, norm in zip(self.hidden, self.norms, strict=True):
            weight, bias = linear.get_parameter("weight").double(), linear.get_parameter("bias").double()
            if isinstance(norm, nn.BatchNorm1d):
                mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
                scale = norm.weight.double() / torch.sqrt(variance.double() + norm.eps)
                weight = weight * scale[:, None]
                bias = (bias - mean.double()) * scale + norm.bias.double()
            layers.append((weight.float().numpy().copy(), bias.float().numpy().copy()))
        layers.append((self.out.weight.numpy().copy(), self.out.bias.numpy().copy()))
        return layers


class Critic(nn.Module):
    """Q(s, a): states (B, S) and actions (B, 1) -> values (B, 1); the action joins after the first layer."""

    def __init__(self, state_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.first = nn.Linear(state_size, hidden[0])
        sizes = [hidden[0] + 1, *hidden[1:]]
        self.rest = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.out = nn.Linear(sizes[-1], 1)
        nn.init.uniform_(self.out.weight, -LAST_LAYER_INIT, LAST_LAYER_INIT)
        nn.init.zeros_(self.out.bias)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        """Returns values (B, 1) for states (B, S) and actions (B, 1)."""
        x = torch.cat([torch.relu(self.first(states)), actions], dim=1)
        for linear in self.rest:
            x = torch.relu(linear(x))
        value: Tensor = self.out(x)
        return value


class Ddpg:
    """Networks, their targets and optimisers."""

    def __init__(self, config: DdpgSection, state_size: int, seed: int) -> None:
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = Actor(state_size, config.hidden, config.batch_norm)
            self.critic = Critic(state_size, config.hidden)
        self.actor_target = copy.deepcopy(self.actor).eval().requires_grad_(False)
        self.critic_target = copy.deepcopy(self.critic).eval().requires_grad_(False)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=config.actor_lr, fused=True)
        weights = [p for p in self.critic.parameters() if p.ndim == 2]
        biases = [p for p in self.critic.parameters() if p.ndim == 1]
        groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": config.critic_l2}, {"params": biases}]
        self.critic_optimiser = torch.optim.Adam(groups, lr=config.critic_lr, fused=True)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Takes one gradient step of critic and actor; returns the losses, without gradient, by TensorBoard tag."""
        states, actions = torch.from_numpy(batch.states), torch.from_numpy(batch.actions)
        rewards, next_states = torch.from_numpy(batch.rewards), torch.from_numpy(batch.next_states)

        with torch.no_grad():
            next_values = self.critic_target(next_states, self.actor_target(next_states))
            targets = rewards + self.config.gamma * next_values
        values = self.critic(states, actions)
        critic_loss = nn.functional.mse_loss(values, targets)
        self.critic_optimiser.zero_grad(set_to_none=True)
        critic_loss.backward()  # type: ignore[no-untyped-call]
        self.critic_optimiser.step()

        self.actor.train()
        self.critic.requires_grad_(False)  # its gradients are not needed here
        proposed = self.actor(states)
        actor_loss = -self.critic(states, proposed).mean()
        self.actor_optimiser.zero_grad(set_to_none=True)
        actor_loss.backward()
        self.actor_optimiser.step()
        self.critic.requires_grad_(True)
        self.actor.eval()

        self._follow(self.actor_target, self.actor)
        self._follow(self.critic_target, self.critic)
        return {
            "losses/critic": critic_loss.detach(),
            "losses/actor": actor_loss.detach(),
            "losses/q_mean": values.detach().mean(),
            "losses/q_target_sd": targets.std(),
            "losses/action_mean": proposed.detach().mean(),
            "losses/action_sd": proposed.detach().std(),
        }

    @torch.no_grad()
    def _follow(self, target: nn.Module, online: nn.Module) -> None:
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), self.config.tau)
        for copied, running in zip(target.buffers(), online.buffers(), strict=True):
            copied.copy_(running)

    def _parts(self) -> dict[str, nn.Module]:
        return {
            "actor": self.actor,
            "critic": self.critic,
            "actor_target": self.actor_target,
            "critic_target": self.critic_target,
        }

    def state(self) -> dict[str, Tensor]:
        """Returns every tensor that the next update depends on, by name."""
        tensors = {f"{part}/{k}": v for part, module in self._parts().items() for k, v in module.state_dict().items()}
        for name, optimiser in (("actor", self.actor_optimiser), ("critic", self.critic_optimiser)):
            for index, moments in optimiser.state_dict()["state"].items():
                tensors |= {f"{name}_optimiser/{index}/{key}": value for key, value in moments.items()}
        return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes networks and optimisers back to what ``state`` returned."""
        for part, module in self._parts().items():
            prefix = f"{part}/"
            module.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        for name, optimiser in (("actor", self.actor_optimiser), ("critic", self.critic_optimiser)):
            moments: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
                if key.startswith(f"{name}_optimiser/"):
                    _, index, moment = key.split("/")
                    moments.setdefault(int(index), {})[moment] = value.clone()
            optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
