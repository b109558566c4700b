"""Two groups of flows compared: does the one fare worse, and how sure is that? The formulas are in docs/modes.md.

A flow counts from its first record with an open gate on, which no cap has touched yet: what it showed there (RTT,
minimum RTT, rate) tells near paths from far ones and is taken out of the comparison. Each flow is one observation, for
all its records lie on one path. A group's figures are means of logarithms over flows, so that a comparison is a ratio.
The intervals hold however often they are looked at (a confidence sequence), so the first look that is sure may act.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reinet.agents.decide.decider import Rows
from reinet.core.records import Flag, FlowStatsArray

NEITHER, PLAIN, CAPPED = -1, 0, 1
"""A flow's group. Where two models are compared, the old one's flows stand for the plain ones."""

ALPHA = 0.05
"""At most one comparison in twenty is sure of what is not so, however long it is looked at. That is of a model just at
a limit: one without any effect is 5 % away from the nearest. And the error costs little, flows that go on plain, where
each minute under a bad model costs all of them."""
TUNED_FOR_FLOWS = 20
"""The intervals are narrowest for this many flows (n1 n2 / (n1 + n2)): a hundred flows, of which a fifth is plain. With
fewer it takes long anyway, and with more it is short."""
LEAST_FLOWS = 10
"""In each group, below which a spread is not known well enough for any interval."""
LEAST_S = 0.5
"""A flow's delay and throughput count when it has been seen for this long: some ten round trips."""

LEAST_HARM = 1.05
"""A difference of less than 5 % is none to act on, however sure."""
LONGER_COMPLETION = 1.1
"""What ``reinet bench harm`` allows the 95th percentile of completion times."""
LEAST_THROUGHPUT = 2 / 3
"""No delay is worth more than a third of the throughput: a model that is well keeps 69 % on the hardest path that was
measured (2.5x on 4 ms, configs/daemon.toml)."""

MAX_FINISHED = 8192
"""So many flows that ended are remembered, the latest ones."""

_TESTS = 4
_NO_SAMPLE = int(Flag.NO_SAMPLE)
_SILENCE = int(Flag.SILENCE)
_COVARIATES = 3
_RTT, _SAMPLES, _BYTES, _TIME = range(4)
_NEVER_NS = -1


@dataclass(frozen=True)
class Ratio:
    """The capped group over the plain one."""

    ratio: float
    low: float
    high: float
    capped_flows: int
    plain_flows: int

    def __str__(self) -> str:
        """Returns it for a log line."""
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f}, {self.capped_flows} and {self.plain_flows} flows)"


UNKNOWN = Ratio(math.nan, 0.0, math.inf, 0, 0)


@dataclass(frozen=True)
class Comparison:
    """What is known of two groups of flows; an interval that is not known yet reaches from 0 to infinity."""

    delay: Ratio = UNKNOWN
    """RTT."""
    throughput: Ratio = UNKNOWN
    power: Ratio = UNKNOWN
    """Throughput / RTT (Kleinrock): says whether a loss of throughput is paid for in delay."""
    completion: Ratio = UNKNOWN
    """Time from the first open gate to the last delivery, of flows that ended."""

    @property
    def harm(self) -> str:
        """Returns in what the capped group is surely worse; empty where it is not."""
        if self.delay.low > LEAST_HARM:
            return f"their delay is higher: {self.delay}"
        if self.throughput.high < 1 / LEAST_HARM and self.power.high < 1:
            return f"their throughput is lower, and no delay pays for it: {self.throughput}"
        if self.throughput.high < LEAST_THROUGHPUT:
            return f"their throughput is lower by more than a third: {self.throughput}"
        if self.completion.low > LONGER_COMPLETION:
            return f"they take longer to complete: {self.completion}"
        return ""


