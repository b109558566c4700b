"""Teachers: networks that follow hindsight side by side, so that the actor can follow their mean.

What hindsight says of one moment is noise around what anybody could know of it, and each network's answer keeps some
of that noise: which, its first weights decide. The mean of several networks has less (Hansen and Salamon 1990), but
costs as many times the work at every decision. So an actor of the usual size learns the mean in their place, "model
compression" (Bucila et al. 2006) or "distillation" (Hinton et al. 2015), and only the actor is exported.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class Teachers(nn.Module):
    """M networks of one shape in one: states (B, S) -> actions (B, M) in [-1, 1]."""

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
