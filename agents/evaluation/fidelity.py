"""The simulator against Mahimahi and the real kernel: the same trace, congestion control, buffer and cap on both sides.

The kernel side runs each combination of these several times, the simulator a few times for each of those runs and from
where the kernel's flow started in the trace; both count by their medians. Every kernel run is written down when it
ends, so an interrupted comparison goes on where it stopped; its key has the kernel and the link's programs, and not the
simulator: a changed one is compared with the kernel's runs as they are. The kernel is the host's, or one in virtual
time (``reinet.envs.mahimahi.uml``), which has every congestion control and which no load disturbs, but neither caps nor
records: what only records tell is None then.
"""

import hashlib
import os
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from reinet.agents.decide.baselines import FixedCap, NoCap
from reinet.agents.evaluation.kernel_results import METRICS, Figures, KernelResult, Results
from reinet.agents.evaluation.run import Run, run
from reinet.agents.evaluation.scenario import Scenario
from reinet.agents.evaluation.suites.provenance import emulator_sha256
from reinet.agents.evaluation.suites.real import end_with_parent
from reinet.core import MAX_CAP_PKTS, MIN_CAP_PKTS
from reinet.core.errors import ConfigError, LinkError, ShimError
from reinet.core.records import told_once
from reinet.core.target import MOST_MS
from reinet.envs.link.metrics import Metrics, syn_ack_ms
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.spec import require_emulated
from reinet.envs.mahimahi.uml import run_flow
from reinet.envs.sim.options import require_simulated
from reinet.envs.trace import Trace
from reinet.kshim.probe import why_not_capped

Told = Callable[[int, int, str | None], None]
"""It hears (runs through, all, why one did not count) after each run."""

TOLERANCES = {"throughput_mbps": (0.03, 0.0), "qdelay_mean_ms": (0.10, 2.0), "qdelay_p95_ms": (0.15, 4.0)}
"""Metric -> (relative, absolute): a combination agrees when each metric is within one of its two tolerances."""

MAX_ATTEMPTS = 3
"""A kernel run that the host's lag made invalid is tried so often before it is left out."""

NOT_TRIED = "not tried: others of this congestion control could not be run"

SIM_RUNS = 3
"""Every kernel run has so many simulated ones, with jitter of their own: they cost next to nothing."""


@dataclass(frozen=True)
class Combination:
    """A trace, congestion control, buffer and cap that both sides run; ``cap_pkts`` 0 = none."""

    trace: Trace
    cc: str
    buffer_bytes: int
    cap_pkts: int

    def key(self, seconds: float, mrtt_ms: float, uml: Path | None = None) -> str:
        """Returns the combination's name in the results file: the trace's content, not its name, and the kernel."""
        return f"{self.key_of_any_kernel(seconds, mrtt_ms)} {kernel_identity(uml)}"

    def key_of_any_kernel(self, seconds: float, mrtt_ms: float) -> str:
        """Returns what the keys of this combination begin with, whatever kernel ran it."""
        return f"{self.trace.sha256[:16]} {self.cc} {self.buffer_bytes} {self.cap_pkts} {seconds:g} {mrtt_ms:g}"

    def path(self, mrtt_ms: float, begin_ms: float = 0.0, seed: int = 0) -> LinkSpec:
        """Returns the path of both sides, from that time of the trace; its target is so far off that none is capped."""
        return LinkSpec(
            self.trace,
            cc=self.cc,
            mrtt_ms=mrtt_ms,
            target_us=round(min(10 * mrtt_ms, MOST_MS) * 1000),
            buffer_bytes=self.buffer_bytes,
            start_offset_ms=max(0, round(begin_ms)),
            seed=seed,
        )


@cache
def kernel_identity(uml: Path | None) -> str:
    """Returns what tells kernels apart in a key: the host's release, or the hash of a User-Mode Linux; and of both the
    hash of the link's programs."""
    kernel = f"host {os.uname().release}" if uml is None else f"uml {hashlib.sha256(uml.read_bytes()).hexdigest()[:16]}"
    return f"{kernel} {emulator_sha256()[:16]}"


@dataclass(frozen=True)
class LeftOut:
    """A combination that this host could not run on the kernel."""

    combination: Combination
    why: str


