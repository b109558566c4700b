"""What a daemon costs the machine beside flows that send: busy time with it over busy time without, in turn.

The flows go on all the time, each through a bottleneck of its own and over Mahimahi's delay, so both arms send the same
bytes; the daemon comes and goes. Busy is all of the machine's time but idle, iowait and steal, and what it is busy with
when nothing runs is taken off first. In it are the senders, the receiver and the path.

Where other work runs, that says nothing. Beside it stands the CPU time of what belongs to the measurement alone, daemon
included, as the scheduler charges it to two cgroups; what an interrupt does on top of another program is missing there.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reinet.core.errors import DaemonError
from reinet.daemon.benches.sending import Senders
from reinet.daemon.benches.served import PROCESSES, ServedDaemon
from reinet.envs.mahimahi.namespace import own_cgroup
from reinet.kshim.probe import cgroup2_mount

CROWDS = ((1, 100.0), (100, 1.0))
"""Flows and Mbit/s of each, as design.md has them."""
LEAST_PAIRS = 6
"""Of five or fewer no two values enclose the median with 95 % confidence."""
SETTLE_S = 3.0
"""Gates open and caps drain the queues after the start; BBR and Cubic find their rate again after the end."""
SAMPLE_S = 0.5
"""Seldom: in either arm the machine is to be busy with sending."""
SAME_THROUGHPUT = 0.01
BUFFERED_MS = 240.0
MOST_BUFFERED_BYTES = 500_000
"""Of 1 Mbit/s a queue of 20 packets, of 100 Mbit/s one of 40 ms: more than either has under the default target."""
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")

QUIET_SHARE = 0.05
"""Of a core: a machine that is busier than this without flows or a daemon has other work; its ratio says nothing."""


class Busy(NamedTuple):
    """A moment, and what was spent by then, all in seconds."""

    at_s: float  # CLOCK_MONOTONIC
    machine_s: float
    """All processors' busy time."""
    own_s: float
    """That of the measurement's own processes."""


@dataclass(frozen=True)
class Cost:
    """One crowd's figures; shares are percent of one core, medians over the pairs."""

    flows: int
    rate_mbit: float
    cc: str
    pairs: int
    pairs_valid: int
    """Of them the throughput was the same within 1 %; the others count nowhere."""
    seconds: float
    """Each arm of a pair was measured for so long."""
    cpu_ratio_vs_plain: float
    """The median over the pairs of busy time per byte, with the daemon over without."""
    cpu_ratio_low: float
    cpu_ratio_high: float
    """The 95 % confidence interval of that median, from the order of the pairs alone."""
    quiet: bool
    """Whether the machine had hardly any other work before and after; if not, only the own ratio says something."""
    own_ratio: float
    """The same ratio of the CPU time of the measurement's own processes."""
    own_ratio_low: float
    own_ratio_high: float
    own_plain_percent: float
    throughput_ratio: float
    plain_percent: float
    """Busy without the daemon, less the idle machine's."""
    capped_percent: float
    idle_percent: float
    loader_percent: float
    decision_percent: float
    answering_percent: float
    bpf_percent: float
    """BPF programs, in one further run: the kernel's counting them costs time itself."""
    bpf_us_per_run: float
    flows_capped: int


