"""Busy time of one way of sending over another's: what pairs of runs say of it, made in turn on one machine.

Busy is all of the machine's time but idle, iowait and steal; what it is busy with when nothing runs is taken off.
Where other work runs, that says nothing. Beside it stands the CPU time that the scheduler charges to the processes of
some cgroups, which other work hardly touches; what an interrupt does on top of another program is missing there.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reinet.daemon.benches.sending import Senders

CROWDS = ((1, 100.0), (100, 1.0))
"""Flows and Mbit/s of each: one that is fast, and many that are slow."""
CC, MRTT_MS = "cubic", 20.0
"""All flows' congestion control, and their path."""
SETTLE_S = 3.0
"""Gates open and caps drain the queues after the start; BBR and Cubic find their rate again after the end."""
SAMPLE_S = 0.5
"""Seldom: in either arm the machine is to be busy with sending."""
SAME_THROUGHPUT = 0.01
BUFFERED_MS = 240.0
MOST_BUFFERED_BYTES = 500_000
"""Of 1 Mbit/s a queue of 20 packets, of 100 Mbit/s one of 40 ms: more than either has under the default target."""
QUIET_SHARE = 0.05
"""Of a core: a machine that is busier than this without what is measured has other work; its ratio says nothing."""


class Busy(NamedTuple):
    """A moment, and what was spent by then, all in seconds."""

    at_s: float  # CLOCK_MONOTONIC
    machine_s: float
    """All processors' busy time."""
    own_s: float
    """That of the processes whose cgroups were given."""


class Window(NamedTuple):
    """The time between two moments."""

    before: Busy
    after: Busy

    @property
    def span_s(self) -> tuple[float, float]:
        """Returns when it began and ended, CLOCK_MONOTONIC."""
        return self.before.at_s, self.after.at_s


@dataclass(frozen=True)
class Paired:
    """What the pairs say; shares are percent of one core, medians over the pairs."""

    pairs: int
    pairs_valid: int
    """Of them the throughput was the same within 1 %; the others count in ``throughput_ratio`` alone."""
    cpu_ratio_vs_plain: float
    """The median over the pairs of busy time per byte, over plain's."""
    cpu_ratio_low: float
    cpu_ratio_high: float
    """The 95 % confidence interval of that median, from the order of the pairs alone."""
    quiet: bool
    """Whether the machine had hardly any other work before and after; if not, only the own ratio says something."""
    own_ratio: float
    """The same ratio of the CPU time of the given cgroups' processes."""
    own_ratio_low: float
    own_ratio_high: float
    own_plain_percent: float
    throughput_ratio: float
    """The median over all pairs: it tells why some are not valid, of which the others would say nothing."""
    plain_percent: float
    """Busy in plain's arm, less the idle machine's."""
    capped_percent: float
    idle_percent: float


@dataclass(frozen=True)
class Arm:
    """One way's runs, one element for each pair."""

    busy: NDArray[np.float64]
    """The machine's share of one core, less the idle machine's."""
    own: NDArray[np.float64]
    """The same of the given cgroups' processes, from which nothing is taken off."""
    bytes_per_s: NDArray[np.float64]

    @classmethod
    def of(cls, runs: Sequence[tuple[Window, float]], idle: float) -> "Arm":
        """Returns what each run's window and bytes a second say beside an idle machine's share."""
        return cls(
            np.array([_share(*took) for took, _ in runs]) - idle,
            np.array([_own_share(*took) for took, _ in runs]),
            np.array([bytes_per_s for _, bytes_per_s in runs]),
        )

    def only(self, pairs: NDArray[np.bool_]) -> "Arm":
        """Returns the runs of these pairs."""
        return Arm(self.busy[pairs], self.own[pairs], self.bytes_per_s[pairs])


def crowd(flows: int, rate_mbps: float, variables: Mapping[str, str] | None = None) -> Senders:
    """Returns such a crowd, sending; ``variables`` are ``Senders``'."""
    buffer_bytes = round(min(rate_mbps * 125 * BUFFERED_MS, MOST_BUFFERED_BYTES))
    return Senders(CC, flows, rate_mbps, MRTT_MS, buffer_bytes, SAMPLE_S, variables)


