"""The gate for no harm: what it refuses, what it names, and which checkpoint it leaves."""

import math
from typing import Any

import pytest

from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.no_harm import UNASKED, HarmGate, judged, measure


def row(bytes_: int = 1_000_000, mean: float | None = 1.0, **changes: Any) -> dict[str, Any]:
    return {
        "cc": "cubic", "trace": "lte", "mrtt_ms": 20.0, "bytes": bytes_, "fresh": True, "pause_ms": None,
        "ratio_p50": 1.0, "ratio_p95": 1.0, "ratio_mean": mean, "plain_builds_queue": True, "valid": True,
        "ok": mean is not None and mean <= 1.05,
    } | changes  # fmt: skip


def test_a_policy_that_costs_nothing_passes_and_its_figures_are_told() -> None:
    found = judged([row()] * 40, HarmGate())
    assert found.ok
    assert found.words == "harm: 0 of 40 cells above a limit, 1.00 times as long in the worst"
    assert found.metrics == {"harm_ok": 1.0, "harm_cells": 40.0, "harm_failed": 0.0, "harm_worst_ratio": 1.0}


@pytest.mark.parametrize(
    ("failing", "why"),
    [
        ([row(mean=1.1)] * 3, "at most 5 % of the cells may be"),
        ([row(mean=1.3)], "1.25 times is the most"),
        ([row(mean=1.1, plain_builds_queue=False)], "1 of them where plain builds no queue"),
        ([row(mean=None, valid=False)], "1.25 times is the most"),
    ],
)
def test_each_bound_refuses_alone_and_names_the_cells(failing: list[dict[str, Any]], why: str) -> None:
    rows = [row()] * (40 - len(failing)) + failing
    found = judged(rows, HarmGate())
    assert not found.ok
    assert found.why == why
    assert "cubic, lte, 20 ms, 1000000 bytes fresh: " in found.words
    assert math.isfinite(found.metrics["harm_worst_ratio"])


def test_a_cell_that_takes_too_long_is_named_though_no_limit_of_the_bench_is_passed() -> None:
    found = judged([row()] * 40 + [row(mean=1.04)], HarmGate(most_ratio=1.02))
    assert (found.ok, found.failed, len(found.blamed)) == (False, 0, 1)


def test_the_worst_cells_are_named_first_and_those_without_a_queue_before_them() -> None:
    rows = [row(mean=1.1, cc="a"), row(mean=1.2, cc="b"), row(mean=1.06, cc="c", plain_builds_queue=False), row()]
    assert [name[0] for name in judged(rows, HarmGate()).blamed] == ["c", "b", "a"]


def test_two_cells_of_forty_may_fail() -> None:
    assert judged([row()] * 38 + [row(mean=1.1)] * 2, HarmGate()).ok


def test_no_repetition_asks_nothing() -> None:
    assert measure(make_agent("none"), ["cubic"], HarmGate(repeat=0)) is UNASKED
    assert UNASKED.metrics == {}


def test_a_cap_that_holds_transfers_back_is_refused_and_no_cap_is_not() -> None:
    gate = HarmGate(repeat=1)
    assert measure(make_agent("none"), ["cubic"], gate).metrics["harm_failed"] == 0
    found = measure(make_agent("fixed:4"), ["cubic"], gate)
    assert not found.ok
    assert found.cells == 72  # those of Cubic alone
