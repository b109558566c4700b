"""Training's links: traces to learn from, others to select by, and the paths that are drawn around them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from reinet.agents.decide.baselines import NoCap
from reinet.agents.evaluation.batch import figures_if_any
from reinet.agents.learn.config import LinkSection, TraceSection, TrainConfig
from reinet.agents.learn.recordings import Recordings, recordings
from reinet.core.errors import ConfigError
from reinet.envs.link.conditions import Conditions
from reinet.envs.link.domain import LinkDomain, WeightedTrace, as_reference, target_above
from reinet.envs.link.laws import LogUniform, Uniform, law_of
from reinet.envs.link.spec import LinkSpec
from reinet.envs.trace import Trace
from reinet.envs.trace.counting import data_leaves_ms
from reinet.envs.trace.model import generate

SEEDS = 2**31
"""A link's noise has one of so many seeds; what models were trained on so far was drawn from as many."""

_SELECT_SEED_GAP = 1_000_000
"""It keeps the seeds of selection far from any training trace's."""


def training_traces(config: TrainConfig) -> list[Trace]:
    """Returns the traces to learn from, weighted where there are recordings. Raises ConfigError."""
    section, own = config.traces, _recordings(config)
    generated = _allowed(generated_training_traces(section), own, own.select)
    if not section.sets:
        return generated
    weight = section.presets_weight / max(len(generated), 1)
    return [*(WeightedTrace(t.opportunities_ms, t.name, None, weight) for t in generated), *own.learn]


def selection_traces(config: TrainConfig) -> list[Trace]:
    """Returns the traces that choose among checkpoints; none of them is a training trace. Raises ConfigError."""
    own = _recordings(config)
    return [*_allowed(generated_selection_traces(config.traces), own, own.learn), *own.select]


def generated_training_traces(section: TraceSection) -> list[Trace]:
    """Returns the generated ones of the traces to learn from."""
    return _generated(section, section.train_count, section.seed)


def generated_selection_traces(section: TraceSection) -> list[Trace]:
    """Returns the generated ones of the traces to select by."""
    return _generated(section, section.select_count, section.seed + _SELECT_SEED_GAP)


def _recordings(config: TrainConfig) -> Recordings:
    section = config.traces
    found = recordings(section)
    if not section.presets and not found.learn:
        raise ConfigError("traces.sets: no recording is left to learn from; give one that is not for selection or test")
    if not section.presets and not found.select:
        raise ConfigError(
            "traces.sets: no recording is left to choose among checkpoints by; give two or more and a select_share "
            "above 0, a set whose role is validation, or presets beside the sets"
        )
    return found


def _allowed(generated: list[Trace], own: Recordings, apart: Sequence[Trace]) -> list[Trace]:
    """Returns the generated traces; raises ConfigError for one that may not be used, which seeds may bring about, or
    that is for another role a recording, which is a file of ``reinet traces generate`` then.
    """
    others = {trace.sha256: trace for trace in apart}
    if not (own.forbidden or others):
        return generated  # their digests, which take a while, are nobody's business
    for trace in generated:
        own.refuse_forbidden(trace)
        if other := others.get(trace.sha256):
            raise ConfigError(
                f"traces.sets: {other.path} has the content of the generated trace {trace.name}, which has another "
                "role; take it out, or change traces.seed"
            )
    return generated


def _generated(section: TraceSection, count: int, seed: int) -> list[Trace]:
    presets = section.presets
    return [generate(presets[i % len(presets)], section.seconds, seed + i) for i in range(count if presets else 0)]


def domain_of(section: LinkSection, traces: Sequence[Trace]) -> LinkDomain:
    """Returns what the section draws from: a trace with a random start, a path around it, and what flows meet there."""
    return LinkDomain(
        traces,
        random_start=True,
        mrtt_ms=LogUniform(*section.mrtt_ms),
        even_mrtt=True,
        buffer_bytes=LogUniform(*section.buffer_bytes),
        queueing_target_ms=LogUniform(*section.queueing_target_ms),
        loss=law_of(Uniform, *section.loss),
        jitter_us=LogUniform(*section.jitter_us),
        cc=section.congestion_controls,
        link={"pkts_per_ack": LogUniform(*section.pkts_per_ack), "decision_ms": law_of(Uniform, *section.decision_ms)},
        reference_share=section.reference_share,
        seeds=SEEDS,
        conditions=section.conditions(),
    )


@dataclass(frozen=True)
class Ranges:
    """Least and most of what a training's flows meet, those on DeepCC's path among them."""

    mrtt_ms: tuple[float, float]
    buffer_bytes: tuple[float, float]
    target_ms: tuple[float, float]


