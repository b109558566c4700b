"""Ways of sending against each other: in turn over the same links, again where the host lagged, medians and ratios."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from reinet.envs.link.metrics import Metrics

Row = dict[str, Any]
Tell = Callable[[Row], None]

ATTEMPTS = 3
"""How often a run is made in which the host lagged: what is not valid says nothing, and other work passes by."""
RATIOS = {
    "throughput_ratio": "throughput_mbps",
    "delay_ratio": "delay_mean_ms",
    "delay_p95_ratio": "delay_p95_ms",
    "qdelay_ratio": "qdelay_mean_ms",
    "qdelay_p95_ratio": "qdelay_p95_ms",
    "cpu_ratio": "cpu_s",
}
"""Of which figure each ratio is. A figure that a run does not have has none."""


def figures(metrics: Metrics, invalid_reason: str | None, cpu_us: int | None = None) -> Row:
    """Returns what is compared of a run; ``cpu_us`` is the sender's CPU time where it is known."""
    return {
        "throughput_mbps": metrics.throughput_mbps,
        "utilization": metrics.utilization,
        "delay_mean_ms": metrics.delay_mean_ms,
        "delay_p95_ms": metrics.delay_p95_ms,
        "qdelay_mean_ms": metrics.qdelay_mean_ms,
        "qdelay_p95_ms": metrics.qdelay_p95_ms,
        **({} if cpu_us is None else {"cpu_s": cpu_us / 1e6}),
        "valid": invalid_reason is None,
        "invalid_reason": invalid_reason,
    }


def made(run: Callable[[], Row], progress: Tell | None = None) -> Row:
    """Returns a run's row; one that is not valid is made again, ``ATTEMPTS`` times in all, and the last one counts.

    ``progress`` is told the row of each.
    """
    for _ in range(ATTEMPTS):
        row = run()
        if progress is not None:
            progress(row)
        if row["valid"]:
            break
    return row


@dataclass(frozen=True)
class Ways:
    """Which ways there are, and which one is compared with which."""

    names: Mapping[str, str]
    """What each way is called in the keys of a summary's row, by its name in a run's row; in the order of the runs."""
    of: str
    over: str
    """Ratios are ``of`` over ``over``, both names in a run's row."""
    more: Mapping[str, Callable[[Sequence[float]], float]] = field(default_factory=dict)
    """Further figures of the summary, and what is made of a way's runs."""

    def in_turn(
        self,
        cells: Sequence[tuple[Row, Callable[[str], Row]]],
        *,
        repeat: int = 1,
        progress: Tell | None = None,
    ) -> Iterator[Row]:
        """Yields a row for each run, when it was ``made``: a cell's labels, its way and its figures.

        A cell is its labels, and what makes a run in a way and returns its figures.
        """

        def run_of(labels: Row, run_in: Callable[[str], Row], way: str) -> Row:
            return {**labels, "way": way, **run_in(way)}

        for labels, run_in in cells:
            for _ in range(repeat):
                for way in self.names:  # in turn: the host's load drifts
                    yield made(partial(run_of, labels, run_in, way), progress)

    def summary(self, runs: Sequence[Row], labels: Sequence[str]) -> list[Row]:
        """Returns a row for each cell, which ``labels`` tell apart: medians of each way, ratios of these, ``spread``.

        A cell that has not been run in every way has none: there is nothing to compare.
        ``valid`` says whether all its runs are. ``spread`` is the largest distance between the throughputs of runs of
        one and the same way, over their median: a ratio that is nearer to 1 than that says nothing.
        """
        rows: list[Row] = []
        for key in dict.fromkeys(tuple(run[label] for label in labels) for run in runs):
            cell = [run for run in runs if tuple(run[label] for label in labels) == key]
            if {run["way"] for run in cell} != set(self.names):
                continue
            row: Row = {**dict(zip(labels, key, strict=True)), "runs": len(cell) // len(self.names), "spread": 0.0}
            of: dict[str, Row] = {}
            for way, name in self.names.items():
                mine = [run for run in cell if run["way"] == way]
                had = [figure for figure in RATIOS.values() if figure in mine[0]]
                of[way] = {figure: median(run[figure] for run in mine) for figure in had}
                also = {figure: of_all([run[figure] for run in mine]) for figure, of_all in self.more.items()}
                row |= {f"{name}_{figure}": value for figure, value in (of[way] | also).items()}
                mbps = [run["throughput_mbps"] for run in mine]
                row["spread"] = max(row["spread"], (max(mbps) - min(mbps)) / median(mbps) if median(mbps) else 0.0)
            for ratio, figure in RATIOS.items():
                if figure in of[self.of] and figure in of[self.over]:
                    least = of[self.over][figure]
                    row[ratio] = of[self.of][figure] / least if least else None
            rows.append({**row, "valid": all(run["valid"] for run in cell)})
        return rows
