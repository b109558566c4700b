"""The frontier: what a rule reaches on a link with its knob swept in hindsight, and how a policy stands against it.

A rule with a knob trades delay for utilisation; which setting is right, nobody knows beforehand. The frontier ratio
divides a policy's queueing delay by the best setting's at the same utilisation, on the same link
(``frontier_ratio`` of ``envs/link/metrics.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reinet.agents.decide.baselines import NoCap
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray, View
from reinet.agents.evaluation.batch import MOST_ROWS, figures_of, logs
from reinet.agents.evaluation.scenario import Scenario
from reinet.core import Normaliser, PeriodConfig, round_caps
from reinet.core.errors import ConfigError
from reinet.core.records import FlowStatsArray
from reinet.envs.link.metrics import Metrics, frontier_ratio
from reinet.envs.link.spec import LinkSpec

RULE_GAINS = tuple(round(1.0 + 0.1 * step, 1) for step in range(16))
"""The hand rule's knob: 1.0 to 2.5."""
FIXED_CAPS_PKTS = (5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64, 80, 100)
"""The knob of a fixed cap."""
WINDOWED = "scalefree-5x20"
"""The feature set whose rule takes its maximum over a time, not over so many periods: the same at any cadence."""
MEAN = "mean"
"""The row of the means has this in the place of a trace's name."""


@dataclass(frozen=True)
class Point:
    """What one setting of a knob, or a policy, reaches on a link."""

    utilization: float
    qdelay_mean_ms: float
    qdelay_p95_ms: float
    stalled: bool = False
    """Its flow stalled, so that the run must not be believed: such a setting is nobody's rival."""

    @classmethod
    def of(cls, metrics: Metrics, stalled: bool = False) -> "Point":
        """Returns the point of a run."""
        return cls(metrics.utilization, metrics.qdelay_mean_ms, metrics.qdelay_p95_ms, stalled)


@dataclass(frozen=True)
class Baseline:
    """What a policy is judged by on a link."""

    rule: list[Point]
    """The hand rule's settings, at its own cadence and at the policy's."""
    plain: Point
    """Plain congestion control."""


def baselines(links: Sequence[LinkSpec], seconds: float, period: PeriodConfig, threads: int = 1) -> list[Baseline]:
    """Returns each link's baseline for policies that decide at this cadence."""
    rules = sweep(links, seconds, (PeriodConfig(), period), threads=threads)
    plain = _reached(NoCap(), links, seconds, threads)
    return [Baseline(rule, point) for rule, (point, _) in zip(rules, plain, strict=True)]


@dataclass(frozen=True)
class Ratio:
    """A policy's delays over those of the best setting at its utilisation; below 1 no setting is as good."""

    mean: float
    p95: float


class _Settings(Agent):
    """A rule with another setting of its knob for each row."""

    def __init__(self, rule: str, settings: FloatArray, view: View) -> None:
        super().__init__(rule, view)
        self._settings = settings

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        """Returns gain x rule for ``rule``, 0 while it is unknown, or the setting itself for ``fixed``."""
        if self.name == "fixed":
            return self._settings.astype(np.uint32)
        return np.where(rule_pkts > 0, round_caps(self._settings * rule_pkts.astype(np.float64)), 0).astype(np.uint32)


