"""The guard by itself, record by record: what it refuses is left alone, and it misses no record."""

import numpy as np
import numpy.typing as npt
import pytest

from reinet.agents.decide.verdicts import Why
from reinet.core import FLOW_STATS_DTYPE
from reinet.core.guard import Guard
from reinet.core.states.caps import INVALID_CAP_PKTS

PERIOD_MS = 20


class Flow:
    """A flow over 20 ms whose records a guard judges; what it allows is in force at the next one."""

    def __init__(self) -> None:
        self.guard, self.time_ms, self.cap_pkts = Guard(), 0, 20

    def record(self, rtt_ms: int, kbytes: int, target_ms: int = 50) -> npt.NDArray[np.void]:
        self.time_ms += PERIOD_MS
        s = np.zeros(1, FLOW_STATS_DTYPE)
        s["cookie"], s["time_ns"], s["period_ns"] = 7, 10**12 + self.time_ms * 10**6, PERIOD_MS * 10**6
        s["min_rtt_us"], s["target_us"] = 20_000, target_ms * 1000
        s["rtt_mean_us"] = s["rtt_least_us"] = s["rtt_last_us"] = s["srtt_us"] = rtt_ms * 1000
        s["rtt_samples"], s["mss_bytes"], s["cwnd_pkts"], s["inflight_pkts"] = 5, 1448, 40, 40
        s["delivered_bytes"] = s["peer_delivered_bytes"] = kbytes * 1000
        s["cap_pkts"] = self.cap_pkts
        return s

    def judged(self, record: npt.NDArray[np.void], wanted_pkts: int = 20, aims: bool = True) -> Why:
        asked = np.array([wanted_pkts], np.uint32), np.array([True])
        (self.cap_pkts,), (verdict,) = self.guard.judge(record, *asked, aims)
        return Why(int(verdict["code"]))

    def ask_its_queue(self) -> None:
        """Waits long at a quarter of its rate under a cap, until the guard asks the queue by twice the cap."""
        for _ in range(250):
            self.judged(self.record(30, 60))
        for _ in range(1000):
            self.judged(self.record(48, 15))
            if self.cap_pkts >= 40:
                return
        pytest.fail("its queue was not asked")


@pytest.mark.parametrize(
    ("wanted_pkts", "target_ms", "why"),
    [(INVALID_CAP_PKTS, 60, Why.NOT_FINITE), (20, 0, Why.NO_TARGET), (50_000, 60, Why.OUT_OF_RANGE)],
)
def test_a_flow_whose_cap_is_refused_is_not_held_back_to_look_at_its_path(
    wanted_pkts: int, target_ms: int, why: Why
) -> None:
    flow = Flow()
    for _ in range(3000):  # a minute of a queue that stands
        assert flow.judged(flow.record(50, 15, target_ms), wanted_pkts) == why
        assert flow.cap_pkts == 0


def test_a_question_about_the_queue_ends_with_the_agent_that_asked_it() -> None:
    """As in quarantine, where the hand rule, which does not aim at the target, goes on behind the same guard."""
    flow = Flow()
    flow.ask_its_queue()
    for _ in range(100):
        flow.judged(flow.record(48, 15), 8, aims=False)
        assert flow.cap_pkts <= 12  # a look's, or what the agent wants


@pytest.mark.parametrize("together", [1, 2, 5])
def test_evidence_counts_round_trips_however_many_records_come_at_once(together: int) -> None:
    """A daemon that was busy finds several records of a flow, and asks about the last one."""
    flow = Flow()
    asked_ms = 0
    for number in range(1, 3001):
        fast = flow.time_ms < 5000
        record = flow.record(30 if fast else 48, 60 if fast else 15)
        if number % together:
            flow.guard.see(record, True)
            continue
        flow.judged(record)
        if flow.cap_pkts >= 40:
            asked_ms = flow.time_ms - 5000
            break
    assert asked_ms == pytest.approx(2520, abs=20 * together)
