"""The environments' names in Gymnasium."""

from typing import Any

import gymnasium as gym


def register_envs() -> None:
    """Registers ``reinet/SimLink-v0`` and ``reinet/KernelLink-v0``."""
    _register(
        "reinet/SimLink-v0",
        "reinet.envs.sim_link:SimLinkEnv",
        vector_entry_point="reinet.envs.sim_vector:SimLinkVectorEnv",
    )
    # A real kernel and a real clock: no two runs are equal.
    _register("reinet/KernelLink-v0", "reinet.envs.kernel_link:KernelLinkEnv", nondeterministic=True)


def _register(name: str, entry_point: str, **options: Any) -> None:
    if name not in gym.registry:
        gym.register(name, entry_point, **options)