class Evidence:
    """What flows in two groups went through since the start or the latest ``restart``; one row for each slot."""

    def __init__(self, rows: int) -> None:
        self._cookies = np.zeros(rows, np.uint64)
        self._groups = np.full(rows, NEITHER, np.int8)
        self._before = np.zeros((rows, _COVARIATES))  # logarithms, at the flow's first open gate
        self._sums = np.zeros((rows, 4))
        self._told = np.zeros((rows, 2))  # bytes and seconds of the latest record that the next repeats, a silence's
        self._since_ns = np.full(rows, _NEVER_NS, np.int64)
        self._delivered_ns = np.full(rows, _NEVER_NS, np.int64)  # the latest record that delivered anything
        self._finished = np.zeros((0, 4 + _COVARIATES + 2))  # group, delay, throughput, seconds; before; bytes, time

    def take(self, records: FlowStatsArray, rows: Rows, groups: NDArray[np.int8], opened: NDArray[np.bool_]) -> None:
        """Takes N records, the oldest of a flow first, of flows in these groups whose gates are open or not."""
        self._grow(int(rows.max()) + 1)
        strange = self._cookies[rows] != records["cookie"]
        if strange.any():
            self._forget(rows[strange])
            self._cookies[rows[strange]] = records["cookie"][strange]
        counted = self._groups[rows] != NEITHER
        stays = self._groups[rows] == groups  # else it has gone to the model on trial, or has come back
        self._count(records[counted], rows[counted], stays[counted])
        begins = ~counted & opened & (groups != NEITHER) & (records["rtt_mean_us"] > 0)
        if begins.any():
            first, own = records[begins], rows[begins]
            self._groups[own] = groups[begins]
            self._since_ns[own] = first["time_ns"].astype(np.int64)
            for column, name in enumerate(("rtt_mean_us", "min_rtt_us", "delivery_rate_bytes_per_s")):
                self._before[own, column] = np.log(np.maximum(first[name].astype(np.float64), 1.0))

    def close(self, rows: Rows, cookies: NDArray[np.uint64]) -> None:
        """Takes the ends of flows, each named by its row and its cookie."""
        known = rows < len(self._cookies)
        rows = rows[known][self._cookies[rows[known]] == cookies[known]]
        ended = rows[(self._groups[rows] != NEITHER) & (self._sums[rows, _BYTES] > 0)]
        if ended.size:
            self._finished = np.concatenate([self._finished, self._observed(ended)])[-MAX_FINISHED:]
        self._forget(rows)

    def restart(self) -> None:
        """Begins anew; flows that count go on counting, from now on."""
        self._sums[:] = 0
        self._since_ns[:] = np.maximum(self._since_ns, self._delivered_ns)
        self._finished = self._finished[:0]

    def compare(self) -> Comparison:
        """Returns what is known by now. Takes about a millisecond for a thousand flows."""
        going_on = np.flatnonzero((self._groups != NEITHER) & (self._sums[:, _BYTES] > 0))
        seen = np.concatenate([self._finished, self._observed(going_on)])
        long_seen = seen[seen[:, -1] >= LEAST_S]
        group, delay, throughput = long_seen[:, 0], long_seen[:, 1], long_seen[:, 2]
        before = long_seen[:, 4 : 4 + _COVARIATES]
        done = self._finished
        return Comparison(
            delay=_ratio(group, delay, before),
            throughput=_ratio(group, throughput, before),
            power=_ratio(group, throughput - delay, before),
            completion=_ratio(done[:, 0], done[:, 3], done[:, 4:-1]),  # of as many bytes
        )

    def _count(self, records: FlowStatsArray, rows: Rows, stays: NDArray[np.bool_]) -> None:
        if not len(records):
            return
        samples = records["rtt_samples"].astype(np.float64)
        samples[(records["flags"] & _NO_SAMPLE) != 0] = 0
        rtts = np.stack([samples * records["rtt_mean_us"], samples], axis=1)
        new = self._new(records, rows)
        np.add.at(self._sums, rows[stays], np.hstack([rtts, new])[stays])
        delivered = stays & (new[:, 0] > 0)  # of its own: a silence's record tells of bytes from before the silence
        self._delivered_ns[rows[delivered]] = records["time_ns"][delivered].astype(np.int64)

    def _new(self, records: FlowStatsArray, rows: Rows) -> NDArray[np.float64]:
        """Returns the bytes and seconds (N, 2) that no record of the flow told before.

        A record of a silence does not end its period (``core/period.h``): the next tells of all of it again.
        """
        order = np.argsort(rows, kind="stable")
        rows, records = rows[order], records[order]
        is_first, is_last = np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)
        is_first[1:] = is_last[:-1] = rows[1:] != rows[:-1]
        told = np.stack([records["delivered_bytes"], records["period_ns"] / 1e9], axis=1).astype(np.float64)
        repeated = told * ((records["flags"] & _SILENCE) != 0)[:, None]
        before = np.roll(repeated, 1, axis=0)
        before[is_first] = self._told[rows[is_first]]
        self._told[rows[is_last]] = repeated[is_last]
        new = np.empty_like(told)
        new[order] = told - before
        return np.maximum(new, 0.0)

    def _observed(self, rows: Rows) -> NDArray[np.float64]:
        """Returns one line for each flow, as ``_finished`` has them."""
        sums = self._sums[rows]
        took_s = np.maximum((self._delivered_ns[rows] - self._since_ns[rows]) / 1e9, 1e-3)
        delay = np.where(sums[:, _SAMPLES] > 0, sums[:, _RTT] / np.maximum(sums[:, _SAMPLES], 1), np.nan)
        throughput = sums[:, _BYTES] / np.maximum(sums[:, _TIME], 1e-3)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.stack([delay, throughput, took_s], axis=1))
        return np.column_stack(
            [self._groups[rows], logs, self._before[rows], np.log(np.maximum(sums[:, _BYTES], 1)), sums[:, _TIME]]
        )

    def _forget(self, rows: Rows) -> None:
        self._cookies[rows] = 0
        self._groups[rows] = NEITHER
        self._sums[rows] = 0
        self._told[rows] = 0
        self._since_ns[rows] = self._delivered_ns[rows] = _NEVER_NS

    def _grow(self, least_rows: int) -> None:
        missing = max(least_rows, 2 * len(self._cookies)) - len(self._cookies)
        if least_rows <= len(self._cookies):
            return
        self._cookies = np.concatenate([self._cookies, np.zeros(missing, np.uint64)])
        self._groups = np.concatenate([self._groups, np.full(missing, NEITHER, np.int8)])
        self._before = np.concatenate([self._before, np.zeros((missing, _COVARIATES))])
        self._sums = np.concatenate([self._sums, np.zeros((missing, 4))])
        self._told = np.concatenate([self._told, np.zeros((missing, 2))])
        self._since_ns = np.concatenate([self._since_ns, np.full(missing, _NEVER_NS, np.int64)])
        self._delivered_ns = np.concatenate([self._delivered_ns, np.full(missing, _NEVER_NS, np.int64)])


