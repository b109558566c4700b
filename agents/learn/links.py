"""Training's links: generated traces, others to select by, and the paths that are drawn around them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from reinet.agents.learn.config import LinkSection, TrainConfig
from reinet.envs.link.domain import LinkDomain, as_reference
from reinet.envs.link.laws import LogUniform
from reinet.envs.link.spec import LinkSpec
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

SEEDS = 2**31
"""A link's noise has one of so many seeds; what models were trained on so far was drawn from as many."""

_SELECT_SEED_GAP = 1_000_000
"""It keeps the seeds of selection far from any training trace's."""


def training_traces(config: TrainConfig) -> list[Trace]:
    """Returns the traces to learn from."""
    section = config.traces
    return _traces(section.presets, section.train_count, section.seconds, section.seed)


def selection_traces(config: TrainConfig) -> list[Trace]:
    """Returns the traces that choose among checkpoints; none of them is a training trace."""
    section = config.traces
    return _traces(section.presets, section.select_count, section.seconds, section.seed + _SELECT_SEED_GAP)


def _traces(presets: Sequence[str], count: int, seconds: float, seed: int) -> list[Trace]:
    return [generate(presets[index % len(presets)], seconds, seed + index) for index in range(count)]


def domain_of(section: LinkSection, traces: Sequence[Trace]) -> LinkDomain:
    """Returns what the section draws from: a trace with a random start, and a path around it."""
    return LinkDomain(
        traces,
        random_start=True,
        mrtt_ms=LogUniform(*section.mrtt_ms),
        even_mrtt=True,
        buffer_bytes=LogUniform(*section.buffer_bytes),
        queueing_target_ms=LogUniform(*section.queueing_target_ms),
        jitter_us=LogUniform(*section.jitter_us),
        link={"pkts_per_ack": LogUniform(*section.pkts_per_ack)},
        reference_share=section.reference_share,
        seeds=SEEDS,
    )


def selection_links(config: TrainConfig) -> list[LinkSpec]:
    """Returns two links for each selection trace, from its start: DeepCC's, and one drawn from training's ranges."""
    ranges = config.links.model_copy(update={"reference_share": 0.0})
    rng = np.random.Generator(np.random.PCG64(config.traces.seed))
    links = []
    for trace in selection_traces(config):
        drawn = replace(domain_of(ranges, [trace]).draw(rng), start_offset_ms=0)
        links += [as_reference(drawn), drawn]
    return links
