"""Verus as a random walk, for programs that cannot carry Verus: the matrix of the Java client (``alcc/java/Mdi.java``).

The method is MDI (Khan et al., CCR 2021), which the paper of ALCC runs on Android. Of each epoch remain the change of
the delay and the change of the window, in bins; counted is how often which change of the window followed, given the
last epoch's two changes and this epoch's change of the delay. The counts come from simulated Verus on generated links::

    python -m reinet.agents.learn.mdi alcc/java/verus.tsv

What differs from MDI is J1 to J4 in docs/deviations.md.
"""

import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reinet.core.period import PeriodConfig
from reinet.envs.link.spec import LinkSpec
from reinet.envs.sim import SimBatch
from reinet.envs.trace import generate

EPOCH_MS = 20
"""Verus has 5 ms, too short for a timer in somebody else's JVM; DeepCC's published code decides so often too."""
DELAY_RATIOS = (0.7, 0.86, 0.95, 1.05, 1.16, 1.42)
"""Edges of the bins of this epoch's mean delay over the last one's: 5 % is noise, 42 % an outage."""
WINDOW_RATIOS = (0.61, 0.78, 0.89, 0.96, 1.04, 1.13, 1.28, 1.65)
"""Edges of the bins of the packets in flight over those of the last epoch."""
LEVELS = (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
"""Edges of the bins of the delay over the flow's least. Above 6 Verus reduces its aim whatever the change was."""
LEAST_COUNT = 20
"""A state that was seen less often says too little; the walk then goes by level and change of the delay alone."""
PRESETS = ("lte-driving", "lte-walking", "lte-stationary")
TRACES, SECONDS, FIRST_SEED = 12, 40, 1000
"""Twice as many traces changed no mean of a level by more than its noise."""
MRTTS_MS = (20.0, 60.0)
BUFFER_BYTES = 2_000_000
"""As in the paper of ALCC. In 150 KB Verus is ruled by losses, which nobody above TCP sees."""

Counts = dict[tuple[int, ...], npt.NDArray[np.int64]]


def simulated() -> list[npt.NDArray[np.float64]]:
    """Returns, for each simulated flow of Verus, (epochs, 3): mean RTT in ms, packets in flight, least RTT in ms."""
    traces = [generate(PRESETS[i % len(PRESETS)], SECONDS, FIRST_SEED + i) for i in range(TRACES)]
    links = [LinkSpec(t, cc="verus", mrtt_ms=m, buffer_bytes=BUFFER_BYTES) for m in MRTTS_MS for t in traces]
    batch = SimBatch(links, period=PeriodConfig(EPOCH_MS * 1_000_000, packet_timed=False))
    batch.reset()
    flows: list[list[tuple[float, float, float]]] = [[] for _ in links]
    while (batch.stats["time_ns"] < SECONDS * 10**9).any():
        stats = batch.stats
        for row in np.flatnonzero((stats["rtt_samples"] > 0) & (stats["time_ns"] < SECONDS * 10**9)):
            one = stats[row]
            flows[row].append((one["rtt_mean_us"] / 1e3, max(1, one["inflight_pkts"]), one["min_rtt_us"] / 1e3))
        batch.step_caps(np.zeros(len(links), np.uint32))
    return [np.array(flow) for flow in flows]


def counted(flows: list[npt.NDArray[np.float64]]) -> tuple[Counts, list[float]]:
    """Returns how often which bin of the window followed, and the mean ratio of each of these bins.

    Keys are (level, change of the delay) and (level, change of the delay, the last epoch's change of the delay, the
    last epoch's change of the window), as bins; each value holds a count for each bin of the window.
    """
    bins = len(WINDOW_RATIOS) + 1
    transitions: Counter[tuple[tuple[int, ...], int]] = Counter()
    ratios: list[list[float]] = [[] for _ in range(bins)]
    for flow in flows:
        delay, window = flow[1:, 0] / flow[:-1, 0], flow[1:, 1] / flow[:-1, 1]
        level = np.digitize(flow[1:, 0] / flow[1:, 2], LEVELS).tolist()
        delay_bin, window_bin = np.digitize(delay, DELAY_RATIOS).tolist(), np.digitize(window, WINDOW_RATIOS).tolist()
        for i in range(1, len(delay)):
            ratios[window_bin[i]].append(min(max(float(window[i]), 0.25), 4.0))
            state = (level[i], delay_bin[i])
            transitions[state, window_bin[i]] += 1
            transitions[(*state, delay_bin[i - 1], window_bin[i - 1]), window_bin[i]] += 1
    counts: Counts = {}
    for (seen_in, to), count in transitions.items():
        counts.setdefault(seen_in, np.zeros(bins, np.int64))[to] = count
    kept = {key: seen for key, seen in counts.items() if len(key) == 2 or seen.sum() >= LEAST_COUNT}
    return kept, [round(math.exp(sum(map(math.log, seen)) / len(seen)), 3) if seen else 1.0 for seen in ratios]


def text(counts: Counts, means: list[float]) -> str:
    """Returns the matrix as a file: what the bins are, then a row for each state."""

    def line(name: str, *values: object) -> str:
        return "\t".join([name, *map(str, values)])

    return "\n".join([
        "# Verus as a random walk, counted on simulated links by: python -m reinet.agents.learn.mdi FILE",
        line("epoch_ms", EPOCH_MS),
        line("delay_ratios", *DELAY_RATIOS),
        line("window_ratios", *WINDOW_RATIOS),
        line("levels", *LEVELS),
        line("window_steps", *means),
        "# level, change of the delay, then the last epoch's changes of delay and window, or nothing: counts",
        *(line("state", *state, ":", *seen.tolist()) for state, seen in sorted(counts.items())),
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m reinet.agents.learn.mdi FILE")
    Path(sys.argv[1]).write_text(text(*counted(simulated())))