class _Tally:
    """What has become of a comparison's kernel runs: which still wait, how many are through, what cannot be run."""

    def __init__(self, results: Results, repeat: int, waiting: deque[tuple[str, Combination]]) -> None:
        self.waiting = waiting
        """Each with its key."""
        self.total = len(waiting)
        self.done = 0
        self.left_out: dict[str, LeftOut] = {}
        self._results = results
        self._most_invalid = MAX_ATTEMPTS * repeat
        self._invalid: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        """Of each key in a row: a busy host may be too slow to bring a link up in time."""
        self._able: set[tuple[str, bool]] = set()
        """Congestion controls, without and with a cap, of which any combination was run."""

    def take(self, key: str, one: Combination, future: Future[tuple[KernelResult, str | None]]) -> str | None:
        """Writes an ended run down, has it made again or leaves its combination out; returns why it does not count."""
        try:
            result, invalid_reason = future.result()
        except (LinkError, ShimError) as error:
            self._errors[key] += 1
            if isinstance(error, LinkError) and self._errors[key] < MAX_ATTEMPTS:
                self.waiting.append((key, one))
            else:  # what the kernel lacks, it will lack again
                self._leave_out(key, one, str(error))
            return str(error)
        self._able.add(_kind(one))
        self._errors[key] = 0
        if invalid_reason is None:
            self._results.add(result)
        else:
            self._invalid[key] += 1
            if self._invalid[key] < self._most_invalid:
                self.waiting.append((key, one))
                return invalid_reason
        self.done += 1
        return invalid_reason

    def _leave_out(self, key: str, one: Combination, why: str) -> None:
        self.left_out[key] = LeftOut(one, why)
        self.done += 1
        alike = [other for other in self.left_out.values() if _kind(other.combination) == _kind(one)]
        if _kind(one) not in self._able and len(alike) >= MAX_ATTEMPTS:
            unlikely = {other: it for other, it in self.waiting if _kind(it) == _kind(one)}
            self.left_out |= {other: LeftOut(it, NOT_TRIED) for other, it in unlikely.items()} | self.left_out
        kept = [(other, it) for other, it in self.waiting if other not in self.left_out]
        self.done += len(self.waiting) - len(kept)
        self.waiting = deque(kept)


def _kind(one: Combination) -> tuple[str, bool]:
    """Returns what of a combination a host may lack."""
    return one.cc, one.cap_pkts > 0


