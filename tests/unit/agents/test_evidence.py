"""What a hold-out counts of each flow."""

import numpy as np
import pytest

from reinet.agents.decide.evidence import CAPPED, LEAST_FLOWS, PLAIN, Evidence
from reinet.core.records import FLOW_STATS_DTYPE, Flag

FLOWS = 4 * LEAST_FLOWS
SECOND_NS = 1_000_000_000


def records_of(flows: np.ndarray, time_ns: int, period_ns: int, delivered_bytes: np.ndarray, flag: int = 0):
    made = np.zeros(len(flows), FLOW_STATS_DTYPE)
    made["cookie"], made["time_ns"], made["period_ns"] = flows + 1, time_ns, period_ns
    made["delivered_bytes"], made["flags"] = delivered_bytes, flag
    made["rtt_mean_us"], made["min_rtt_us"], made["rtt_samples"] = 40_000, 20_000, 20
    made["delivery_rate_bytes_per_s"] = 1_000_000
    return made


@pytest.mark.parametrize("at_once", [False, True], ids=["tick by tick", "in one batch"])
def test_a_silence_counts_once(at_once: bool) -> None:
    """Its records tell of a period that goes on, and the one that ends the period tells of all of it again."""
    evidence = Evidence(FLOWS)
    flows = np.arange(FLOWS)
    groups = np.where(flows % 2 == 0, PLAIN, CAPPED).astype(np.int8)
    total_bytes = 100_000 + 1000 * (flows // 2)

    def take(rows: np.ndarray, records: np.ndarray) -> None:
        evidence.take(records, rows, groups[rows], np.ones(len(rows), np.bool_))

    take(flows, records_of(flows, SECOND_NS, SECOND_NS, total_bytes))
    silent = flows[groups == CAPPED]
    for second in range(1, 6):
        start_ns = second * SECOND_NS
        parts = [
            records_of(silent, start_ns + after_ms * 1_000_000, after_ms * 1_000_000, total_bytes[silent] * 2 // 5,
                       int(Flag.NO_SAMPLE))
            for after_ms in (250, 500, 750)
        ]  # fmt: skip
        ends = records_of(flows, start_ns + SECOND_NS, SECOND_NS, total_bytes)
        if at_once:
            take(np.concatenate([silent, silent, silent, flows]), np.concatenate([*parts, ends]))
        else:
            for part in parts:
                take(silent, part)
            take(flows, ends)
    assert evidence.compare().throughput.ratio == pytest.approx(1.0, abs=1e-9)
