"""Traces and paths of a scenario: what its words become for the simulator or for Mahimahi."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.evaluation.suites.definition import ScenarioSpec
from reinet.core.errors import ConfigError
from reinet.core.guard import LOOK_EVERY_S
from reinet.core.records import OPPORTUNITY_BYTES
from reinet.envs.link.metrics import rate_mbps
from reinet.envs.link.spec import LARGEST_BUFFER_BYTES, LinkSpec, times_of
from reinet.envs.trace import Trace, load_traces
from reinet.envs.trace.model import CONSTANT, PRESETS, constant, generate

CONSTANT_SECONDS = 10.0
"""A constant link repeats itself; whole packets then make up any rate to 0.1 %."""
LABELS = ("stationary", "walking", "driving", "constant")
"""DeepCC's scenarios, and steady links; a trace belongs to the one that its name has in it, else to ``other``."""
TRACE_SEED = 314_159
"""No training draws it: those begin at small numbers."""
PEAK_BIN_MS = 100.0
"""A peak rate is that of the best 100 ms: shorter bins tell of the scheduler's bursts, not of the link."""


@dataclass(frozen=True, eq=False)
class Link:
    """A trace and one value of everything that a scenario sweeps."""

    trace: Trace
    point: Mapping[str, Any]
    """The swept fields' values, as the suite's file has them."""

    @property
    def label(self) -> str:
        """Returns one of ``LABELS``, or other."""
        return next((label for label in LABELS if label in self.trace.name.lower()), "other")


def traces(spec: ScenarioSpec, given: Sequence[Trace]) -> list[Trace]:
    """Returns a scenario's traces; those given stand in for what would be generated from presets. Raises."""
    found: list[Trace] = []
    for text in spec.traces:
        if text.startswith(CONSTANT):
            found.append(constant(text, CONSTANT_SECONDS))
        elif text not in PRESETS:
            found.extend(load_traces([Path(text)]))
        elif not given:
            found.append(generate(text, spec.trace_seconds, TRACE_SEED))
    if any(text in PRESETS for text in spec.traces):
        found.extend(given)
    return list({trace.sha256: trace for trace in found}.values())


def links(spec: ScenarioSpec, given: Sequence[Trace]) -> list[Link]:
    """Returns every trace at every point of the sweep."""
    points = [dict(zip(spec.sweep, values, strict=True)) for values in product(*spec.sweep.values())]
    return [Link(trace, point) for trace in traces(spec, given) for point in points]


def begin(suite_seed: int, spec: ScenarioSpec, trace: Trace, repetition: int) -> tuple[int, int]:
    """Returns a repetition's seed and where in the trace it starts, in ms: the same for every agent and path."""
    text = f"{suite_seed} {trace.sha256} {repetition}"
    digest = hashlib.sha256(text.encode()).digest()
    seed = int.from_bytes(digest[:6], "big")
    moves = spec.random_start and repetition > 0 and not _is_steady(trace)
    return seed, int.from_bytes(digest[8:16], "big") % trace.duration_ms if moves else 0


def _is_steady(trace: Trace) -> bool:
    """Returns whether a trace is a constant link, which is the same wherever a run begins: one that is only called so
    may be a recording."""
    if not trace.name.startswith("constant-"):
        return False
    steady = Trace.constant(trace.mean_mbps, trace.duration_ms / 1000)
    return np.array_equal(trace.opportunities_ms, steady.opportunities_ms)