@dataclass(frozen=True)
class Comparison:
    """Runs and compares combinations; iterating gives the rows of each when it is complete."""

    combinations: Sequence[Combination]
    results: Results
    seconds: float = 60.0
    mrtt_ms: float = 20.0
    repeat: int = 3
    parallel: int = 1
    uml: Path | None = None
    """The User-Mode Linux to compare with; None = the host's kernel."""

    def __post_init__(self) -> None:
        if not 0 < self.mrtt_ms <= MOST_MS:
            raise ConfigError(f"mrtt_ms is {self.mrtt_ms:g}; it must be above 0 and at most {MOST_MS:g}")
        for combination in self.combinations:
            path = combination.path(self.mrtt_ms)
            require_emulated(require_simulated(path))  # hours of runs on one side would have nothing beside them
            if combination.cap_pkts and not MIN_CAP_PKTS <= combination.cap_pkts <= MAX_CAP_PKTS:
                raise ConfigError(
                    f"caps: {combination.cap_pkts} is outside {MIN_CAP_PKTS} to {MAX_CAP_PKTS} packets; none is no cap"
                )
        if self.uml is not None and any(combination.cap_pkts for combination in self.combinations):
            raise ConfigError("caps need the kernel shim, which a User-Mode Linux does not have; give --caps none")

    @property
    def kernel(self) -> str:
        """Returns the name of the kernel that the runs are of."""
        return "uml" if self.uml is not None else "host"

    def measure(self, progress: Told) -> list[LeftOut]:
        """Makes the kernel runs that are missing; returns the combinations that this host could not run, and why.

        Raises ConfigError before the first run where this host's kernel lets no cap be set over a congestion control,
        LinkError where a process of a run is killed.
        """
        todo = [one for one in self.combinations for _ in range(self.repeat - len(self._runs(one)))]
        for cc in dict.fromkeys(one.cc for one in todo if one.cap_pkts):
            if reason := why_not_capped(cc):
                raise ConfigError(f"cc {cc!r} cannot be capped in the kernel: {reason}; leave it out, or --caps none")
        tally = _Tally(self.results, self.repeat, deque((self._key(one), one) for one in todo))
        try:
            self._make(tally, progress)
        except BrokenExecutor:
            raise LinkError("a process of a kernel run was killed; the same command goes on where it was") from None
        return list(tally.left_out.values())

    def _make(self, tally: _Tally, progress: Told) -> None:
        running: dict[Future[tuple[KernelResult, str | None]], tuple[str, Combination]] = {}
        with ProcessPoolExecutor(self.parallel, get_context("spawn"), end_with_parent) as pool:
            while tally.waiting or running:
                while tally.waiting and len(running) < self.parallel:
                    key, one = tally.waiting.popleft()
                    running[pool.submit(kernel_run, one, self.seconds, self.mrtt_ms, self.uml)] = (key, one)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    reason = tally.take(*running.pop(future), future)
                    progress(tally.done, tally.total, reason)

    def of_other_kernels(self) -> int:
        """Returns how many runs in the results file do not count because another kernel made them."""
        return sum(
            self.results.of_other_kernels(self._key(one), one.key_of_any_kernel(self.seconds, self.mrtt_ms))
            for one in self.combinations
        )

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        for combination in self.combinations:
            runs = self._runs(combination)
            if runs:
                yield self._rows(combination, runs[: self.repeat])

    def _runs(self, combination: Combination) -> list[KernelResult]:
        return self.results.of(self._key(combination))

    def _key(self, combination: Combination) -> str:
        return combination.key(self.seconds, self.mrtt_ms, self.uml)

    def _rows(self, combination: Combination, runs: Sequence[KernelResult]) -> list[dict[str, Any]]:
        simulated = [
            sim_figures(combination, self.seconds, self.mrtt_ms, kernel.begin_ms, number * SIM_RUNS + seed)
            for number, kernel in enumerate(runs)
            for seed in range(SIM_RUNS)
        ]
        rows = []
        for metric in METRICS:
            kernel_values = _known(metric, [run.figures for run in runs])
            sim = _median(_known(metric, simulated))
            kernel = _median(kernel_values)
            rows.append(
                {
                    "cc": combination.cc,
                    "trace": combination.trace.name,
                    "buffer_bytes": combination.buffer_bytes,
                    "cap_pkts": combination.cap_pkts,
                    "metric": metric,
                    "sim": sim,
                    "kernel": kernel,
                    "ratio": sim / kernel if kernel and sim is not None else None,
                    "kernel_min": min(kernel_values, default=None),
                    "kernel_max": max(kernel_values, default=None),
                    "kernel_runs": len(runs),
                    "kernel_kind": self.kernel,
                    "agrees": agrees(metric, sim, kernel),
                    "seconds": self.seconds,
                    "trace_sha256": combination.trace.sha256,
                }
            )
        return rows


