"""The gate: no flow is capped before it has shown a standing queue of its own; by hand, then in the simulator."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.links import constant
from reinet.core import FEATURE_SETS, FLOW_STATS_DTYPE, Flag, StateBank
from reinet.envs.sim import SimBatch
from reinet.envs.sim_link import SimLinkEnv
from reinet.envs.trace import Trace

Stats = npt.NDArray[np.void]
MS = 1_000_000
QUEUE_US, DRAINED_US = 30_000, 20_500
"""The least RTT of a record with a queue in it all the time, and of one in which it drains, over 20 ms."""


def records(count: int, period_ms: float, **fields: Any) -> Stats:
    """One flow's records end to end; each field is one value or one for each record."""
    s = np.zeros(count, FLOW_STATS_DTYPE)
    s["period_ns"] = round(period_ms * MS)
    s["time_ns"] = 10**12 + np.cumsum(s["period_ns"])
    s["min_rtt_us"], s["srtt_us"], s["rtt_samples"], s["mss_bytes"], s["target_us"] = 20_000, 40_000, 5, 1448, 50_000
    s["cwnd_pkts"], s["inflight_pkts"] = 100, 50
    s["rtt_least_us"] = QUEUE_US
    for name, values in fields.items():
        s[name] = values
    s["rtt_mean_us"] = s["rtt_last_us"] = s["rtt_least_us"].astype(np.int64) + 10_000
    return s


def gate(s: Stats, young: bool = False) -> list[bool]:
    """Whether the flow may be capped after each record; if it is not young, it was busy for a second before."""
    bank = StateBank(1)
    if not young:
        assert not bank.update([0], second_before(s)).may_cap[0]
    return [bool(bank.update([0], s[i : i + 1]).may_cap[0]) for i in range(len(s))]


def second_before(s: Stats) -> Stats:
    """A record of a second whose queue drained, up to where another begins."""
    end_ns = s["time_ns"][0] - s["period_ns"][0]
    return records(1, 1000, time_ns=end_ns, rtt_least_us=DRAINED_US)


def opens_after(s: Stats, young: bool = False) -> int | None:
    """The number of the record that opens the gate."""
    seen = gate(s, young)
    assert seen == sorted(seen)  # once open it stays so
    return seen.index(True) + 1 if any(seen) else None


@pytest.mark.parametrize(
    ("period_ms", "number"), [(5, 16), (10, 8), (39.9, 3), (40, 2), (100, 1)], ids=lambda value: f"{value:g}"
)
def test_it_opens_after_a_queue_has_stood_for_two_smoothed_rtts_at_any_cadence(period_ms: float, number: int) -> None:
    assert opens_after(records(20, period_ms)) == number


@pytest.mark.parametrize(
    ("min_rtt_us", "threshold_us"),
    [(1_000, 4_000), (4_000, 4_000), (32_000, 4_000), (80_000, 10_000), (128_000, 16_000), (600_000, 16_000)],
)
def test_the_threshold_is_hystarts(min_rtt_us: int, threshold_us: int) -> None:
    least_us = min_rtt_us + threshold_us
    assert opens_after(records(9, 80, min_rtt_us=min_rtt_us, rtt_least_us=least_us)) == 1
    assert opens_after(records(9, 80, min_rtt_us=min_rtt_us, rtt_least_us=least_us - 1)) is None


def test_a_queue_that_drained_in_between_must_stand_for_two_round_trips_again() -> None:
    least_us = np.full(40, QUEUE_US)
    least_us[6] = DRAINED_US
    assert opens_after(records(40, 5, rtt_least_us=least_us)) == 7 + 16


def test_bursts_never_open_it() -> None:
    """Slow start: packets queue behind those of their own burst, the first of each burst finds the queue empty."""
    s = records(400, 5, rtt_least_us=np.where(np.arange(400) % 8 == 0, DRAINED_US, QUEUE_US + 60_000))
    assert s["rtt_mean_us"].mean() > 80_000
    assert opens_after(s) is None
    assert opens_after(records(50, 40, rtt_least_us=DRAINED_US)) is None


def test_what_the_application_limits_does_not_count() -> None:
    limited = np.zeros(40, np.uint32)
    limited[6] = Flag.APP_LIMITED
    assert opens_after(records(40, 5, flags=limited)) == 7 + 16
    assert opens_after(records(20, 5, flags=Flag.APP_LIMITED)) is None
    limited[:] = 0
    limited[20:] = Flag.APP_LIMITED
    assert gate(records(40, 5, flags=limited))[-1]  # nor does it close the gate


@pytest.mark.parametrize(
    ("inflight_pkts", "flags", "counts"),
    [(50, Flag.SLOW_START, False), (51, Flag.SLOW_START, True), (51, 0, False)],
    ids=["half of the window", "more", "no slow start"],
)
def test_what_the_application_limits_counts_in_a_slow_start_that_uses_its_window(
    inflight_pkts: int, flags: int, counts: bool
) -> None:
    """Linux marks nearly all of a slow start as limited by the application: its send buffer grows where it ran dry."""
    s = records(20, 5, flags=Flag.APP_LIMITED | flags, inflight_pkts=inflight_pkts)
    assert opens_after(s) == (16 if counts else None)


