"""Two pictures: agents over time (capacity, throughput, delay, kernel cwnd and cap, a column for each), and what the
options of a training bring, a panel for each path."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reinet.agents.evaluation.run import Run
from reinet.core import Flag
from reinet.core.visible import visible
from reinet.envs.link.metrics import rate_mbps
from reinet.envs.link.spec import LinkSpec

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
            f"{m.throughput_mbps:.2f} Mbit/s, {m.qdelay_mean_ms:.0f} ms mean queueing delay"
            + ("\nnot valid: do not quote this run" if run.invalid_reason else ""),
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
        f"{visible(first.trace.name)}, {first.path.mrtt_ms:g} ms path, {buffer_of(first.path)}, {first.link} link",
        parse_math=False,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def buffer_of(path: LinkSpec) -> str:
    """Returns what a path's queue holds, in words."""
    if path.queue == "infinite":
        return "no limit to its buffer"
    limits = [f"{path.buffer_bytes / 1000:g} KB"] if path.buffer_bytes else []
    limits += [f"{path.buffer_pkts} packets"] if path.buffer_pkts else []
    return f"buffer of {' and '.join(limits)}"


def save_effects(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Saves a PNG of rows as ``agents.learn.effects.measure`` yields them: frontier ratios of every seed, each path's
    in a panel of its own, and lines through the medians. Below a variant's name stands how often its flows ask. A row
    that is not valid is left out, where any is."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["valid"]] or rows
    paths = list(dict.fromkeys(row["path"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    figure = Figure(figsize=(max(4.0, 1.1 * len(variants)) * len(paths), 4.2), layout="constrained")
    panels = figure.subplots(1, len(paths), sharey=True, squeeze=False)[0]
    for panel, name in zip(panels, paths, strict=True):
        own = {
            variant: [row for row in rows if (row["variant"], row["path"]) == (variant, name)] for variant in variants
        }
        here = {variant: some for variant, some in own.items() if some}
        for key, colour, label in (("frontier_mean", "C0", "mean delay"), ("frontier_p95", "C1", "95th percentile")):
            medians = [np.median([row[key] for row in some]) for some in here.values()]
            panel.plot(range(len(here)), medians, color=colour, label=label)
            for place, some in enumerate(here.values()):
                panel.plot([place] * len(some), [row[key] for row in some], "o", color=colour, markersize=4, alpha=0.6)
        asked = [np.median([row["decisions_per_s"] for row in some]) for some in here.values()]
        called = [f"{visible(variant)}\n{rate:.0f}/s" for variant, rate in zip(here, asked, strict=True)]
        panel.set_xticks(range(len(here)), called, rotation=45 if len(here) > 6 else 0, fontsize="small")
        panel.set_title(visible(name), parse_math=False)
        panel.set_xlabel("variant, and decisions per second of a flow")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("delay over the hand rule's at equal utilisation")
    panels[0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