def _known(metric: str, runs: Sequence[Figures]) -> list[float]:
    return [value for figures in runs if (value := figures[metric]) is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def agrees(metric: str, sim: float | None, kernel: float | None) -> bool | None:
    """Returns whether the two are within the metric's tolerance; None for a metric that has none, or is not known."""
    if metric not in TOLERANCES or sim is None or kernel is None:
        return None
    relative, absolute = TOLERANCES[metric]
    return bool(abs(sim - kernel) <= max(relative * kernel, absolute))  # NumPy's own is no JSON


def kernel_run(
    combination: Combination, seconds: float, mrtt_ms: float, uml: Path | None
) -> tuple[KernelResult, str | None]:
    """Returns one run on the kernel and why it must not count, None = it counts; for a process of its own."""
    if uml is not None:
        return _uml_run(combination, seconds, mrtt_ms, uml)
    done = run(_agent(combination), Scenario(combination.path(mrtt_ms), "mahimahi", seconds))
    begin_ms = syn_ack_ms(done.log) - mrtt_ms / 2
    return KernelResult(combination.key(seconds, mrtt_ms), begin_ms, figures_of(done)), done.invalid_reason


def _uml_run(combination: Combination, seconds: float, mrtt_ms: float, uml: Path) -> tuple[KernelResult, str | None]:
    done = run_flow(uml, combination.path(mrtt_ms), seconds)
    retrans_pkts = float(sum(event["retrans_pkts"] for event in done.closed))
    figures = _figures(done.metrics, retrans_pkts, None)
    begin_ms = syn_ack_ms(done.log) - mrtt_ms / 2
    return KernelResult(combination.key(seconds, mrtt_ms, uml), begin_ms, figures), done.invalid_reason


def sim_figures(combination: Combination, seconds: float, mrtt_ms: float, begin_ms: float, seed: int) -> Figures:
    """Returns the simulator's figures for a flow that answers the SYN at ``begin_ms`` of the trace."""
    return figures_of(run(_agent(combination), Scenario(combination.path(mrtt_ms, begin_ms, seed), "sim", seconds)))


def figures_of(done: Run) -> Figures:
    """Returns what is compared of a run."""
    records = told_once(done.records)
    period_s = records["period_ns"] / 1e9
    if not period_s.sum() > 0:
        return _figures(done.metrics, None, None)
    retrans_pkts = float(records["retrans_bytes"].sum()) / float(records["mss_bytes"].max())
    return _figures(done.metrics, retrans_pkts, float(np.average(records["cwnd_pkts"], weights=period_s)))


def _figures(metrics: Metrics, retrans_pkts: float | None, cwnd_mean_pkts: float | None) -> Figures:
    return {
        "throughput_mbps": metrics.throughput_mbps,
        "utilization": metrics.utilization,
        "qdelay_mean_ms": metrics.qdelay_mean_ms,
        "qdelay_p95_ms": metrics.qdelay_p95_ms,
        "retrans_pkts": retrans_pkts,
        "cwnd_mean_pkts": cwnd_mean_pkts,
    }


def _agent(combination: Combination) -> FixedCap | NoCap:
    return FixedCap(combination.cap_pkts) if combination.cap_pkts else NoCap()


def markdown(comparison: Comparison, done: Sequence[list[dict[str, Any]]], command: str) -> str:
    """Returns the comparison as a page: a line a combination, figures as simulator / kernel, and what does not agree.

    ``done`` has the rows of the combinations that were measured.
    """
    agreeing = sum(all(row["agrees"] in (True, None) for row in rows) for rows in done)
    missing = len(comparison.combinations) - len(done)
    kernel = "the real kernel" if comparison.uml is None else "a kernel in virtual time"

    def deviations(metric: str) -> str:
        ratios = [row["ratio"] for rows in done for row in rows if row["metric"] == metric and row["ratio"]]
        shares = 100 * np.abs(np.array(ratios or [np.nan]) - 1)
        return f"{metric} {np.median(shares):.1f} % and {np.percentile(shares, 90):.1f} %"

    lines = [
        f"# The simulator against Mahimahi and {kernel}",
        "",
        f"Made by `{command}`.",
        f"One flow over a droptail buffer and a path of {comparison.mrtt_ms:g} ms, without a cap or under a fixed one.",
        "Figures are the simulator's / the kernel's, medians of the runs; `?` is one that this kernel does not tell.",
        "A combination agrees when throughput is within 3 %, mean queueing delay within 10 % or 2 ms and its 95th",
        "percentile within 15 % or 4 ms; `docs/simulator.md` says which kernels these were and why some do not agree.",
        "",
        f"**{agreeing} of {len(done)} combinations agree**" + (f"; {missing} not measured." if missing else "."),
        "",
        "Deviations, median and 90th percentile over the combinations: " + ", ".join(map(deviations, TOLERANCES)) + ".",
        "",
        "| trace | cc | buffer (KB) | cap (packets) | Mbit/s | mean queueing (ms) | p95 (ms) | retransmitted (packets) "
        "| mean cwnd (packets) | runs | agrees |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for rows in done:
        first = rows[0]
        pairs = {row["metric"]: f"{_shown(row['sim'])} / {_shown(row['kernel'])}" for row in rows}
        failing = [row["metric"] for row in rows if row["agrees"] is False]
        line = [first["trace"], first["cc"], f"{first['buffer_bytes'] / 1000:g}", first["cap_pkts"] or "none"]
        line += [pairs[metric] for metric in METRICS if metric != "utilization"]
        line += [first["kernel_runs"], f"no: {', '.join(failing)}" if failing else "yes"]
        lines.append(f"| {' | '.join(map(str, line))} |")
    return "\n".join(lines) + "\n"


def _shown(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
