"""How fast the simulator is: ``reinet bench sim``."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reinet.core import SimBatch
from reinet.envs.trace import Trace

MBPS = 12.0
CAP_PKTS = 25
"""One opportunity per ms, and the window that just fills a path of 20 ms: a step is one RTT of 24 packets."""
WARM_UP_STEPS = 60
"""Past slow start's overshoot, with every ring at its final size."""


@dataclass(frozen=True)
class SimSpeed:
    """What a benchmark measured. Times are wall-clock time; the best of its rounds."""

    env_steps_per_s: float
    """Over all links; state, normaliser and reward included."""
    packets_per_s: float
    """Delivered in simulation per second."""
    realtime_factor: float
    """Seconds simulated per second, summed over the links; one link alone when ``links`` is 1."""
    bytes_per_link: float
    """Memory beside the shared trace."""
    links: int
    threads: int

    def as_dict(self) -> dict[str, Any]:
        """Fields by name."""
        return asdict(self)


def measure(links: int = 256, threads: int = 1, seconds: float = 2.0, rounds: int = 5, cc: str = "cubic") -> SimSpeed:
    """Step ``links`` flows under a fixed cap on a constant link: 12 Mbit/s, base RTT 20 ms, buffer 150 KB.

    ``seconds`` are shared by the ``rounds``; the best round counts, because a busy machine can only slow one down.
    """
    trace = Trace.constant(MBPS, 10.0)
    batch = SimBatch(
        [{"trace": trace.opportunities_ms, "seed": seed, "cc": cc} for seed in range(links)], threads=threads
    )
    caps_pkts = np.full(links, CAP_PKTS, np.uint32)
    batch.reset()
    for _ in range(WARM_UP_STEPS):
        batch.step_caps(caps_pkts)
    best: tuple[float, float, float] = (0.0, 0.0, 0.0)
    for _ in range(rounds):
        start_s, start_ns = time.perf_counter(), batch.stats["time_ns"].sum()
        delivered_before = _delivered_pkts(batch)
        steps, elapsed_s = 0, 0.0
        while elapsed_s < seconds / rounds:
            batch.step_caps(caps_pkts)
            steps += links
            elapsed_s = time.perf_counter() - start_s
        packets = _delivered_pkts(batch) - delivered_before
        simulated_s = float(batch.stats["time_ns"].sum() - start_ns) / 1e9
        best = max(best, (steps / elapsed_s, packets / elapsed_s, simulated_s / elapsed_s))
    bytes_per_link = float(np.mean([batch.memory_bytes(row) for row in range(links)]))
    return SimSpeed(*best, bytes_per_link, links, threads)


def _delivered_pkts(batch: SimBatch) -> int:
    return sum(batch.packets(row)["delivered_pkts"] for row in range(len(batch)))
