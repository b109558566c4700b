"""What is compared: one link and what runs over it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal

from reinet.core.errors import ConfigError
from reinet.envs.mahimahi.spec import LinkSpec
from reinet.envs.sim import LinkConfig
from reinet.envs.trace import Trace

LinkKind = Literal["sim", "mahimahi"]

SCENARIO_KEYS = ("trace", "cc", "target_us", "mrtt_ms", "buffer_bytes", "start_offset_ms", "seed")
"""Keys of ``LinkConfig`` that a scenario says in its own fields."""
LINK_OPTIONS = tuple(f.name for f in fields(LinkConfig) if f.name not in SCENARIO_KEYS)
MAHIMAHI_OPTIONS = ("queue",)
"""Of these, what a link of Mahimahi can do too."""


def link_options(texts: Sequence[str]) -> dict[str, Any]:
    """Options of a link from ``key=value`` texts; values are JSON where they can be read as such, else plain text."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"link option {text!r}: give key=value, such as queue=codel")
        if key in options:
            raise ConfigError(f"link option {key}: is given twice")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


@dataclass(frozen=True)
class Scenario:
    """One link and what runs over it. Defaults are DeepCC's evaluation: 20 ms path, 150 KB droptail, 50 ms target."""

    trace: Trace
    link: LinkKind = "mahimahi"
    cc: str = "cubic"
    target_ms: float = 50.0
    mrtt_ms: float = 20.0
    buffer_bytes: int = 150_000
    seconds: float = 60.0
    start_offset_ms: int = 0
    """Where in the trace the link starts."""
    seed: int = 0
    """Of the simulator's jitter; the real host brings its own."""
    link_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Other keys of ``LinkConfig``: the queue, losses, jitter, further flows; of Mahimahi, MAHIMAHI_OPTIONS."""

    def __post_init__(self) -> None:
        for name in ("target_ms", "mrtt_ms", "seconds"):
            if not 0 < getattr(self, name) < 1e6:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0 and finite")
        LinkSpec(self.trace, mrtt_ms=self.mrtt_ms, buffer_bytes=self.buffer_bytes)  # the same limits for every link
        if self.start_offset_ms < 0 or self.seed < 0:
            raise ConfigError(f"start_offset_ms {self.start_offset_ms} and seed {self.seed} count from 0")
        for key in self.link_options:
            if key in SCENARIO_KEYS:
                raise ConfigError(f"link option {key}: it is said beside the link's options, not among them")
            if key not in LINK_OPTIONS:
                near = get_close_matches(key, LINK_OPTIONS, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ConfigError(f"link option {key}: unknown; {hint}There are {', '.join(LINK_OPTIONS)}")
            if self.link == "mahimahi" and key not in MAHIMAHI_OPTIONS:
                raise ConfigError(
                    f"link option {key}: Mahimahi's link has no such thing, only the simulated one (--link sim) has; "
                    f"with --link mahimahi there is {', '.join(MAHIMAHI_OPTIONS)}"
                )
        if self.link == "sim":
            self.simulated()  # refuses values that no link has
        else:
            self.emulated()

    def simulated(self) -> LinkConfig:
        """The link for the simulator."""
        return LinkConfig(
            trace=self.trace.opportunities_ms,
            buffer_bytes=self.buffer_bytes,
            mrtt_ms=self.mrtt_ms,
            target_us=round(self.target_ms * 1000),
            cc=self.cc,
            start_offset_ms=self.start_offset_ms,
            seed=self.seed,
            **self.link_options,
        )

    def emulated(self) -> LinkSpec:
        """The link for Mahimahi."""
        return LinkSpec(
            self.trace,
            mrtt_ms=self.mrtt_ms,
            buffer_bytes=self.buffer_bytes,
            start_offset_ms=self.start_offset_ms,
            **self.link_options,
        )
