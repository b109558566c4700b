"""Numbers with intervals: means over traces and repetitions, paired ratios, and whether a change is more than noise.

A mean is that of the traces' means. Its interval is the percentile bootstrap's: traces are drawn with replacement, then
each one's repetitions (seeds and places in the trace); where there is one trace, its repetitions alone.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
RESAMPLES = 2000
"""The ends of an interval then move by some 2 % of its width when it is drawn anew."""
LEAST_PAIRS = 6
"""With fewer not even six equal signs in a row (1 in 32) tell a change from chance at 5 %."""

OVER = (
    f"Brackets hold {LEVEL:.0%} intervals: percentile bootstrap, {RESAMPLES} resamples, over traces and, within each, "
    "over repetitions (seed and place in the trace); where there is one trace, over its repetitions alone."
)

Samples = Mapping[str, Sequence[float]]
"""A trace's hash -> the values of its runs."""


@dataclass(frozen=True)
class Estimate:
    """A mean, its interval, and the number of runs behind it; one run has no interval."""

    mean: float
    low: float | None
    high: float | None
    runs: int

    def as_json(self) -> dict[str, float | int | None]:
        """Returns the estimate with plain keys."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "runs": self.runs}


def estimate(samples: Samples) -> Estimate | None:
    """Returns the mean over traces of the means over runs, with its interval; None of no runs."""
    groups = [np.asarray(values, np.float64) for _, values in sorted(samples.items()) if len(values)]
    if not groups:
        return None
    runs = sum(group.size for group in groups)
    mean = float(np.mean([group.mean() for group in groups]))
    if runs < 2:
        return Estimate(mean, None, None, runs)
    low, high = interval(_resampled(groups))
    return Estimate(mean, low, high, runs)


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Returns the middle LEVEL of some values."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _resampled(groups: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Returns RESAMPLES means; the same for the same values. Each draw of a trace has a draw of its runs of its own."""
    digest = hashlib.sha256(b"".join(group.tobytes() for group in groups)).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "big")))
    drawn = rng.integers(len(groups), size=(len(groups), RESAMPLES))
    means = np.empty(drawn.shape)
    for number, group in enumerate(groups):  # a trace that is drawn twice has its runs drawn twice
        here = drawn == number
        means[here] = group[rng.integers(group.size, size=(np.count_nonzero(here), group.size))].mean(axis=1)
    return np.asarray(means.mean(axis=0), np.float64)


@dataclass(frozen=True)
class Change:
    """What became of a figure between two reports."""

    before: float
    after: float
    difference: Estimate
    paired: bool
    verdict: str
    """same, changed, within noise, or too few runs."""


def change(before: Mapping[tuple[str, ...], float], after: Mapping[tuple[str, ...], float]) -> Change | None:
    """Returns how the runs of a cell changed, paired where both sides have the run; None where one side has none.

    A run is named by its trace's hash, then its seed and start.
    """
    if not before or not after:
        return None
    common = sorted(before.keys() & after.keys())
    paired = len(common) >= min(len(before), len(after)) / 2
    if paired:
        pairs = [(name[0], before[name], after[name]) for name in common]
        found = estimate(by_trace((trace, new - old) for trace, old, new in pairs))
        assert found is not None, "there is a pair at least"
        old_mean = _mean(by_trace((trace, old) for trace, old, _ in pairs))
        new_mean = _mean(by_trace((trace, new) for trace, _, new in pairs))
        runs = len(common)
    else:
        found = _unpaired(before, after)
        old_mean = _mean(by_trace((name[0], value) for name, value in before.items()))
        new_mean = _mean(by_trace((name[0], value) for name, value in after.items()))
        runs = min(len(before), len(after))
    if paired and all(before[name] == after[name] for name in common):
        verdict = "same"
    elif runs < LEAST_PAIRS or found.low is None or found.high is None:
        verdict = "too few runs"
    else:
        verdict = "within noise" if found.low <= 0 <= found.high else "changed"
    return Change(old_mean, new_mean, found, paired, verdict)


def by_trace(values: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """Returns values by their traces."""
    found: dict[str, list[float]] = {}
    for trace, value in values:
        found.setdefault(trace, []).append(value)
    return found


def _mean(samples: Samples) -> float:
    return float(np.mean([np.mean(values) for values in samples.values()]))


def _unpaired(before: Mapping[tuple[str, ...], float], after: Mapping[tuple[str, ...], float]) -> Estimate:
    sides = [by_trace((name[0], value) for name, value in side.items()) for side in (before, after)]
    drawn = [_resampled([np.asarray(v, np.float64) for _, v in sorted(side.items())]) for side in sides]
    low, high = interval(drawn[1] - drawn[0])
    return Estimate(_mean(sides[1]) - _mean(sides[0]), low, high, min(len(before), len(after)))
