"""``reinet bench alcc --against java``: how runs become ratios."""

import pytest

from reinet.agents.evaluation.java import summary


def _run(way: str, mbps: float, queue_ms: float, valid: bool = True) -> dict[str, object]:
    return {"trace": "t", "way": way, "throughput_mbps": mbps, "qdelay_mean_ms": queue_ms,
            "qdelay_p95_ms": 2 * queue_ms, "cpu_s": mbps / 100, "valid": valid}  # fmt: skip


def test_ratios_are_of_medians_mdi_over_plain() -> None:
    runs = [_run("none", mbps, 100.0) for mbps in (10.0, 12.0, 90.0)]
    runs += [_run("mdi", mbps, 40.0) for mbps in (9.0, 1.0, 10.0)]
    (row,) = summary(runs)
    assert (row["trace"], row["runs"], row["valid"]) == ("t", 3, True)
    assert row["throughput_ratio"] == pytest.approx(9 / 12)
    assert row["qdelay_ratio"] == pytest.approx(0.4)
    assert (row["plain_qdelay_p95_ms"], row["mdi_qdelay_mean_ms"]) == (200.0, 40.0)
    assert not summary([*runs, _run("mdi", 9.0, 40.0, valid=False)])[0]["valid"]
