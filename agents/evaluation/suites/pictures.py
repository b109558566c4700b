"""A report's pictures: throughput against delay, who beats a model, improvement by kind of link, sweeps, a course."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reinet.agents.evaluation.suites.links import LABELS
from reinet.agents.evaluation.suites.plan import BASELINE, Cell
from reinet.agents.evaluation.suites.report import Group, baseline_of, paired
from reinet.agents.evaluation.suites.statistics import Estimate, estimate
from reinet.core.visible import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 80
"""A page shows it at this size; the file stays below 100 KB."""
COLOURS = tuple(f"C{number}" for number in range(10))
MARKERS = "os^Dv<>pP*X"
PLAIN_COLOUR = "0.45"
LEAST_LINES = 4
"""Of fewer lines a table tells as much."""


def save(groups: Sequence[Group], folder: Path) -> list[tuple[str, str]]:
    """Saves every picture that the cells of these groups can give; returns (scenario, file name)."""
    saved: list[tuple[str, str]] = []
    for scenario in dict.fromkeys(group.cell.scenario for group in groups):
        own = [group for group in groups if group.cell.scenario == scenario and group.cell.role == "run" and group.runs]
        lone = [group for group in own if group.cell.flows == 1 and group.cell.beside is None]
        swept = sorted(
            {
                key
                for group in own
                for key, _ in group.cell.point
                if isinstance(dict(group.cell.point)[key], int | float)
            }
        )
        figures = {
            "sweep": _sweeps(lone, swept[0]) if lone and len(swept) == 1 else None,
            "delay": _throughput_against_delay(lone) if lone and not swept else None,
            "both": _delay_and_utilisation(lone) if lone and not swept else None,
            "kinds": _improvement(lone) if lone and not swept else None,
            "course": _course(own),
        }
        for name, figure in figures.items():
            if figure is not None:
                file = f"{scenario}-{name}.png"
                figure.savefig(folder / file, dpi=DPI)
                saved.append((scenario, file))
    return saved


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # here: the serving installation has no matplotlib

    return Figure(figsize=(width, height), layout="constrained")


def _styles(groups: Sequence[Group]) -> dict[Cell, tuple[str, str]]:
    """Returns a colour for each agent, where words are swept for each of these too, and a marker for each congestion
    control."""
    lines = list(dict.fromkeys((group.cell.agent, _words(group.cell)) for group in groups))
    plain = next((line for line in lines if line[0] == BASELINE), None)
    ccs = list(dict.fromkeys(group.cell.cc for group in groups))
    colours = {line: COLOURS[number % 10] for number, line in enumerate(line for line in lines if line != plain)}
    return {
        group.cell: (
            colours.get((group.cell.agent, _words(group.cell)), PLAIN_COLOUR),
            MARKERS[ccs.index(group.cell.cc) % len(MARKERS)],
        )
        for group in groups
    }


def _words(cell: Cell) -> str:
    """Returns the swept values that no axis shows, such as a queue's name: each is a line of its own."""
    return "".join(f", {key} {value}" for key, value in cell.point if not isinstance(value, int | float))


def _called(cell: Cell) -> str:
    return visible((cell.cc if cell.agent == BASELINE else f"{cell.cc} + {cell.agent}") + _words(cell))


def _throughput_against_delay(groups: Sequence[Group]) -> "Figure":
    """One panel for each kind of link; up and to the right is better; ellipses hold one standard deviation."""
    labels = _labels(groups)
    figure = _figure(5.2 * len(labels) + 2.4, 4.4)
    panels = figure.subplots(1, len(labels), squeeze=False)[0]
    styles = _styles(groups)
    for label, panel in zip(labels, panels, strict=True):
        for group in groups:
            points = np.array([
                (stored.figures["qdelay_mean_ms"], stored.figures["throughput_mbps"])
                for job, stored in group.runs
                if job.label == label
            ])  # fmt: skip
            if not points.size:
                continue
            colour, marker = styles[group.cell]
            centre = points.mean(axis=0)
            panel.plot(*centre, marker, color=colour, label=_called(group.cell), markersize=7)
            if len(points) > 2:
                panel.fill(*_ellipse(points), color=colour, alpha=0.12, linewidth=0)
        _logarithmic(panel)
        panel.invert_xaxis()
        panel.set_title(f"{label} ({_runs(groups, label)} runs each)")
        panel.set_xlabel("mean queueing delay (ms), better to the right")
        panel.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("throughput (Mbit/s)")
    _legend(figure, panels)
    return figure