def _ratio(group: NDArray[np.float64], value: NDArray[np.float64], before: NDArray[np.float64]) -> Ratio:
    """Returns exp of the difference of the groups' means, what was ``before`` being equal (least squares, HC3)."""
    sound = np.isfinite(value)
    group, value, before = group[sound], value[sound], before[sound]
    capped, plain = int(np.count_nonzero(group == CAPPED)), int(np.count_nonzero(group == PLAIN))
    if min(capped, plain) < LEAST_FLOWS:
        return Ratio(math.nan, 0.0, math.inf, capped, plain)
    design = np.column_stack([np.ones(len(value)), group == CAPPED, before - before.mean(axis=0)])
    inverse = np.linalg.pinv(design.T @ design, hermitian=True)
    slope = inverse @ (design.T @ value)
    leverage = np.clip(np.einsum("ij,jk,ik->i", design, inverse, design), 0.0, 0.99)
    scaled = design * ((value - design @ slope) / (1 - leverage))[:, None]
    error = math.sqrt(max(float((inverse @ (scaled.T @ scaled) @ inverse)[1, 1]), 0.0))
    half = error * interval_factor(capped * plain / (capped + plain))
    difference = float(slope[1])
    return Ratio(math.exp(difference), math.exp(difference - half), math.exp(difference + half), capped, plain)


def interval_factor(flows: float, alpha: float = 2 * ALPHA / _TESTS) -> float:
    """Returns how many standard errors an interval reaches to either side, after so many flows (n1 n2 / (n1 + n2)).

    Harm is asked of one end alone, each of which is wrong half as often as both are: hence twice ``ALPHA``.

    This is the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central
    limit theory and asymptotic confidence sequences" (2021), with its rho^2 tuned for TUNED_FOR_FLOWS.
    """
    tuned = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha)) + 1) / TUNED_FOR_FLOWS
    return math.sqrt((1 + 1 / (flows * tuned)) * math.log((flows * tuned + 1) / alpha**2))
