"""A daemon beside thousands of sockets that stay and thousands a second that come and go: what it loses."""

import json
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reinet.core.errors import DaemonError
from reinet.daemon.benches.served import ServedDaemon, free_cgroup, weigh
from reinet.envs.mahimahi.process import Child
from reinet.kshim.leftovers import leftovers

ANSWER_S = 300.0
"""Ten thousand sockets open in a few seconds; a busy host takes longer for everything."""
CROWD_NICENESS = -10
"""What else the host does must not keep the crowd from coming; the daemon has no such favour."""
SETTLED_S = 30.0
"""Longest wait for what ended to be seen as such, and for the kernel to free what nobody holds."""
COUNTED = ("flows_chosen", "flows_without_slot", "flows_not_switched", "slots_used", "leases_too_long", "records_lost")


@dataclass(frozen=True)
class Load:
    """What was seen; ``resident_mb`` are of each process at the start, with the held sockets, and at the end."""

    sockets_held: int
    connections: int
    connections_failed: int
    connections_per_s: float
    seconds: float
    flows_missed: int
    """Sockets that came and were given no slot, or not the wrapper."""
    flows_after: int
    """Flows that the daemon still knows when every socket is closed."""
    caps_after: int
    left_loaded: int
    """BPF programs and maps that are there after the daemon's end and were not before: a leak."""
    counters: dict[str, int]
    resident_mb_start: dict[str, float]
    resident_mb_held: dict[str, float]
    resident_mb_end: dict[str, float]


def measure(held_sockets: int, per_s: int, seconds: float, model: str = "rule") -> Load:
    """Returns what a crowd of sockets does to a daemon; needs root. Raises DaemonError."""
    cgroup = free_cgroup()
    before = {(item.kind, item.id) for item in leftovers()}
    cgroup.mkdir()
    try:
        with tempfile.TemporaryDirectory() as folder, ServedDaemon(Path(folder), cgroup, model) as daemon:
            start = daemon.resident_mb()
            plan = {"cgroup": str(cgroup), "held": held_sockets // 2, "per_s": per_s, "seconds": seconds}
            script = str(Path(__file__).with_name("crowd.py"))
            crowd = Child(["unshare", "-n", sys.executable, "-IS", script, json.dumps(plan)], "the crowd")
            weigh(crowd.process.pid, CROWD_NICENESS)
            try:
                sockets = int(crowd.wait_for("held", ANSWER_S)["sockets"])
                held = daemon.resident_mb()
                crowd.tell("\n")
                churned = crowd.wait_for("churned", ANSWER_S + seconds)
                crowd.tell("\n")
                crowd.wait_for("closed", ANSWER_S)
            finally:
                crowd.reap(10.0)
            flows_after, caps_after = _settled(daemon)
            end = daemon.resident_mb()
            daemon.end("stop")
            said = daemon.said()
        left = _left_since(before)
    finally:
        with suppress(OSError):
            cgroup.rmdir()
    last = next((entry for entry in reversed(said) if entry["event"] == "stopping"), None)
    if last is None:
        raise DaemonError(f"the daemon did not end as it should: {said[-3:]}")
    return Load(
        sockets_held=sockets,
        connections=int(churned["connections"]),
        connections_failed=int(churned["failed"]),
        connections_per_s=float(churned["connections"] / churned["took_s"]),
        seconds=float(churned["took_s"]),
        flows_missed=int(last["flows_without_slot"]) + int(last["flows_not_switched"]),
        flows_after=flows_after,
        caps_after=caps_after,
        left_loaded=left,
        counters={name: int(last[name]) for name in COUNTED},
        resident_mb_start=start,
        resident_mb_held=held,
        resident_mb_end=end,
    )


def _settled(daemon: ServedDaemon) -> tuple[int, int]:
    """Returns how many flows and caps there are once no more of them go."""
    end_s = time.monotonic() + SETTLED_S
    while any(seen := daemon.flows()) and time.monotonic() < end_s:
        time.sleep(0.2)
    return seen


def _left_since(before: set[tuple[str, int]]) -> int:
    """Returns how much is loaded that nobody holds and was not there before."""
    end_s = time.monotonic() + SETTLED_S
    while (left := {(item.kind, item.id) for item in leftovers()} - before) and time.monotonic() < end_s:
        time.sleep(0.2)
    return len(left)
