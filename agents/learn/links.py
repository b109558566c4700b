"""What is learned on: generated traces, others to select by, and the links that are drawn around them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from reinet.agents.learn.config import LinkSection, TrainConfig
from reinet.envs.trace import Trace
from reinet.envs.trace.model import generate

REFERENCE_MRTT_MS = 20.0
REFERENCE_BUFFER_BYTES = 150_000
REFERENCE_TARGET_MS = 50.0
"""The paper's link."""

_SELECT_SEED_GAP = 1_000_000
"""Far from any training trace's seed."""


def training_traces(config: TrainConfig) -> list[Trace]:
    """The traces to learn from."""
    section = config.traces
    return _traces(section.presets, section.train_count, section.seconds, section.seed)


def selection_traces(config: TrainConfig) -> list[Trace]:
    """The traces that choose among checkpoints; none of them is a training trace."""
    section = config.traces
    return _traces(section.presets, section.select_count, section.seconds, section.seed + _SELECT_SEED_GAP)


def _traces(presets: Sequence[str], count: int, seconds: float, seed: int) -> list[Trace]:
    return [generate(presets[index % len(presets)], seconds, seed + index) for index in range(count)]


def draw_link(section: LinkSection, traces: Sequence[Trace], rng: np.random.Generator) -> dict[str, Any]:
    """One link for ``SimBatch``: a trace with a random start, and a path around it."""
    trace = traces[int(rng.integers(len(traces)))]
    start_ms = int(rng.integers(int(trace.opportunities_ms[-1])))
    reference, mrtt, buffer, queueing, jitter, pkts_per_ack = rng.random(6)
    if reference < section.reference_share:
        mrtt_ms, buffer_bytes, target_ms = REFERENCE_MRTT_MS, REFERENCE_BUFFER_BYTES, REFERENCE_TARGET_MS
    else:
        mrtt_ms = 2.0 * round(_between(section.mrtt_ms, mrtt) / 2)  # mm-delay takes whole milliseconds each way
        buffer_bytes = round(_between(section.buffer_bytes, buffer))
        target_ms = section.target_ms(mrtt_ms, _between(section.queueing_target_ms, queueing))
    return {
        "trace": trace.opportunities_ms,
        "start_offset_ms": start_ms,
        "mrtt_ms": mrtt_ms,
        "buffer_bytes": buffer_bytes,
        "target_us": round(target_ms * 1000),
        "jitter_us": round(_between(section.jitter_us, jitter)),
        "pkts_per_ack": _between(section.pkts_per_ack, pkts_per_ack),
        "seed": int(rng.integers(2**31)),
    }


def _between(limits: tuple[float, float], share: float) -> float:
    """Log-uniform: every factor is as likely as any other."""
    low, high = limits
    return float(low * (high / low) ** share)
