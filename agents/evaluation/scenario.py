"""A scenario of a comparison: one path, the kind of link that it runs on, and for how long."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reinet.core.errors import ConfigError
from reinet.core.target import MOST_MS, Form, Target
from reinet.envs.link.spec import LinkSpec, check_mrtt, times_of
from reinet.envs.mahimahi.spec import EMULATED, downlink_ms, require_emulated
from reinet.envs.sim.options import require_simulated
from reinet.envs.trace import Trace
from reinet.envs.trace.counting import data_leaves_ms

BELONGS_TO = {
    "codel_target_ms": ("queue", "codel"),
    "codel_interval_ms": ("queue", "codel"),
    "pie_reference_ms": ("queue", "pie"),
    "pie_burst_ms": ("queue", "pie"),
    "fair_window_ms": ("scheduler", "proportional-fair"),
    "wired_buffer_bytes": ("wired_mbps", None),
    "pause_ms": ("object_bytes", None),
}
"""Options that do nothing without another one, of this value or, None, of any."""

LinkKind = Literal["sim", "mahimahi"]
Actuator = Literal["kernel", "app"]

SAID_BESIDE = ("trace", "cc", "target_us", "mrtt_ms", "buffer_bytes", "start_offset_ms", "seed")
"""Fields of ``LinkSpec`` that ``Scenario.of`` takes as arguments of their own."""
LINK_OPTIONS = tuple(f.name for f in fields(LinkSpec) if f.name not in SAID_BESIDE)
"""The others, by which an option of a link is named."""


def link_options(texts: Sequence[str]) -> dict[str, Any]:
    """Returns a link's options of ``key=value`` texts; values are JSON where they can be read as such, else text.

    Raises ConfigError for a text without a key, or a key that is given twice.
    """
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"link option {text!r}: give key=value, such as queue=codel")
        if key in options:
            raise ConfigError(f"link option {key}: is given twice")
        try:
            options[key] = json.loads(value)
        except (ValueError, RecursionError):  # the latter where it is nested a thousand deep
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
    actuator: Actuator = "kernel"
    """Where caps act on real sockets: in the kernel, or in the application (``alcc/``)."""
    asked: Target | None = None
    """The target as it was asked for, None = the RTT in ``path.target_us``, which is this one resolved."""

    def __post_init__(self) -> None:
        for name, value in (("mrtt_ms", self.path.mrtt_ms), ("seconds", self.seconds)):
            if not 0 < value < 1e6:
                raise ConfigError(f"{name} is {value:g}; it must be above 0 and below 1e6")
        if self.seconds * 1000 <= self.path.start_ms + self.path.mrtt_ms:
            over = f" over {self.path.trace.name}" if isinstance(self.path.trace, Trace) else ""
            raise ConfigError(
                f"a run of {self.seconds:g} s{over} ends before anything comes back: the flow starts after "
                f"{self.path.start_ms:g} ms on a path of {self.path.mrtt_ms:g} ms; run it longer, "
                "or leave the trace out where a shorter one is run once"
            )
        if self.asked is None:
            _check_target_ms(self.target_ms)
        if self.actuator == "app" and self.link == "sim":
            raise ConfigError("actuator app: it works on real sockets alone; add --link mahimahi")
        (require_simulated if self.link == "sim" else require_emulated)(self.path)

    @classmethod
    def of(
        cls,
        trace: Trace,
        link: LinkKind = "mahimahi",
        *,
        seconds: float = 60.0,
        target: Target | str | None = None,
        target_ms: float | None = None,
        link_options: Mapping[str, Any] | None = None,
        actuator: Actuator = "kernel",
        **path: Any,
    ) -> "Scenario":
        """Returns the scenario of a path with these fields; others are DeepCC's evaluation, ``LinkSpec``'s defaults.

        ``target`` is an RTT to stay below or its text, ``target_ms`` an absolute one. A relative one is resolved from
        the path's ``mrtt_ms``; on a real link the control loop resolves it anew for each record, as the daemon does,
        from the minimum RTT that the flow itself measured, which is up to 2 ms more. ``link_options`` are further
        fields, as a user named them, an uplink by its file. Raises ConfigError.
        """
        options = dict(link_options or {})
        for key in options:
            if key == "start_offset_ms":
                raise ConfigError(f"link option {key}: a run begins where its trace does; cut off what lies before")
            if key in SAID_BESIDE:
                raise ConfigError(f"link option {key}: it is said beside the link's options, not among them")
            if key not in LINK_OPTIONS:
                near = get_close_matches(key, LINK_OPTIONS, 1)
                hint = f"did you mean {near[0]!r}? There are" if near else "there are"
                known = LINK_OPTIONS if link == "sim" else [key for key in EMULATED if key in LINK_OPTIONS]
                raise ConfigError(f"link option {key}: unknown; {hint} {', '.join(known)}")
            needed, value = BELONGS_TO.get(key, (key, None))
            if needed not in options or value not in (None, options[needed]):
                raise ConfigError(f"link option {key}: does nothing without {needed}{f'={value}' if value else ''}")
        mrtt_ms = path.get("mrtt_ms", LinkSpec.mrtt_ms)
        check_mrtt(mrtt_ms)
        read = options | ({"uplink": _uplink(options["uplink"])} if "uplink" in options else {})
        asked = Target.parse(target) if isinstance(target, str) else target
        if target_ms is not None:
            if asked is not None:
                raise ConfigError(f"target: {asked} and target_ms, {target_ms:g}, are both given; give one of them")
            _check_target_ms(target_ms)
            asked = Target(Form.ABSOLUTE, target_ms)
        if asked is not None:
            path["target_us"] = round(asked.resolve_ms(mrtt_ms) * 1000)
        return cls(LinkSpec(trace, **path, **read), link, seconds, options, actuator, asked)

    def require_data(self) -> "Scenario":
        """Returns this; raises ConfigError where the traces let none of the flow's data through within the run.

        A suite writes such a run down as invalid and goes on; a comparison that meets it midway has lost the others.
        """
        path = self.path
        least_s = data_leaves_s(path) if self.link == "sim" else _leaves_s(path, downlink_ms(path), 0.0)
        if self.seconds <= least_s:
            its = "the trace" if path.uplink is None else "the trace, with this uplink,"
            raise ConfigError(
                f"a run of {self.seconds:g} s over {self.trace.name} ends before {its} lets any data through, "
                f"which takes {least_s:g} s; run it longer, or leave this trace out"
            )
        return self

    @property
    def trace(self) -> Trace:
        """Returns the path's trace, with its name."""
        assert isinstance(self.path.trace, Trace), "what is compared has a name"
        return self.path.trace

    @property
    def target(self) -> Target:
        """Returns the RTT asked for, as it was told."""
        return self.asked or Target(Form.ABSOLUTE, self.target_ms)

    @property
    def target_ms(self) -> float:
        """Returns the RTT asked for on this path."""
        return self.path.target_us / 1000