def test_a_flows_first_record_counts_not_where_it_is_marked() -> None:
    """What began with an empty socket is marked until its first ACK."""
    flags = np.array([Flag.APP_LIMITED | Flag.SLOW_START, 0, 0])
    marked = records(3, 600, flags=flags, inflight_pkts=100, srtt_us=500_000)
    assert (opens_after(marked, young=True), opens_after(records(3, 600, srtt_us=500_000), young=True)) == (3, 2)


def test_a_drained_queue_does_not_close_it_but_a_restart_does() -> None:
    least_us, flags = np.full(240, DRAINED_US), np.zeros(240, np.uint32)
    least_us[:18] = least_us[20:] = QUEUE_US
    flags[20] = Flag.RESTARTED
    seen = gate(records(240, 5, rtt_least_us=least_us, flags=flags))
    # After the restart the flow is young for a second, that of the restart included.
    assert seen == [False] * 15 + [True] * 5 + [False] * 199 + [True] * 21


def silenced(s: Stats, where: slice, samples: int) -> Stats:
    s["flags"][where] = Flag.NO_SAMPLE
    s["rtt_samples"][where] = samples
    if not samples:
        for name in ("rtt_least_us", "rtt_mean_us", "rtt_last_us"):
            s[name][where] = 0
    return s


def test_a_silence_leaves_it_as_it_was() -> None:
    assert opens_after(silenced(records(20, 250), slice(None), 0)) is None
    assert gate(silenced(records(30, 5), slice(16, None), 0)) == [False] * 15 + [True] * 15
    # In between it interrupts nothing: there was no packet that had found the queue empty.
    assert opens_after(silenced(records(20, 5), slice(2, 5), 0)) == 16


def test_a_silence_with_the_samples_of_a_period_that_goes_on_opens_nothing() -> None:
    """One sample with a queue, then an outage: that is no round trip of them."""
    assert opens_after(silenced(records(4, 250), slice(None), 1)) is None


@pytest.mark.parametrize("period_ms", [5, 40, 250])
def test_within_its_first_second_a_flow_is_left_alone(period_ms: float) -> None:
    assert opens_after(records(300, period_ms), young=True) == 1000 / period_ms
    least_us = np.where(np.arange(300) * period_ms < 1100, DRAINED_US, QUEUE_US)
    first = int(np.argmax(least_us == QUEUE_US))
    assert opens_after(records(300, period_ms, rtt_least_us=least_us), young=True) == first + max(80 / period_ms, 1)


@pytest.mark.parametrize("min_rtt_us", [0, 50, 999, 0xFFFF_FFFF], ids=["none", "loopback", "near", "unknown"])
def test_it_never_opens_for_neighbours_or_paths_that_are_not_known(min_rtt_us: int) -> None:
    for least_us in (QUEUE_US, 5_000_000, 0xFFFF_FFFF):
        s = records(50, 40, min_rtt_us=min_rtt_us)
        s["rtt_least_us"] = least_us
        assert opens_after(s) is None


def test_each_flow_has_its_own_in_every_feature_set() -> None:
    for name in FEATURE_SETS:
        bank = StateBank(2, name)
        queue, drained = records(1, 1040), records(1, 1040, rtt_least_us=DRAINED_US)
        assert bank.update([0, 1], np.concatenate([queue, drained])).may_cap.tolist() == [True, False]
        bank.reset([0])
        assert bank.update([0, 1], np.concatenate([drained, queue])).may_cap.tolist() == [False, True]


