"""Synthetic cellular traces from a stochastic model of a mobile user's share of a cell. See ``LinkModel``."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from reinet.core.errors import TraceError
from reinet.envs.trace.trace import PKTS_PER_MBIT, FloatArray, Trace, most_opportunities, served_at_ms

STEP_MS = 10
"""The rate's grid is well below the fastest time constant of any preset."""
MAX_SECONDS = 24 * 3600
LONGEST_OUTAGE_S = 15.0
"""It cuts the Pareto tail: the longest outage in the fitted recordings is 11.6 s."""


SIGNAL_KNOTS = (-3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""The signal at which the rate is tabulated: from the worst 0.1 % of the time, over the median, to the best 0.1 %."""


@dataclass(frozen=True)
class LinkModel:
    """A link's rate in three layers, from slow to fast.

    1. *Signal*, a standard normal z(t) on a 10 ms grid: the sum of a cell level (constant, redrawn at each change of
       cell, which happens at random times ``cell_s`` apart and at the end of every outage), shadowing
       (Ornstein-Uhlenbeck with ``shadow_s``) and fast fading (the same with ``fade_s``); the shares are those of z's
       variance. All three decay exponentially, so z's autocorrelation is a sum of three exponentials.
       The rate is read from ``rates_mbps`` at z, linear between SIGNAL_KNOTS: its distribution is met by construction.
    2. *Outages*: nothing is served. They start at random, ``outages_per_min``, and last ``outage_min_s`` x
       Pareto(``outage_alpha``).
    3. *Scheduling*: the cell serves a user in bursts of one millisecond. Burst sizes are geometric with mean
       ``burst_pkts``; the waits between them are log-normal (``wait_sigma``) in the time that runs at the current rate,
       so the mean rate is met whatever the burstiness, and gaps grow where the rate is low.

    Raises TraceError when a parameter makes no sense.
    """

    rates_mbps: tuple[float, ...]
    cell_s: float
    shadow_s: float
    fade_s: float
    shadow_share: float
    fade_share: float
    outages_per_min: float
    outage_min_s: float
    outage_alpha: float
    burst_pkts: float
    wait_sigma: float

    def __post_init__(self) -> None:
        rates = self.rates_mbps
        if len(rates) != len(SIGNAL_KNOTS) or any(not (math.isfinite(rate) and rate >= 0) for rate in rates):
            raise TraceError(f"trace model: rates_mbps is {rates}; {len(SIGNAL_KNOTS)} rates of at least 0 are needed")
        if list(rates) != sorted(rates) or rates[-1] == 0:
            raise TraceError(f"trace model: rates_mbps is {rates}; it must rise with the signal, above 0 at the end")
        positive = {"cell_s", "shadow_s", "fade_s", "outage_min_s", "outage_alpha"}
        for name in (field.name for field in fields(self) if field.name != "rates_mbps"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (name in positive and value == 0):
                least = "above 0" if name in positive else "at least 0"
                raise TraceError(f"trace model: {name} is {value}; it must be {least}")
        if self.shadow_share + self.fade_share > 1:
            raise TraceError(f"trace model: shares {self.shadow_share} + {self.fade_share} exceed 1; lower one")
        if self.burst_pkts < 1:
            raise TraceError(f"trace model: burst_pkts is {self.burst_pkts}; a burst has one packet at least")


PRESETS: dict[str, LinkModel] = {
    "lte-driving": LinkModel(
        rates_mbps=(0.04, 0.18, 0.65, 2.3, 6.6, 11.2, 16.2, 21.6, 28.5, 43.0, 68.0),
        cell_s=13.0, shadow_s=2.0, fade_s=0.15, shadow_share=0.22, fade_share=0.06,
        outages_per_min=2.0, outage_min_s=0.27, outage_alpha=2.4, burst_pkts=4.4, wait_sigma=1.1,
    ),
    "lte-walking": LinkModel(
        rates_mbps=(0.2, 1.6, 3.2, 5.5, 8.5, 11.9, 15.3, 18.2, 20.4, 21.8, 22.5),
        cell_s=20.0, shadow_s=2.0, fade_s=0.15, shadow_share=0.3, fade_share=0.1,
        outages_per_min=1.0, outage_min_s=0.2, outage_alpha=2.0, burst_pkts=2.5, wait_sigma=0.8,
    ),
    "lte-stationary": LinkModel(
        rates_mbps=(5.5, 15.0, 17.5, 19.2, 20.5, 21.7, 22.8, 23.9, 25.3, 27.3, 33.5),
        cell_s=30.0, shadow_s=2.0, fade_s=0.15, shadow_share=0.3, fade_share=0.2,
        outages_per_min=0.7, outage_min_s=0.08, outage_alpha=2.0, burst_pkts=1.6, wait_sigma=0.6,
    ),
    "umts-driving": LinkModel(
        rates_mbps=(0.0, 0.01, 0.05, 0.32, 1.1, 2.07, 2.75, 3.45, 4.9, 6.7, 8.3),
        cell_s=10.0, shadow_s=4.8, fade_s=1.0, shadow_share=0.08, fade_share=0.07,
        outages_per_min=4.5, outage_min_s=0.28, outage_alpha=1.4, burst_pkts=1.31, wait_sigma=0.55,
    ),
    "evdo-driving": LinkModel(
        rates_mbps=(0.0, 0.0, 0.01, 0.05, 0.17, 0.41, 0.61, 1.0, 1.42, 2.0, 4.1),
        cell_s=7.0, shadow_s=3.8, fade_s=0.1, shadow_share=0.11, fade_share=0.27,
        outages_per_min=3.3, outage_min_s=0.14, outage_alpha=2.3, burst_pkts=1.4, wait_sigma=0.83,
    ),
}  # fmt: skip
"""``lte-driving``, ``umts-driving`` and ``evdo-driving`` are fitted to one public recording each: rates to its
quantiles at 100 ms, time constants and shares to its autocorrelation, outages to its gaps of 200 ms and more, bursts to
its dispersion at 10 ms. ``lte-walking`` and ``lte-stationary`` meet the four moments of rows 4 and 2 in DeepCC's Table
II; nothing more is published of them, so their speeds are assumed: slower than the drive's. docs/traces.md compares."""
RANDOM = "random"
CONSTANT = "constant:"
"""So begins the name of a steady link; its rate in Mbit/s follows."""


def constant(name: str, seconds: float) -> Trace:
    """Returns the steady link that ``constant:MBPS`` names; raises TraceError where MBPS is no rate of a trace."""
    try:
        mbps = float(name.removeprefix(CONSTANT))
    except ValueError:
        raise TraceError(
            f"trace {name!r}: what follows the colon is no rate; write {CONSTANT}12 for 12 Mbit/s"
        ) from None
    return Trace.constant(mbps, seconds)


def generate(preset: str | LinkModel, seconds: float, seed: int) -> Trace:
    """Returns a drawn trace of exactly ``seconds``: the same for the same arguments, whatever NumPy's version.

    ``preset`` names one of PRESETS, or ``random`` (parameters drawn with the seed), or is a model. Raises TraceError.
    """
    if not (math.isfinite(seconds) and 0.1 <= seconds <= MAX_SECONDS):
        raise TraceError(f"generate: {seconds} s; between 0.1 and {MAX_SECONDS} s are possible")
    if not 0 <= seed < 2**64:
        raise TraceError(f"generate: seed {seed}; it must be a whole number from 0 to 2^64 - 1")
    draw = _Draw(seed)
    if isinstance(preset, LinkModel):
        model, name = preset, "custom"
    elif preset == RANDOM:
        model, name = random_model(seed), RANDOM
    elif preset in PRESETS:
        model, name = PRESETS[preset], preset
    else:
        raise TraceError(f"generate: unknown preset {preset!r}; choose one of {', '.join([*PRESETS, RANDOM])}")

    duration_ms = round(seconds * 1000)
    most = model.rates_mbps[-1] * PKTS_PER_MBIT * seconds
    limit = most_opportunities(duration_ms)
    if most > 4 * limit:  # what is drawn is at most this; refuse before memory is spent on it
        raise TraceError(
            f"generate: {seconds:g} s at up to {model.rates_mbps[-1]:g} Mbit/s are more than a file may hold; "
            f"{int(seconds * limit / most)} s fit in any case"
        )
    rate_mbps = _rate(model, -(-duration_ms // STEP_MS), draw)
    times_ms = _schedule(model, rate_mbps, draw)
    times_ms = times_ms[times_ms < duration_ms]
    if times_ms.size >= limit:
        raise TraceError(
            f"generate: {seconds:g} s have {times_ms.size} opportunities, more than the {limit - 1} that a file may "
            f"hold; ask for {int(seconds * limit / times_ms.size)} s or so"
        )
    # The last opportunity falls on the end, so that the loop is as long as was asked for.
    return Trace(np.append(times_ms, duration_ms).astype(np.uint32), f"{name}-{seconds:g}s-seed{seed}")


_RANDOM_BASES = ("lte-driving", "lte-driving", "lte-walking", "lte-stationary", "umts-driving", "evdo-driving")
"""Driving counts twice: it has the changes that are hard to follow."""
_LOWEST_MEDIAN_MBPS = 0.4
"""Below it one full-size packet takes 30 ms and a cap of a few packets is all there is to choose."""
_HIGHEST_MBPS = 200.0


def random_model(seed: int) -> LinkModel:
    """Returns a model around a random preset: other rates, depths, speeds and outages, for training over many links.

    Medians reach from 0.4 to about 65 Mbit/s, spreads from nearly constant to 1.4 times the preset's on a logarithmic
    scale, time constants from 0.4 to 3 times, outages from a fifth to 2.5 times the preset's.
    """
    draw = _Draw(seed ^ 0x5DEECE66D)  # another stream than the trace's own

    def uniform() -> float:
        return float(draw.uniform(1)[0])

    def scaled(value: float, low: float, high: float) -> float:
        return float(value * low * (high / low) ** uniform())

    base = PRESETS[_RANDOM_BASES[math.ceil(uniform() * len(_RANDOM_BASES)) - 1]]
    speed = scaled(1.0, 0.4, 3.0)
    base_median_mbps = base.rates_mbps[len(SIGNAL_KNOTS) // 2]
    median_mbps = max(scaled(base_median_mbps, 0.3, 3.0), _LOWEST_MEDIAN_MBPS)
    power = scaled(1.0, 0.3, 1.4)
    return LinkModel(
        rates_mbps=tuple(
            min(median_mbps * (rate / base_median_mbps) ** power, _HIGHEST_MBPS) for rate in base.rates_mbps
        ),
        cell_s=base.cell_s * speed,
        shadow_s=base.shadow_s * speed,
        fade_s=base.fade_s * speed,
        shadow_share=base.shadow_share,
        fade_share=base.fade_share,
        outages_per_min=scaled(max(base.outages_per_min, 0.5), 0.2, 2.5),
        outage_min_s=scaled(base.outage_min_s, 0.5, 2.0),
        outage_alpha=scaled(base.outage_alpha, 0.9, 1.3),
        burst_pkts=max(scaled(base.burst_pkts, 0.4, 1.6), 1.0),
        wait_sigma=scaled(base.wait_sigma, 0.5, 1.3),
    )


class _Draw:
    """Random numbers from PCG64's raw stream, which NumPy keeps for ever; its distributions may change."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, count: int) -> FloatArray:
        """Returns numbers in (0, 1]."""
        return np.asarray(((self._bits.random_raw(count) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53, dtype=np.float64)

    def normal(self, count: int) -> FloatArray:
        """Returns standard normal numbers (Box and Muller)."""
        half = (count + 1) // 2
        radius = np.sqrt(-2 * np.log(self.uniform(half)))
        angle = 2 * math.pi * self.uniform(half)
        return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]

    def poisson_times(self, rate: float, end: float) -> FloatArray:
        """Returns the sorted times of a Poisson process of ``rate`` in [0, end)."""
        if rate <= 0:
            return np.empty(0)
        times = np.empty(0)
        while not times.size or times[-1] < end:
            more = int(rate * end * 1.2) + 16
            times = np.concatenate(
                (times, (times[-1] if times.size else 0.0) - np.cumsum(np.log(self.uniform(more))) / rate)
            )
        return np.asarray(times[times < end])


def _ornstein_uhlenbeck(count: int, constant_s: float, draw: _Draw) -> FloatArray:
    keep = math.exp(-STEP_MS / 1000 / constant_s)
    noise = draw.normal(count)
    noise[1:] *= math.sqrt(1 - keep * keep)
    return np.fromiter(accumulate(noise.tolist(), lambda x, e: keep * x + e), dtype=np.float64, count=count)


def _rate(model: LinkModel, steps: int, draw: _Draw) -> FloatArray:
    """Draws layers 1 and 2; returns the rate in Mbit/s in each step, (steps,)."""
    end_s = steps * STEP_MS / 1000
    starts_s = draw.poisson_times(model.outages_per_min / 60, end_s)
    lengths_s = np.minimum(
        model.outage_min_s * draw.uniform(starts_s.size) ** (-1 / model.outage_alpha), LONGEST_OUTAGE_S
    )
    ends_s = starts_s + lengths_s

    quiet_rate = max(1 / model.cell_s - model.outages_per_min / 60, 0.0)
    changes_s = np.sort(np.concatenate((ends_s, draw.poisson_times(quiet_rate, end_s))))
    grid_s = np.arange(steps) * (STEP_MS / 1000)
    cell = draw.normal(changes_s.size + 1)[np.searchsorted(changes_s, grid_s, side="right")]

    z = (
        math.sqrt(1 - model.shadow_share - model.fade_share) * cell
        + math.sqrt(model.shadow_share) * _ornstein_uhlenbeck(steps, model.shadow_s, draw)
        + math.sqrt(model.fade_share) * _ornstein_uhlenbeck(steps, model.fade_s, draw)
    )
    rate_mbps = np.interp(z, SIGNAL_KNOTS, model.rates_mbps)
    # In an outage while more have started than ended.
    started = np.searchsorted(starts_s, grid_s, side="right")
    ended = np.searchsorted(np.sort(ends_s), grid_s, side="right")
    rate_mbps[started > ended] = 0.0
    return np.asarray(rate_mbps)


def _schedule(model: LinkModel, rate_mbps: FloatArray, draw: _Draw) -> npt.NDArray[np.int64]:
    """Draws layer 3; returns the times in ms of single packets, whose running total follows the rate's integral."""
    served_pkts = np.concatenate(([0.0], np.cumsum(rate_mbps * (STEP_MS / 1000 * PKTS_PER_MBIT))))
    total_pkts = float(served_pkts[-1])
    burst_at_pkts = np.empty(0)
    while not burst_at_pkts.size or burst_at_pkts[-1] < total_pkts:
        count = int(total_pkts / model.burst_pkts * 1.1) + 64
        waits = np.exp(model.wait_sigma * draw.normal(count) - model.wait_sigma**2 / 2) * model.burst_pkts
        first = burst_at_pkts[-1] if burst_at_pkts.size else 0.0
        burst_at_pkts = np.concatenate((burst_at_pkts, first + np.cumsum(waits)))
    burst_at_pkts = burst_at_pkts[burst_at_pkts < total_pkts]
    sizes = np.ones(burst_at_pkts.size, dtype=np.int64)
    if model.burst_pkts > 1:
        sizes += (np.log(draw.uniform(sizes.size)) / math.log(1 - 1 / model.burst_pkts)).astype(np.int64)
    edges_ms = np.arange(served_pkts.size, dtype=np.float64) * STEP_MS
    return np.repeat(served_at_ms(edges_ms, served_pkts, burst_at_pkts), sizes)
