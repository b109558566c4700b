"""A published law through the gate against the same law over UDP, on the same emulated links."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from reinet.alcc.launch import Law, Settings
from reinet.core.target import Target
from reinet.envs.link.spec import LinkSpec
from reinet.envs.mahimahi.link import Ends, LinkRun, MahimahiLink
from reinet.envs.trace import Trace

Row = dict[str, Any]
LAWS = ("copa", "verus", "sprout")
WAYS = ("gate", "udp")
ATTEMPTS = 3
"""How often a run is made in which the host lagged: what is not valid says nothing, and other work passes by."""
RATIOS = {
    "throughput_ratio": "throughput_mbps",
    "delay_ratio": "delay_mean_ms",
    "delay_p95_ratio": "delay_p95_ms",
    "cpu_ratio": "cpu_s",
}


def measure(
    laws: Sequence[str],
    traces: Sequence[Trace],
    *,
    seconds: float,
    repeat: int = 1,
    mrtt_ms: float = LinkSpec.mrtt_ms,
    progress: Callable[[Row], None] | None = None,
) -> tuple[list[Row], list[Row]]:
    """Returns a row for each run, and one for each law and trace with medians and ratios, gate over UDP.

    A run that is not valid is made again, ``ATTEMPTS`` times in all, and the last one counts. ``progress`` is told the
    row of each. Raises LinkError where a link cannot be made, or dies.
    """
    runs: list[Row] = []
    for trace in traces:
        path = LinkSpec(trace, mrtt_ms=mrtt_ms)
        for law in laws:
            for _ in range(repeat):
                for way in WAYS:  # in turn: the host's load drifts
                    for _ in range(ATTEMPTS):
                        run: Row = {"law": law, "trace": trace.name, "way": way}
                        run |= _figures(_run(path, law, way, seconds))
                        if progress is not None:
                            progress(run)
                        if run["valid"]:
                            break
                    runs.append(run)
    return runs, summary(runs)


def _run(path: LinkSpec, law: str, way: str, seconds: float) -> LinkRun:
    gate = Settings(law=Law(law), target=Target.parse("+30ms")).variables() if way == "gate" else {}
    with MahimahiLink(path, sender_variables=gate, ends=Ends.over_udp(law) if way == "udp" else None) as link:
        link.start()
        link.go_on(seconds)
        return link.stop()


def _figures(run: LinkRun) -> Row:
    return {
        "throughput_mbps": run.metrics.throughput_mbps,
        "utilization": run.metrics.utilization,
        "delay_mean_ms": run.metrics.delay_mean_ms,
        "delay_p95_ms": run.metrics.delay_p95_ms,
        "cpu_s": run.sender_cpu_us / 1e6,
        "valid": run.invalid_reason is None,
        "invalid_reason": run.invalid_reason,
    }


def summary(runs: Sequence[Row]) -> list[Row]:
    """Returns a row for each law and trace: medians of both ways, their ratios, and whether all its runs are valid."""
    rows: list[Row] = []
    for law, trace in dict.fromkeys((run["law"], run["trace"]) for run in runs):
        cell = [run for run in runs if (run["law"], run["trace"]) == (law, trace)]
        of = {
            way: {key: median(run[key] for run in cell if run["way"] == way) for key in RATIOS.values()} for way in WAYS
        }
        row: Row = {"law": law, "trace": trace, "runs": len(cell) // len(WAYS), "spread": 0.0}
        for way in WAYS:
            row |= {f"{way}_{key}": value for key, value in of[way].items()}
            # How far runs of one and the same way lie apart: a ratio that is nearer to 1 than that says nothing.
            mbps = [run["throughput_mbps"] for run in cell if run["way"] == way]
            row["spread"] = max(row["spread"], (max(mbps) - min(mbps)) / median(mbps) if median(mbps) else 0.0)
        for ratio, key in RATIOS.items():
            row[ratio] = of["gate"][key] / of["udp"][key] if of["udp"][key] else None
        rows.append({**row, "valid": all(run["valid"] for run in cell)})
    return rows