def arms_in_turn(pairs: int) -> Iterator[bool]:
    """Yields whether a run is capped: both arms of each pair, of which either comes first in turn."""
    for number in range(pairs):
        yield from ((True, False) if number % 2 == 0 else (False, True))


def window(path: Senders, seconds: float, groups: Sequence[Path]) -> Window:
    """Returns what was spent in so long from now."""
    before = busy(groups)
    path.wait(seconds)
    return Window(before, busy(groups))


def paired(
    plain: Sequence[tuple[Window, float]], capped: Sequence[tuple[Window, float]], idles: Sequence[float]
) -> dict[str, Any]:
    """Returns the fields of ``Paired`` out of each run's window and bytes a second, and the idle machine's shares."""
    idle = float(np.median(idles))
    arms = Arm.of(plain, idle), Arm.of(capped, idle)
    throughput_ratios = arms[1].bytes_per_s / arms[0].bytes_per_s
    same = np.abs(throughput_ratios - 1) <= SAME_THROUGHPUT
    before, after = (arm.only(same) for arm in arms)
    per_byte = after.bytes_per_s / before.bytes_per_s
    own_ratios = after.own / before.own / per_byte
    seen = before.busy > 0  # a machine that was busy throughout before shows no share of the flows
    ratios = after.busy[seen] / before.busy[seen] / per_byte[seen]
    low, high = median_interval(ratios)
    own_low, own_high = median_interval(own_ratios)
    return {
        "pairs": len(plain),
        "pairs_valid": int(same.sum()),
        "cpu_ratio_vs_plain": _median(ratios),
        "cpu_ratio_low": low,
        "cpu_ratio_high": high,
        "quiet": max(idles) <= QUIET_SHARE,
        "own_ratio": _median(own_ratios),
        "own_ratio_low": own_low,
        "own_ratio_high": own_high,
        "own_plain_percent": 100 * _median(before.own),
        "throughput_ratio": _median(throughput_ratios),
        "plain_percent": 100 * _median(before.busy),
        "capped_percent": 100 * _median(after.busy),
        "idle_percent": 100 * idle,
    }


def median_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Returns the narrowest interval of the values themselves that holds their median with 95 % confidence or more.

    Of N values the k-th from below and the k-th from above do so by 1 - 2 P(binomial(N, 1/2) < k), whatever the
    distribution. NaN where there are too few.
    """
    order, n = np.sort(values), len(values)
    chances = np.cumsum([_binomial(n, k) for k in range(n + 1)]) if n else np.zeros(0)
    outside = int(np.searchsorted(chances, 0.025, side="right"))  # so many may be left out on either side
    if not outside:
        return float("nan"), float("nan")
    return float(order[outside - 1]), float(order[n - outside])


def busy(groups: Sequence[Path] = ()) -> Busy:
    """Returns the time, and how long this machine's processors and these cgroups' processes were busy so far."""
    at_s = time.monotonic()
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle, iowait, steal = ticks[3], ticks[4], ticks[7]
    processors = os.sysconf("SC_NPROCESSORS_ONLN")
    spent_us = [int((group / "cpu.stat").read_text().split()[1]) for group in groups]
    return Busy(at_s, at_s * processors - (idle + iowait + steal) / os.sysconf("SC_CLK_TCK"), sum(spent_us) / 1e6)


def idle_share(seconds: float) -> float:
    """Returns what the machine is busy with for so long while nothing is measured, as a share of one core."""
    before = busy()
    time.sleep(seconds)
    return _share(before, busy())


def _median(values: NDArray[np.float64]) -> float:
    return float(np.median(values)) if values.size else float("nan")


def _binomial(n: int, k: int) -> float:
    return comb(n, k) / 2.0**n


def _share(before: Busy, after: Busy) -> float:
    return (after.machine_s - before.machine_s) / (after.at_s - before.at_s)


def _own_share(before: Busy, after: Busy) -> float:
    return (after.own_s - before.own_s) / (after.at_s - before.at_s)