class Rule:
    """The gate in plain Python."""

    def __init__(self) -> None:
        self.began_ns: int | None = None
        self.since_ns: int | None = None
        self.open = False

    def update(self, r: Any) -> bool:
        time_ns, min_rtt_us = int(r["time_ns"]), int(r["min_rtt_us"])
        if r["flags"] & Flag.RESTARTED:
            self.began_ns, self.since_ns, self.open = None, None, False
        if self.began_ns is None:
            self.began_ns = time_ns - int(r["period_ns"])
        if r["rtt_samples"] and not self.open:
            threshold_us = min(max(min_rtt_us // 8, 4_000), 16_000)
            if (
                min_rtt_us < 1_000
                or (r["flags"] & Flag.APP_LIMITED and not (r["flags"] & Flag.SLOW_START and r["inflight_pkts"] > 50))
                or int(r["rtt_least_us"]) - min_rtt_us < threshold_us
            ):
                self.since_ns = None
            else:
                if self.since_ns is None:
                    self.since_ns = time_ns - int(r["period_ns"])
                stood = time_ns - self.since_ns >= 2 * int(r["srtt_us"]) * 1000
                self.open = stood and time_ns - self.began_ns >= 1000 * MS
        return self.open


ONE_RECORD = st.tuples(
    st.sampled_from([999, 1_000, 20_000, 60_000, 400_000, 0xFFFF_FFFF]),  # minimum RTT
    st.sampled_from([-500, 3_999, 4_000, 7_499, 7_500, 15_999, 16_000, 90_000]),  # least RTT above it
    st.sampled_from([0, 0, 0, Flag.APP_LIMITED, Flag.APP_LIMITED | Flag.SLOW_START, Flag.RESTARTED, Flag.NO_SAMPLE]),
    st.sampled_from([1, 20, 60, 400]),  # period in ms
    st.sampled_from([1_000, 25_000, 100_000]),  # smoothed RTT
    st.sampled_from([0, 50, 51, 120]),  # packets of 100 in flight
)


@given(st.lists(ONE_RECORD, min_size=1, max_size=30))
def test_a_plain_reading_of_the_rule_agrees(drawn: list[tuple[int, int, int, int, int, int]]) -> None:
    s, now_ns, rule = records(len(drawn), 1), 10**12, Rule()
    for record, (min_rtt_us, above_us, flags, period_ms, srtt_us, inflight_pkts) in zip(s, drawn, strict=True):
        now_ns += period_ms * MS
        record["time_ns"], record["period_ns"], record["flags"] = now_ns, period_ms * MS, flags
        record["min_rtt_us"], record["srtt_us"], record["inflight_pkts"] = min_rtt_us, srtt_us, inflight_pkts
        silent = flags == Flag.NO_SAMPLE
        record["rtt_samples"] = 0 if silent else 3
        record["rtt_least_us"] = 0 if silent else min(min_rtt_us + above_us, 0xFFFF_FFFF)
    assert gate(s, young=True) == [rule.update(record) for record in s]


# ---- in the simulator


def flow_under(cap_pkts: int, steps: int, **link: Any) -> tuple[list[Stats], list[bool], SimBatch]:
    """The records of a flow whose caps pass the gate as an agent's do, and the gate after each."""
    batch = SimBatch([{"late_us": 0, "jitter_us": 0, **link}], record_log=True)
    batch.reset()
    seen, may_cap = [batch.stats.copy()], [bool(batch.may_cap[0])]
    for _ in range(steps):
        batch.step_caps([cap_pkts if batch.may_cap[0] else 0])
        seen.append(batch.stats.copy())
        may_cap.append(bool(batch.may_cap[0]))
    return seen, may_cap, batch


def test_a_short_flow_without_a_queue_never_meets_a_cap() -> None:
    link = {"trace": constant(60.0), "mrtt_ms": 40.0, "flow_bytes": 100_000}
    capped, may_cap, batch = flow_under(4, 12, **link)
    plain, _, free = flow_under(0, 12, **link)
    assert not any(may_cap)
    assert np.array_equal(np.concatenate(capped), np.concatenate(plain))
    ours, theirs = batch.log(0), free.log(0)
    assert ours["departure_bytes"].sum() > 100_000
    for key in ("departure_ms", "departure_bytes", "departure_delay_ms"):
        assert np.array_equal(ours[key], theirs[key])


def test_a_bulk_flow_meets_its_cap_soon_after_its_queue_stands() -> None:
    seen, may_cap, batch = flow_under(10, 100, trace=constant(12.0), buffer_bytes=300_000)
    opened = may_cap.index(True)  # rounds of slow start fill 12 Mbit/s x 20 ms, then the queue, and a second goes by
    busy_ms = [int(record["time_ns"][0]) / 1e6 for record in seen]
    assert busy_ms[opened - 1] - busy_ms[0] < 1000 <= busy_ms[opened] + 1
    assert all(int(record["cap_pkts"][0]) == 0 for record in seen[: opened + 1])
    assert all(int(record["cap_pkts"][0]) == 10 for record in seen[opened + 1 :])
    late_ms = batch.log(0)["departure_delay_ms"][-200:]
    assert late_ms.mean() < 15.0


@pytest.mark.parametrize("head", ["cwnd", "bdp", "wide"])
def test_an_environments_action_does_nothing_before(head: str) -> None:
    """Two flows under opposite actions are one flow until the gate opens, and two thereafter."""

    def rollout(action: float) -> list[tuple[bytes, float, int]]:
        env = SimLinkEnv(Trace.constant(12.0, 5.0), head=head)
        _, info = env.reset(seed=0)
        steps = [(b"", 0.0, info["cap_pkts"])]
        for _ in range(100):
            state, reward, *_, info = env.step([action])
            steps.append((state.tobytes(), float(reward), info["cap_pkts"]))
        return steps

    low, high = rollout(-1.0), rollout(1.0)
    first = next(i for i, (_, _, cap_pkts) in enumerate(low) if cap_pkts)
    assert first >= 2
    assert low[:first] == high[:first]
    assert low[first:] != high[first:]
    assert all(cap_pkts for _, _, cap_pkts in low[first:])
