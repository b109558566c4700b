"""The suites' handover is one: a gap, a step of the rate and a step of the round trip, on one path."""

import numpy as np

from reinet.agents.decide.names import make_agent
from reinet.agents.evaluation.run import run
from reinet.agents.evaluation.suites.definition import load
from reinet.agents.evaluation.suites.plan import plan

GAP_MS = (10_000, 11_500)


def test_rate_and_round_trip_step_behind_the_gap() -> None:
    (job,) = (job for job in plan(load("reinet"), only=["handover"], repeat=1).jobs if job.cell.agent == "none"
              and job.cell.cc == "cubic")  # fmt: skip
    found = run(make_agent("fixed:12"), job.scenario)  # too few packets for a queue on either side
    log = found.log
    start_ms = job.scenario.path.start_offset_ms
    left_ms = log.departure_ms - start_ms
    assert not np.any((left_ms > GAP_MS[0] + 40) & (left_ms < GAP_MS[1]))
    at_ms = found.records["time_ns"] / 1e6 - start_ms
    told = found.records["rtt_samples"] > 0
    before, after = (
        float(found.records["rtt_least_us"][told & inside].min()) / 1000
        for inside in ((at_ms > 2000) & (at_ms < GAP_MS[0]), at_ms > GAP_MS[1] + 1000)
    )
    assert 18 <= after - before <= 22
    open_path = run(make_agent("none"), job.scenario).log
    rates_mbps = [
        open_path.departure_bytes[(open_path.departure_ms > a + start_ms) & (open_path.departure_ms <= b + start_ms)]
        .sum() * 8e-3 / (b - a) for a, b in ((2000, 10_000), (15_000, 25_000))
    ]  # fmt: skip
    assert 27 < rates_mbps[0] <= 30.1
    assert 9 < rates_mbps[1] <= 10.1
