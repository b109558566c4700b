"""One policy under several targets, judged by the clairvoyant cap: who asks for less delay is to get less.

Where some clairvoyant cap keeps the target at nearly all of plain congestion control's throughput, the policy is to
keep it too. Elsewhere the target asks for more than the link gives, and what counts is how far the policy is from the
least clairvoyant delay at its own utilisation.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from reinet.agents.decide.baselines import Clairvoyant, NoCap
from reinet.agents.decide.protocol import Agent, View
from reinet.agents.evaluation.batch import figures_of, logs
from reinet.agents.evaluation.frontier import require_rows, with_mean
from reinet.agents.evaluation.scenario import Scenario
from reinet.core import PeriodConfig
from reinet.core.target import MOST_MS
from reinet.envs.link.metrics import Metrics, frontier_ratio

TARGETS_MS = (25.0, 30.0, 40.0, 50.0, 60.0, 80.0, 100.0)
"""The paper's sweep, on a path of 20 ms."""
CLAIRVOYANT_MS = tuple(range(0, 61, 10))
"""The clairvoyant cap's horizons above the minimum RTT: 60 ms of queue at most."""
NEARLY_ALL = 0.98
"""The share of plain utilisation at which a clairvoyant cap counts as keeping a target."""
MOST_DELAY_RATIO = 1.3
"""Where no clairvoyant cap keeps the target: the policy's delay over the least clairvoyant one at its utilisation."""


class _Done(NamedTuple):
    """A run: its figures, the shares of decisions that a cap was refused in and came of, and whether it stalled."""

    metrics: Metrics
    shares: dict[str, float]
    stalled: bool


def within_targets(
    agents: Sequence[Agent],
    scenarios: Sequence[Scenario],
    targets_ms: Sequence[float] = TARGETS_MS,
    threads: int = 1,
) -> list[dict[str, object]]:
    """Returns a row for each agent, target and simulated scenario, and after a target's one of their means.

    ``can_be_kept`` says whether some clairvoyant cap keeps the target at 98 % of plain utilisation, ``delay_ratio`` is
    the policy's delay over the least clairvoyant one at its utilisation, and ``ok`` whether the policy keeps the target
    or, where that cannot be, is within 1.3 of that: of delay alone. ``throughput_kept`` says whether it has 98 % of
    plain utilisation itself; ``refused_share`` is the share of decisions in which the guard refused a cap, so that the
    flow ran uncapped, ``capped_share`` that of decisions of which a cap came. In the row of the means ``can_be_kept``,
    ``ok`` and ``throughput_kept`` are shares. A row is not ``valid``, and enters no mean, where the flow stalled under
    the agent, plain control or every clairvoyant cap. Raises ConfigError as ``require_rows`` does.
    """
    require_rows(scenarios)
    plain = [_runs(NoCap(), [scenario], threads)[0] for scenario in scenarios]
    at_cadence: dict[PeriodConfig, list[list[_Done]]] = {}
    rows: list[dict[str, object]] = []
    for agent in agents:
        for period in (PeriodConfig(), agent.view.period):
            if period not in at_cadence:
                at_cadence[period] = [_knob(scenario, period, threads) for scenario in scenarios]
        # As the hand rule in ``frontier.py``: at its own cadence and at the agent's.
        both = dict.fromkeys((PeriodConfig(), agent.view.period))
        knobs = [[run for period in both for run in at_cadence[period][i]] for i in range(len(scenarios))]
        # All targets of a trace at once: a batch of seven flows takes hardly longer than one.
        runs = [_runs(agent, [_asking(scenario, ms) for ms in targets_ms], threads) for scenario in scenarios]
        for index, target_ms in enumerate(targets_ms):
            own = [
                _row(of_targets[index], plain_run, knob, target_ms)
                for of_targets, plain_run, knob in zip(runs, plain, knobs, strict=True)
            ]
            rows += [{"agent": agent.name, "target_ms": target_ms, **row} for row in with_mean(scenarios, own)]
    return rows


def _knob(scenario: Scenario, period: PeriodConfig, threads: int) -> list[_Done]:
    """Returns what the clairvoyant caps reach: the same for every target.

    They aim at none, so the guard is told of one that no path is too long for. Under a low one it would refuse every
    cap of a flow that has not seen its path's minimum RTT yet, and the yardstick would be plain congestion control.
    """
    agent = Clairvoyant(CLAIRVOYANT_MS, View(period=period))
    return _runs(agent, [_asking(scenario, MOST_MS)] * len(CLAIRVOYANT_MS), threads)


def _asking(scenario: Scenario, target_ms: float) -> Scenario:
    return replace(scenario, path=replace(scenario.path, target_us=round(target_ms * 1000)), asked=None)


def _runs(agent: Agent, scenarios: Sequence[Scenario], threads: int) -> list[_Done]:
    """Returns the runs of scenarios of one length."""
    links, seconds = [scenario.path for scenario in scenarios], scenarios[0].seconds
    done = logs(agent, links, seconds, threads)
    return [
        _Done(metrics, {key: run[key] for key in ("refused_share", "capped_share")}, run["stalled"] is not None)
        for metrics, run in zip(figures_of(done, links, seconds), done, strict=True)
    ]


def _row(own: _Done, beside: _Done, settings: Sequence[_Done], target_ms: float) -> dict[str, float | bool]:
    run, plain = own.metrics, beside.metrics
    sound = [setting for setting in settings if not setting.stalled]
    knob = [setting.metrics for setting in sound or settings]
    least_utilization = NEARLY_ALL * plain.utilization
    can_be_kept = any(m.delay_mean_ms <= target_ms and m.utilization >= least_utilization for m in knob)
    delay_ratio = frontier_ratio(
        run.utilization, run.delay_mean_ms, [m.utilization for m in knob], [m.delay_mean_ms for m in knob]
    )
    kept = run.delay_mean_ms <= target_ms
    return {
        "can_be_kept": can_be_kept,
        "ok": kept if can_be_kept else delay_ratio <= MOST_DELAY_RATIO,
        "delay_mean_ms": run.delay_mean_ms,
        "delay_ratio": delay_ratio,
        "qdelay_mean_ms": run.qdelay_mean_ms,
        "qdelay_p95_ms": run.qdelay_p95_ms,
        "utilization": run.utilization,
        "throughput_ratio": run.utilization / plain.utilization,
        "throughput_kept": run.utilization >= least_utilization,
        **own.shares,
        "valid": bool(sound) and not (own.stalled or beside.stalled),
    }
