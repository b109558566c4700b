"""Traces and runs of simulated links that several test modules share."""

from typing import Any

import numpy as np
import numpy.typing as npt

from reinet.envs.link.domain import LinkDomain
from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace

Ms = npt.NDArray[np.uint32]

TRACES = (Trace.constant(12.0, 5.0), Trace.constant(5.0, 4.0))
MIXED = LinkDomain(
    TRACES,
    random_start=True,
    mrtt_ms=(4.0, 80.0),
    buffer_bytes=(30_000.0, 1_000_000.0),
    target_ms=(25.0, 100.0),
    loss=(0.0, 0.01),
    jitter_us=(0.0, 2000.0),
    cc=("cubic", "reno"),
    queue=("droptail", "codel"),
)
"""A draw of it may be any link that a vector of environments has to be able to step."""


def constant(mbps: float, seconds: float = 10.0) -> Ms:
    """Evenly spaced opportunities of 1500 bytes."""
    count = round(mbps * 1e6 * seconds / 12_000)
    return np.ceil(np.arange(1, count + 1) * seconds * 1000 / count).astype(np.uint32)


def cellular(seed: int, seconds: float = 20.0) -> Ms:
    """Rates that change every 100 ms, with outages."""
    rng = np.random.default_rng(seed)
    rates = rng.gamma(1.5, 0.4, int(seconds * 10)) * (rng.random(int(seconds * 10)) > 0.1)
    counts = rng.poisson(np.repeat(rates, 100))
    times = np.repeat(np.arange(1, len(counts) + 1), counts)
    return np.append(times, int(seconds * 1000)).astype(np.uint32)


def run(trace: Ms, seconds: float, cap_pkts: int = 0, **link: Any) -> tuple[SimBatch, npt.NDArray[np.void]]:
    """One link for some seconds, its first flow under a fixed cap (0 = none); the batch and all records."""
    batch = SimBatch([{"trace": trace, **link}], record_log=True)
    batch.reset()
    records = [batch.stats.copy()]
    end_ns = link.get("start_offset_ms", 0) * 1e6 + seconds * 1e9
    while batch.stats["time_ns"][0] < end_ns:
        batch.step_caps([cap_pkts])
        records.append(batch.stats.copy())
    return batch, np.concatenate(records)


def assert_conserved(batch: SimBatch) -> None:
    """Every packet of the first row was dropped, is on its way or queued, or has arrived."""
    p = batch.packets(0)
    assert p["sent_pkts"] == p["dropped_pkts"] + p["on_path_pkts"] + p["queued_pkts"] + p["delivered_pkts"]
