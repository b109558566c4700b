"""The pictures of a comparison: agents over each other on one link, and throughput against queueing delay."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from reinet.agents.evaluation.compare.learning import REFERENCES, Curves, estimate
from reinet.agents.evaluation.compare.series import curves_of, curves_of_link
from reinet.agents.evaluation.run import Run
from reinet.core.tensorboard.curves import PANELS
from reinet.core.visible import visible

DPI = 90
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:olive")


def believed(runs: Sequence[Run]) -> Sequence[Run]:
    """Returns the runs that are valid, which means are of, or all where none is: a flow that stalls has no delay."""
    return [run for run in runs if run.invalid_reason is None] or runs


def have_matplotlib() -> bool:
    """Returns whether pictures can be had: the serving installation has no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def time_series(runs: Mapping[str, Run]) -> bytes:
    """Returns a PNG of what each agent, by its label, did on one link: window, delay and rate over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8.5), layout="constrained")
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    for colour, (label, run) in zip(_colours(len(runs)), runs.items(), strict=True):
        curves = curves_of(run)
        for axis, (_, names) in zip(axes, PANELS, strict=True):
            for name in names:
                if name in curves:
                    steps_ms, values = curves[name]
                    faint = name == "cwnd_pkts" and "cap_pkts" in curves
                    axis.plot(
                        steps_ms / 1000, values, color=colour, linewidth=0.7 if faint else 1.2,
                        linestyle=":" if faint else "-", label=visible(label) + (" (cwnd)" if faint else ""),
                    )  # fmt: skip
    for axis, (title, names) in zip(axes, PANELS, strict=True):
        for name, (steps_ms, values) in curves_of_link(next(iter(runs.values()))).items():
            if name == "capacity_mbps" and name in names:
                axis.fill_between(steps_ms / 1000, values, color="0.88", step="pre", label="capacity")
            elif name in names:
                axis.plot(steps_ms / 1000, values, color="0.3", linewidth=0.8, linestyle="--")
        axis.set_ylabel(title)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend(loc="upper right", fontsize="small", ncols=2)
    axes[-1].set_xlabel("time (s)")
    return _png(figure)


def throughput_against_delay(runs: Mapping[str, Sequence[Run]]) -> bytes:
    """Returns a PNG with a small mark for each link and a large one, with 95 % intervals, for each agent's mean over
    those of its runs that are valid.

    Left is throughput against the mean queueing delay, right utilisation against the 95th percentile; better is up and
    to the right, for the axis of delay is inverted.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots(1, 2)
    sides = (("qdelay_mean_ms", "throughput_mbps"), ("qdelay_p95_ms", "utilization"))
    for axis, (across, up) in zip(axes, sides, strict=True):
        for colour, (label, own) in zip(_colours(len(runs)), runs.items(), strict=True):
            x = [float(getattr(run.metrics, across)) for run in own]
            y = [float(getattr(run.metrics, up)) for run in own]
            sound = believed(own)
            mean_x = estimate([float(getattr(run.metrics, across)) for run in sound])
            mean_y = estimate([float(getattr(run.metrics, up)) for run in sound])
            axis.plot(x, y, ".", color=colour, alpha=0.5)
            axis.errorbar(
                mean_x.mean, mean_y.mean, xerr=mean_x.high - mean_x.mean, yerr=mean_y.high - mean_y.mean,
                fmt="o", color=colour, elinewidth=0.8, capsize=2, label=visible(label),
            )  # fmt: skip
        axis.set_xlabel("queueing delay (ms): " + ("mean" if across == "qdelay_mean_ms" else "95th percentile"))
        axis.set_ylabel("throughput (Mbit/s)" if up == "throughput_mbps" else "utilisation")
        axis.invert_xaxis()
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    links = len(next(iter(runs.values())))
    figure.suptitle(f"small: {links} links; large: their mean, with a 95 % interval over links")
    return _png(figure)


def learning(trainings: Mapping[str, Curves]) -> bytes:
    """Returns a PNG of trainings' evaluations over iterations: means over seeds with bands of their 95 % intervals.

    Only ratios are drawn, in which the rule with the best gain in hindsight, or plain control, stands at 1.
    """
    from matplotlib.figure import Figure

    against = [(tag, name) for name, tags in REFERENCES.items() for tag in tags]
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    for axis, (tag, reference) in zip(axes.flat, against, strict=True):
        for colour, (label, curves) in zip(_colours(len(trainings)), trainings.items(), strict=True):
            points = curves.get(tag, {})
            means = [value.mean for value in points.values()]
            axis.plot(list(points), means, ".-", color=colour, label=visible(label))
            ends = [value.low for value in points.values()], [value.high for value in points.values()]
            axis.fill_between(list(points), *ends, color=colour, alpha=0.2, linewidth=0)
        axis.axhline(1.0, color="0.3", linewidth=0.8, linestyle="--")
        axis.set_title(f"{tag} (1 = {reference})", fontsize="medium")
        axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("iteration")
    axes[0, 0].legend(fontsize="small")
    return _png(figure)


def _colours(count: int) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(count)]


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
