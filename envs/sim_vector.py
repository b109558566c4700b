"""``reinet/SimLink-v0`` as a vector environment: many simulated links, stepped together in C++."""

from collections.abc import Sequence
from numbers import Integral
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from reinet.core import (
    DEFAULT_FEATURE_SET,
    DEFAULT_REWARD,
    DELAY_WEIGHT,
    FLOW_STATS_DTYPE,
    ConfigError,
    Flag,
    Normaliser,
    PeriodConfig,
)
from reinet.envs.link.domain import LinkDomain
from reinet.envs.link.spec import check_kind
from reinet.envs.sim import SimBatch
from reinet.envs.sim.options import require_simulated
from reinet.envs.sim_link import domain_from
from reinet.envs.spaces import (
    EpisodeLimits,
    action_space,
    numbers_in,
    observation_space,
    refuse_options,
    refuse_render_mode,
)

States = npt.NDArray[np.float32]
Info = dict[str, Any]


class SimLinkVectorEnv(VectorEnv[Any, Any, Any]):
    """``num_envs`` times ``SimLinkEnv``, each episode on a link of its own drawn from a ``LinkDomain``.

    Sub-environment i seeded with s + i is ``SimLinkEnv`` seeded with s + i, for any number of sub-environments and
    threads. Observation, action, reward and step are described there.

    Autoreset
        ``NEXT_STEP``: the step after an episode's end ignores that link's action, and returns the first observation of
        its next episode with reward 0.

    Info
        Arrays of shape (num_envs,): every field of the records, ``no_sample``, ``rule_pkts`` and ``may_cap``, each with
        its mask ``_name``, which is True throughout. They are views of buffers that the next step overwrites.

    Arguments
        num_envs
            number of links.
        domain
            what is drawn at every reset; None = DeepCC's path. Further keyword arguments are ``LinkDomain``'s fields,
            or ``trace`` and ``link`` as in ``SimLinkEnv``.
        head, feature_set, normaliser, period, episode_periods, episode_s, reward, delay_weight, render_mode
            as in ``SimLinkEnv``.
        threads
            that share the links.
        copy
            return copies of observations, rewards and flags; False = buffers that the next step overwrites.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}  # noqa: RUF012  (Gymnasium's own type)

    def __init__(
        self,
        num_envs: int = 1,
        domain: LinkDomain | None = None,
        head: str = "cwnd",
        feature_set: str = DEFAULT_FEATURE_SET,
        normaliser: Normaliser | None = None,
        period: PeriodConfig | None = None,
        episode_periods: int | None = 1000,
        episode_s: float | None = None,
        threads: int = 1,
        copy: bool = True,
        reward: str = DEFAULT_REWARD,
        delay_weight: float = DELAY_WEIGHT,
        render_mode: str | None = None,
        **fields: Any,
    ) -> None:
        refuse_render_mode("SimLink", render_mode)
        check_kind("num_envs", num_envs, Integral, "a whole number")
        if num_envs < 1:
            raise ConfigError(f"num_envs: {num_envs} is not above 0")
        if domain is not None and fields:
            raise ConfigError(f"domain: give it or its fields, {', '.join(fields)}, not both")
        check_kind("domain", domain, (LinkDomain, NoneType), "a LinkDomain, or None,")
        self._limits = EpisodeLimits(episode_periods, episode_s)
        self.domain = domain or domain_from(fields)
        for link in self.domain.corners():
            require_simulated(link)
        self.num_envs = num_envs
        self.single_observation_space = observation_space(feature_set)
        self.single_action_space = action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._copy = copy
        self._rngs = [np_random()[0] for _ in range(num_envs)]
        first = self.domain.draw(np.random.default_rng(0))
        self._batch = SimBatch(
            [first] * num_envs, period, feature_set, head, normaliser,
            threads=threads, reward=reward, delay_weight=delay_weight,
        )  # fmt: skip
        self._periods = np.zeros(num_envs, np.int64)
        self._start_ns = np.zeros(num_envs, np.uint64)
        self._over = np.zeros(num_envs, np.bool_)
        self._rewards = np.zeros(num_envs, np.float64)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._no_sample = np.zeros(num_envs, np.bool_)
        all_present = np.ones(num_envs, np.bool_)
        self._info: Info = {name: self._batch.stats[name] for name in FLOW_STATS_DTYPE.names or ()}
        self._info |= {"no_sample": self._no_sample, "rule_pkts": self._batch.rule_pkts, "may_cap": self._batch.may_cap}
        self._info |= {f"_{name}": all_present for name in self._info}

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[States, Info]:
        """Starts new flows on all links; returns their states (num_envs, S) and info. There are no options.

        ``seed`` is one for each link, or s for s, s + 1, ... Raises ConfigError for another number of seeds.
        """
        refuse_options("SimLink", options)
        seeds = (
            seed if isinstance(seed, Sequence) else [None if seed is None else seed + i for i in range(self.num_envs)]
        )
        if len(seeds) != self.num_envs:
            raise ConfigError(f"seed: {len(seeds)} are given for {self.num_envs} links")
        for row, one in enumerate(seeds):
            if one is not None:
                self._rngs[row] = np_random(one)[0]
        self._restart(np.arange(self.num_envs))
        return self._returned(self._batch.states), self._noted()

    def step(self, actions: npt.ArrayLike) -> tuple[States, Any, Any, Any, Info]:
        """Sets the caps and runs each link to its flow's next record; links whose episode was over start the next.

        Returns states (num_envs, S), then rewards, terminated and truncated (num_envs,), and info. Raises ConfigError
        for what are not ``num_envs`` finite numbers.
        """
        values = numbers_in(actions)
        if values is None or values.size != self.num_envs:
            raise ConfigError(f"actions: {self.num_envs} finite numbers in [-1, 1] are needed, one for each link")
        self._batch.step(values)
        self._periods += 1
        self._rewards[:] = self._batch.rewards
        begun = np.flatnonzero(self._over)
        if len(begun):
            self._restart(begun)
            self._rewards[begun] = 0.0
        info = self._noted()
        np.not_equal(self._batch.stats["flags"] & Flag.CLOSED, 0, out=self._terminated)
        self._terminated &= self._batch.stats["cookie"] >> 32 == 0  # a further flow's end is not the episode's
        self._truncated[:] = False
        if self._limits.episode_periods is not None:
            np.greater_equal(self._periods, self._limits.episode_periods, out=self._truncated)
        if self._limits.episode_ns is not None:
            self._truncated |= self._batch.stats["time_ns"] - self._start_ns >= self._limits.episode_ns
        self._terminated[begun] = self._truncated[begun] = False  # a reset ends nothing, however short the flow is
        np.logical_or(self._terminated, self._truncated, out=self._over)
        return (
            self._returned(self._batch.states),
            self._returned(self._rewards),
            self._returned(self._terminated),
            self._returned(self._truncated),
            info,
        )

    def _restart(self, rows: npt.NDArray[np.int64]) -> None:
        for row in rows:
            link = self.domain.draw(self._rngs[row])
            self._start_ns[row] = link.start_offset_ms * 1_000_000
            self._batch.set_link(int(row), link)
        self._batch.reset(rows)
        self._periods[rows] = 0
        self._over[rows] = False

    def _noted(self) -> Info:
        np.not_equal(self._batch.stats["flags"] & Flag.NO_SAMPLE, 0, out=self._no_sample)
        return dict(self._info)

    def _returned(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values.copy() if self._copy else values