def data_leaves_s(path: LinkSpec) -> float:
    """Returns before when no data of a simulated path's first flow leaves its link, in seconds from the path's start.

    A run that is over by then is better left out: the sender repeats its answer to the SYN for as long as nothing comes
    back, which may be years of a trace with one opportunity, and a log holds every one of them.
    """
    return _leaves_s(path, path.trace_ms, float(path.start_offset_ms))


def _leaves_s(path: LinkSpec, times_ms: npt.NDArray[np.integer], start_ms: float) -> float:
    uplink_ms = None if path.uplink is None else times_of(path.uplink)
    return (data_leaves_ms(times_ms, start_ms + path.start_ms, path.mrtt_ms, uplink_ms) - start_ms) / 1000


def scenarios_of(traces: Sequence[Trace], ccs: Sequence[str], link: LinkKind, **said: Any) -> list[Scenario]:
    """Returns ``Scenario.of`` for every trace under every congestion control. Raises ConfigError."""
    names = [cc.strip() for cc in ccs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"cc: {twice[0]} is there twice; give every congestion control once")
    return [Scenario.of(trace, link, cc=name, **said) for trace in traces for name in names]


def _uplink(file: object) -> Trace:
    if not isinstance(file, str):
        raise ConfigError(f"link option uplink: give the file of a trace of the ACKs' direction, not {file!r}")
    return Trace.load(file)


def _check_target_ms(target_ms: float) -> None:
    if not 0 < target_ms <= MOST_MS:
        raise ConfigError(f"target_ms is {target_ms}; it must be above 0 and at most {MOST_MS:g}")
