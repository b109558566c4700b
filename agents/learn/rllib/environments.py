"""reinet's environments under their Gymnasium names in RLlib's registry."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box
from gymnasium.vector.utils import batch_space

from reinet.envs.kernel_link import KernelLinkEnv
from reinet.envs.sim_link import SimLinkEnv
from reinet.envs.sim_vector import Info, SimLinkVectorEnv

SIM_LINK, KERNEL_LINK = "reinet/SimLink-v0", "reinet/KernelLink-v0"


class SimLinks(SimLinkVectorEnv):
    """``SimLinkVectorEnv`` as RLlib steps it, without infos: RLlib would make dictionaries of them, one per flow and
    step, and reads none.

    With ``unbounded`` every real number u is an action, and stands for tanh(u). PPO's Gaussian has no bounds; RLlib
    would clip it, and no model of ours clips: they all end in tanh.
    """

    def __init__(self, *, unbounded: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._unbounded = unbounded
        if unbounded:
            self.single_action_space = Box(-np.inf, np.inf, (1,), np.float32)
            self.action_space = batch_space(self.single_action_space, self.num_envs)

    def step(self, actions: npt.ArrayLike) -> tuple[Any, Any, Any, Any, Info]:
        """Steps all flows, as ``SimLinkVectorEnv`` does."""
        return super().step(np.tanh(actions) if self._unbounded else actions)

    def _noted(self) -> Info:
        super()._noted()
        return {}


def make_sim_link(arguments: Mapping[str, Any]) -> gym.Env[Any, Any] | SimLinks:
    """Returns one flow's environment, or that of ``num_envs`` flows where RLlib asks for vectors."""
    return SimLinks(**arguments) if "num_envs" in arguments else SimLinkEnv(**arguments)


def make_kernel_link(arguments: Mapping[str, Any]) -> KernelLinkEnv:
    """Returns the environment of a flow over the real kernel."""
    return KernelLinkEnv(**arguments)


def register_with_rllib() -> None:
    """Makes ``config.environment("reinet/SimLink-v0")`` and ``"reinet/KernelLink-v0"`` known to RLlib.

    ``env_config`` has the environment's arguments. SimLink steps all flows of a runner at once, in C++, with
    ``env_runners(gym_env_vectorize_mode="vector_entry_point")``; its arguments are ``SimLinkVectorEnv``'s then.
    """
    from ray.tune.registry import register_env

    register_env(SIM_LINK, make_sim_link)
    register_env(KERNEL_LINK, make_kernel_link)
