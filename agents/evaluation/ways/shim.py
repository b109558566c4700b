"""What the gate measures of a socket against what the kernel's shim measures of it at the same time; nobody caps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reinet.agents.evaluation.gated import RECORDS
from reinet.agents.evaluation.ways.comparison import Row, Tell, made
from reinet.alcc.launch import ENVIRONMENT, Law, Settings
from reinet.core import FLOW_STATS_DTYPE, ShimError
from reinet.core.records import FlowStatsArray, told_once
from reinet.core.target import Target
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import LinkRun, MahimahiLink
from reinet.envs.mahimahi.namespace import USER_FILES, new_cgroup
from reinet.envs.trace import Trace
from reinet.kshim.kernel import KernelShim

MRTT_MS = 20.0
RTT_SHARE, RTT_US = 0.05, 500.0
"""A period's mean RTT is within the larger of the two."""
DELIVERED_SHARE, DELIVERED_PKTS = 0.01, 2
"""What a period delivered is within the sum of the two."""
SAMPLES_SHARE = 0.1
_ACK = 0
"""``enum reinet_event_kind`` of ``kshim/slot.h``."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """A socket's run, as both saw it."""

    link: LinkRun
    gate: FlowStatsArray
    """FLOW_STATS_DTYPE; time_ns is CLOCK_MONOTONIC's, like the shim's."""
    shim: FlowStatsArray
    """The shim's own records, by its own periods, which begin and end at other ACKs than the gate's."""
    acks: npt.NDArray[np.void]
    """EVENT_DTYPE: every ACK from which the shim made its records."""


@dataclass(frozen=True)
class Periods:
    """The gate's periods, (N,) each, beside what the shim saw of the same bytes or in the same time."""

    rtt_us: Values
    shim_rtt_us: Values
    """Mean of the samples of those ACKs that acknowledged the period's bytes."""
    samples: Values
    shim_samples: Values
    """Their number."""
    delivered_bytes: Values
    shim_delivered_bytes: Values
    """Between the times at which the period began and ended."""
    cwnd_pkts: Values
    shim_cwnd_pkts: Values
    """The gate's virtual Cubic's and the kernel's own, when the period ended."""
    mss_bytes: Values

    def rtt_holds(self) -> npt.NDArray[np.bool_]:
        """Returns of which periods the mean RTT is within the bounds."""
        return np.abs(self.rtt_us - self.shim_rtt_us) <= np.maximum(RTT_SHARE * self.shim_rtt_us, RTT_US)

    def delivered_holds(self) -> npt.NDArray[np.bool_]:
        """Returns of which the delivered bytes are."""
        bound = DELIVERED_SHARE * self.shim_delivered_bytes + DELIVERED_PKTS * self.mss_bytes
        return np.abs(self.delivered_bytes - self.shim_delivered_bytes) <= bound

    def samples_hold(self) -> npt.NDArray[np.bool_]:
        """Returns of which the number of samples is."""
        return np.abs(self.samples - self.shim_samples) <= SAMPLES_SHARE * self.shim_samples


def measure(
    traces: Sequence[Trace],
    *,
    seconds: float,
    repeat: int = 1,
    cc: str = "cubic",
    progress: Tell | None = None,
) -> Iterator[Row]:
    """Yields a row for each run, when it was made.

    Raises LinkError or ShimError where the host lacks something.
    """
    for trace in traces:
        for _ in range(repeat):
            yield made(partial(_run, trace, cc, seconds), progress)


def compared(runs: Sequence[Row]) -> list[Row]:
    """Returns a row for each trace of such rows of runs: medians, and the largest spread of a share."""
    names = dict.fromkeys(run["trace"] for run in runs)
    return [_summary([run for run in runs if run["trace"] == name]) for name in names]


def _run(trace: Trace, cc: str, seconds: float) -> Row:
    seen = see(LinkSpec(trace, mrtt_ms=MRTT_MS, cc=cc), seconds)
    return {"trace": trace.name, "cc": cc, **figures(seen)}


def see(path: LinkSpec, seconds: float) -> Seen:
    """Runs one flow without a cap and returns what both saw of it. Raises LinkError or ShimError."""
    variables = Settings(law=Law("none"), target=Target.parse("+30ms")).variables()
    variables[ENVIRONMENT] += f" records={USER_FILES}/{RECORDS}"
    with MahimahiLink(path, cgroup=new_cgroup(), sender_variables=variables) as link:
        assert link.cgroup is not None
        with KernelShim([link.cgroup], record_events=True) as shim:
            (flow,) = link.start()
            if flow.cc != shim.wrappers.get(path.cc):
                raise ShimError(f"cc {flow.cc!r} is not the shim's: it cannot measure {path.cc} on this host")
            link.go_on(seconds)
            run = link.stop()
            events = shim.take_events()
            if lost := shim.counters()["acks_lost"]:
                raise ShimError(f"{lost} ACKs were not recorded: ask for fewer --seconds")
            own = shim.replay(events)
        gate = np.frombuffer(link.read_file(RECORDS), FLOW_STATS_DTYPE).copy()
    if set(gate["cookie"].tolist()) != {flow.cookie} or set(events["cookie"].tolist()) != {flow.cookie}:
        raise ShimError("the gate and the shim have not measured one and the same socket")
    return Seen(run, gate, own, events[events["kind"] == _ACK])