def measure(
    flows: int, rate_mbit: float, pairs: int, seconds: float, model: str, cc: str = "cubic", mrtt_ms: float = 20.0
) -> Cost:
    """Returns what the daemon costs such a crowd; needs root and Mahimahi. Raises LinkError and DaemonError."""
    idle_before = _idle(seconds)
    rate_bytes_per_ms = rate_mbit * 125
    buffer_bytes = round(min(rate_bytes_per_ms * BUFFERED_MS, MOST_BUFFERED_BYTES))
    arms: dict[bool, list[tuple[Busy, Busy]]] = {False: [], True: []}
    spent_s: list[dict[str, float]] = []
    flows_capped: list[int] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        own = stack.enter_context(_own_cgroup())
        path = stack.enter_context(Senders(cc, flows, rate_mbit, mrtt_ms, buffer_bytes, SAMPLE_S))
        groups = (own, path.cgroup)
        path.wait(SETTLE_S)
        for number in range(pairs):
            for served in (number % 2 == 0, number % 2 != 0):  # which arm comes first takes turns
                if not served:
                    path.wait(SETTLE_S)
                    arms[False].append(_window(path, seconds, groups))
                    continue
                with ServedDaemon(folder, path.cgroup, model) as daemon:
                    path.wait(SETTLE_S)
                    before = daemon.cpu_s()
                    arms[True].append(_window(path, seconds, groups))
                    after = daemon.cpu_s()
                    spent_s.append({key: after[key] - before[key] for key in before})
                    flows_capped.append(daemon.flows()[1])
        bpf_s, bpf_runs = _bpf(path, folder, seconds, model)
        run = path.end()
    idles = (idle_before, _idle(seconds))
    idle_share = float(np.median(idles))
    share = {arm: np.array([_share(*window) for window in windows]) - idle_share for arm, windows in arms.items()}
    own_share = {arm: np.array([_own_share(*window) for window in windows]) for arm, windows in arms.items()}
    rate = {arm: np.array([run.rate(a.at_s, b.at_s).sum() for a, b in windows]) for arm, windows in arms.items()}
    same = np.abs(rate[True] / rate[False] - 1) <= SAME_THROUGHPUT
    ratios = ((share[True] / rate[True]) / (share[False] / rate[False]))[same]
    own_ratios = ((own_share[True] / rate[True]) / (own_share[False] / rate[False]))[same]
    low, high = median_interval(ratios)
    own_low, own_high = median_interval(own_ratios)
    processes = {key: 100 * float(np.median([one[key] for one in spent_s])) / seconds for key in PROCESSES}
    return Cost(
        flows=flows,
        rate_mbit=rate_mbit,
        cc=cc,
        pairs=pairs,
        pairs_valid=int(same.sum()),
        seconds=seconds,
        cpu_ratio_vs_plain=float(np.median(ratios)) if ratios.size else float("nan"),
        cpu_ratio_low=low,
        cpu_ratio_high=high,
        quiet=max(idles) <= QUIET_SHARE,
        own_ratio=float(np.median(own_ratios)) if own_ratios.size else float("nan"),
        own_ratio_low=own_low,
        own_ratio_high=own_high,
        own_plain_percent=100 * float(np.median(own_share[False])),
        throughput_ratio=float(np.median(rate[True] / rate[False])),
        plain_percent=100 * float(np.median(share[False])),
        capped_percent=100 * float(np.median(share[True])),
        idle_percent=100 * idle_share,
        loader_percent=processes["loader"],
        decision_percent=processes["decision"],
        answering_percent=processes["answering"],
        bpf_percent=100 * bpf_s / seconds,
        bpf_us_per_run=1e6 * bpf_s / max(bpf_runs, 1),
        flows_capped=int(np.median(flows_capped)),
    )


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


def _binomial(n: int, k: int) -> float:
    return comb(n, k) / 2.0**n


def busy(groups: Sequence[Path] = ()) -> Busy:
    """Returns the time, and how long this machine's processors and these cgroups' processes were busy so far."""
    at_s = time.monotonic()
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle, iowait, steal = ticks[3], ticks[4], ticks[7]
    processors = os.sysconf("SC_NPROCESSORS_ONLN")
    spent_us = [int((group / "cpu.stat").read_text().split()[1]) for group in groups]
    return Busy(at_s, at_s * processors - (idle + iowait + steal) / os.sysconf("SC_CLK_TCK"), sum(spent_us) / 1e6)


def _share(before: Busy, after: Busy) -> float:
    return (after.machine_s - before.machine_s) / (after.at_s - before.at_s)


def _own_share(before: Busy, after: Busy) -> float:
    return (after.own_s - before.own_s) / (after.at_s - before.at_s)


@contextmanager
def _own_cgroup() -> Iterator[Path]:
    """Has this process, and what it starts, in a cgroup whose CPU time is counted."""
    mount = cgroup2_mount()
    if mount is None:
        raise DaemonError("no cgroup v2 hierarchy is mounted: mount -t cgroup2 none /sys/fs/cgroup")
    former = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    own = own_cgroup(mount)
    own.mkdir()
    try:
        (own / "cgroup.procs").write_text("0")
        yield own
    finally:
        (mount / former.removeprefix("0::").lstrip("/") / "cgroup.procs").write_text("0")
        with suppress(OSError):
            own.rmdir()


def _idle(seconds: float) -> float:
    before = busy()
    time.sleep(seconds)
    return _share(before, busy())


def _window(path: Senders, seconds: float, groups: Sequence[Path]) -> tuple[Busy, Busy]:
    before = busy(groups)
    path.wait(seconds)
    return before, busy(groups)


def _bpf(path: Senders, folder: Path, seconds: float, model: str) -> tuple[float, int]:
    """Returns how long the BPF programs ran in such a time, and how often."""
    with _counting_bpf(), ServedDaemon(folder, path.cgroup, model) as daemon:
        path.wait(SETTLE_S)
        (before_s, before_runs) = daemon.bpf_runs()
        path.wait(seconds)
        (after_s, after_runs) = daemon.bpf_runs()
    return after_s - before_s, after_runs - before_runs


@contextmanager
def _counting_bpf() -> Iterator[None]:
    former = STATS.read_text()
    STATS.write_text("1")
    try:
        yield
    finally:
        STATS.write_text(former)


def measure_all(pairs: int, seconds: float, model: str, say: Callable[[str], None]) -> list[Cost]:
    """Returns the figures of every crowd."""
    rows = []
    for flows, rate_mbit in CROWDS:
        say(f"{flows} flows of {rate_mbit:g} Mbit/s, {pairs} pairs")
        rows.append(measure(flows, rate_mbit, pairs, seconds, model))
    return rows
