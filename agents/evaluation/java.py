"""The Java client with its learned window against the same client without any, on the same emulated links."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from reinet.alcc import jvm
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import Ends, LinkRun, MahimahiLink
from reinet.envs.trace import Trace

Row = dict[str, Any]
WAYS = ("none", "mdi")
"""What stands after --window: plain TCP, and the walk."""
KEYS = ("throughput_mbps", "qdelay_mean_ms", "qdelay_p95_ms", "cpu_s")


def measure(
    traces: Sequence[Trace],
    *,
    seconds: float,
    repeat: int = 1,
    mrtt_ms: float = LinkSpec.mrtt_ms,
    buffer_bytes: int = LinkSpec.buffer_bytes,
    progress: Callable[[Row], None] | None = None,
) -> tuple[list[Row], list[Row]]:
    """Returns a row for each run, and one for each trace with medians and ratios, mdi over none.

    ``progress`` is told each run's row. Raises ReinetError without a JDK, LinkError where a link cannot be made or
    dies.
    """
    runs: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="reinet-java-") as folder:
        os.chmod(folder, 0o755)  # the receiver is another user's
        classes = jvm.compile_client(Path(folder))
        for trace in traces:
            path = LinkSpec(trace, mrtt_ms=mrtt_ms, buffer_bytes=buffer_bytes)
            for _ in range(repeat):
                for way in WAYS:  # in turn: the host's load drifts
                    runs.append({"trace": trace.name, "way": way, **_figures(_run(path, classes, way, seconds))})
                    if progress is not None:
                        progress(runs[-1])
    return runs, summary(runs)


def _run(path: LinkSpec, classes: Path, way: str, seconds: float) -> LinkRun:
    sender = jvm.command(classes, "LinkEnd", "send", way, path.cc)
    receiver = jvm.command(classes, "LinkEnd", "receive")
    ends = Ends(sender, receiver, (Path(receiver[0]), classes / "reinet" / "alcc" / "LinkEnd.class"))
    with MahimahiLink(path, ends=ends) as link:
        link.start()
        link.go_on(seconds)
        return link.stop()


def _figures(run: LinkRun) -> Row:
    return {
        "throughput_mbps": run.metrics.throughput_mbps,
        "utilization": run.metrics.utilization,
        "qdelay_mean_ms": run.metrics.qdelay_mean_ms,
        "qdelay_p95_ms": run.metrics.qdelay_p95_ms,
        "rtt_mean_ms": run.closed[0]["rtt_mean_ms"],
        "cpu_s": run.sender_cpu_us / 1e6,
        "valid": run.invalid_reason is None,
        "invalid_reason": run.invalid_reason,
    }


def summary(runs: Sequence[Row]) -> list[Row]:
    """Returns a row for each trace: medians of both ways, their ratios, and whether all its runs are valid."""
    rows: list[Row] = []
    for trace in dict.fromkeys(run["trace"] for run in runs):
        cell = [run for run in runs if run["trace"] == trace]
        of = {way: {key: median(run[key] for run in cell if run["way"] == way) for key in KEYS} for way in WAYS}
        row: Row = {"trace": trace, "runs": len(cell) // len(WAYS)}
        for way, name in zip(WAYS, ("plain", "mdi"), strict=True):
            row |= {f"{name}_{key}": value for key, value in of[way].items()}
        for ratio, key in (("throughput_ratio", "throughput_mbps"), ("qdelay_ratio", "qdelay_mean_ms"),
                           ("cpu_ratio", "cpu_s")):  # fmt: skip
            row[ratio] = of["mdi"][key] / of["none"][key] if of["none"][key] else None
        rows.append({**row, "valid": all(run["valid"] for run in cell)})
    return rows