def ranges_of(section: LinkSection) -> Ranges:
    """Returns what the section's flows are drawn from, as a model's card and manifest say it."""
    mrtts_ms: list[float] = []
    buffers: list[float] = []
    targets_ms: list[float] = []
    if section.reference_share < 1:
        mrtts_ms += section.mrtt_ms
        buffers += section.buffer_bytes
        targets_ms += map(target_above, section.mrtt_ms, section.queueing_target_ms)
    if section.reference_share > 0:
        mrtts_ms.append(LinkSpec.mrtt_ms)
        buffers.append(LinkSpec.buffer_bytes)
        targets_ms.append(LinkSpec.target_us / 1000)
    return Ranges(*((min(met), max(met)) for met in (mrtts_ms, buffers, targets_ms)))


def selection_links(config: TrainConfig) -> list[LinkSpec]:
    """Returns two links for each selection trace, from its start: DeepCC's, and one drawn from training's ranges, which
    is left out where training takes none from there.

    Neither is short or limited by its application: nothing would be left there to compare. Only the second meets the
    other conditions. All are there once for each of ``run.evaluate_seeds``, with other jitter and losses. Raises
    ConfigError.
    """
    ranges = config.links.model_copy(update={"reference_share": 0.0, "short_share": 0.0, "app_limited_share": 0.0})
    rng = np.random.Generator(np.random.PCG64(config.traces.seed))
    links = []
    for trace in selection_traces(config):
        domain = replace(domain_of(ranges, [trace]), conditions=Conditions())
        path = replace(domain.draw(rng), start_offset_ms=0)
        own = [as_reference(path)]
        if config.links.reference_share < 1:
            own.append(ranges.conditions().apply(path, rng))
        for link in own:
            _refuse_silent(trace, link, config.run.evaluate_s)
        links += own
    seeds = config.run.evaluate_seeds
    every = [replace(link, seed=link.seed + more) for more in range(seeds) for link in links]
    return _with_data(every, seeds, config.run.evaluate_s)


HARDLY_LOSSY = 0.01
"""Up to this share of losses a flow loses three answers to its SYN, those of 5 s, once in a million times."""
MOST_SEEDS = 100
"""So many seeds are tried: at the largest share, a half, one of eight flows has no data in 5 s."""


def _with_data(links: list[LinkSpec], step: int, seconds: float) -> list[LinkSpec]:
    """Returns the links; lossy ones that let no data through in an evaluation get the next seed, ``step`` further on,
    with which they do.

    A lost answer to a SYN is sent again after 1, 3, 7 ... s, and until the first ACK no agent has a say. Raises
    ConfigError where no seed helps.
    """
    silent = [row for row, link in enumerate(links) if link.loss > HARDLY_LOSSY]
    for _ in range(MOST_SEEDS):
        if not silent:
            return links
        found, _ = figures_if_any(NoCap(), [links[row] for row in silent], seconds)
        silent = [row for row, figures in zip(silent, found, strict=True) if figures is None]
        for row in silent:
            links[row] = replace(links[row], seed=links[row].seed + step)
    raise ConfigError(
        f"links.loss: with {links[silent[0]].loss:.0%} of its packets lost a flow has no data in the {seconds:g} s of "
        "an evaluation; lower it, or raise run.evaluate_s"
    )


SLOW_MBPS, FAST_MBPS = 4.0, 16.0
"""Below the first lie 3G's links, above the second an LTE link that is near and has little load."""
OUTAGE_SHARE = 0.01
"""Links that are out (``Trace.describe``) for this share of the time and more have outages."""
STRATA = tuple(f"{rate}_{outages}" for rate in ("slow", "middle", "fast") for outages in ("steady", "outages"))


def stratum_of(link: LinkSpec) -> str:
    """Returns which of ``STRATA`` a link belongs to, by the mean rate of its trace and by its outages."""
    seen = Trace(link.trace_ms, "selection").describe()
    mbps = seen["mean_mbps"]
    rate = "slow" if mbps < SLOW_MBPS else "middle" if mbps < FAST_MBPS else "fast"
    return f"{rate}_{'outages' if seen['outage_share'] >= OUTAGE_SHARE else 'steady'}"


def _refuse_silent(trace: Trace, link: LinkSpec, seconds: float) -> None:
    """Raises ConfigError for a recording on which an evaluation would end before it saw anything."""
    least_s = data_leaves_ms(link.trace_ms.astype(np.int64), 0.0, link.mrtt_ms) / 1000
    if seconds <= least_s:
        raise ConfigError(
            f"traces: {trace.path or trace.name} lets no data through in its first {least_s:g} s, and evaluations take "
            f"{seconds:g} s: it cannot choose among checkpoints; give it the role train, cut its beginning off, or "
            "raise run.evaluate_s"
        )
