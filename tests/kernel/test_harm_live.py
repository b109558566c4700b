"""``reinet bench harm`` on real sockets: nginx in the capped cgroup, curl inside the shells."""

import shutil
from typing import Any

import pytest

from helpers.figures import figures_hold
from reinet.agents.decide.baselines import FixedCap
from reinet.agents.decide.names import make_agent
from reinet.agents.decide.protocol import View
from reinet.agents.evaluation import harm_live
from reinet.agents.evaluation.harm import Cell
from reinet.core.period import PeriodConfig
from reinet.core.target import Target
from reinet.envs.mahimahi.web import PROGRAMS
from reinet.envs.trace import Trace

STEADY = Trace.constant(24.0, 10.0, "constant-24")
TARGET = Target.parse("+30ms")

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.mahimahi,
    pytest.mark.skipif(
        any(shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None for name in PROGRAMS),
        reason="needs nginx and curl: run docker/packages.sh --bench as root",
    ),
]


def cell(size_bytes: int, pause_ms: float | None, cc: str = "cubic") -> Cell:
    return Cell(cc, 20.0, STEADY, False, size_bytes, pause_ms)


def test_a_cap_of_ten_packets_slows_real_fetches_down() -> None:
    """40 packets fill 24 Mbit/s and 20 ms; both connections are fetched whole, each over one connection."""
    matrix = [cell(10_000_000, None), cell(300_000, 100.0, "bbr")]

    def measure() -> list[dict[str, Any]]:
        kept: list[int] = []
        agent = make_agent("fixed:10", "mahimahi")
        rows = harm_live.measure(matrix, agent, target=TARGET, repeat=1, keep=lambda sofar: kept.append(len(sofar)))
        assert not any(row["trained_on"] for row in rows)
        assert kept == [1, 2], "who ends the matrix early keeps the rows so far"
        assert [row["objects"] for row in rows] == [1, 5]
        assert all(row["capped_ms"] > 0 and row["link"] == "mahimahi" for row in rows)
        return rows

    def check(rows: list[dict[str, Any]]) -> None:
        assert rows[0]["ratio_p50"] > 2.0  # once its queue stands, after a fraction of a second
        assert not rows[0]["ok"]

    figures_hold(measure, check, lambda rows: [reason for row in rows for reason in row["invalid_reasons"]])


def test_the_same_cap_through_the_gate_slows_them_down_too() -> None:
    """nginx runs under the gate: the same matrix tells what that does to fetches."""

    def measure() -> list[dict[str, Any]]:
        agent = make_agent("fixed:10", "mahimahi")
        rows = harm_live.measure([cell(10_000_000, None)], agent, target=TARGET, repeat=1, actuator="app")
        assert [row["actuator"] for row in rows] == ["app"]
        return rows

    def check(rows: list[dict[str, Any]]) -> None:
        assert rows[0]["ratio_p50"] > 2.0, "the gate did not bind"

    figures_hold(measure, check, lambda rows: [reason for row in rows for reason in row["invalid_reasons"]])


def test_flows_over_loopback_are_seen_and_counted() -> None:
    """An agent that would cap whatever it sees caps none of them: no path so short has a queue of the flow's own."""
    every_ms = View(period=PeriodConfig(1_000_000, packet_timed=False))  # a transfer takes a few
    found = harm_live.loopback(FixedCap(100, every_ms), "cubic", target=TARGET)
    assert found["objects"] == harm_live.LOOPBACK_COUNT
    assert found["records"] > 0
    assert found["capped"] == 0
