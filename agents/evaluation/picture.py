"""The comparison as a picture: capacity, throughput, delay, kernel cwnd and cap over time, one column per agent."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reinet.agents.evaluation.run import Run
from reinet.core import Flag
from reinet.core.visible import visible
from reinet.envs.link.metrics import rate_mbps

BIN_MS = 500
"""Width of a rate bin: wide enough to average TCP's bursts, narrow enough to show a cell's fades."""


def save_comparison(runs: Sequence[Run], path: Path) -> None:
    """Saves a PNG with one column per run; rows share their scales so that columns compare at a glance."""
    from matplotlib.figure import Figure  # here: the serving installation has no matplotlib

    figure = Figure(figsize=(6.4 * len(runs), 8.5), layout="constrained")
    axes = figure.subplots(3, len(runs), sharex="col", sharey="row", squeeze=False)
    for column, run in enumerate(runs):
        rate, delay, window = axes[:, column]
        end_ms = run.scenario.seconds * 1000
        edges_s = np.arange(int(end_ms // BIN_MS) + 1) * BIN_MS / 1000
        capacity = rate_mbps(run.log.opportunity_ms, run.log.opportunity_bytes, 0, end_ms, BIN_MS)
        throughput = rate_mbps(run.log.departure_ms, run.log.departure_bytes, 0, end_ms, BIN_MS)
        rate.stairs(capacity, edges_s, fill=True, color="0.85", label="capacity")
        rate.stairs(throughput, edges_s, color="tab:blue", linewidth=1.2, label="throughput")
        m = run.metrics
        rate.set_title(
            f"{visible(run.agent)} ({run.scenario.path.cc})\n"
            f"{m.throughput_mbps:.2f} Mbit/s, {m.qdelay_mean_ms:.0f} ms mean queueing delay",
            parse_math=False,  # a name is no formula
        )
        delay.plot(
            run.log.departure_ms / 1000, run.log.departure_delay_ms, ",", color="tab:red", label="queueing delay"
        )
        delay.axhline(m.qdelay_mean_ms, color="0.3", linewidth=0.8, linestyle="--", label="mean")
        sampled = (run.records["flags"] & Flag.NO_SAMPLE) == 0
        time_s = run.records["time_ns"][sampled] / 1e9
        caps = run.caps_pkts[sampled].astype(float)
        window.step(
            time_s, run.records["cwnd_pkts"][sampled], where="post", color="tab:green", linewidth=1, label="cwnd"
        )
        if caps.any():
            caps[caps == 0] = np.nan
            window.step(time_s, caps, where="post", color="tab:orange", linewidth=1, label="cap")
        window.set_xlabel("time (s)")
        for axis in (rate, delay, window):
            axis.legend(loc="upper right", fontsize="small", markerscale=8)
            axis.grid(alpha=0.3)
    for axis, label in zip(axes[:, 0], ("rate (Mbit/s)", "queueing delay (ms)", "window (packets)"), strict=True):
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    first = runs[0].scenario
    figure.suptitle(
        f"{visible(first.trace.name)}, {first.path.mrtt_ms:g} ms path, {first.path.buffer_bytes / 1000:g} KB buffer, "
        f"{first.link} link",
        parse_math=False,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