def periods(gate: FlowStatsArray, acks: npt.NDArray[np.void]) -> Periods:
    """Returns the gate's periods that had samples beside the shim's ACKs, but for the first.

    The two streams are joined once, by the time at which the gate's first period began; from there on by the bytes
    delivered so far.
    """
    records = told_once(gate)
    times_ns = acks["ack"]["time_ns"].astype(np.int64)
    delivered = np.maximum.accumulate(acks["ack"]["delivered_bytes"].astype(np.int64))
    rtts_us = acks["ack"]["rtt_us"].astype(np.float64)
    ends_ns = records["time_ns"].astype(np.int64)
    starts_ns = ends_ns - records["period_ns"].astype(np.int64)
    began_bytes = _at(starts_ns[:1], times_ns, delivered)[0]
    upto_bytes = began_bytes + np.cumsum(records["delivered_bytes"].astype(np.int64))
    cuts = np.searchsorted(delivered, np.concatenate(([began_bytes], upto_bytes)), side="right")
    had = rtts_us >= 0
    count = np.concatenate(([0], np.cumsum(had)))
    total_us = np.concatenate(([0.0], np.cumsum(np.where(had, rtts_us, 0.0))))
    samples = np.diff(count[cuts])
    in_time = _at(ends_ns, times_ns, delivered) - _at(starts_ns, times_ns, delivered)
    both = (samples > 0) & (records["rtt_samples"] > 0)
    both[:1] = False  # it has the handshake and what was before the first look
    means_us = np.diff(total_us[cuts])[both] / samples[both]
    return Periods(
        rtt_us=records["rtt_mean_us"][both].astype(np.float64),
        shim_rtt_us=means_us,
        samples=records["rtt_samples"][both].astype(np.float64),
        shim_samples=samples[both].astype(np.float64),
        delivered_bytes=records["delivered_bytes"][both].astype(np.float64),
        shim_delivered_bytes=in_time[both].astype(np.float64),
        cwnd_pkts=records["cwnd_pkts"][both].astype(np.float64),
        shim_cwnd_pkts=_at(ends_ns, times_ns, acks["ack"]["cwnd_pkts"])[both].astype(np.float64),
        mss_bytes=records["mss_bytes"][both].astype(np.float64),
    )


def figures(seen: Seen) -> Row:
    """Returns a run's shares of periods within the bounds, median deviations, and the whole run's ratios.

    Lengths of periods are compared by their means: the gate's are multiples of what looks are apart, and a median of
    such is one or the next.
    """
    p = periods(seen.gate, seen.acks)
    lengths_ns = [told_once(records)["period_ns"] for records in (seen.gate, seen.shim)]
    return {
        "throughput_mbps": seen.link.metrics.throughput_mbps,
        "delay_mean_ms": seen.link.metrics.delay_mean_ms,
        "periods": len(p.rtt_us),
        "rtt_share": float(p.rtt_holds().mean()),
        "delivered_share": float(p.delivered_holds().mean()),
        "samples_share": float(p.samples_hold().mean()),
        "rtt_off_median": _off(p.rtt_us, p.shim_rtt_us),
        "delivered_off_median": _off(p.delivered_bytes, p.shim_delivered_bytes),
        "samples_off_median": _off(p.samples, p.shim_samples),
        "run_rtt_ratio": float((p.rtt_us @ p.samples) / p.samples.sum())
        / float((p.shim_rtt_us @ p.shim_samples) / p.shim_samples.sum()),
        "run_delivered_ratio": float(p.delivered_bytes.sum() / p.shim_delivered_bytes.sum()),
        "run_samples_ratio": float(p.samples.sum() / p.shim_samples.sum()),
        "period_ratio": float(lengths_ns[0].mean() / lengths_ns[1].mean()),
        "cwnd_ratio": float(np.median(p.cwnd_pkts / p.shim_cwnd_pkts)),
        "valid": seen.link.invalid_reason is None,
        "invalid_reason": seen.link.invalid_reason,
    }


def _off(ours: Values, theirs: Values) -> float:
    """Returns the median deviation, as a share of theirs."""
    return float(np.median(np.abs(ours - theirs) / np.maximum(theirs, 1.0)))


def _at(when_ns: npt.NDArray[np.int64], times_ns: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns what the latest ACK until then showed."""
    return values[np.maximum(np.searchsorted(times_ns, when_ns, side="right") - 1, 0)]


def _summary(runs: Sequence[Row]) -> Row:
    numbers = [key for key, value in runs[0].items() if isinstance(value, (int, float)) and key != "valid"]
    row: Row = {"trace": runs[0]["trace"], "cc": runs[0]["cc"], "runs": len(runs)}
    row |= {key: float(np.median([run[key] for run in runs])) for key in numbers}
    shares = ("rtt_share", "delivered_share", "samples_share")
    row["spread"] = max(float(np.ptp([run[key] for run in runs])) for key in shares)
    return {**row, "valid": all(run["valid"] for run in runs)}
