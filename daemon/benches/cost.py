"""What a daemon costs the machine beside flows that send: busy time with it over busy time without, in turn.

The flows go on all the time, each through a bottleneck of its own and over Mahimahi's delay, so both arms send the same
bytes; the daemon comes and goes. In the busy time are the senders, the receiver and the path. The own CPU time is that
of what belongs to the measurement alone, daemon included, in two cgroups.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reinet.daemon.benches import busy
from reinet.daemon.benches.sending import Senders
from reinet.daemon.benches.served import PROCESSES, ServedDaemon, free_cgroup


@dataclass(frozen=True)
class Cost(busy.Paired):
    """One crowd's figures, the daemon's over plain's; shares are percent of one core, medians over the pairs."""

    flows: int
    rate_mbps: float
    cc: str
    seconds: float
    """Each arm of a pair was measured for so long."""
    loader_percent: float
    decision_percent: float
    answering_percent: float
    bpf_percent: float
    """BPF programs, in one further run: the kernel's counting them costs time itself."""
    bpf_us_per_run: float
    flows_capped: int


def measure(flows: int, rate_mbps: float, pairs: int, seconds: float, model: str) -> Cost:
    """Returns what the daemon costs such a crowd; needs root and Mahimahi. Raises LinkError and DaemonError."""
    idle_before = busy.idle_share(seconds)
    arms: dict[bool, list[busy.Window]] = {False: [], True: []}
    spent_s: list[dict[str, float]] = []
    flows_capped: list[int] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        own = stack.enter_context(_own_cgroup())
        path = stack.enter_context(busy.crowd(flows, rate_mbps))
        groups = (own, path.cgroup)
        path.wait(busy.SETTLE_S)
        for served in busy.arms_in_turn(pairs):
            if not served:
                path.wait(busy.SETTLE_S)
                arms[False].append(busy.window(path, seconds, groups))
                continue
            with ServedDaemon(folder, path.cgroup, model) as daemon:
                path.wait(busy.SETTLE_S)
                before = daemon.cpu_s()
                arms[True].append(busy.window(path, seconds, groups))
                after = daemon.cpu_s()
                spent_s.append({key: after[key] - before[key] for key in before})
                flows_capped.append(daemon.flows()[1])
        bpf_s, bpf_runs = _bpf(path, folder, seconds, model)
        run = path.end()
    processes = {key: 100 * float(np.median([one[key] for one in spent_s])) / seconds for key in PROCESSES}
    plain, capped = ([(took, run.total_rate(*took.span_s)) for took in arms[arm]] for arm in (False, True))
    return Cost(
        **busy.paired(plain, capped, (idle_before, busy.idle_share(seconds))),
        flows=flows,
        rate_mbps=rate_mbps,
        cc=busy.CC,
        seconds=seconds,
        loader_percent=processes["loader"],
        decision_percent=processes["decision"],
        answering_percent=processes["answering"],
        bpf_percent=100 * bpf_s / seconds,
        bpf_us_per_run=1e6 * bpf_s / max(bpf_runs, 1),
        flows_capped=int(np.median(flows_capped)),
    )


@contextmanager
def _own_cgroup() -> Iterator[Path]:
    """Has this process, and what it starts, in a cgroup whose CPU time is counted."""
    own = free_cgroup()
    former = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    own.mkdir()
    try:
        (own / "cgroup.procs").write_text("0")
        yield own
    finally:
        (own.parent / former.removeprefix("0::").lstrip("/") / "cgroup.procs").write_text("0")
        with suppress(OSError):
            own.rmdir()


def _bpf(path: Senders, folder: Path, seconds: float, model: str) -> tuple[float, int]:
    """Returns how long the BPF programs ran in such a time, and how often."""
    with _counting_bpf(), ServedDaemon(folder, path.cgroup, model) as daemon:
        path.wait(busy.SETTLE_S)
        (before_s, before_runs) = daemon.bpf_runs()
        path.wait(seconds)
        (after_s, after_runs) = daemon.bpf_runs()
    return after_s - before_s, after_runs - before_runs


@contextmanager
def _counting_bpf() -> Iterator[None]:
    from reinet.kshim import _kshim  # not built everywhere

    counting = _kshim.count_runs()
    try:
        yield
    finally:
        os.close(counting)


def measure_all(pairs: int, seconds: float, model: str, say: Callable[[str], None]) -> list[Cost]:
    """Returns the figures of every crowd."""
    rows = []
    for flows, rate_mbps in busy.CROWDS:
        say(f"{flows} flows of {rate_mbps:g} Mbit/s, {pairs} pairs")
        rows.append(measure(flows, rate_mbps, pairs, seconds, model))
    return rows
