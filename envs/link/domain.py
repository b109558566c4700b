"""Domain randomisation as configuration: which paths an environment, or training, draws its flows from."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain, product
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt

from reinet.core import ConfigError, TraceError
from reinet.core.target import LEAST_TARGET_PER_RTT
from reinet.envs.link.conditions import Conditions
from reinet.envs.link.laws import Law, LogUniform, Range, Uniform, check_law, drawn, limits, value_at
from reinet.envs.link.spec import DEFAULT_TARGET_MS, LinkSpec, check_kind, check_target, target_on
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

CLOCK_MS = 2.0
"""A path measures at least so much more than its fixed delay: each way has a clock of 1 ms."""

_MAY_BE_ZERO = ("loss", "jitter_us")
_OWN = ("mrtt_ms", "buffer_bytes", "target_ms", "loss", "jitter_us")
_SET_OTHERWISE = {
    "seed": "it is drawn for each path, from the seed of a reset or of a training",
    "start_offset_ms": "flows start at the trace's beginning, or with random_start anywhere in it",
    "target_us": "give target_ms beside link",
}
"""Fields of ``LinkSpec`` that a domain has by no name of their own, and what sets them."""


def default_trace() -> Trace:
    """Returns the trace of an environment that is given none: long enough for episodes that differ."""
    return generate("lte-driving", 300.0, seed=0)


@dataclass(frozen=True, eq=False)
class WeightedTrace(Trace):
    """A trace and how often it is drawn: ``weight`` times as often as one without a weight."""

    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind(f"trace {self.name}: weight", self.weight, Real, "a number above 0")
        if not 0 < self.weight < math.inf:
            raise ConfigError(f"trace {self.name}: weight is {self.weight}; give a number above 0")


@dataclass(frozen=True)
class LinkDomain:
    """Paths to draw from. A pair of numbers is a range, drawn log-uniformly: every factor is as likely as any other.

    The defaults are DeepCC's path, with nothing drawn but the seed. What is fixed takes nothing from the random
    generator; the rest is drawn in this order: trace, start, whether it is a reference path, ``mrtt_ms``,
    ``buffer_bytes``, the target, ``loss``, ``jitter_us``, the laws in ``link`` as they stand there, ``cc``, ``queue``,
    seed, ``conditions``. So results stay the same for as long as the domain does.
    """

    traces: Sequence[Trace | str | Path] | Trace | str | Path | None = None
    """Each trace is as likely as the next, but for a ``WeightedTrace``; None = a generated one."""
    random_start: bool = False
    """Flows start anywhere in the trace, instead of at its beginning."""
    mrtt_ms: Range = 20.0
    buffer_bytes: Range = 150_000.0
    target_ms: Range | str | None = None
    """The RTT asked for, None = 50 ms. That and a drawn one are raised to 1.1 x the path's base RTT; a given one below
    it is an error. A text ("50ms", "+30ms", "2.5x") is a ``Target``, resolved from each path's base RTT."""
    loss: Range = 0.0
    """A pair is drawn uniformly: its lower limit may be 0."""
    jitter_us: Range = 1000.0
    """A pair is drawn uniformly."""
    cc: str | Sequence[str] = "cubic"
    """Each congestion control is as likely as the next; so is each queue."""
    queue: str | Sequence[str] = "droptail"
    link: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of ``LinkSpec``: a wired bottleneck, further flows, a cell. They are the same for all paths, but for
    a ``Uniform`` or ``LogUniform``, which is drawn."""
    queueing_target_ms: Range | None = None
    """The RTT asked for above the base RTT, in place of ``target_ms``: see ``target_above``."""
    even_mrtt: bool = False
    """``mrtt_ms`` is rounded to even milliseconds: mm-delay takes whole ones each way."""
    reference_share: float | None = None
    """The share of paths whose ``mrtt_ms``, ``buffer_bytes`` and target are ``LinkSpec``'s own, DeepCC's, where most
    comparisons are made. None = no such path, and no number is drawn for it; at 0 one is drawn all the same."""
    seeds: int = 2**32
    """How many different seeds there are: so many that two runs that should differ hardly ever share one."""
    conditions: Conditions = field(default_factory=Conditions)
    """What flows meet beside their path, a reference path or not."""

    def __post_init__(self) -> None:
        check_kind("link", self.link, Mapping, "a mapping of LinkSpec's fields")
        check_kind("random_start", self.random_start, (bool, np.bool_), "True or False")
        if odd := [key for key in self.link if not isinstance(key, str)]:
            raise ConfigError(f"link: {odd[0]!r} is no name of a field")
        for key in ("cc", "queue"):
            check_kind(key, getattr(self, key), (str, Sequence), "a name, or a list of names,")
        for key in (*_OWN, "queueing_target_ms"):
            if isinstance(pair := getattr(self, key), list):
                object.__setattr__(self, key, tuple(pair))
        check_kind("conditions", self.conditions, Conditions, "a Conditions")
        for key, cure in _SET_OTHERWISE.items():
            if key in self.link:
                raise ConfigError(f"link: {key} is the domain's own; {cure}")
        if both := sorted(({f.name for f in fields(self)} | {"trace"}) & set(self.link)):
            raise ConfigError(f"link: {', '.join(both)} is the domain's own; give it beside link, not in it")
        given = self.traces
        if given is None:
            given = [default_trace()]
        elif isinstance(given, Trace | str | Path) or not isinstance(given, Iterable):
            given = [given]
        loaded = tuple(trace_of(trace) for trace in given)
        if not loaded:
            raise ConfigError("traces: at least one is needed")
        object.__setattr__(self, "traces", loaded)
        check_kind("reference_share", self.reference_share, (Real, NoneType), "a share from 0 to 1, or None,")
        if self.reference_share is not None and not 0 <= self.reference_share <= 1:
            raise ConfigError(f"reference_share: {self.reference_share} is no share; give 0 to 1, or None")
        check_kind("seeds", self.seeds, Integral, "a whole number")
        if not 1 <= self.seeds <= 2**63:
            raise ConfigError(f"seeds: {self.seeds} is outside 1 to 2^63")
        if self.queueing_target_ms is not None and self.target_ms is not None:
            raise ConfigError("queueing_target_ms: give it or target_ms, not both")
        laws = self._laws()
        check_law("mrtt_ms", laws["mrtt_ms"])
        if self.queueing_target_ms is None and isinstance(self.target_ms, Real | str):
            longest_ms = limits(laws["mrtt_ms"])[1]
            check_target(target_on(self.target_ms, longest_ms), longest_ms)
        for key, law in laws.items():
            check_law(key, law)
        self._check_draws()

    def draw(self, rng: np.random.Generator) -> LinkSpec:
        """Returns one path; takes from ``rng`` only what is not fixed, and the path's seed."""
        trace = self._drawn_trace(rng)
        start_ms = int(rng.integers(trace.duration_ms)) if self.random_start else 0
        is_reference = self.reference_share is not None and float(rng.random()) < self.reference_share
        values = {key: drawn(law, rng) for key, law in self._laws().items()}
        ccs, queues = _choices(self.cc), _choices(self.queue)
        cc, queue = ccs[_index(rng, len(ccs))], queues[_index(rng, len(queues))]
        link = self._link(trace, start_ms, values, cc, queue, int(rng.integers(self.seeds)))
        return self.conditions.apply(as_reference(link) if is_reference else link, rng)

    def corners(self) -> Iterator[LinkSpec]:
        """Yields paths at both ends of all ranges, with each congestion control and queue: a run may refuse them."""
        for cc, queue, share in product(_choices(self.cc), _choices(self.queue), (0.0, 1.0)):
            values = {key: value_at(law, share) for key, law in self._laws().items()}
            link = self._link(self._traces()[0], 0, values, cc, queue, 0)
            yield link
            yield from self.conditions.extremes(link)

    def _check_draws(self) -> None:
        """Raises ConfigError for what some draw would be refused for: a draw in the midst of a run is too late."""
        for key in ("cc", "queue"):
            if not _choices(getattr(self, key)):
                raise ConfigError(f"{key}: at least one is needed")
        size = self._laws()["buffer_bytes"]
        if isinstance(size, Law) and size.low < 1:
            raise ConfigError(f"buffer_bytes: {limits(size)} begins at 0, which means no limit; begin with a packet")
        for trace in self._traces():
            try:
                trace.check_scale(limits(self.conditions.rate_scale)[1])
            except TraceError as error:
                raise ConfigError(f"rate_scale: {error}") from error
        for link in chain(self.corners(), self._opposed_ends()):
            if self.reference_share:
                try:
                    as_reference(link)
                except ConfigError as error:
                    raise ConfigError(
                        f"reference_share: on a reference path, whose mrtt_ms is {LinkSpec.mrtt_ms:g}: {error}"
                    ) from error

    def _opposed_ends(self) -> Iterator[LinkSpec]:
        """Yields paths at one range's upper end and all others' lower ones.

        A limit of ``LinkSpec`` that hangs on another field (``forward_ms`` on ``mrtt_ms``, ``stop_ms`` on ``start_ms``,
        a buffer on ``mss_bytes``) is passed there if any draw passes it. Raises ConfigError.
        """
        laws = self._laws()
        for upper in (key for key, law in laws.items() if isinstance(law, Law)):
            values = {key: value_at(law, float(key == upper)) for key, law in laws.items()}
            try:
                yield self._link(self._traces()[0], 0, values, _choices(self.cc)[0], _choices(self.queue)[0], 0)
            except ConfigError as error:
                highest = limits(laws[upper])[1]
                raise ConfigError(
                    f"{upper}: a draw near {highest:g}, with the other ranges near their lower ends, is no path "
                    f"({error}); narrow {upper} or the range that it hangs on"
                ) from error

    def _drawn_trace(self, rng: np.random.Generator) -> Trace:
        traces, shares = self._traces(), self._weight_shares
        if shares is None:
            return traces[_index(rng, len(traces))]
        return traces[min(int(np.searchsorted(shares, rng.random(), side="right")), len(traces) - 1)]

    @cached_property
    def _weight_shares(self) -> npt.NDArray[np.float64] | None:
        """Returns up to where in [0, 1) each trace reaches; None = all of them are as likely."""
        weights = np.array([t.weight if isinstance(t, WeightedTrace) else 1.0 for t in self._traces()])
        return None if np.all(weights == weights[0]) else np.cumsum(weights) / weights.sum()

    def _traces(self) -> tuple[Trace, ...]:
        assert isinstance(self.traces, tuple)
        return self.traces

    def _laws(self) -> dict[str, float | Law]:
        """Returns what is drawn, in order, and what of it is fixed; the target goes by either of its two names."""
        laws: dict[str, float | Law] = {}
        for key in _OWN:
            name = "queueing_target_ms" if key == "target_ms" and self.queueing_target_ms is not None else key
            value = getattr(self, name)
            if name == "target_ms" and isinstance(value, str):
                continue  # it hangs on the drawn base RTT
            if name == "target_ms" and value is None:
                value = DEFAULT_TARGET_MS
            law = Uniform if key in _MAY_BE_ZERO else LogUniform
            laws[name] = law(*value) if isinstance(value, tuple) and len(value) == 2 else value
        return laws | {key: value for key, value in self.link.items() if isinstance(value, Law)}

    def _link(
        self, trace: Trace, start_ms: int, values: Mapping[str, float], cc: str, queue: str, seed: int
    ) -> LinkSpec:
        own = dict(values)
        mrtt_ms = own["mrtt_ms"]
        own["mrtt_ms"] = mrtt_ms = 2.0 * round(mrtt_ms / 2) if self.even_mrtt else mrtt_ms
        if "queueing_target_ms" in own:
            target_ms = target_above(mrtt_ms, own.pop("queueing_target_ms"))
        elif isinstance(self.target_ms, str):
            target_ms = target_on(self.target_ms, mrtt_ms)
        else:
            target_ms = own.pop("target_ms")
            if not isinstance(self.target_ms, Real):
                target_ms = max(target_ms, LEAST_TARGET_PER_RTT * mrtt_ms)
        whole = {key: round(value) for key, value in own.items() if isinstance(getattr(LinkSpec, key, None), int)}
        return LinkSpec.from_mapping({
            **self.link, **own, **whole, "trace": trace, "start_offset_ms": start_ms, "cc": cc, "queue": queue,
            "target_us": round(min(target_ms * 1000, 2.0**32)), "seed": seed,  # LinkSpec refuses what is too large
        })  # fmt: skip


def trace_of(given: object) -> Trace:
    """Returns the trace that is given, as itself or by its path; raises TraceError, or ConfigError for neither."""
    if isinstance(given, Trace):
        return given
    if isinstance(given, str | Path):
        return Trace.load(given)
    raise ConfigError(
        f"traces: {given!r:.40} is neither a Trace nor a path; of delivery opportunities in ms make one by "
        "Trace(opportunities_ms, name)"
    )


def target_above(mrtt_ms: float, queueing_ms: float) -> float:
    """Returns the RTT in ms to ask for where so much queueing is wanted, with room for the clocks' share of the RTT."""
    return max(mrtt_ms + queueing_ms, LEAST_TARGET_PER_RTT * (mrtt_ms + CLOCK_MS))


def as_reference(link: LinkSpec) -> LinkSpec:
    """Returns the link's trace, start and seed on DeepCC's path: its base RTT, buffer and target."""
    return replace(link, mrtt_ms=LinkSpec.mrtt_ms, buffer_bytes=LinkSpec.buffer_bytes, target_us=LinkSpec.target_us)


def _choices(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _index(rng: np.random.Generator, count: int) -> int:
    return int(rng.integers(count)) if count > 1 else 0