def _delay_and_utilisation(groups: Sequence[Group]) -> "Figure | None":
    """The 95th percentile of delay against utilisation: means over all traces, with intervals.

    The corner of a model's line holds what has lower p95 and higher utilisation at once.
    """
    models = {job.agent.name for group in groups for job, _ in group.runs if job.agent.name != job.agent.identity}
    if len(groups) < LEAST_LINES or not any(group.cell.agent in models for group in groups):
        return None
    figure = _figure(8.0, 5.0)
    axis = figure.subplots()
    styles = _styles(groups)
    corners = []
    for group in groups:
        p95_ms, share = group.estimate("qdelay_p95_ms"), group.estimate("utilization")
        if p95_ms is None or share is None:
            continue
        colour, marker = styles[group.cell]
        axis.errorbar(
            p95_ms.mean, share.mean, xerr=_error(p95_ms), yerr=_error(share), fmt=marker, color=colour, ecolor=colour,
            elinewidth=0.4, label=_called(group.cell),
        )  # fmt: skip
        if group.cell.agent in models:
            corners.append((p95_ms.mean, share.mean, colour))
    _logarithmic(axis)
    axis.autoscale(False)
    (low_ms, _), (_, high) = axis.get_xlim(), axis.get_ylim()
    for p95_ms_mean, share_mean, colour in corners:
        axis.fill_between([low_ms, p95_ms_mean], share_mean, high, color=colour, alpha=0.08, linewidth=0)
    axis.invert_xaxis()
    axis.set_xlabel("95th percentile of queueing delay (ms), better to the right")
    axis.set_ylabel("utilisation")
    axis.set_title("better than a model in both: its shaded corner")
    axis.grid(alpha=0.3, which="both")
    _legend(figure, [axis])
    return figure


def _logarithmic(axis: "Axes") -> None:
    """Has an axis of delays be logarithmic, with numbers also between the powers of ten."""
    from matplotlib.ticker import LogFormatter

    axis.set_xscale("log")
    for formatter in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
        formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.7)))


