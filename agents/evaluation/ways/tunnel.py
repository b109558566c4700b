"""A law through the gate inside a TCP tunnel, against the same program without it, beside plain TCP and beside UDP."""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

import numpy as np

from reinet.agents.evaluation.gated import RECORDS
from reinet.agents.evaluation.suites.measure import jain
from reinet.agents.evaluation.ways.comparison import Row, Tell, Ways, figures
from reinet.alcc.launch import ENVIRONMENT, Law, Settings
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.records import FlowStatsArray, told_once
from reinet.core.target import Target
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.namespace import USER_FILES
from reinet.envs.mahimahi.tunnel import Beside, TunnelLink
from reinet.envs.trace import Trace

RATE_MBPS = 40.0
"""The paper's tunnel (section 5.9)."""
MRTT_MS = 20.0
TARGET = Target.parse("+30ms")
BESIDE: tuple[Beside, ...] = ("tcp", "udp")
WAYS = Ways(
    {"plain": "plain", "gate": "gate"}, of="gate", over="plain",
    more={"beside_mbps": median, "jain": median, "link_qdelay_mean_ms": median, "longest_stall_ms": max},
)  # fmt: skip
STALL_MS = 2000
"""A flow to which nothing was delivered for so long has stalled: an emulated link's own rule, without gaps."""


def measure(
    laws: Sequence[Law],
    *,
    seconds: float,
    repeat: int = 1,
    beside: Sequence[Beside] = BESIDE,
    progress: Tell | None = None,
) -> Iterator[Row]:
    """Yields a row for each run, when it was made.

    Plain is the same program with a gate that only measures. ``delay_mean_ms`` and ``delay_p95_ms`` are round trips of
    the measured flow, the tunnel's own queues included; ``jain`` is of both flows' throughputs. Raises LinkError.
    """
    path = LinkSpec(Trace.constant(RATE_MBPS, 10.0), mrtt_ms=MRTT_MS)
    cells = [
        ({"law": law.name, "beside": other}, partial(_run, path, law, other, seconds))
        for other in beside
        for law in laws
    ]
    return WAYS.in_turn(cells, repeat=repeat, progress=progress)


def compared(runs: Sequence[Row]) -> list[Row]:
    """Returns a row for each law and what ran beside it of such rows of runs: medians and ratios, gate over plain."""
    return WAYS.summary(runs, ("law", "beside"))


def _run(path: LinkSpec, law: Law, beside: Beside, seconds: float, way: str) -> Row:
    variables = Settings(law=law if way == "gate" else Law("none"), target=TARGET).variables()
    variables[ENVIRONMENT] += f" records={USER_FILES}/{RECORDS}"
    with TunnelLink(path, beside=beside, sender_variables=variables) as link:
        link.start()
        link.go_on(seconds)
        done = link.stop_both()
        records = np.frombuffer(link.read_file(RECORDS), FLOW_STATS_DTYPE)
        began_ns = link.started_ns
    row = figures(done.link.metrics, done.link.invalid_reason, done.link.sender_cpu_us)
    stall_ms = longest_stall_ms(records, began_ns, began_ns + round(seconds * 1e9))
    mean_ms, p95_ms = round_trips_ms(records)
    return {
        **row,
        "throughput_mbps": done.mbps,
        "delay_mean_ms": mean_ms,
        "delay_p95_ms": p95_ms,
        "link_mbps": row["throughput_mbps"],
        "link_qdelay_mean_ms": row["qdelay_mean_ms"],
        "beside_mbps": done.beside_mbps,
        "jain": jain([done.mbps, done.beside_mbps]),
        "longest_stall_ms": stall_ms,
        "stalled": stall_ms > STALL_MS,
    }


def longest_stall_ms(records: FlowStatsArray, began_ns: int, end_ns: int) -> float:
    """Returns the longest time in which nothing was delivered, as (N,) records tell it, in ms."""
    records = told_once(records)
    delivered = records["time_ns"][records["delivered_bytes"] > 0].astype(np.int64)
    inside = delivered[(delivered > began_ns) & (delivered < end_ns)]
    return float(np.diff(np.concatenate(([began_ns], inside, [end_ns]))).max() / 1e6)


def round_trips_ms(records: FlowStatsArray) -> tuple[float, float]:
    """Returns mean and 95th percentile of the periods' mean round trips, each as often as it had samples, in ms."""
    records = told_once(records)
    had = records[records["rtt_samples"] > 0]
    if not len(had):
        return float("nan"), float("nan")
    order = np.argsort(had["rtt_mean_us"])
    rtt_ms, samples = had["rtt_mean_us"][order] / 1e3, had["rtt_samples"][order].astype(np.int64)
    up_to = np.cumsum(samples)
    at_p95 = int(np.searchsorted(up_to, 0.95 * up_to[-1]))
    return float(np.average(rtt_ms, weights=samples)), float(rtt_ms[at_p95])
