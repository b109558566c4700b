"""The policy of an RLlib module as plain layers, which reinet evaluates and exports like its own.

SAC's mode is tanh(mean); PPO acts on what ``SimLinks(unbounded=True)`` passes through tanh. Both are ReLU layers with a
tanh at the end, the form of every model here. The logarithm of the deviation, the last layer's second row, is left out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from reinet.agents.learn.ddpg import Ddpg
from reinet.agents.model.mlp import Layer, Layers

PARTS = {"SAC": ("pi_encoder.", "pi."), "PPO": ("encoder.actor_encoder.", "pi.")}
"""Where the policy's layers stand in a module of RLlib's defaults, in their order."""


def layers_of(algorithm: str, state: Mapping[str, Any]) -> list[Layer]:
    """Returns the policy's layers (weight, bias) in a module's state, its arrays by name."""
    layers = []
    for part in PARTS[algorithm]:
        for name in (name for name in state if name.startswith(part) and name.endswith(".weight")):
            bias = state[name.removesuffix("weight") + "bias"]
            layers.append((np.array(state[name], np.float32), np.array(bias, np.float32)))
    weight, bias = layers[-1]
    layers[-1] = (weight[:1].copy(), bias[:1].copy())
    return layers


def is_lost(layers: Layers) -> bool:
    """Returns whether weights are no numbers, or so large that a state of ones may lead beyond single precision."""
    most = 1.0
    for weight, bias in layers:
        most = float((np.abs(weight.astype(np.float64)).sum(axis=1) * most + np.abs(bias)).max())
    return not most < float(np.finfo(np.float32).max)


@torch.no_grad()
def put_into(learner: Ddpg, layers: Layers) -> None:
    """Gives a learner's actor these layers, so that checkpoints and ``reinet export`` need to know of no other kind."""
    for actor in (learner.actor, learner.actor_average):
        for linear, (weight, bias) in zip([*actor.hidden, actor.out], layers, strict=True):
            linear.get_parameter("weight").copy_(torch.from_numpy(weight))
            linear.get_parameter("bias").copy_(torch.from_numpy(bias))
