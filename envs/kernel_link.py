"""``reinet/KernelLink-v0``: one flow of the real kernel through an emulated link."""

from __future__ import annotations

from dataclasses import replace
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
    LinkError,
    Normaliser,
    Offers,
    PeriodConfig,
    ShimError,
    StateBank,
    caps_from_actions,
)
from reinet.core.features import head_index
from reinet.core.rewards import offer
from reinet.envs.kernel_session import KernelRun, KernelSession
from reinet.envs.link.domain import default_trace, trace_of
from reinet.envs.link.spec import LinkSpec, check_kind, check_mrtt, check_target, default_target_ms, target_on
from reinet.envs.mahimahi.spec import downlink_ms, require_emulated, start_ms
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
from reinet.envs.trace.counting import opportunities_until
from reinet.kshim.probe import why_not_capped
from reinet.kshim.shim import WRAPPED_CC

State = npt.NDArray[np.float32]


@with_feature_tables
class KernelLinkEnv(gym.Env[State, Any]):
    """An agent chooses a bulk flow's largest congestion window, once per period, on a real kernel and an emulated link.

    A kernel socket running ``cc``, capped through the shim, fills the droptail buffer of a Mahimahi link in namespaces
    of its own. Observation, action, reward and info are those of ``SimLink``, by the same code; feature sets are listed
    here as there. What differs:

    Time
        is real. The flow goes on between steps; records that come while the caller computes enter the observation, and
        ``step`` returns the first record after the cap was set. Keep a step's own time well under one RTT. The reward
        ``regret`` of a step is that of all records since the last one; ``deepcc`` that of the returned record.

    Cap
        holds under a lease of 500 ms, renewed while ``step`` waits (outages included). A caller that takes longer
        between two steps loses the cap until the next one, as under the daemon.

    End
        never terminates; truncated after ``episode_periods`` steps or ``episode_s`` seconds. ``finish`` then ends the
        flow and gives its ``KernelRun``, with figures and validity. Raises LinkError when link or flow have died.

    Needs
        root, Mahimahi, BTF and cgroup v2 (``reinet doctor``). ``close`` leaves the host as it was; so does the end of
        this process, however it ends.

    Arguments as ``SimLink``'s, without ``link``. ``cc`` is one that the shim wraps. ``random_start`` starts at a
    delivery opportunity of the trace, the next one from a moment drawn uniformly.

    Observation
        FEATURE_TABLES

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
        refuse_render_mode("KernelLink", render_mode)
        check_mrtt(mrtt_ms)
        rtt_ms = default_target_ms(mrtt_ms) if target_ms is None else target_on(target_ms, mrtt_ms)
        check_target(rtt_ms, mrtt_ms)
        self._limits = EpisodeLimits(episode_periods, episode_s)
        if cc not in WRAPPED_CC:
            raise ConfigError(f"cc: {cc!r} cannot be capped in the kernel; choose {' or '.join(WRAPPED_CC)}")
        head_index(head)
        check_kind("period", period, (PeriodConfig, NoneType), "a PeriodConfig, or None,")
        check_kind("random_start", random_start, (bool, np.bool_), "True or False")
        self.trace = default_trace() if trace is None else trace_of(trace)
        self.observation_space = observation_space(feature_set)
        self.action_space = action_space()
        self._spec = require_emulated(
            LinkSpec(self.trace, cc=cc, mrtt_ms=mrtt_ms, buffer_bytes=buffer_bytes, target_us=round(rtt_ms * 1000))
        )
        self._head = head
        self._period = period
        self._random_start = random_start
        self._bank = StateBank(1, feature_set, normaliser, reward, delay_weight)
        self._adds_up = reward != "deepcc"
        self._session: KernelSession | None = None
        self._flows = False
        self._periods = 0
        self._reward = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        """Ends the flow, starts another and returns its first state and info. There are no options.

        Raises ShimError or LinkError where the host lacks something.
        """
        super().reset(seed=seed)
        refuse_options("KernelLink", options)
        if self._random_start:
            offset_ms = int(self.np_random.integers(self.trace.duration_ms))
            self._spec = replace(self._spec, start_offset_ms=offset_ms)
        if self._session is None:
            if reason := why_not_capped(self._spec.cc):
                raise ShimError(f"cc: {self._spec.cc!r} cannot be capped on this host: {reason}")
            self._session = KernelSession(self._spec, period=self._period)
        try:
            self._session.start(self._spec)
            self._flows = True
            self._bank.reset([0])
            self._opportunities_ms = downlink_ms(self._spec)
            self._periods = 0
            self._reward = 0.0
            self._take(self._session)
        except BaseException:
            self.close()
            raise
        return self._state, self._info()

    def step(self, action: npt.ArrayLike) -> tuple[State, float, bool, bool, dict[str, Any]]:
        """Sets the cap and waits for the flow's next record; returns state, reward, terminated, truncated and info.

        Raises LinkError when link or flow have died.
        """
        session = self._flowing()
        chosen = action_of(action)
        try:
            self._reward = 0.0
            while session.waiting():
                self._take(session)
            cap_pkts = caps_from_actions(self._head, [chosen], self._record["cwnd_pkts"], [self._rule_pkts])
            session.set_cap(self._record, int(cap_pkts[0]) if self._may_cap else 0)
            self._take(session)
        except BaseException:
            self.close()
            raise
        self._periods += 1
        elapsed_ns = int(self._record["time_ns"][0]) - session.started_ns
        truncated = self._limits.reached(self._periods, elapsed_ns)
        return self._state, self._reward, False, truncated, self._info()

    def finish(self) -> KernelRun:
        """Ends the flow; returns its records, figures and validity. ``reset`` begins the next one."""
        session = self._flowing()
        self._flows = False
        return session.stop()

    def close(self) -> None:
        """Ends flow and link and unloads the shim."""
        self._flows = False
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _flowing(self) -> KernelSession:
        """Returns the session of the flow; raises LinkError without one: its records would never come."""
        if self._session is None or not self._flows:
            raise LinkError("no flow is running: call reset() first")
        return self._session

    def _take(self, session: KernelSession) -> None:
        self._record = session.next_record()
        batch = self._bank.update([0], self._record, self._offers(session) if self._adds_up else None)
        self._state = batch.states[0].copy()
        self._reward = (self._reward if self._adds_up else 0.0) + float(batch.rewards[0])
        self._rule_pkts = float(batch.rule_pkts[0])
        self._may_cap = bool(batch.may_cap[0])

    def _offers(self, session: KernelSession) -> Offers:
        """Returns what the link had offered when the bytes that the record tells of left it: half a base RTT before."""
        left_ms = (int(self._record["time_ns"][0]) - session.zero_ns) / 1e6 - self._spec.mrtt_ms / 2
        count = int(opportunities_until(self._opportunities_ms, max(0.0, left_ms), closed=True))
        return offer(count, self._opportunities_ms.size, int(self._opportunities_ms[-1]))

    def _info(self) -> dict[str, Any]:
        assert self._session is not None
        record = self._record.copy()
        record["time_ns"] -= np.uint64(self._session.zero_ns)
        record["time_ns"] += np.uint64(start_ms(self._spec) * 1_000_000)
        return info_from(record[0], self._rule_pkts, self._may_cap)
