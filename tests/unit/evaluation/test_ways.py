"""Ways of sending against each other (``reinet bench alcc --against``): which runs count, how they become ratios."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.period import SILENT
from reinet.agents.evaluation.ways import actuators, java, native, shim, tunnel
from reinet.agents.evaluation.ways.comparison import ATTEMPTS, RATIOS, Ways
from reinet.core import FLOW_STATS_DTYPE, Flag
from reinet.core.records import ACK_DTYPE, told_once
from reinet.envs.link.metrics import Metrics
from reinet.envs.trace import Trace

PAIR = Ways({"a": "one", "b": "two"}, of="a", over="b")


def _run(law: str, way: str, mbps: float, delay_ms: float, valid: bool = True) -> dict[str, Any]:
    return {"law": law, "trace": "t", "way": way, "throughput_mbps": mbps, "delay_mean_ms": delay_ms,
            "delay_p95_ms": 2 * delay_ms, "cpu_s": mbps / 100, "valid": valid}  # fmt: skip


def test_ratios_are_of_medians() -> None:
    runs = [_run("copa", "a", mbps, 30.0) for mbps in (9.0, 1.0, 10.0)]
    runs += [_run("copa", "b", mbps, 20.0) for mbps in (10.0, 12.0, 90.0)]
    runs += [_run("verus", "a", 5.0, 50.0), _run("verus", "b", 5.0, 50.0, valid=False)]
    copa, verus = PAIR.summary(runs, ("law", "trace"))
    assert (copa["law"], copa["trace"], copa["runs"], copa["valid"]) == ("copa", "t", 3, True)
    assert copa["throughput_ratio"] == pytest.approx(9 / 12)
    assert copa["delay_ratio"] == copa["delay_p95_ratio"] == pytest.approx(1.5)
    assert copa["cpu_ratio"] == pytest.approx(9 / 12)
    assert (copa["one_throughput_mbps"], copa["two_delay_p95_ms"]) == (9.0, 40.0)
    assert copa["spread"] == pytest.approx((90 - 10) / 12), "of the second way; the first one's is 9 / 9"
    assert "qdelay_ratio" not in copa, "no run has it"
    assert verus["spread"] == 0.0
    assert (verus["throughput_ratio"], verus["valid"]) == (1.0, False)


@pytest.mark.parametrize(("failures", "valid"), [(0, True), (2, True), (3, False)])
def test_a_run_in_which_the_host_lagged_is_made_again(failures: int, valid: bool) -> None:
    left = {"a": failures, "b": 0}

    def run_in(way: str) -> dict[str, Any]:
        left[way] -= 1
        return {"throughput_mbps": 1.0, "valid": left[way] < 0}

    told: list[dict[str, Any]] = []
    runs = list(PAIR.in_turn([({"trace": "t"}, run_in)], progress=told.append))
    assert [(run["trace"], run["way"], run["valid"]) for run in runs] == [("t", "a", valid), ("t", "b", True)]
    assert len(told) == 2 + min(failures, ATTEMPTS - 1)
    assert PAIR.summary(runs, ("trace",))[0]["valid"] == valid


def test_what_was_run_when_it_ends_is_kept_and_compared_where_every_way_was_run() -> None:
    """Ctrl-C after hours took all of it."""
    kept: list[dict[str, Any]] = []

    def run_in(way: str) -> dict[str, Any]:
        if len(kept) == 3:
            raise KeyboardInterrupt
        return _run("x", way, 1.0, 2.0)

    with pytest.raises(KeyboardInterrupt):
        kept.extend(PAIR.in_turn([({"cell": name}, run_in) for name in "st"]))
    assert [(run["cell"], run["way"]) for run in kept] == [("s", "a"), ("s", "b"), ("t", "a")]
    assert [row["cell"] for row in PAIR.summary(kept, ("cell",))] == ["s"]


def test_cells_come_one_after_the_other_and_their_ways_in_turn() -> None:
    made: list[tuple[str, str]] = []

    def cell(name: str) -> tuple[dict[str, Any], Any]:
        def run_in(way: str) -> dict[str, Any]:
            made.append((name, way))
            return {"throughput_mbps": 1.0, "valid": True}

        return {"trace": name}, run_in

    assert len(list(PAIR.in_turn([cell("s"), cell("t")], repeat=2))) == 8
    assert made == [(name, way) for name in "st" for _ in range(2) for way in "ab"]


def test_every_mode_has_the_keys_that_its_readers_know() -> None:
    """They stand in rows of ``--json``: whoever measures reads them by name."""
    for ways, labels, names in (
        (native.WAYS, ("law", "trace"), ("gate", "udp")), (java.WAYS, ("trace",), ("plain", "mdi"))
    ):  # fmt: skip
        figures = [*RATIOS.values(), *ways.more]
        runs = [
            {**dict.fromkeys(labels, "x"), "way": way, **dict.fromkeys(figures, 2.0), "valid": True}
            for way in ways.names
        ]
        (row,) = ways.summary(runs, labels)
        assert {f"{name}_{figure}" for name in names for figure in figures} | set(RATIOS) < set(row)


def test_a_gates_share_of_the_kernels_reduction_is_of_the_delay_that_each_takes_from_plain() -> None:
    row = {"plain_qdelay_mean_ms": 100.0, "kernel_qdelay_mean_ms": 20.0, "gate_qdelay_mean_ms": 28.0,
           "plain_cpu_s": 0.2, "gate_cpu_s": 0.3}  # fmt: skip
    assert actuators.with_share(row)["reduction_share"] == pytest.approx(0.9)
    assert actuators.with_share(row)["cpu_over_plain"] == pytest.approx(1.5)
    assert actuators.with_share({**row, "kernel_qdelay_mean_ms": 100.0})["reduction_share"] is None


def test_plain_kernel_and_gate_are_run_with_their_agent_and_actuator(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str]] = []

    def run(agent: Any, scenario: Any) -> Any:
        made.append((agent.called, scenario.actuator))
        metrics = Metrics(*([1.0] * len(fields(Metrics))))
        return SimpleNamespace(metrics=metrics, invalid_reason=None, sender_cpu_us=5)

    monkeypatch.setattr(actuators, "run", run)
    trace = Trace.constant(12.0, 1.0)
    runs = list(actuators.measure(["fixed:25", "rule:1.5"], [trace], seconds=1.0))
    assert made == [(name, actuator) for agent in ("fixed:25", "rule:1.5")
                    for name, actuator in (("none", "kernel"), (agent, "kernel"), (agent, "app"))]  # fmt: skip
    assert [run["way"] for run in runs] == ["none", "kernel", "gate"] * 2
    assert {run["cpu_s"] for run in runs} == {5e-6}
    assert [(row["agent"], row["throughput_ratio"]) for row in actuators.compared(runs)] == [
        ("fixed:25", 1.0), ("rule:1.5", 1.0)]  # fmt: skip


def test_a_summary_has_the_further_figures_that_were_asked_for() -> None:
    ways = Ways({"a": "one", "b": "two"}, of="a", over="b", more={"longest_stall_ms": max})
    runs = [{**_run("x", way, 1.0, 1.0), "longest_stall_ms": ms} for way, ms in (("a", 3.0), ("a", 9.0), ("b", 1.0))]
    (row,) = ways.summary(runs, ("law",))
    assert (row["one_longest_stall_ms"], row["two_longest_stall_ms"]) == (9.0, 1.0)


def test_a_stall_is_the_longest_time_without_a_delivery() -> None:
    records = np.zeros(5, FLOW_STATS_DTYPE)
    records["time_ns"] = np.array([50, 100, 400, 900, 2000]) * 1_000_000
    records["delivered_bytes"] = [1, 1, 0, 1, 1]
    assert tunnel.longest_stall_ms(records, 75_000_000, 1_000_000_000) == 800.0
    assert tunnel.longest_stall_ms(records[:0], 0, 1_000_000_000) == 1000.0
    assert tunnel.longest_stall_ms(records, 75_000_000, 1_900_000_000) == 1000.0, "to the end"


def test_a_silence_is_a_stall_and_its_samples_count_once() -> None:
    """Its records tell of the period before it, bytes and samples, once more every 250 ms."""
    records = np.zeros(5, FLOW_STATS_DTYPE)
    records["time_ns"] = np.array([100, 400, 650, 900, 1000]) * 1_000_000
    records["period_ns"] = np.array([50, 300, 550, 800, 900]) * 1_000_000
    records["delivered_bytes"], records["flags"] = [9, 3, 3, 3, 4], [0, *[SILENT] * 3, 0]
    records["rtt_mean_us"], records["rtt_samples"] = [20_000, 100_000, 100_000, 100_000, 100_000], [2, 1, 1, 1, 2]
    assert tunnel.longest_stall_ms(records, 75_000_000, 1_000_000_001) == 900.0
    assert tunnel.round_trips_ms(records)[0] == pytest.approx(60.0)


@pytest.mark.parametrize("last", [0, int(Flag.CLOSED)], ids=["a pause", "the flow's end"])
def test_a_silence_counts_once_across_an_idle_time_and_at_the_end(last: int) -> None:
    """A pause moves the period's start beyond the silence that the period's own record repeats; an end repeats none."""
    records = np.zeros(3, FLOW_STATS_DTYPE)
    records["time_ns"], records["period_ns"] = [100_000_000, 400_000_000, 2_000_000_000], [50_000_000, 300_000_000, 0]
    records["rtt_samples"], records["flags"] = [2, 1, 2], [0, SILENT, last]
    kept = [0, 1, 2] if last else [0, 2]
    assert told_once(records)["time_ns"].tolist() == records["time_ns"][kept].tolist()


def test_round_trips_count_as_often_as_they_had_samples() -> None:
    records = np.zeros(3, FLOW_STATS_DTYPE)
    records["rtt_mean_us"], records["rtt_samples"] = [100_000, 20_000, 999_000], [1, 19, 0]
    mean_ms, p95_ms = tunnel.round_trips_ms(records)
    assert mean_ms == pytest.approx(24.0)
    assert p95_ms == 20.0


def _one_socket() -> tuple[np.ndarray, np.ndarray]:
    """Records of four periods of ten packets, a packet a millisecond; the same as ACKs, with 20 ms, 21 ms and so on."""
    acks = np.zeros(41, [("ack", ACK_DTYPE)])
    packets = np.arange(41)
    acks["ack"]["time_ns"] = (1000 + packets) * 1_000_000
    acks["ack"]["delivered_bytes"] = 5000 + 1000 * packets
    acks["ack"]["rtt_us"], acks["ack"]["cwnd_pkts"] = 20_000 + 1000 * packets, 10 + packets
    records = np.zeros(4, FLOW_STATS_DTYPE)
    records["time_ns"] = (1000 + 10 * np.arange(1, 5)) * 1_000_000
    records["period_ns"], records["delivered_bytes"], records["mss_bytes"] = 10_000_000, 10_000, 1000
    records["rtt_samples"], records["rtt_mean_us"] = 10, 20_000 + 10_000 * np.arange(4) + 5500
    records["cwnd_pkts"] = 10 + 10 * np.arange(1, 5)
    return records, acks


def test_a_gate_that_measures_as_the_shim_is_within_all_bounds() -> None:
    found = shim.periods(*_one_socket())
    assert found.shim_rtt_us.tolist() == [35_500, 45_500, 55_500], "the first period is left out"
    assert found.shim_samples.tolist() == [10, 10, 10]
    assert found.shim_delivered_bytes.tolist() == [10_000] * 3
    assert found.cwnd_pkts.tolist() == found.shim_cwnd_pkts.tolist() == [30, 40, 50]
    assert found.rtt_holds().all()
    assert found.delivered_holds().all()
    assert found.samples_hold().all()


def test_what_is_off_is_told_of_its_period_alone() -> None:
    records, acks = _one_socket()
    records["rtt_mean_us"][2] += 2300  # 5 % of 45.5 ms are 2.28
    records["rtt_samples"][3] = 12
    found = shim.periods(records, acks)
    assert found.rtt_holds().tolist() == [True, False, True]
    assert found.samples_hold().tolist() == [True, True, False]
    records["delivered_bytes"][1:3] = [7000, 13_000]  # what came at a period's end is the next one's: other ACKs
    found = shim.periods(records, acks)
    assert found.delivered_holds().tolist() == [False, False, True]
    assert found.shim_samples.tolist() == [7, 13, 10]
    acks["ack"]["rtt_us"][25] = -1  # a packet that was sent twice has no sample
    assert shim.periods(records, acks).shim_samples.tolist() == [7, 12, 10]
