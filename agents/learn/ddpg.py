"""Deep deterministic policy gradient (Lillicrap et al. 2015) with DeepCC's networks, from top to bottom.

1. Critic: Q(s, a) moves towards r + gamma Q'(s', mu'(s')), where r sums the rewards on the way from s to s'. There is
   no terminal state: a flow's fragment is truncated, and its last transition bootstraps like any other. (DeepCC's
   published code stores done = 1 every fifth step; this does not.)
2. Actor: its weights ascend Q(s, mu(s)).
3. Target networks Q', mu' follow with rate tau.

Options, off by default: two critics of which the lower one is believed, noise on the target's actions, an actor that
waits (TD3, Fujimoto et al. 2018); a critic that also sees what only the simulator knows (Pinto et al. 2018); falling
learning rates; an average of the actor's weights, which is what is evaluated and exported. With ``[hindsight]`` the
actor first learns from what the simulator knows (``hindsight.py``), or from the mean of several networks that do
(``Teachers``), and policy gradients start from there.

BatchNorm sits before each non-linearity of the actor. The online actor normalises by its batch while it learns, and
by its running statistics while it acts; the target actor is always in evaluation mode and *copies* the running
statistics, for an average of averages would lag twice.
"""

import copy
import inspect
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reinet.agents.learn.config import DdpgSection, HindsightSection
from reinet.agents.learn.hidden import SIZE
from reinet.agents.learn.hindsight import prices
from reinet.agents.learn.replay import Batch
from reinet.agents.model.gru import Gru, seen_size
from reinet.agents.model.mlp import Folded, Layer

LAST_LAYER_INIT = 3e-3
"""The bound of the last layers' initial weights (Lillicrap et al.): actions start near 0, values near 0."""


class Actor(nn.Module):
    """mu(s): states (B, S) -> actions (B, 1) in [-1, 1]; S = history x F, the newest record first.

    With ``gru`` units its layers see the newest record and what a GRU made of all of them (``model/gru.py``).
    """

    def __init__(
        self, state_size: int, hidden: Sequence[int], batch_norm: bool, gru: int = 0, history: int = 1
    ) -> None:
        super().__init__()
        self._frame = state_size // history
        self.gru = nn.GRU(self._frame, gru, batch_first=True) if gru else None
        sizes = [seen_size(history, self._frame, gru), *hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) if batch_norm else nn.Identity() for size in hidden)
        self.out = nn.Linear(sizes[-1], 1)
        nn.init.uniform_(self.out.weight, -LAST_LAYER_INIT, LAST_LAYER_INIT)
        nn.init.zeros_(self.out.bias)

    def before_tanh(self, states: Tensor) -> Tensor:
        """Returns the last layer's output (B, 1), without bounds."""
        x = states
        if self.gru is not None:
            frames = states.view(len(states), -1, self._frame)
            _, memory = self.gru(frames.flip(1))
            x = torch.cat([frames[:, 0], memory[0]], dim=1)
        for linear, norm in zip(self.hidden, self.norms, strict=True):
            x = torch.relu(norm(linear(x)))
        output: Tensor = self.out(x)
        return output

    def forward(self, states: Tensor) -> Tensor:
        """Returns actions (B, 1) in [-1, 1] for states (B, S)."""
        return torch.tanh(self.before_tanh(states))

    @torch.no_grad()
    def folded(self) -> Folded:
        """Returns the same function in evaluation mode."""
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
        if self.gru is None:
            return Folded(layers)
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        return Folded(layers, Gru(*(self.gru.get_parameter(name).numpy().copy() for name in names)))


