"""The simulator's ports of published congestion controls against their own implementations.

Those were run over Mahimahi once and for all; ``peers.toml`` holds what came out. The ports run over the same traces
and the same path, several times with jitter of their own, and count by their medians.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from reinet.agents.decide.baselines import NoCap
from reinet.agents.evaluation.batch import figures
from reinet.core import toml_file
from reinet.core.errors import ConfigError
from reinet.envs.link.spec import LinkSpec
from reinet.envs.trace import Trace

UTILIZATION_SLACK = 0.05
DELAY_SHARE, DELAY_SLACK_MS = 0.20, 8.0
"""A cell agrees when its utilisation is within the one and its mean queueing delay within either of the others: twice
what the kernel's controls are held to and more, since the other side is one run of a process in real time."""

SIM_RUNS = 9
"""Copa and Verus take one of several ways through a trace, which a millisecond decides: a median needs some runs."""

METRICS = ("utilization", "qdelay_mean_ms", "qdelay_p95_ms")

Range = float | tuple[float, float]
Cell = tuple[Range, Range, Range]


class Reference(BaseModel):
    """What the implementations did, as ``peers.toml`` has it: by congestion control and trace."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mrtt_ms: float
    buffer_bytes: int
    seconds: float
    traces: dict[str, str]
    """The SHA-256 of each trace's file."""
    cells: dict[str, dict[str, Cell]]
    """Utilisation, mean queueing delay and its 95th percentile, each a number or the range of several runs."""
    why: dict[str, dict[str, str]]
    """What is known of the cells that disagree."""

    @classmethod
    def load(cls) -> "Reference":
        """Returns the package's figures; raises ConfigError."""
        return toml_file.load(Path(__file__).with_suffix(".toml"), cls, "it came with the package; install that again")


@dataclass(frozen=True)
class Peers:
    """Compares the ports on those traces that the reference has; iterating gives a row for each cell."""

    traces: Sequence[Trace]
    reference: Reference
    runs: int = SIM_RUNS

    def __post_init__(self) -> None:
        if not self._known:
            raise ConfigError(f"none of these traces is one of {', '.join(self.reference.traces)}; give --traces one")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for cc, cells in self.reference.cells.items():
            for name, trace in self._known.items():
                yield self._row(cc, name, trace, cells[name])

    @property
    def _known(self) -> dict[str, Trace]:
        by_content = {trace.sha256: trace for trace in self.traces}
        return {name: by_content[sha] for name, sha in self.reference.traces.items() if sha in by_content}

    def _row(self, cc: str, name: str, trace: Trace, theirs: Cell) -> dict[str, Any]:
        reference = self.reference
        links = [
            LinkSpec(trace, seed=seed, cc=cc, mrtt_ms=reference.mrtt_ms, buffer_bytes=reference.buffer_bytes)
            for seed in range(self.runs)
        ]
        done = figures(NoCap(), links, self.reference.seconds)
        ours = {metric: statistics.median(getattr(one, metric) for one in done) for metric in METRICS}
        return {
            "cc": cc,
            "trace": name,
            **ours,
            **{f"{metric}_theirs": list(ends(value)) for metric, value in zip(METRICS, theirs, strict=True)},
            "runs": self.runs,
            "agrees": agrees(ours["utilization"], ours["qdelay_mean_ms"], theirs),
            "why": self.reference.why.get(cc, {}).get(name),
            "trace_sha256": trace.sha256,
        }


def ends(value: Range) -> tuple[float, float]:
    """Returns the range that a number or a range stands for."""
    return value if isinstance(value, tuple) else (value, value)


def agrees(utilization: float, qdelay_mean_ms: float, theirs: Cell) -> bool:
    """Returns whether a port's figures are near enough to what its implementation did, or to the range of that."""
    away = _away(utilization, theirs[0])
    away_ms = _away(qdelay_mean_ms, theirs[1])
    near_ms = min(ends(theirs[1]), key=lambda end_ms: abs(qdelay_mean_ms - end_ms))
    return away <= UTILIZATION_SLACK and away_ms <= max(DELAY_SHARE * near_ms, DELAY_SLACK_MS)


def _away(value: float, theirs: Range) -> float:
    low, high = ends(theirs)
    return max(low - value, value - high, 0.0)


def markdown(rows: Sequence[dict[str, Any]], command: str, reference: Reference) -> str:
    """Returns the comparison as a page: a line a congestion control and trace, figures as theirs / the simulator's."""
    agreeing = sum(row["agrees"] for row in rows)
    runs = rows[0]["runs"] if rows else SIM_RUNS
    lines = [
        "# The simulator's ports against their own implementations",
        "",
        f"Made by `{command}`.",
        "Theirs are runs of genericCC (Copa; 18299d6), sprout (c838669), verus (4b1bbf0) and PCC-Uspace (30c2cfe) over",
        f"Mahimahi, mostly one each: {reference.mrtt_ms:g} ms, {reference.buffer_bytes / 1000:g} KB droptail,",
        f"{reference.seconds:g} s from the trace's start; `agents/evaluation/peers.toml` has their figures.",
        f"The simulator's are medians of {runs} runs with jitter of their own. Figures are theirs / its. A cell agrees",
        f"when utilisation is within {100 * UTILIZATION_SLACK:g} points and mean queueing delay within"
        f" {100 * DELAY_SHARE:g} % or {DELAY_SLACK_MS:g} ms.",
        "",
        f"**{agreeing} of {len(rows)} cells agree**.",
        "",
        "| control | trace | utilisation | mean (ms) | p95 (ms) | agrees |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        shown = [
            _pair(row, "utilization", ".2f"),
            _pair(row, "qdelay_mean_ms", ".0f"),
            _pair(row, "qdelay_p95_ms", ".0f"),
        ]
        answer = "yes" if row["agrees"] else f"no: {row['why'] or 'not known why'}"
        lines.append(f"| `{row['cc']}` | {row['trace']} | {' | '.join(shown)} | {answer} |")
    return "\n".join(lines) + "\n"


def _pair(row: dict[str, Any], metric: str, form: str) -> str:
    low, high = row[f"{metric}_theirs"]
    theirs = f"{low:{form}}" if low == high else f"{low:{form}} to {high:{form}}"
    return f"{theirs} / {row[metric]:{form}}"
