"""Domain randomisation as configuration: which links an environment draws its episodes from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from reinet.core import ConfigError
from reinet.core.state import LEAST_TARGET_PER_RTT
from reinet.envs.sim import LinkConfig
from reinet.envs.spaces import DEFAULT_TARGET_MS, check_target
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

Range = float | tuple[float, float]
"""A number, or the limits between which one is drawn."""


def default_trace() -> Trace:
    """Generate the trace of an environment that is given none: long enough for episodes that differ."""
    return generate("lte-driving", 300.0, seed=0)


@dataclass(frozen=True)
class LinkDomain:
    """Paths to draw from. A pair of numbers means a range, drawn log-uniformly: every factor is as likely as any other.

    The defaults are DeepCC's path, with nothing drawn but the jitter's seed.
    """

    traces: Sequence[Trace | str | Path] | Trace | str | Path | None = None
    """Each as likely as the next; None = a generated one."""
    random_start: bool = False
    """Start anywhere in the trace, instead of at its beginning."""
    mrtt_ms: Range = 20.0
    buffer_bytes: Range = 150_000.0
    target_ms: Range | None = None
    """RTT asked for, None = 50 ms. That and a drawn one are raised to 1.1 x the path's base RTT; a given one below it
    is an error."""
    loss: tuple[float, float] | float = 0.0
    """Drawn uniformly: its lower limit may be 0."""
    jitter_us: tuple[float, float] | float = 1000.0
    """Drawn uniformly."""
    cc: str | Sequence[str] = "cubic"
    """Each as likely as the next; so the queue."""
    queue: str | Sequence[str] = "droptail"
    link: Mapping[str, Any] = field(default_factory=dict)
    """Other keys of ``LinkConfig``, the same for all: a wired bottleneck, further flows, a cell."""

    def __post_init__(self) -> None:
        taken = {f.name for f in fields(self)} | {"trace", "target_us", "start_offset_ms", "seed"}
        if both := sorted(taken & set(self.link)):
            raise ConfigError(f"link: {', '.join(both)} is the domain's own; give it beside link, not in it")
        given = self.traces
        if given is None:
            given = [default_trace()]
        elif isinstance(given, Trace | str | Path):
            given = [given]
        loaded = tuple(t if isinstance(t, Trace) else Trace.load(t) for t in given)
        if not loaded:
            raise ConfigError("traces: at least one is needed")
        object.__setattr__(self, "traces", loaded)
        if isinstance(self.target_ms, int | float):
            check_target(self.target_ms, _limits(self.mrtt_ms)[1])
        for key in _DRAWN:
            low, high = limits = _limits(self._range(key))
            least = 0.0 if key in ("loss", "jitter_us") or low == high else math.ulp(0.0)
            if not least <= low <= high < math.inf:
                raise ConfigError(f"{key}: {limits} is no range of positive numbers, the lower one first")
        for cc in _choices(self.cc):
            for queue in _choices(self.queue):
                for limit in (0, 1):
                    self._config(loaded[0], 0, [_limits(self._range(k))[limit] for k in _DRAWN], cc, queue, 0)

    def draw(self, rng: np.random.Generator) -> LinkConfig:
        """One path; takes from ``rng`` only what is not fixed, and at last the path's seed."""
        traces = self.traces
        assert isinstance(traces, tuple)
        trace = traces[_index(rng, len(traces))]
        start_ms = int(rng.integers(trace.duration_ms)) if self.random_start else 0
        drawn = [_draw(self._range(key), rng, log=key not in ("loss", "jitter_us")) for key in _DRAWN]
        ccs, queues = _choices(self.cc), _choices(self.queue)
        cc, queue = ccs[_index(rng, len(ccs))], queues[_index(rng, len(queues))]
        return self._config(trace, start_ms, drawn, cc, queue, int(rng.integers(2**32)))

    def _config(
        self, trace: Trace, start_ms: int, drawn: Sequence[float], cc: str, queue: str, seed: int
    ) -> LinkConfig:
        mrtt_ms, buffer_bytes, target_ms, loss, jitter_us = drawn
        return LinkConfig.from_mapping({
            **self.link, "trace": trace.opportunities_ms, "start_offset_ms": start_ms, "mrtt_ms": mrtt_ms,
            "buffer_bytes": round(buffer_bytes), "target_us": round(self.target_for(target_ms, mrtt_ms) * 1000),
            "loss": loss, "jitter_us": round(jitter_us), "cc": cc, "queue": queue, "seed": seed,
        })  # fmt: skip

    def _range(self, key: str) -> Range:
        value: Range | None = getattr(self, key)
        return DEFAULT_TARGET_MS if value is None else value

    def target_for(self, target_ms: float, mrtt_ms: float) -> float:
        """The target in force on a path with that base RTT."""
        given = self.target_ms is not None and _is_fixed(self.target_ms)
        return target_ms if given else max(target_ms, LEAST_TARGET_PER_RTT * mrtt_ms)


_DRAWN = ("mrtt_ms", "buffer_bytes", "target_ms", "loss", "jitter_us")


def _limits(value: Range) -> tuple[float, float]:
    return value if isinstance(value, tuple) else (value, value)


def _is_fixed(value: Range) -> bool:
    return not isinstance(value, tuple)


def _choices(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _index(rng: np.random.Generator, count: int) -> int:
    return int(rng.integers(count)) if count > 1 else 0


def _draw(value: Range, rng: np.random.Generator, log: bool) -> float:
    if _is_fixed(value):
        return float(value)  # type: ignore[arg-type]
    low, high = _limits(value)
    share = float(rng.random())
    return low * (high / low) ** share if log else low + (high - low) * share
