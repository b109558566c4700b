"""Many flows of one process over Mahimahi's delay, each with a bottleneck of its own, in a cgroup of their own."""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinet.daemon.benches.served import free_cgroup, weigh
from reinet.envs.mahimahi.namespace import BIN, LinkNamespace
from reinet.envs.mahimahi.process import SYSTEM_PATH, Child

NETWORK_NICENESS = -10
BUFFER_BYTES = 30_000
"""Twenty packets: 240 ms at 1 Mbit/s."""
SAMPLE_S = 0.1
"""A switch takes less than a second; 200 flows cost a hundredth of a core at it."""


@dataclass(frozen=True)
class Run:
    """The samples of one run, (S, N) for S samples of N flows."""

    times_s: NDArray[np.float64]
    delivered_bytes: NDArray[np.float64]
    rtts_ms: NDArray[np.float64]
    wrapped: NDArray[np.int64]  # (S,)
    lost: int
    late_s: float

    def rate(self, from_s: float, to_s: float) -> NDArray[np.float64]:
        """Returns (N,) bytes/s between the samples nearest to both times, by each flow's own clock."""
        first, last = (int(np.argmin(np.abs(self.times_s[:, 0] - at_s))) for at_s in (from_s, to_s))
        took_s = self.times_s[last] - self.times_s[first]
        return np.asarray((self.delivered_bytes[last] - self.delivered_bytes[first]) / took_s, np.float64)

    def total_rate(self, from_s: float, to_s: float) -> float:
        """Returns the bytes/s of all flows together, as ``rate``."""
        return float(self.rate(from_s, to_s).sum())

    def rtt_mean_ms(self, from_s: float, to_s: float) -> float:
        """Returns the mean over flows and samples of a time."""
        return float(self._rtts_ms(from_s, to_s).mean())

    def qdelay_p99_ms(self, from_s: float, to_s: float, mrtt_ms: float) -> float:
        """Returns the 99th percentile over flows and samples of a time."""
        return float(np.percentile(self._rtts_ms(from_s, to_s), 99)) - mrtt_ms

    def _rtts_ms(self, from_s: float, to_s: float) -> NDArray[np.float64]:
        return self.rtts_ms[(self.times_s[:, 0] >= from_s) & (self.times_s[:, 0] <= to_s)]


class Senders:
    """Flows over Mahimahi's delay, in a cgroup of their own."""

    def __init__(
        self,
        cc: str,
        flows: int,
        rate_mbps: float,
        mrtt_ms: float,
        buffer_bytes: int = BUFFER_BYTES,
        sample_s: float = SAMPLE_S,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Starts ``flows`` of ``rate_mbps`` each; what the kernel says of them is noted every ``sample_s``.

        ``variables`` are of the sending process' environment: what makes it run under the gate.
        """
        self.flows = flows
        self.cgroup = free_cgroup()
        self._namespace = LinkNamespace(self.cgroup)
        try:
            self._sender, self._shell = self._start(cc, rate_mbps, mrtt_ms, buffer_bytes, sample_s, variables or {})
        except BaseException:
            self._namespace.close()
            raise

    def wait(self, seconds: float) -> float:
        """Lets time pass; returns when it was over, CLOCK_MONOTONIC. Raises LinkError where the path has died."""
        time.sleep(seconds)
        for child in (self._sender, self._shell):
            child.check()
        return time.monotonic()

    def end(self) -> Run:
        """Ends the flows and returns what was seen."""
        self._sender.end_input()
        seen = self._sender.wait_for("flows")
        ends = [self._shell.wait_for("received") for _ in range(self.flows)]
        whole = sum(bool(end["intact"] and end["clean"]) for end in ends)
        samples: list[dict[str, Any]] = seen["samples"]
        return Run(
            times_s=np.array([one["times_ns"] for one in samples], np.float64) / 1e9,
            delivered_bytes=np.array([one["delivered_bytes"] for one in samples], np.float64),
            rtts_ms=np.array([one["rtts_us"] for one in samples], np.float64) / 1e3,
            wrapped=np.array([one["wrapped"] for one in samples]),
            late_s=float(seen["late_s"]),
            lost=max(int(seen["lost"]), self.flows - whole),
        )

    def _start(
        self,
        cc: str,
        rate_mbps: float,
        mrtt_ms: float,
        buffer_bytes: int,
        sample_s: float,
        variables: Mapping[str, str],
    ) -> tuple[Child, Child]:
        plan = {
            "cgroup": str(self.cgroup), "cc": cc, "flows": self.flows, "rate_mbps": rate_mbps,
            "buffer_bytes": buffer_bytes, "sample_s": sample_s,
        }  # fmt: skip
        script = str(Path(__file__).with_name("senders.py"))
        command = ["env", *(f"{name}={value}" for name, value in variables.items())]
        command += [sys.executable, "-IS", script, json.dumps(plan)]
        sender = self._namespace.spawn(command, "senders", privileged=True)
        port = str(sender.wait_for("listening")["port"])
        receive = [f"{BIN}/reinet-receiver", port, str(self.flows)]
        # The bottlenecks are between both shells; the inner one asks at the gate for forwarding.
        shells = ["mm-delay", "1", f"{BIN}/reinet-gate", "mm-delay", str(round(mrtt_ms / 2) - 1)]
        command = ["env", "--ignore-environment", f"PATH={SYSTEM_PATH}", *shells, *receive]
        shell = self._namespace.spawn(command, "Mahimahi", privileged=False)
        for child in (sender, shell):  # they stand for a network, which does not slow down when a process starts
            weigh(child.process.pid, NETWORK_NICENESS)
        sender.wait_for("sending", beside=shell)
        return sender, shell

    def __enter__(self) -> "Senders":
        return self

    def __exit__(self, *_: object) -> None:
        self._namespace.close()
