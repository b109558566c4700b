"""The Mahimahi link without Mahimahi: what its log says and its processes report, when a run counts."""

import numpy as np
import pytest

from reinet.core.errors import LinkError
from reinet.envs.link.metrics import LinkLog, compute
from reinet.envs.mahimahi.log import parse_log
from reinet.envs.mahimahi.process import Child
from reinet.envs.mahimahi.validity import Sleeper, judge

HEADER = "# mahimahi mm-link (Downlink) [down] > log\n# init timestamp: 1000000\n# base timestamp: 40\n"
CALM = Sleeper(wakes=10_000, late_5ms=10, max_late_us=50_000)


def test_log_is_read_from_the_traces_start_and_an_unfinished_line_left_out() -> None:
    text = HEADER + "41 # 1504\n42 + 1504\n43 # 1504\n43 - 1504 1\n44 d 1 1504\n45 + 64\n46 - 15"
    log, zero_ms = parse_log(text)
    assert zero_ms == 1_000_040
    assert log.arrival_ms.tolist() == [2, 5]
    assert log.arrival_bytes.tolist() == [1504, 64]
    assert log.opportunity_ms.tolist() == [1, 3]
    assert log.departure_ms.tolist() == [3]
    assert log.departure_delay_ms.tolist() == [1]


@pytest.mark.parametrize("line", ["45 + many", "45 -", "x # 1504", "45 ? 1", "\x00\x01", "45 - 1504"])
def test_damaged_log_names_the_line(line: str) -> None:
    with pytest.raises(LinkError, match=r"link log:4: "):
        parse_log(f"{HEADER}{line}\n46 # 1504\n")


def test_log_without_header_is_refused() -> None:
    with pytest.raises(LinkError, match="no init or no base timestamp"):
        parse_log("45 # 1504\n")


def run_of(opportunity_ms: list[int], departure_ms: list[int]) -> LinkLog:
    return LinkLog(
        arrival_ms=np.array([0.0]),
        arrival_bytes=np.array([1504]),
        opportunity_ms=np.array(opportunity_ms, dtype=np.float64),
        departure_ms=np.array(departure_ms, dtype=np.float64),
        departure_bytes=np.full(len(departure_ms), 1504),
        departure_delay_ms=np.zeros(len(departure_ms)),
    )


EVERY_MS = list(range(1, 5000))


@pytest.mark.parametrize(
    ("sleeper", "opportunity_ms", "departure_ms", "reason"),
    [
        (CALM, EVERY_MS, EVERY_MS, None),
        (Sleeper(10_000, 11, 6_000), EVERY_MS, EVERY_MS, "host lagged: 11 of 10000"),
        (Sleeper(10_000, 1, 50_001), EVERY_MS, EVERY_MS, "host lagged: a one-millisecond sleep ended 50 ms late"),
        (CALM, EVERY_MS[:4899], EVERY_MS, "link lagged: 4899 of the trace's 4999"),
        (CALM, EVERY_MS[:4900], EVERY_MS, None),
        (CALM, EVERY_MS, EVERY_MS[:1000] + EVERY_MS[3000:], None),  # 2001 ms: the gap of 1 ms + 2 s
        (CALM, EVERY_MS, EVERY_MS[:1000] + EVERY_MS[3001:], "flow stalled: nothing left the link for 2002 ms"),
        (CALM, EVERY_MS, EVERY_MS[:2900], "flow stalled: nothing left the link for 2100 ms"),
    ],
)
def test_validity(sleeper: Sleeper, opportunity_ms: list[int], departure_ms: list[int], reason: str | None) -> None:
    log = run_of(opportunity_ms, departure_ms)
    found = judge(log, compute(log, 20, 5000), np.array([1]), 0, 5000, sleeper)
    assert found is None if reason is None else found is not None and reason in found
    if reason is not None and "stalled" in reason:  # the uplink has a gap as well
        assert judge(log, compute(log, 20, 5000), np.array([1]), 0, 5000, sleeper, also_ms=100) is None


@pytest.mark.parametrize("pause", ["", "sleep 0.2; "], ids=["at-once", "one-by-one"])
def test_an_event_that_came_too_early_is_not_lost(pause: str) -> None:
    """A parent and its child share a pipe, and on a busy host the child is the first to say something."""
    said = f"""echo '{{"event": "ready"}}'; {pause}echo '{{"event": "namespaces", "pid": 7}}'; read end"""
    child = Child(["sh", "-c", said], "two that share a pipe")
    try:
        assert child.wait_for("namespaces", 30)["pid"] == 7
        assert child.wait_for("ready", 1) == {"event": "ready"}
        assert child.events() == []
    finally:
        child.reap(5)
