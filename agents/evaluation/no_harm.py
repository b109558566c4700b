"""The gate for no harm: a part of the matrix of ``harm.py`` that takes seconds, and what a policy may cost there.

A training asks it of the checkpoint that it would choose, a promotion of its candidate. Cells are those of ``harm.py``
with its limits; a policy passes where

- no cell fails in which plain builds no queue: there a cap has nothing to win;
- at most ``most_failed_share`` of all cells fail;
- in no cell objects take ``most_ratio`` times as long on the mean, or never come.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from reinet.agents.decide.protocol import Agent
from reinet.agents.evaluation import harm
from reinet.core.target import Target

CONTROLS = ("cubic", "bbr")
"""Those of a policy's congestion controls that are asked for; of a policy that has neither, its own first two."""
MRTTS_MS = (20.0, 60.0, 150.0)
RATES_MBPS = (6.0, 24.0)
SIZES_BYTES = (10_000, 100_000, 1_000_000)
PAUSES_MS = (1000.0,)
TARGET = Target.parse("+30ms")
"""The daemon's default."""
NAMED = 3
"""A refusal names so many of the worst cells; ``reinet bench harm`` shows all."""


class HarmGate(BaseModel):
    """What a policy may cost others than long transfers, before it is chosen or promoted."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    # Two to four seconds of one core; over recordings there are three times as many.
    repeat: int = Field(default=5, ge=0, le=100, description="pairs of connections a cell; 0 = nothing is asked")
    # Single cells move with the draw: of 144 the shipped models fail 5, 5 and 6, the hand rule 5 with its usual gain
    # and 9 with a gain of 1, a fixed cap of 20 packets 17. The last two are what this is to refuse.
    most_failed_share: float = Field(default=0.05, ge=0, le=1, description="share of cells above a limit, at most")
    # The same policies have 1.20, 1.18, 1.17, 1.14, 1.26 and 1.42 in their worst cells.
    most_ratio: float = Field(default=1.25, ge=1, description="mean time over plain's in any cell, at most")


@dataclass(frozen=True)
class Harm:
    """What the gate found; without cells it was not asked."""

    ok: bool
    cells: int
    failed: int
    """So many are above a limit of ``harm.py``."""
    blamed: tuple[str, ...]
    """Those, and what ``most_ratio`` refuses: cells without a queue first, then the worst first."""
    worst_ratio: float
    why: str = ""
    """Why the policy is refused, in words."""

    @property
    def metrics(self) -> dict[str, float]:
        """Returns the figures for a record."""
        if not self.cells:
            return {}
        return {
            "harm_ok": float(self.ok),
            "harm_cells": float(self.cells),
            "harm_failed": float(self.failed),
            "harm_worst_ratio": self.worst_ratio,
        }

    @property
    def words(self) -> str:
        """Returns it in one line."""
        worst = f"{self.worst_ratio:.2f} times as long in the worst"
        found = f"harm: {self.failed} of {self.cells} cells above a limit, {worst}"
        return found if self.ok else f"{found}; {self.why}: {'; '.join(self.blamed[:NAMED])}"


UNASKED = Harm(ok=True, cells=0, failed=0, blamed=(), worst_ratio=1.0)


def measure(agent: Agent, controls: Sequence[str], gate: HarmGate, threads: int = 2) -> Harm:
    """Returns what the gate finds of an agent that is to cap these congestion controls."""
    if not gate.repeat:
        return UNASKED
    asked = [name for name in CONTROLS if name in controls] or list(dict.fromkeys(controls))[:2]
    matrix = harm.cells(asked, MRTTS_MS, RATES_MBPS, harm.recordings(()), SIZES_BYTES, PAUSES_MS)
    return judged(harm.measure(matrix, agent, target=TARGET, repeat=gate.repeat, threads=threads), gate)


def judged(rows: Sequence[Mapping[str, Any]], gate: HarmGate) -> Harm:
    """Returns the verdict of rows of ``harm.measure``."""
    failed = [row for row in rows if not (row["ok"] and row["valid"])]
    quiet = [row for row in failed if not row["plain_builds_queue"]]
    dear = [row for row in rows if not row["valid"] or _cost(row) > gate.most_ratio]
    why = []
    if quiet:
        why.append(f"{len(quiet)} of them where plain builds no queue")
    if len(failed) > gate.most_failed_share * len(rows):
        why.append(f"at most {100 * gate.most_failed_share:g} % of the cells may be")
    if dear:
        why.append(f"{gate.most_ratio:g} times is the most")
    blamed = [row for row in rows if row in failed or row in dear]
    blamed.sort(key=lambda row: (row in quiet, _cost(row)), reverse=True)
    return Harm(
        ok=not why,
        cells=len(rows),
        failed=len(failed),
        blamed=tuple(map(_named, blamed)),
        worst_ratio=max((_cost(row) for row in rows if row["ratio_mean"] is not None), default=1.0),
        why=", and ".join(why),
    )


def _cost(row: Mapping[str, Any]) -> float:
    """Returns how much longer objects take on the mean; without figures nothing came."""
    ratio = row["ratio_mean"]
    return float("inf") if ratio is None else float(ratio)


def _named(row: Mapping[str, Any]) -> str:
    kind = "fresh" if row["fresh"] else f"after {row['pause_ms']:g} ms"
    cost = "not all came" if not row["valid"] else f"{row['ratio_p50']:.2f} / {row['ratio_p95']:.2f}"
    return f"{row['cc']}, {row['trace']}, {row['mrtt_ms']:g} ms, {row['bytes']} bytes {kind}: {cost}"
