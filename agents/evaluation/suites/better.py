"""Who is better than a model in both of what matters: lower 95th percentile of delay and higher utilisation at once.

A cap always pays throughput for delay, so a scheme with less delay and less throughput is another place on the same
curve. One with less delay *and* more throughput leaves no reason for the model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from reinet.agents.evaluation.suites.plan import BASELINE

Cell = Mapping[str, Any]
"""A cell as the report's JSON has it."""

DELAY, USE = "qdelay_p95_ms", "utilization"


def found(cells: Sequence[Cell], models: Sequence[str]) -> list[dict[str, Any]]:
    """Returns for each line of a model who of the same scenario and point is better in both, by means over traces.

    Only lone flows are compared: of several the figures are of their sum. Lines of the same model are no others, and
    what has no run is not compared. ``lines`` is how many there were to be better, ``better`` names those that are.
    """
    result = []
    lone = [cell for cell in cells if _is_compared(cell)]
    for own in lone:
        if own["agent"] not in models:
            continue
        others = [
            cell
            for cell in lone
            if (cell["scenario"], cell["point"]) == (own["scenario"], own["point"]) and cell["agent"] != own["agent"]
        ]
        better = [
            cell for cell in others if _mean(cell, DELAY) < _mean(own, DELAY) and _mean(cell, USE) > _mean(own, USE)
        ]
        result.append({
            **{key: own[key] for key in ("scenario", "agent", "cc", "point")},
            "lines": len(others),
            "better": [{"agent": cell["agent"], "cc": cell["cc"]} for cell in better],
        })  # fmt: skip
    return result


def sentences(told: Sequence[Mapping[str, Any]], scenario: str) -> list[str]:
    """Returns a sentence for each model and congestion control of a scenario."""
    own = [one for one in told if one["scenario"] == scenario and one["lines"]]
    result = []
    for agent, cc in dict.fromkeys((one["agent"], one["cc"]) for one in own):
        points = [one for one in own if (one["agent"], one["cc"]) == (agent, cc)]
        names = sorted({name_of(other) for one in points for other in one["better"]})
        most = max(one["lines"] for one in points)
        where = f" at {sum(bool(one['better']) for one in points)} of {len(points)} points" if len(points) > 1 else ""
        what = f"{', '.join(names)}{where}" if names else "nobody"
        result.append(f"Both lower p95 and higher utilisation than {agent} over {cc}, of {most} other lines: {what}.")
    return result


def name_of(line: Mapping[str, Any]) -> str:
    """Returns what a line is called: its congestion control, and the agent that caps it."""
    return str(line["cc"]) if line["agent"] == BASELINE else f"{line['agent']} over {line['cc']}"


def _is_compared(cell: Cell) -> bool:
    numbers = cell["numbers"]
    return (
        cell["role"] == "run"
        and cell["flows"] == 1
        and cell["beside"] is None
        and "jain" not in numbers
        and DELAY in numbers
        and USE in numbers
    )


def _mean(cell: Cell, metric: str) -> float:
    return float(cell["numbers"][metric]["mean"])