def scenario(
    spec: ScenarioSpec,
    link: Link,
    cc: str,
    *,
    seed: int,
    start_ms: int,
    flows: int = 1,
    beside: str | None = None,
    alone: bool = False,
) -> Scenario:
    """Returns one path with all its flows, and how long it runs. Raises ConfigError for what no link can do.

    ``alone``: the flow is the only one, and begins when a plain flow beside that many would, so that both are measured
    over the same stretch of the trace.
    """
    said = {**spec.path, **link.point}
    own: dict[str, Any] = {
        key: said.pop(key) for key in ("target", "target_ms", "mrtt_ms", "buffer_bytes") if key in said
    }
    mrtt_ms = float(own.get("mrtt_ms", LinkSpec.mrtt_ms))
    _resolve(said, own, link.trace, mrtt_ms)
    if "look_phase_s" in said:
        start_ms = _at_phase(start_ms, said.pop("look_phase_s"))
    step_ms = spec.flow_start_s * 1000
    further: list[dict[str, Any]] = [
        {"cc": cc, "stepped": True, "start_ms": number * step_ms} for number in range(1, 1 if alone else flows)
    ]
    if beside is not None:
        further.append({"cc": beside, "start_ms": flows * step_ms})
    if further:
        said["flows"] = further
    last_ms = max((float(flow.get("start_ms", 0.0)) for flow in said.get("flows", ())), default=0.0)
    if alone and step_ms > 0:
        last_ms = said["start_ms"] = flows * step_ms
    return Scenario.of(
        link.trace,
        spec.link,
        seconds=spec.seconds + last_ms / 1000,
        link_options=said,
        cc=cc,
        seed=seed,
        start_offset_ms=start_ms,
        **own,
    )


def _at_phase(start_ms: int, phase_s: Any) -> int:
    """Returns a start that is so long after one of the fixed times of flows' common look for their minimum RTT.

    Simulated records have the trace's time, so constant links start at such a time unless a suite says otherwise; real
    flows start anywhere between two. Raises ConfigError.
    """
    if isinstance(phase_s, bool) or not isinstance(phase_s, int | float) or not 0 <= phase_s < LOOK_EVERY_S:
        raise ConfigError(f"look_phase_s is {phase_s!r}; give seconds from 0 to below {LOOK_EVERY_S:g}")
    every_ms = round(LOOK_EVERY_S * 1000)
    return start_ms // every_ms * every_ms + round(phase_s * 1000)


def together_ms(path: LinkSpec) -> float:
    """Returns when the last of a path's flows starts, from the path's start."""
    return max(flow.start_ms for flow in path.all_flows())


def _resolve(said: dict[str, Any], own: dict[str, Any], trace: Trace, mrtt_ms: float) -> None:
    """Puts numbers in the place of what hangs on the trace."""
    worked_out: dict[str, tuple[dict[str, Any], str, Callable[[float], float]]] = {
        "buffer_bdp": (own, "buffer_bytes", lambda times: _held_bytes(trace.mean_mbps, times * mrtt_ms)),
        "buffer_peak_ms": (own, "buffer_bytes", partial(peak_buffer_bytes, trace)),
        "app_share": (said, "app_mbps", lambda share: share * trace.mean_mbps),
    }
    for key, (path, name, value_of) in worked_out.items():
        if key in said:
            if name in path:
                raise ConfigError(f"{key}: {name} is given too; give one of them")
            path[name] = value_of(said.pop(key))


def peak_buffer_bytes(trace: Trace, ms: float) -> int:
    """Returns the buffer that holds so long of a trace's peak rate."""
    return _held_bytes(peak_mbps(trace), ms)


def _held_bytes(rate_mbps: float, ms: float) -> int:
    least_bytes, most_bytes = 2 * OPPORTUNITY_BYTES, LARGEST_BUFFER_BYTES + 1  # the latter LinkSpec refuses
    return max(least_bytes, round(min(rate_mbps * 125 * ms, most_bytes)))


def peak_mbps(trace: Trace) -> float:
    """Returns the rate of a trace's best 100 ms, of several loops of it where one is shorter."""
    loop_ms = np.asarray(trace.opportunities_ms, np.float64)
    loops = math.ceil(PEAK_BIN_MS / trace.duration_ms)
    times_ms = np.concatenate([loop_ms + number * trace.duration_ms for number in range(loops)])
    return float(rate_mbps(times_ms, OPPORTUNITY_BYTES, 0, loops * trace.duration_ms, PEAK_BIN_MS).max())


def described(path: LinkSpec) -> dict[str, Any]:
    """Returns every field of a path as JSON has it, traces by their content: what a run's key is made of."""

    def shown(value: Any) -> Any:
        if isinstance(value, Trace):
            return value.sha256
        if isinstance(value, np.ndarray):
            return hashlib.sha256(times_of(value).tobytes()).hexdigest()
        if isinstance(value, Mapping):
            return {key: shown(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [shown(one) for one in value]
        return value

    return {one.name: shown(getattr(path, one.name)) for one in fields(path)}
