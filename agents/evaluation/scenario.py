"""A scenario of a comparison: one path, the kind of link that it runs on, and for how long."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal

from reinet.core.errors import ConfigError
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.spec import EMULATED, require_emulated
from reinet.envs.sim.options import require_simulated
from reinet.envs.trace import Trace

LinkKind = Literal["sim", "mahimahi"]

SAID_BESIDE = ("trace", "cc", "target_us", "mrtt_ms", "buffer_bytes", "start_offset_ms", "seed")
"""Fields of ``LinkSpec`` that ``Scenario.of`` takes as arguments of their own."""
LINK_OPTIONS = tuple(f.name for f in fields(LinkSpec) if f.name not in (*SAID_BESIDE, "uplink"))
"""The others, by which an option of a link is named. An uplink is a trace, which no option can say."""


def link_options(texts: Sequence[str]) -> dict[str, Any]:
    """Returns a link's options of ``key=value`` texts; values are JSON where they can be read as such, else text."""
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


@dataclass(frozen=True, eq=False)
class Scenario:
    """A path, the link that it runs on, and the seconds that a run lasts. Raises ConfigError where that link cannot.

    Two scenarios are the same only if they are one object.
    """

    path: LinkSpec
    link: LinkKind = "mahimahi"
    seconds: float = 60.0
    link_options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the path, as they were given: for the rows of a table."""

    def __post_init__(self) -> None:
        for name, value in (("target_ms", self.target_ms), ("mrtt_ms", self.path.mrtt_ms), ("seconds", self.seconds)):
            if not 0 < value < 1e6:
                raise ConfigError(f"{name} is {value}; it must be above 0 and finite")
        (require_simulated if self.link == "sim" else require_emulated)(self.path)

    @classmethod
    def of(
        cls,
        trace: Trace,
        link: LinkKind = "mahimahi",
        *,
        seconds: float = 60.0,
        target_ms: float | None = None,
        link_options: Mapping[str, Any] | None = None,
        **path: Any,
    ) -> "Scenario":
        """Returns the scenario of a path with these fields; others are DeepCC's evaluation, ``LinkSpec``'s defaults.

        ``link_options`` are further fields, as a user named them. Raises ConfigError.
        """
        options = dict(link_options or {})
        for key in options:
            if key in SAID_BESIDE:
                raise ConfigError(f"link option {key}: it is said beside the link's options, not among them")
            if key not in LINK_OPTIONS:
                near = get_close_matches(key, LINK_OPTIONS, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                known = LINK_OPTIONS if link == "sim" else [key for key in EMULATED if key in LINK_OPTIONS]
                raise ConfigError(f"link option {key}: unknown; {hint}There are {', '.join(known)}")
        if target_ms is not None:
            if not 0 < target_ms < 1e6:
                raise ConfigError(f"target_ms is {target_ms}; it must be above 0 and finite")
            path["target_us"] = round(target_ms * 1000)
        return cls(LinkSpec(trace, **path, **options), link, seconds, options)

    @property
    def trace(self) -> Trace:
        """Returns the path's trace, with its name."""
        assert isinstance(self.path.trace, Trace), "what is compared has a name"
        return self.path.trace

    @property
    def target_ms(self) -> float:
        """Returns the delay asked for, RTT."""
        return self.path.target_us / 1000