def sweep(
    links: Sequence[LinkSpec],
    seconds: float,
    periods: Sequence[PeriodConfig] = (),
    rule: str = "rule",
    threads: int = 1,
) -> list[list[Point]]:
    """Returns for each link the points of all settings of ``rule`` ("rule" or "fixed"), at all these cadences.

    No ``periods`` means the rule's own, one decision in each round trip.
    """
    knob = RULE_GAINS if rule == "rule" else FIXED_CAPS_PKTS
    points: list[list[Point]] = [[] for _ in links]
    step = max(1, MOST_ROWS // len(knob))
    for period in dict.fromkeys(periods or (PeriodConfig(),)):
        view = (
            View(period=period) if period == PeriodConfig() else View(WINDOWED, Normaliser.reference(WINDOWED), period)
        )
        for first in range(0, len(links), step):
            some = links[first : first + step]
            rows = [link for link in some for _ in knob]
            agent = _Settings(rule, np.tile(np.array(knob, np.float64), len(some)), view)
            found = points_of(logs(agent, rows, seconds, threads), rows, seconds)
            for row, point in enumerate(found):
                points[first + row // len(knob)].append(point)
    return points


def _reached(
    agent: Agent, links: Sequence[LinkSpec], seconds: float, threads: int
) -> list[tuple[Point, dict[str, float]]]:
    """Returns the points of an agent on many links, each with its shares of decisions, ``MOST_ROWS`` at a time."""
    found: list[tuple[Point, dict[str, float]]] = []
    for first in range(0, len(links), MOST_ROWS):
        some = links[first : first + MOST_ROWS]
        runs = logs(agent, some, seconds, threads)
        shares = [{key: float(run[key]) for key in ("refused_share", "capped_share")} for run in runs]
        found += zip(points_of(runs, some, seconds), shares, strict=True)
    return found


def points_of(runs: Sequence[dict[str, Any]], links: Sequence[LinkSpec], seconds: float) -> list[Point]:
    """Returns the points of runs as ``logs`` gives them; raises LinkError for one in which no data came through."""
    each = zip(figures_of(runs, links, seconds), runs, strict=True)
    return [Point.of(metrics, run["stalled"] is not None) for metrics, run in each]


def ratio(policy: Point, knob: Sequence[Point]) -> Ratio:
    """Returns how a policy stands against a swept knob on one link, settings under which the flow stalled left out."""
    knob = [point for point in knob if not point.stalled] or knob
    use = [point.utilization for point in knob]
    return Ratio(
        frontier_ratio(policy.utilization, policy.qdelay_mean_ms, use, [p.qdelay_mean_ms for p in knob]),
        frontier_ratio(policy.utilization, policy.qdelay_p95_ms, use, [p.qdelay_p95_ms for p in knob]),
    )


def against_frontier(
    agents: Sequence[Agent], scenarios: Sequence[Scenario], fixed: bool = False, threads: int = 1, runs: int = 1
) -> list[dict[str, object]]:
    """Returns a row for each agent and simulated scenario, and after an agent's one of their means.

    A scenario is run with so many seeds from its own on, by all that stand against each other, and its row has the
    medians. A run is left out in which the flow stalled, under the agent, plain control or every setting of the rule;
    where none is left, the row has those all the same, is not ``valid`` and enters no mean. Ratios to a frontier that
    rank nothing (``below_rule``) enter none either; where there are no others, the means are of what there is. With
    ``fixed`` agents stand against swept fixed caps too. What agents of one cadence stand against is swept once. Raises
    ConfigError as ``require_rows`` does.
    """
    require_rows(scenarios)
    paths = [[replace(s.path, seed=s.path.seed + run) for run in range(runs)] for s in scenarios]
    rules: dict[PeriodConfig, list[list[Baseline]]] = {}
    caps: dict[PeriodConfig, list[list[list[Point]]]] = {}
    rows: list[dict[str, object]] = []
    for agent in agents:
        period = agent.view.period
        if period not in rules:
            rules[period] = [
                baselines(own, s.seconds, period, threads) for own, s in zip(paths, scenarios, strict=True)
            ]
            caps[period] = [
                sweep(own, s.seconds, (period,), "fixed", threads) if fixed else [[] for _ in own]
                for own, s in zip(paths, scenarios, strict=True)
            ]
        own = []
        for scenario, links, found, settings in zip(scenarios, paths, rules[period], caps[period], strict=True):
            each = list(zip(_reached(agent, links, scenario.seconds, threads), found, settings, strict=True))
            stands = [_against(point, baseline, swept) | shares for (point, shares), baseline, swept in each]
            own.append(_middle(stands, [is_sound(point, baseline) for (point, _), baseline, _ in each]))
        rows += [{"agent": agent.name, **row} for row in with_mean(scenarios, own)]
    return rows


def require_rows(scenarios: Sequence[Scenario]) -> None:
    """Raises ConfigError for a scenario in which no data comes through, or whose row nobody could tell from the means'.

    ``reinet bench learners`` asks before its first training, for a refusal after it has lost hours.
    """
    for scenario in scenarios:
        if scenario.require_data().trace.name == MEAN:
            file = scenario.trace.path or MEAN
            raise ConfigError(f"trace {file}: the row of the means has its name; rename the file")


def with_mean(scenarios: Sequence[Scenario], rows: Sequence[dict[str, float]]) -> list[dict[str, object]]:
    """Returns each scenario's row, by its trace, and one of the means of those that are valid, of all where none is.

    The mean of a ratio to the frontier is of the rows in which it ranks, of all where it does so in none; see above.
    """
    counted = [row for row in rows if row["valid"]] or rows
    ranking = [row for row in counted if not row.get("below_rule")] or counted
    mean = {
        key: float(np.mean([row[key] for row in (ranking if key.startswith("frontier_") else counted)]))
        for key in rows[0]
    }
    mean["valid"] = any(row["valid"] for row in rows)
    names = [*(scenario.trace.name for scenario in scenarios), MEAN]
    return [{"trace": name, **row} for name, row in zip(names, [*rows, mean], strict=True)]


def is_sound(point: Point, baseline: Baseline) -> bool:
    """Returns whether a run may be quoted: its flow did not stall, nor did plain control's, nor under all settings."""
    return not (point.stalled or baseline.plain.stalled or all(setting.stalled for setting in baseline.rule))


def _middle(runs: Sequence[dict[str, float]], sound: Sequence[bool]) -> dict[str, float]:
    """Returns the medians of several runs, and how far the ratios to the frontier lie apart; of all where none is
    sound."""
    counted = [run for run, is_sound in zip(runs, sound, strict=True) if is_sound] or runs
    row = {key: float(np.median([run[key] for run in counted])) for key in runs[0]}
    for key in ("frontier_mean", "frontier_p95") if len(runs) > 1 else ():
        row |= {f"{key}_low": min(run[key] for run in counted), f"{key}_high": max(run[key] for run in counted)}
    return row | {"valid": any(sound), "runs": sum(sound)}


def below_rule(point: Point, baseline: Baseline) -> float:
    """Returns 1 where a run's utilisation is below that of every setting of the rule, so that its ratios rank nothing:
    its delay is divided by the least that the rule has, which any starved flow would be ahead of."""
    return float(point.utilization < min(setting.utilization for setting in baseline.rule))


def _against(point: Point, baseline: Baseline, caps: Sequence[Point]) -> dict[str, float]:
    found, plain = ratio(point, baseline.rule), baseline.plain
    row = {
        "frontier_mean": found.mean,
        "frontier_p95": found.p95,
        "throughput_ratio": point.utilization / plain.utilization,
        "utilization": point.utilization,
        "qdelay_mean_ms": point.qdelay_mean_ms,
        "qdelay_p95_ms": point.qdelay_p95_ms,
        "times_lower_mean": plain.qdelay_mean_ms / point.qdelay_mean_ms,
        "times_lower_p95": plain.qdelay_p95_ms / point.qdelay_p95_ms,
        "below_rule": below_rule(point, baseline),
    }
    return row | {"frontier_fixed_mean": ratio(point, caps).mean} if caps else row
