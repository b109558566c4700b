"""How fast the simulator is: ``reinet bench sim``."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from reinet.envs.sim import SimBatch
from reinet.envs.trace import Trace

MBPS = 12.0
CAP_PKTS = 25
"""One opportunity per ms, and the window that just fills a path of 20 ms: a step is one RTT of 24 packets."""
WARM_UP_STEPS = 60
"""So many steps lead past slow start's overshoot, with every ring at its final size."""
SCALES = (256, 1024, 4096)
"""Numbers of links; a core's cache holds the fewest, but not the most."""


@dataclass(frozen=True)
class SimSpeed:
    """The best round of a benchmark; times are wall-clock time."""

    env_steps_per_s: float
    """The steps of all links; state, normaliser and reward are included."""
    packets_per_s: float
    """The packets delivered in simulation per second."""
    realtime_factor: float
    """The seconds simulated per second, summed over the links."""
    bytes_per_link: float
    """The memory beside the shared trace."""
    links: int
    threads: int

    def as_dict(self) -> dict[str, Any]:
        """Returns the speeds by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class SimScaling:
    """How the speed follows from the number of links and of threads; medians over rounds that take turns."""

    scaling: dict[int, float]
    """The steps per second by number of links, on one thread."""
    linearity: float
    """The steps per second of the most links over those of the fewest; 1 = the cost per link is the same."""
    two_cores: float | None
    """The speed on two threads over that on one; None where there is one core."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the ratios by name, for JSON."""
        return asdict(self)


class _Run:
    """Flows under a fixed cap on constant links: 12 Mbit/s, base RTT 20 ms, buffer 150 KB; warmed up."""

    def __init__(self, links: int, threads: int, cc: str) -> None:
        trace = Trace.constant(MBPS, 10.0)
        self.batch = SimBatch(
            [{"trace": trace.opportunities_ms, "seed": seed, "cc": cc} for seed in range(links)], threads=threads
        )
        self._caps_pkts = np.full(links, CAP_PKTS, np.uint32)
        self.batch.reset()
        for _ in range(WARM_UP_STEPS):
            self.batch.step_caps(self._caps_pkts)

    def step_for(self, seconds: float) -> tuple[int, float]:
        """Returns the steps of all links, and the seconds that they took."""
        steps, elapsed_s, start_s = 0, 0.0, time.perf_counter()
        while elapsed_s < seconds:
            self.batch.step_caps(self._caps_pkts)
            steps += len(self._caps_pkts)
            elapsed_s = time.perf_counter() - start_s
        return steps, elapsed_s

    def steps_per_s(self, seconds: float) -> float:
        steps, elapsed_s = self.step_for(seconds)
        return steps / elapsed_s

    def delivered_pkts(self) -> int:
        return sum(self.batch.packets(row)["delivered_pkts"] for row in range(len(self.batch)))


def measure(links: int = 256, threads: int = 1, seconds: float = 5.0, rounds: int = 20, cc: str = "cubic") -> SimSpeed:
    """Returns how fast ``links`` flows under a fixed cap run on a constant link: 12 Mbit/s, 20 ms, 150 KB.

    ``seconds`` are shared by the ``rounds``; the best round counts, because a busy machine can only slow one down.
    """
    run = _Run(links, threads, cc)
    best: tuple[float, float, float] = (0.0, 0.0, 0.0)
    for _ in range(rounds):
        start_ns, delivered_before = run.batch.stats["time_ns"].sum(), run.delivered_pkts()
        steps, elapsed_s = run.step_for(seconds / rounds)
        packets = run.delivered_pkts() - delivered_before
        simulated_s = float(run.batch.stats["time_ns"].sum() - start_ns) / 1e9
        best = max(best, (steps / elapsed_s, packets / elapsed_s, simulated_s / elapsed_s))
    bytes_per_link = float(np.mean([run.batch.memory_bytes(row) for row in range(links)]))
    return SimSpeed(*best, bytes_per_link, links, threads)


def measure_scaling(
    links: int = 256, seconds: float = 6.0, rounds: int = 5, cc: str = "cubic", scales: Sequence[int] = SCALES
) -> SimScaling:
    """Returns how numbers of links compare, and ``links`` of them on two threads with one, side by side.

    What is compared takes turns, and each ratio is that of one round, so that a machine whose speed changes changes
    both sides; the median of the ``rounds``, which share the ``seconds``, counts.
    """
    by_links = {count: _Run(count, 1, cc) for count in scales}
    by_threads = [_Run(links, threads, cc) for threads in (1, 2)] if len(os.sched_getaffinity(0)) > 1 else []
    slice_s = seconds / rounds / (len(by_links) + len(by_threads))
    speeds = [[run.steps_per_s(slice_s) for run in (*by_links.values(), *by_threads)] for _ in range(rounds)]
    last = len(scales) - 1
    return SimScaling(
        {count: median(speed[i] for speed in speeds) for i, count in enumerate(by_links)},
        median(speed[last] / speed[0] for speed in speeds),
        median(speed[-1] / speed[-2] for speed in speeds) if by_threads else None,
    )