class Teachers(nn.Module):
    """M networks of one shape in one, which follow hindsight side by side: states (B, S) -> actions (B, M) in [-1, 1].

    What hindsight says of one moment is noise around what anybody could know of it, and each network's answer keeps
    some of that noise: which, its first weights decide. The mean of several has less (Hansen and Salamon 1990), but
    costs as many times the work at every decision. So an actor of the usual size learns the mean in their place,
    "model compression" (Bucila et al. 2006) or "distillation" (Hinton et al. 2015), and only the actor is exported.
    """

    def __init__(self, count: int, state_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        sizes = [state_size, *hidden, 1]
        layers = [[nn.Linear(a, b) for a, b in pairwise(sizes)] for _ in range(count)]
        self.weights = nn.ParameterList(
            _stack(linear.weight.T for linear in layer) for layer in zip(*layers, strict=True)
        )
        self.biases = nn.ParameterList(
            _stack(linear.bias[None] for linear in layer) for layer in zip(*layers, strict=True)
        )

    def before_tanh(self, states: Tensor) -> Tensor:
        """Returns the last layer's outputs (B, M), without bounds."""
        x = states.expand(len(self.weights[0]), *states.shape)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = torch.relu(torch.baddbmm(bias, x, weight))
        return torch.baddbmm(self.biases[-1], x, self.weights[-1]).squeeze(2).T

    def forward(self, states: Tensor) -> Tensor:
        """Returns each teacher's action (B, M) in [-1, 1] for states (B, S)."""
        return torch.tanh(self.before_tanh(states))


def _stack(tensors: Iterable[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.stack([tensor.detach() for tensor in tensors]))


class Critic(nn.Module):
    """Q(s, h, a): states (B, S), hidden (B, H) and actions (B, 1) -> values (B, 1).

    The action joins after the first layer.
    """

    def __init__(self, state_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.first = nn.Linear(state_size, hidden[0])
        sizes = [hidden[0] + 1, *hidden[1:]]
        self.rest = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.out = nn.Linear(sizes[-1], 1)
        nn.init.uniform_(self.out.weight, -LAST_LAYER_INIT, LAST_LAYER_INIT)
        nn.init.zeros_(self.out.bias)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        """Returns values (B, 1) for what is seen (B, S + H) and actions (B, 1)."""
        x = torch.cat([torch.relu(self.first(states)), actions], dim=1)
        for linear in self.rest:
            x = torch.relu(linear(x))
        value: Tensor = self.out(x)
        return value


class Critics(nn.Module):
    """One critic or two of the same kind."""

    def __init__(self, count: int, state_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.each = nn.ModuleList(Critic(state_size, hidden) for _ in range(count))

    def forward(self, states: Tensor, actions: Tensor) -> list[Tensor]:
        """Returns each critic's values (B, 1)."""
        return [critic(states, actions) for critic in self.each]


class Adam(torch.optim.Adam):
    """PyTorch's, bit for bit, without what keeps its methods out of ``torch.compile``.

    That is imported at the first call, SymPy and distributed training with it, which took two seconds of every start.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class Ddpg:
    """Networks, their targets and optimisers."""

    def __init__(
        self,
        config: DdpgSection,
        state_size: int,
        seed: int,
        hindsight: HindsightSection | None = None,
        history: int = 1,
    ) -> None:
        self.config = config
        self.hindsight = hindsight or HindsightSection()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = Actor(state_size, config.hidden, config.batch_norm, config.gru, history)
            self.critic = Critics(config.critics, state_size + (SIZE if config.privileged else 0), config.hidden)
            teachers = self.hindsight.teachers
            self.teachers = Teachers(teachers, state_size, config.hidden) if teachers else None
        self.actor_target = copy.deepcopy(self.actor).eval().requires_grad_(False)
        self.critic_target = copy.deepcopy(self.critic).eval().requires_grad_(False)
        self.actor_average = copy.deepcopy(self.actor_target)
        self.actor_optimiser = Adam(self.actor.parameters(), lr=config.actor_lr, fused=True)
        weights = [p for p in self.critic.parameters() if p.ndim == 2]
        biases = [p for p in self.critic.parameters() if p.ndim == 1]
        groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": config.critic_l2}, {"params": biases}]
        self.critic_optimiser = Adam(groups, lr=config.critic_lr, fused=True)
        self.teachers_optimiser = (
            Adam(self.teachers.parameters(), lr=self.hindsight.lr, fused=True) if self.teachers else None
        )
        self._prices = torch.from_numpy(prices(self.hindsight))
        self.updates = 0
        self.taught = False
        """True while hindsight teaches the actor."""
        self.judged = True
        """False in a run in which hindsight is all: nobody asks its critic, which would take most of the time."""

    def set_progress(self, iteration: int, iterations: int) -> None:
        """Sets the learning rates for an iteration of a run, and who teaches the actor in it."""
        self.taught = iteration < self.hindsight.iterations
        self.judged = iterations > self.hindsight.iterations
        if self.taught:
            for optimiser in filter(None, (self.actor_optimiser, self.teachers_optimiser)):
                for group in optimiser.param_groups:
                    group["lr"] = self.hindsight.lr * (1.0 - 0.95 * iteration / self.hindsight.iterations)
            return
        share = (iteration - self.hindsight.iterations) / max(iterations - self.hindsight.iterations, 1)
        factor = 1.0 - (1.0 - self.config.lr_end) * share
        for optimiser, rate in (
            (self.actor_optimiser, self.config.actor_lr),
            (self.critic_optimiser, self.config.critic_lr),
        ):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor

    def best_actor(self) -> Actor:
        """Returns the actor to be evaluated and exported."""
        return self.actor_average if self.config.averaging else self.actor

    @torch.no_grad()
    def set_last_layer(self, other: Folded) -> None:
        """Gives the actor, and the average that is exported, the last layer of another."""
        weight, bias = (torch.from_numpy(values) for values in other.layers[-1])
        for actor in (self.actor, self.actor_average):
            actor.out.weight.copy_(weight)
            actor.out.bias.copy_(bias)

    def update(self, batch: Batch, noise: NDArray[np.float32] | None = None) -> dict[str, Tensor]:
        """Takes one gradient step of critic and, when it is due, actor; returns the losses by TensorBoard tag.

        ``noise`` (B, 1) is standard normal, for the target's actions; only ``smoothing`` needs it.
        """
        states = torch.from_numpy(batch.states)
        seen = torch.cat([states, torch.from_numpy(batch.hidden)], dim=1)
        losses = self._update_critic(batch, seen, noise) if self.judged else {}
        self.updates += 1
        if self.taught or self.updates % self.config.actor_delay == 0:
            losses |= self._update_actor(states, seen, torch.from_numpy(batch.taught))
        if self.judged:
            self._follow(self.critic_target, self.critic, self.config.tau)
        return losses

    def _update_critic(self, batch: Batch, seen: Tensor, noise: NDArray[np.float32] | None) -> dict[str, Tensor]:
        config = self.config
        actions = torch.from_numpy(batch.actions)
        next_states = torch.from_numpy(batch.next_states)
        next_seen = torch.cat([next_states, torch.from_numpy(batch.next_hidden)], dim=1)

        with torch.no_grad():
            next_actions = self.actor_target(next_states)
            if config.smoothing and noise is not None:
                away = (config.smoothing * torch.from_numpy(noise)).clamp(-2 * config.smoothing, 2 * config.smoothing)
                next_actions = (next_actions + away).clamp(-1.0, 1.0)
            next_values = torch.stack(self.critic_target(next_seen, next_actions)).amin(dim=0)
            targets = torch.from_numpy(batch.rewards) + torch.from_numpy(batch.discounts) * next_values
        values = self.critic(seen, actions)
        critic_loss = torch.stack([nn.functional.mse_loss(value, targets) for value in values]).sum()
        self.critic_optimiser.zero_grad(set_to_none=True)
        critic_loss.backward()  # type: ignore[no-untyped-call]
        self.critic_optimiser.step()
        return {
            "losses/critic": critic_loss.detach() / len(values),
            "losses/q_mean": values[0].detach().mean(),
            "losses/q_target_sd": targets.std(),
        }

    def _update_actor(self, states: Tensor, seen: Tensor, taught: Tensor) -> dict[str, Tensor]:
        self.actor.train()
        self.critic.requires_grad_(False)  # its gradients are not needed here
        unbounded = self.actor.before_tanh(states)
        proposed = torch.tanh(unbounded)
        actor_loss = self.config.saturation * unbounded.square().mean()
        losses: dict[str, Tensor] = {}
        if self.taught and self.teachers is not None:
            mean, losses["losses/teachers"] = self._update_teachers(self.teachers, states, taught)
            actor_loss = actor_loss + (proposed - mean).square().mean()
        elif self.taught or self.hindsight.weight:
            actor_loss = (
                actor_loss + (1.0 if self.taught else self.hindsight.weight) * self._regret(proposed, taught).mean()
            )
        if not self.taught:
            values = self.critic.each[0](seen, proposed)
            scale = values.detach().abs().mean().clamp(min=1e-6) if self.hindsight.weight else 1.0
            actor_loss = actor_loss - values.mean() / scale
        self.actor_optimiser.zero_grad(set_to_none=True)
        actor_loss.backward()  # type: ignore[no-untyped-call]
        self.actor_optimiser.step()
        self.critic.requires_grad_(True)
        self.actor.eval()
        self._follow(self.actor_target, self.actor, self.config.tau)
        if self.config.averaging:
            # From the start on an average of all there were, so that the first weights do not linger.
            share = max(1.0 - self.config.averaging, self.config.actor_delay / self.updates)
            self._follow(self.actor_average, self.actor, min(share, 1.0))
        return losses | {
            "losses/actor": actor_loss.detach(),
            "losses/action_mean": proposed.detach().mean(),
            "losses/action_sd": proposed.detach().std(),
        }

    def _regret(self, proposed: Tensor, taught: Tensor) -> Tensor:
        """Returns the pinball losses (B, M) of actions (B, M) for what hindsight taught (B, K + 1)."""
        short = self.hindsight.quantile * torch.relu(taught[:, :1] - proposed)
        over = torch.stack([torch.relu(proposed - taught[:, k : k + 1]) for k in range(len(self._prices))])
        regret: Tensor = short + taught[:, -1:] * torch.tensordot(self._prices, over, dims=1)
        return regret

    def _update_teachers(self, teachers: Teachers, states: Tensor, taught: Tensor) -> tuple[Tensor, Tensor]:
        """Takes one gradient step of each teacher; returns what their mean was before (B, 1), and their mean loss."""
        unbounded = teachers.before_tanh(states)
        regret = self._regret(torch.tanh(unbounded), taught).mean(dim=0)
        loss = (regret + self.config.saturation * unbounded.square().mean(dim=0)).sum()
        assert self.teachers_optimiser is not None
        self.teachers_optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.teachers_optimiser.step()
        return torch.tanh(unbounded.detach().mean(dim=1, keepdim=True)), regret.detach().mean()

    @torch.no_grad()
    def _follow(self, target: nn.Module, online: nn.Module, rate: float) -> None:
        torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), rate)
        for copied, running in zip(target.buffers(), online.buffers(), strict=True):
            copied.copy_(running)

    def _optimisers(self) -> dict[str, torch.optim.Optimizer]:
        optimisers: dict[str, torch.optim.Optimizer] = {"actor": self.actor_optimiser, "critic": self.critic_optimiser}
        return optimisers | ({"teachers": self.teachers_optimiser} if self.teachers_optimiser else {})

    def _parts(self) -> dict[str, nn.Module]:
        parts: dict[str, nn.Module] = {
            "actor": self.actor,
            "critic": self.critic,
            "actor_target": self.actor_target,
            "critic_target": self.critic_target,
            "actor_average": self.actor_average,
        }
        return parts | ({"teachers": self.teachers} if self.teachers is not None else {})

    def _weights(self) -> dict[str, Tensor]:
        return {f"{part}/{k}": v for part, module in self._parts().items() for k, v in module.state_dict().items()}

    def lost(self) -> list[str]:
        """Returns the names of the networks' tensors that are not finite, as ``state`` names them."""
        return [name for name, tensor in self._weights().items() if not torch.isfinite(tensor).all()]

    def state(self) -> dict[str, Tensor]:
        """Returns every tensor that the next update depends on, by name."""
        tensors = self._weights()
        for name, optimiser in self._optimisers().items():
            for index, moments in optimiser.state_dict()["state"].items():
                tensors |= {f"{name}_optimiser/{index}/{key}": value for key, value in moments.items()}
        return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes networks and optimisers back to what ``state`` returned."""
        for part, module in self._parts().items():
            prefix = f"{part}/"
            module.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        for name, optimiser in self._optimisers().items():
            moments: dict[int, dict[str, Tensor]] = {}
            for key, value in tensors.items():
                if key.startswith(f"{name}_optimiser/"):
                    _, index, moment = key.split("/")
                    moments.setdefault(int(index), {})[moment] = value.clone()
            optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
