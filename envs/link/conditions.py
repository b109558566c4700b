"""What a flow may meet beside its path, or be itself: shares of the flows that are unlike a lone, endless download."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from numbers import Real

import numpy as np

from reinet.core.errors import ConfigError
from reinet.envs.link.laws import Law, LogUniform, Uniform, check_law, drawn, happens, limits
from reinet.envs.link.spec import LATEST_MS, FurtherFlow, LinkSpec, check_kind
from reinet.envs.trace import Trace

_CROSS_START_MS, _CROSS_MS = Uniform(0.0, 8000.0), LogUniform(1000.0, 10_000.0)
_APP_RATE, _SHORT_BYTES = LogUniform(0.1, 0.9), LogUniform(10_000.0, 10_000_000.0)
"""They are those of the training configuration, whose ``[links]`` gives their reasons."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Shares and ranges, each drawn for itself, so that a flow may meet several; the defaults draw nothing.

    They are drawn in this order: ``rate_scale``, CoDel, cross traffic (whether, its start, its length), the
    application's limit (whether, its rate), a short flow (whether, its length). A share of 0 and a fixed number take
    nothing from the random generator.
    """

    rate_scale: float | Law = 1.0
    """The factor on the trace's rate; gaps stay as long as they are: see ``Trace.scaled``."""
    codel_share: float = 0.0
    """The share of flows whose queue is CoDel's, with the path's buffer."""
    cross_share: float = 0.0
    """The share of flows that share their queue, for a while, with a Cubic flow of the same path."""
    cross_start_ms: float | Law = _CROSS_START_MS
    """When that one starts, from the start of the path."""
    cross_ms: float | Law = _CROSS_MS
    """How long it lasts."""
    app_limited_share: float = 0.0
    """The share of flows whose application writes more slowly than the link is on average."""
    app_rate: float | Law = _APP_RATE
    """The application's rate as a share of the trace's mean."""
    short_share: float = 0.0
    """The share of flows that end."""
    short_bytes: float | Law = _SHORT_BYTES
    """What such a flow sends."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not entry.name.endswith("_share"):
                check_law(entry.name, value)
                continue
            check_kind(entry.name, value, Real, "a share from 0 to 1")
            if not 0 <= value <= 1:
                raise ConfigError(f"{entry.name}: {value} is no share; give 0 to 1")
        if not limits(self.rate_scale)[0] > 0:
            raise ConfigError(f"rate_scale: {limits(self.rate_scale)} reaches down to 0; a link without a rate is none")
        if not 0 < limits(self.app_rate)[0] <= limits(self.app_rate)[1] < 1:
            raise ConfigError(
                f"app_rate: {limits(self.app_rate)} is no range of shares of the link's rate; stay below 1"
            )
        for name, least in (("cross_ms", 1.0), ("short_bytes", 1.0)):
            if not limits(getattr(self, name))[0] >= least:
                raise ConfigError(f"{name}: {limits(getattr(self, name))} reaches below {least:g}")
        latest_ms = limits(self.cross_start_ms)[1] + limits(self.cross_ms)[1]
        if not latest_ms <= LATEST_MS:
            raise ConfigError(
                f"cross_start_ms, cross_ms: cross traffic may end at {latest_ms:g} ms; {LATEST_MS:g} is the latest"
            )

    def apply(self, link: LinkSpec, rng: np.random.Generator) -> LinkSpec:
        """Returns the path as a flow finds it, and the flow as it is then."""
        if (factor := drawn(self.rate_scale, rng)) != 1.0:
            link = replace(link, trace=_trace(link).scaled(factor))
        if happens(self.codel_share, rng):
            link = replace(link, queue="codel")
        if happens(self.cross_share, rng):
            start_ms = drawn(self.cross_start_ms, rng)
            cross = FurtherFlow(start_ms=start_ms, stop_ms=start_ms + drawn(self.cross_ms, rng))
            link = replace(link, flows=[*link.flows, cross])
        if happens(self.app_limited_share, rng):
            link = replace(link, app_mbps=drawn(self.app_rate, rng) * _trace(link).mean_mbps)
        if happens(self.short_share, rng):
            link = replace(link, flow_bytes=round(drawn(self.short_bytes, rng)))
        return link

    def extremes(self, link: LinkSpec) -> Iterator[LinkSpec]:
        """Yields the path under each condition that a flow may meet: a run may refuse one."""
        if self.codel_share:
            yield replace(link, queue="codel")
        if self.cross_share:
            yield replace(link, flows=[*link.flows, FurtherFlow(stop_ms=limits(self.cross_ms)[1])])
        if self.app_limited_share:
            yield replace(link, app_mbps=limits(self.app_rate)[1])
        if self.short_share:
            yield replace(link, flow_bytes=round(limits(self.short_bytes)[1]))


def _trace(link: LinkSpec) -> Trace:
    assert isinstance(link.trace, Trace), "a domain draws among traces"
    return link.trace
