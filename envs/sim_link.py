"""``reinet/SimLink-v0``: one flow through one simulated link."""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from reinet.core import (
    DEFAULT_FEATURE_SET,
    DEFAULT_REWARD,
    DELAY_WEIGHT,
    ConfigError,
    Flag,
    Normaliser,
    PeriodConfig,
)
from reinet.envs.link.domain import LinkDomain
from reinet.envs.link.spec import check_kind
from reinet.envs.sim import SimBatch
from reinet.envs.spaces import (
    EpisodeLimits,
    action_of,
    action_space,
    info_from,
    observation_space,
    refuse_options,
    refuse_render_mode,
    with_feature_tables,
)
from reinet.envs.trace import Trace

State = npt.NDArray[np.float32]
IN_LINK = ("loss", "jitter_us", "queue")
"""Fields of a domain that are no arguments of ``SimLinkEnv``."""


@with_feature_tables
class SimLinkEnv(gym.Env[State, Any]):
    """An agent chooses the largest congestion window of a bulk flow, once per period, on a simulated cellular link.

    A Linux-like sender with Cubic fills a droptail buffer that a trace of delivery opportunities empties; the semantics
    are Mahimahi's (``envs/sim/path/link.hpp``, ``envs/sim/tcp/sender.hpp``).

    Step
        from one FlowStats record to the next: a period ends with the first ACK of a packet sent after it began, and
        is at least 10 ms long, so a step is about one RTT. While no ACK comes, every 250 ms a record without an RTT
        sample is returned: ``info["no_sample"]`` is True, the observation unchanged, the reward ``deepcc`` 0, and the
        next action is ignored: such a record asks for no decision, and the cap stays.

    Observation
        Box, float32, shape (S,): the latest observations of the feature set, newest first.

        FEATURE_TABLES

    Action
        Box, float32, shape (1,), a in [-1, 1]; what lies beyond counts as the nearer end, and NaN is refused. Head
        ``cwnd``: cap = 2^a x cwnd. Head ``bdp``: cap = 1.5 x 2^a x the hand rule's product, ``wide``: 1.3 x 4^a x that.
        No cap before the flow has shown a queue of its own (``core/guard/gate.hpp``, ``info["may_cap"]``). In packets,
        rounded, between 4 and 40000.

    Reward
        ``deepcc``, the paper's: min(samples~ x rate~ x rho, 100), negated while k = 0, with the symbols of
        ``deepcc-5x20``; so in [-100, 100]. Its statistics are the ``normaliser``'s, or typical ones where the feature
        set has none.

        ``regret``, training's default for policy gradients: -[(C - D) + w D log(1 + 4 rho) / log 5] / U, with C the
        bytes of the trace's opportunities since the record before (seen half a base RTT earlier), D the delivered ones
        (both with headers), rho = (RTT - min RTT) / max(target - min RTT, 0.1 x min RTT), w = ``delay_weight``, and U
        the trace's mean capacity x 20 ms, at least a packet. Over the steps from one record with an RTT sample to the
        next it sums up to something in [-10, 10]. 0 with the record that says the flow is closed. Why it has this form
        is in ``core/states/reward.hpp``.

        ``regret-linear``, the same with w D rho in place of the logarithm's term.

    Start
        With the first record of a new flow, which ran without a cap until then. ``random_start`` starts it anywhere in
        the trace.

    End
        Terminates only where ``link`` makes the flow finite, with the record that says it is closed. Truncated after
        ``episode_periods`` steps or ``episode_s`` seconds of simulated time.

    Info
        Every field of the record as a plain number, ``no_sample`` (bool), ``rule_pkts`` (float) and ``may_cap`` (bool).
        ``time_ns`` is trace time.

    Arguments
        trace
            a ``Trace``, the path of one, or None for a generated one.
        target_ms
            RTT asked for; ConfigError below 1.1 x ``mrtt_ms``. None = 50 ms, or 1.1 x ``mrtt_ms`` where that is more. A
            text is "50ms", or "+30ms" above or "2.5x" times ``mrtt_ms``.
        mrtt_ms, buffer_bytes, cc
            the path: its fixed delay, its droptail buffer, the sender's congestion control.
        link
            other fields of ``LinkSpec``: the queue, losses, a wired bottleneck, further flows, a cell.
        head, feature_set, normaliser
            what actions mean, what is observed and with which statistics.
        period
            when a period ends.
        episode_periods, episode_s, random_start
            see above; None = no limit.
        reward, delay_weight
            see above; the weight is for ``regret`` and ``regret-linear``.
        render_mode
            None, as nothing is drawn.

    Version 0: first version.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own type)

    def __init__(
        self,
        trace: Trace | str | Path | None = None,
        target_ms: float | str | None = None,
        mrtt_ms: float = 20.0,
        buffer_bytes: int = 150_000,
        cc: str = "cubic",
        link: Mapping[str, Any] | None = None,
        head: str = "cwnd",
        feature_set: str = DEFAULT_FEATURE_SET,
        normaliser: Normaliser | None = None,
        period: PeriodConfig | None = None,
        episode_periods: int | None = 1000,
        episode_s: float | None = None,
        random_start: bool = False,
        reward: str = DEFAULT_REWARD,
        delay_weight: float = DELAY_WEIGHT,
        render_mode: str | None = None,
    ) -> None:
        refuse_render_mode("SimLink", render_mode)
        self._limits = EpisodeLimits(episode_periods, episode_s)
        check_kind("link", link, (Mapping, NoneType), "a mapping of LinkSpec's fields, or None,")
        self._domain = domain_from({
            "trace": trace, "random_start": random_start, "mrtt_ms": mrtt_ms, "buffer_bytes": buffer_bytes,
            "target_ms": target_ms, "cc": cc, "link": link or {},
        })  # fmt: skip
        self.observation_space = observation_space(feature_set)
        self.action_space = action_space()
        first = self._domain.draw(np.random.default_rng(0))
        self._batch = SimBatch([first], period, feature_set, head, normaliser, reward=reward, delay_weight=delay_weight)
        self._periods = 0
        self._start_ms = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        """Starts a new flow; returns its first state and info. There are no options."""
        super().reset(seed=seed)
        refuse_options("SimLink", options)
        drawn = self._domain.draw(self.np_random)
        self._start_ms = drawn.start_offset_ms
        self._batch.set_link(0, drawn)
        self._batch.reset()
        self._periods = 0
        return self._state(), self._info()

    def step(self, action: npt.ArrayLike) -> tuple[State, float, bool, bool, dict[str, Any]]:
        """Sets the cap and runs to the flow's next record; returns state, reward, terminated, truncated and info."""
        self._batch.step([action_of(action)])
        self._periods += 1
        elapsed_ns = int(self._batch.stats["time_ns"][0]) - self._start_ms * 1_000_000
        truncated = self._limits.reached(self._periods, elapsed_ns)
        record = self._batch.stats[0]
        terminated = bool(record["flags"] & Flag.CLOSED) and int(record["cookie"]) >> 32 == 0  # of the first flow
        return self._state(), float(self._batch.rewards[0]), terminated, truncated, self._info()

    def _state(self) -> State:
        return np.array(self._batch.states[0])

    def _info(self) -> dict[str, Any]:
        return info_from(self._batch.stats[0], float(self._batch.rule_pkts[0]), self._batch.may_cap[0])


def domain_from(values: dict[str, Any]) -> LinkDomain:
    """Returns the domain with these fields, ``trace`` a word for ``traces``; raises ConfigError for unknown ones.

    What of them ``SimLinkEnv`` has in ``link`` alone may stand there: ``gymnasium.make_vec`` hands both the same.
    """
    values = dict(values)
    if isinstance(link := values.get("link"), Mapping):
        moved = {key: link[key] for key in IN_LINK if key in link and key not in values}
        values |= {**moved, "link": {key: value for key, value in link.items() if key not in moved}}
    if "trace" in values:
        if "traces" in values:
            raise ConfigError("trace: give it or traces, not both")
        values["traces"] = values.pop("trace")
    known = list(LinkDomain.__dataclass_fields__)
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ConfigError(f"SimLink: unknown argument {', '.join(unknown)}; a domain has {', '.join(known)}")
    return LinkDomain(**values)