def _ellipse(points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the outline of one standard deviation around points (N, 2), which a logarithmic axis can show."""
    values, vectors = np.linalg.eigh(np.cov(points.T))
    angle = np.linspace(0, 2 * np.pi, 90)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    centre = points.mean(axis=0)
    delay_ms, mbps = centre[:, None] + vectors @ (np.sqrt(np.maximum(values, 0))[:, None] * circle)
    return np.maximum(delay_ms, 0.1 * centre[0]), mbps


def _improvement(groups: Sequence[Group]) -> "Figure | None":
    """Bars for each kind of link: how many times lower the mean delay is, and what is kept of the throughput."""
    cells = {group.cell: group for group in groups}
    capped = [group for group in groups if group.cell.agent != BASELINE and baseline_of(group.cell) in cells]
    if not capped:
        return None
    labels = _labels(groups)
    figure = _figure(max(6.0, 1.2 * len(capped) * len(labels)), 4.0)
    lower, kept = figure.subplots(1, 2)
    styles = _styles(groups)
    width = 0.8 / len(capped)
    for number, group in enumerate(capped):
        base = cells[baseline_of(group.cell)]
        for axis, metric, inverse in ((lower, "qdelay_mean_ms", True), (kept, "throughput_mbps", False)):
            for place, label in enumerate(labels):
                ratios = paired(group, base, metric, labels=(label,))
                if inverse:
                    ratios = {trace: [1 / value for value in values if value > 0] for trace, values in ratios.items()}
                found = estimate(ratios)
                if found is not None:
                    axis.bar(
                        place + (number - (len(capped) - 1) / 2) * width,
                        found.mean,
                        width,
                        yerr=_error(found),
                        color=styles[group.cell][0],
                        hatch="//" * (group.cell.cc != capped[0].cell.cc),
                        edgecolor="white",
                        capsize=2,
                        label=None if place else _called(group.cell),
                    )
    for axis, title in ((lower, "mean delay: times lower than plain"), (kept, "throughput kept")):
        axis.set_xticks(range(len(labels)), labels)
        axis.axhline(1, color="0.3", linewidth=0.8)
        axis.set_title(title)
        axis.grid(alpha=0.3, axis="y")
    _legend(figure, [lower])
    return figure


def _sweeps(groups: Sequence[Group], key: str) -> "Figure":
    """Throughput, mean and p95 delay over the swept field, with intervals."""
    figure = _figure(13, 3.8)
    panels = figure.subplots(1, 3)
    lines: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        lines.setdefault((group.cell.agent, group.cell.cc, _words(group.cell)), []).append(group)
    styles = _styles(groups)
    names = (("throughput_mbps", "throughput (Mbit/s)"), ("qdelay_mean_ms", "mean queueing delay (ms)"),
             ("qdelay_p95_ms", "95th percentile (ms)"))  # fmt: skip
    for panel, (metric, title) in zip(panels, names, strict=True):
        for own in lines.values():
            own.sort(key=lambda group: float(dict(group.cell.point)[key]))
            found = [(float(dict(group.cell.point)[key]), value) for group in own if (value := group.estimate(metric))]
            colour, marker = styles[own[0].cell]
            x = [place for place, _ in found]
            panel.plot(x, [value.mean for _, value in found], marker + "-", color=colour, label=_called(own[0].cell))
            if all(value.low is not None for _, value in found):
                panel.fill_between(x, [v.low or 0.0 for _, v in found], [v.high or 0.0 for _, v in found], color=colour,
                                   alpha=0.1)  # fmt: skip
        panel.set_xlabel(key)
        panel.set_title(title)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        if len(x) > 2 and min(x) > 0 and max(x) / min(x) >= 10:
            panel.set_xscale("log")
    _legend(figure, panels)
    return figure


def _course(groups: Sequence[Group]) -> "Figure | None":
    """The course of the scenario's first run: a column for each agent over the first congestion control."""
    first = next((job for group in groups for job, stored in group.runs if stored.series), None)
    if first is None:
        return None
    same = {
        group.cell: stored
        for group in groups
        for job, stored in group.runs
        if stored.series and job.pair == first.pair and job.repetition == 0
        and (group.cell.cc, group.cell.point, group.cell.flows, group.cell.beside)
        == (first.cell.cc, first.cell.point, first.cell.flows, first.cell.beside)
    }  # fmt: skip
    figure = _figure(5.0 * len(same), 5.0)
    axes = figure.subplots(2, len(same), sharex=True, sharey="row", squeeze=False)
    for column, (cell, stored) in enumerate(same.items()):
        _draw_course(axes[0, column], axes[1, column], stored.series or {})
        axes[0, column].set_title(_called(cell), parse_math=False)
        axes[1, column].set_xlabel("time (s)")
    axes[0, 0].set_ylabel("rate (Mbit/s)")
    axes[1, 0].set_ylabel("mean queueing delay (ms)")
    text = f"{first.scenario.trace.name}" + (f", {first.cell.flows} flows" if first.cell.flows > 1 else "")
    figure.suptitle(visible(text + (f", beside {first.cell.beside}" if first.cell.beside else "")), parse_math=False)
    return figure


def _draw_course(rate: "Axes", delay: "Axes", series: Mapping[str, Any]) -> None:
    edges_s = np.arange(len(series["capacity_mbps"]) + 1) * series["bin_ms"] / 1000
    rate.stairs(series["capacity_mbps"], edges_s, fill=True, color="0.87", label="capacity")
    for number, values in enumerate(series["flows_mbps"]):
        rate.stairs(values, edges_s, color=COLOURS[number % 10], label=f"flow {number + 1}")
    values_ms = np.array([np.nan if value is None else value for value in series["qdelay_ms"]], np.float64)
    delay.plot(edges_s[:-1], values_ms, color="tab:red", linewidth=1)
    rate.legend(loc="upper right", fontsize="small")
    for axis in (rate, delay):
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)


def _labels(groups: Sequence[Group]) -> list[str]:
    there = {job.label for group in groups for job, _ in group.runs}
    return [label for label in (*LABELS, "other") if label in there]


def _runs(groups: Sequence[Group], label: str) -> int:
    return max(sum(job.label == label for job, _ in group.runs) for group in groups)


def _error(found: Estimate) -> list[list[float]] | None:
    if found.low is None or found.high is None:
        return None
    return [[max(0.0, found.mean - found.low)], [max(0.0, found.high - found.mean)]]


def _legend(figure: "Figure", panels: Sequence["Axes"]) -> None:
    entries: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=4, fontsize="small")
