"""The simulated link and sender: Mahimahi's semantics, conservation, the cap, and figures known from real kernels."""

import os
import subprocess
import sys
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.links import Ms, assert_conserved, cellular, constant, run
from helpers.places import TESTS
from reinet.core import OPPORTUNITY_BYTES, ConfigError, Flag, PeriodConfig
from reinet.envs.sim import SimBatch


def throughput_mbps(log: dict[str, Any]) -> float:
    return float(log["departure_bytes"].sum() * 8e-3 / (log["end_ms"] - log["arrival_ms"][0]))


def mahimahi(log: dict[str, Any], trace: Ms, buffer_bytes: int) -> tuple[list[tuple[int, int]], list[int]]:
    """What mm-link would have done with these arrivals: departures as (ms, delay) and times of drops."""
    arrivals = deque(zip(log["arrival_ms"].astype(int), log["arrival_bytes"].astype(int), strict=True))
    queue: deque[tuple[int, int]] = deque()
    departures, drops, left, arrived = [], [], 0, 0
    loop, base, index = int(trace[-1]), 0, 0
    while base + int(trace[index]) <= log["end_ms"]:
        now = base + int(trace[index])
        while arrivals and arrivals[0][0] < now:  # an arrival in this very ms comes after the opportunity
            at, size = arrivals.popleft()
            if sum(s for _, s in queue) + size <= buffer_bytes:
                queue.append((at, size))
            else:
                drops.append(at)
        budget = OPPORTUNITY_BYTES
        while budget and (left or queue):
            if not left:
                arrived, left = queue.popleft()
            used = min(budget, left)
            budget, left = budget - used, left - used
            if not left:
                departures.append((now, now - arrived))
        index += 1
        if index == len(trace):
            base, index = base + loop, 0
    return departures, drops


@pytest.mark.parametrize("mss_bytes", [1448, 700, 300])
@pytest.mark.parametrize("seed", range(3))
def test_the_link_does_what_mahimahi_does(seed: int, mss_bytes: int) -> None:
    trace = cellular(seed, 5.0)
    batch, _ = run(trace, 12.0, buffer_bytes=40_000, mss_bytes=mss_bytes, start_offset_ms=700)
    log = batch.log(0)
    departures, drops = mahimahi(log, trace, 40_000)
    done = len(log["departure_ms"])
    assert done > 1000
    last_two_ms = log["end_ms"] - 2  # the link's process may still sleep over those
    assert 0 <= len(departures) - done <= sum(at > last_two_ms for at, _ in departures)
    assert departures[:done] == list(zip(log["departure_ms"], log["departure_delay_ms"], strict=True))
    assert len(drops) > 0
    assert drops[: len(log["drop_ms"])] == log["drop_ms"].tolist()[: len(drops)]


def test_the_log_names_every_opportunity_of_the_looping_trace() -> None:
    trace = np.array([0, 3, 3, 10], np.uint32)
    batch, _ = run(trace, 1.0, start_offset_ms=4)
    got = batch.log(0)["opportunity_ms"]
    loops = (np.arange(200)[:, None] * 10 + trace).ravel()
    expected = loops[loops > 4][: len(got)]
    assert np.array_equal(got, expected)
    assert batch.log(0)["end_ms"] - got[-1] < 10


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    cap_pkts=st.sampled_from([0, 4, 5, 10, 40, 200, 40_000]),
    buffer_bytes=st.sampled_from([1504, 10_000, 150_000, 1_000_000]),
    mrtt_ms=st.sampled_from([0.0, 5.0, 20.0, 80.0]),
)
def test_no_packet_is_made_or_lost_and_time_runs_forward(
    seed: int, cap_pkts: int, buffer_bytes: int, mrtt_ms: float
) -> None:
    batch, records = run(cellular(seed, 5.0), 5.0, cap_pkts, buffer_bytes=buffer_bytes, mrtt_ms=mrtt_ms)
    assert_conserved(batch)
    assert np.all(np.diff(records["time_ns"].astype(np.int64)) > 0)
    assert np.all(records["inflight_pkts"] < 4000)
    log = batch.log(0)
    assert np.all(log["departure_delay_ms"] >= 1)
    assert np.all(np.diff(log["departure_ms"]) >= 0)
    # The queue, replayed from the log, never holds more than the buffer and the packet half sent.
    events = sorted(
        [(t, 1, b) for t, b in zip(log["arrival_ms"], log["arrival_bytes"].astype(int), strict=True)]
        + [(t, 2, -b) for t, b in zip(log["drop_ms"], log["drop_bytes"].astype(int), strict=True)]
        + [(t, 0, -b) for t, b in zip(log["departure_ms"], log["departure_bytes"].astype(int), strict=True)]
    )
    after_each_ms = {t: total for (t, *_), total in zip(events, np.cumsum([e[2] for e in events]), strict=True)}
    assert all(0 <= total <= buffer_bytes + OPPORTUNITY_BYTES for total in after_each_ms.values())


def test_results_do_not_depend_on_the_batch() -> None:
    links: list[dict[str, Any]] = [
        {"trace": cellular(seed), "buffer_bytes": 30_000 * (seed + 1), "mrtt_ms": 4.0 + 8 * seed, "seed": seed}
        for seed in range(6)
    ]
    together = SimBatch(links, head="bdp")
    apart = [SimBatch([link], head="bdp") for link in links]
    actions = np.random.default_rng(0).uniform(-1, 1, (300, 6)).astype(np.float32)
    together.reset()
    for one in apart:
        one.reset()
    for step in actions:
        together.step(step)
        for row, one in enumerate(apart):
            one.step(step[row : row + 1])
            assert np.array_equal(one.states[0], together.states[row])
            assert one.rewards[0] == together.rewards[row]
            same = [n for n in one.stats.dtype.names or () if n not in ("cookie", "slot")]
            assert one.stats[same][0] == together.stats[same][row]


ONE_RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import hashlib
import numpy as np
from helpers.links import cellular
from reinet.envs.sim import SimBatch
from reinet.envs.link.spec import QUEUES
from reinet.envs.sim.options import SIM_CONGESTION_CONTROLS

links = [
    {
        "trace": cellular(i), "cc": cc, "queue": QUEUES[i % len(QUEUES)], "seed": i, "start_offset_ms": 100 * i,
        "buffer_bytes": 30_000, "loss": 0.01 * (i % 3), "jitter_us": 400, "forward_jitter_us": 500 * (i % 2),
        "pkts_per_ack": 2.0 + 0.4 * (i % 2), "wired_mbps": [(0.0, 8.0), (2000.0, 3.0)] if i % 4 == 0 else (),
        "scheduler": ("fifo", "proportional-fair")[i % 3 == 0], "flows": [{"cc": "bbr", "stepped": True}] * (i % 3),
    }
    for i, cc in enumerate(3 * SIM_CONGESTION_CONTROLS)  # some for every thread
]
batch = SimBatch(links, head="bdp", threads=int(sys.argv[2]))
batch.reset()
seen = hashlib.sha256()
for action in np.random.default_rng(0).uniform(-1, 1, (100, len(links))):
    batch.step(action)
    for values in (batch.stats, batch.states, batch.rewards, batch.rule_pkts, batch.decided):
        seen.update(values.tobytes())
print(seen.hexdigest())
"""


def test_a_fixed_seed_gives_the_same_bytes_in_every_process() -> None:
    # Also if memory that is new holds other bytes, names hash otherwise, and threads share the work.
    digests = set()
    for perturbation, threads in (("0", "1"), ("85", "1"), ("170", "3")):
        environment = os.environ | {"MALLOC_PERTURB_": perturbation, "PYTHONHASHSEED": perturbation}
        command = [sys.executable, "-c", ONE_RUN, str(TESTS), threads]
        digests.add(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def test_the_cap_bounds_the_window_and_the_delay_and_its_absence_does_not() -> None:
    trace = constant(12)
    _, free = run(trace, 8.0)
    batch, capped = run(trace, 8.0, cap_pkts=25)
    in_force = capped[2:]
    assert np.all(in_force["cap_pkts"] == 25)
    assert np.all(in_force["cwnd_pkts"] <= 25)
    assert free["cwnd_pkts"].max() > 100
    # Known from a stock kernel over Mahimahi: about 3.5 ms at 11.6 Mbit/s.
    log = batch.log(0)
    assert 2.5 <= log["departure_delay_ms"].mean() <= 4.5
    assert throughput_mbps(log) > 11.4


@pytest.mark.parametrize("cc", ["cubic", "reno", "westwood", "illinois"])
def test_a_cap_takes_a_window_and_leaves_it_in_ssthresh(cc: str) -> None:
    """Under a higher cap slow start leads back; by congestion avoidance 50 packets would take Reno 50 round trips."""
    batch = SimBatch([{"trace": constant(12.0), "mrtt_ms": 100.0, "buffer_bytes": 75_000, "cc": cc}])
    batch.reset()
    for _ in range(100):  # beyond what slow start lost
        batch.step_caps([0])
    while batch.stats["flags"][0] & Flag.IN_RECOVERY:
        batch.step_caps([0])
    assert batch.stats["cwnd_pkts"][0] > 70
    for _ in range(20):
        batch.step_caps([20])
    assert batch.stats["cwnd_pkts"][0] == 20
    for _ in range(5):
        batch.step_caps([70])
    assert batch.stats["cwnd_pkts"][0] == 70


def test_a_cap_is_in_force_so_long_after_its_record_as_deciding_takes() -> None:
    """The records say which cap was in force; decisions alternate, so each record shows how old its cap is."""
    answers = {}
    for decision_ms in (0.0, 25.0, 70.0):
        link = {"trace": constant(12.0), "late_us": 0, "jitter_us": 0, "decision_ms": decision_ms}
        batch = SimBatch([link], PeriodConfig(min_period_ns=20_000_000, packet_timed=False))
        batch.reset()
        decided: list[tuple[int, int]] = []
        for cap_pkts in range(20, 60):
            now_ns = int(batch.stats["time_ns"][0])
            in_force = [cap for since_ns, cap in decided if since_ns + decision_ms * 1e6 <= now_ns]
            assert batch.stats["cap_pkts"][0] == (in_force[-1] if in_force else 0)
            decided.append((now_ns, cap_pkts))
            batch.step_caps([cap_pkts])
        answers[decision_ms] = int(batch.stats["cap_pkts"][0])
    assert answers[0.0] == 59
    assert answers[25.0] < answers[0.0]
    assert answers[70.0] < answers[25.0]


def test_a_late_cap_lets_the_queue_grow_for_longer() -> None:
    quick, slow = (
        run(constant(12.0), 4.0, cap_pkts=20, decision_ms=decision_ms, buffer_bytes=600_000)[1]
        for decision_ms in (0.0, 400.0)
    )
    assert slow["rtt_mean_us"].max() > 1.5 * quick["rtt_mean_us"].max()
    assert slow["rtt_mean_us"][-20:].mean() == pytest.approx(quick["rtt_mean_us"][-20:].mean(), rel=0.05)


def test_plain_cubic_fills_the_buffer_as_the_kernels_does() -> None:
    # Known from a stock kernel over Mahimahi: about 77 ms at 11.85 Mbit/s.
    batch, records = run(constant(12), 60.0)
    log = batch.log(0)
    assert 70 <= log["departure_delay_ms"].mean() <= 88
    assert throughput_mbps(log) > 11.8
    # The sawtooth: losses cut the window to 0.7, now and then twice in a row, and it comes back to where it was.
    heard = records[records["rtt_samples"] > 0]
    cut = heard["cwnd_pkts"][200:]
    assert 0.7**2 - 0.05 <= cut.min() / cut.max() <= 0.78
    # Droptail at 99 packets: a loss or two per sawtooth, not a storm, and every one is repaired.
    assert 5 <= len(log["drop_ms"]) <= 100
    assert records["retrans_bytes"].sum() >= records["lost_bytes"].sum() > 0


def test_the_base_rtt_is_the_paths_and_a_millisecond_at_either_link() -> None:
    for mrtt_ms in (4.0, 20.0, 80.0):
        _, records = run(constant(12), 2.0, cap_pkts=4, mrtt_ms=mrtt_ms, late_us=0, jitter_us=0)
        assert records["min_rtt_us"][-1] == (mrtt_ms + 2) * 1000


def test_the_emulators_clocks_shake_the_rtt() -> None:
    """Known from Mahimahi at 20 ms and 12 Mbit/s: 21.2 to 26 ms, 24.1 ms on average."""
    _, records = run(constant(12), 10.0, cap_pkts=10)
    assert 20_500 <= records["min_rtt_us"][-1] <= 22_000
    assert 23_300 <= np.average(records["rtt_mean_us"], weights=records["rtt_samples"]) <= 24_700


def test_packets_that_come_at_once_are_acknowledged_at_once() -> None:
    """Known from Mahimahi: 2.0 packets an ACK at 12 Mbit/s, a packet a millisecond, and 3.8 at 48."""
    for mbps, expected in ((12.0, 2.0), (48.0, 4.0)):
        _, records = run(constant(mbps), 10.0, cap_pkts=150, buffer_bytes=600_000)
        steady = records[len(records) // 2 :]
        pkts = steady["delivered_bytes"].sum() / 1448
        assert pkts / steady["rtt_samples"].sum() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_on_a_path_that_keeps_the_order_only_what_was_dropped_is_lost(seed: int) -> None:
    """ACKs that come at one time are answered one after the other, and RACK must know in which order."""
    batch, records = run(cellular(seed), 60.0, late_us=100, jitter_us=1000)
    dropped = len(batch.log(0)["drop_ms"])
    assert dropped > 20
    assert (records["flags"] & Flag.IN_RECOVERY).any()
    assert records["lost_bytes"].sum() / 1448 <= dropped


def test_jitter_comes_from_the_seed_and_reorders_nothing() -> None:
    def rtts(**link: Any) -> list[int]:
        return run(constant(12), 2.0, cap_pkts=20, **link)[1]["rtt_mean_us"].tolist()

    assert rtts(seed=1) == rtts(seed=1) != rtts(seed=2)
    late, punctual = np.mean(rtts(jitter_us=4000)), np.mean(rtts(jitter_us=0))
    assert 1000 < late - punctual < 4000


def test_an_outage_is_reported_and_survived_at_full_speed() -> None:
    good = np.arange(1, 4001)
    trace = np.concatenate([good, good + 7000]).astype(np.uint32)  # 4 s at 12 Mbit/s, 3 s of nothing, 4 s more
    for cap_pkts in (0, 40):
        batch, records = run(trace, 10.5, cap_pkts)
        silent = records[(records["flags"] & Flag.NO_SAMPLE) != 0]
        assert len(silent) >= 10
        log = batch.log(0)
        after = log["departure_ms"] > 7500
        # The timeout was spurious and is undone: the flow does not crawl out of slow start.
        assert after.sum() >= 0.97 * (log["end_ms"] - 7500)


def test_silences_are_250_ms_apart() -> None:
    good = np.arange(1, 2001)
    _, records = run(np.append(good, 9000).astype(np.uint32), 8.0, cap_pkts=30)
    silent_ms = records["time_ns"][(records["flags"] & Flag.NO_SAMPLE) != 0] / 1e6
    assert np.allclose(np.diff(silent_ms[:20]), 250.0)


def test_losses_of_every_kind_are_repaired() -> None:
    # A buffer of a third of the path's BDP, on a link that also stands still now and then: bursts of losses, lost
    # retransmissions and timeouts. What arrives twice was sent in vain: it must stay rare.
    for seed in range(5):
        batch, records = run(cellular(seed), 60.0, buffer_bytes=10_000, mrtt_ms=40.0)
        delivered_pkts = records["delivered_bytes"].sum() / 1448
        p = batch.packets(0)
        assert records["lost_bytes"].sum() > 0
        assert p["dropped_pkts"] > 20
        assert p["delivered_pkts"] - delivered_pkts < 0.01 * p["delivered_pkts"] + 5
        assert delivered_pkts > 0.2 * len(batch.log(0)["opportunity_ms"])


def test_the_clairvoyant_sees_the_opportunities_to_come() -> None:
    trace = cellular(4)
    batch = SimBatch([{"trace": trace, "start_offset_ms": 500}])
    batch.reset()
    loops = np.concatenate([trace.astype(np.int64) + k * int(trace[-1]) for k in range(3)])
    for _ in range(400):
        now_ms = int(batch.stats["time_ns"][0]) // 1_000_000
        until_ms = (int(batch.stats["time_ns"][0]) // 1000 + int(batch.stats["min_rtt_us"][0])) // 1000 + 10
        expected = np.count_nonzero((loops > now_ms) & (loops <= until_ms)) + 1
        caps = batch.clairvoyant_caps(10)
        assert caps.tolist() == [expected]
        batch.step_caps(caps)


def test_a_reset_starts_the_row_anew_and_takes_the_new_link() -> None:
    batch = SimBatch([{"trace": constant(12), "late_us": 0, "jitter_us": 0}] * 2)
    batch.reset()
    first = batch.stats.copy()
    for _ in range(5):
        batch.step_caps([0, 0])
    other = batch.stats[1].copy()
    batch.set_link(0, {"trace": constant(12), "late_us": 0, "jitter_us": 0, "mrtt_ms": 40.0})
    batch.step_caps([0, 0])
    assert batch.stats["min_rtt_us"][0] == 22_000  # not before the reset
    batch.reset([0])
    assert batch.stats["min_rtt_us"][0] == 42_000
    assert batch.stats["time_ns"][1] > other["time_ns"]
    batch.set_link(0, {"trace": constant(12), "late_us": 0, "jitter_us": 0})
    batch.reset([0])
    assert batch.stats[0] == first[0]


def test_a_fixed_period_is_20_ms() -> None:
    batch = SimBatch([{"trace": constant(12)}], period=PeriodConfig(20_000_000, packet_timed=False))
    batch.reset()
    batch.step_caps([20])
    for _ in range(50):
        batch.step_caps([20])
        assert 20 <= batch.stats["period_ns"][0] / 1e6 <= 25


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ({"bufer_bytes": 1}, "unknown key bufer_bytes"),
        ({"cc": "cubik"}, "no congestion control 'cubik'; did you mean 'cubic'"),
        ({"buffer_bytes": 1000}, "buffer_bytes: 1000 is outside"),
        ({"mrtt_ms": -1.0}, "mrtt_ms"),
        ({"mrtt_ms": float("nan")}, "mrtt_ms"),
        ({"mss_bytes": 1500}, "mss_bytes"),
        ({"start_offset_ms": -1}, "start_offset_ms"),
    ],
)
def test_a_link_that_makes_no_sense_is_refused(link: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimBatch([{"trace": constant(1), **link}])


def test_misuse_is_refused_and_harms_nothing() -> None:
    with pytest.raises(ConfigError, match="trace is missing"):
        SimBatch([{}])
    with pytest.raises(ValueError, match="last value must be above 0"):
        SimBatch([{"trace": np.zeros(1, np.uint32)}])
    with pytest.raises(ValueError, match="must not fall"):
        SimBatch([{"trace": np.array([3, 2], np.uint32)}])
    with pytest.raises(ConfigError, match="trace: an array of unsigned"):
        SimBatch([{"trace": [0.5, 1.5]}])
    batch = SimBatch([{"trace": constant(1)}] * 2)
    with pytest.raises(ValueError, match=r"reset\(\) comes"):
        batch.step([0, 0])
    batch.reset()
    with pytest.raises(ValueError, match="one action per link"):
        batch.step([0])
    with pytest.raises(ValueError, match="record_log"):
        batch.log(0)
    with pytest.raises(ConfigError, match="numbers from 0 to 1 or a mask of 2"):
        batch.reset([2])
    with pytest.raises(IndexError):
        batch.set_link(2, {"trace": constant(1)})


@pytest.mark.parametrize(("mrtt_ms", "idle", "window_pkts"), [(20.0, True, 10), (400.0, False, 4)])
def test_the_first_window_after_an_idle_time_is_the_congestion_controls_own(
    mrtt_ms: float, idle: bool, window_pkts: int
) -> None:
    """A segment every 231 ms comes after an idle time where the RTT is 20 ms, and to others on their way where 400."""
    _, records = run(constant(12.0), 12.0, cap_pkts=4, app_mbps=0.05, mrtt_ms=mrtt_ms)
    later = records[5:]
    assert len(later) > 10
    assert set(((later["flags"] & Flag.RESTARTED) != 0).tolist()) == {idle}
    assert set(later["cap_pkts"].tolist()) == {0 if idle else 4}
    assert set(later["cwnd_pkts"].tolist()) == {window_pkts}


def test_a_cap_from_before_a_pause_acts_no_more_while_somebody_decides_on_the_record_after_it() -> None:
    """As in the kernel, whose lease is void until user space writes another one: it came back with the next ACK."""
    link = {"trace": constant(24.0), "mrtt_ms": 40.0, "object_bytes": 1_500_000, "pause_ms": 300.0, "decision_ms": 99.0}
    batch = SimBatch([link])
    batch.reset()
    since_restart, caps_pkts = 0, []
    while batch.stats["time_ns"][0] < 10e9:
        since_restart = 1 if batch.stats["flags"][0] & Flag.RESTARTED else since_restart + 1
        batch.step_caps([0 if since_restart <= 8 else 30])
        if 0 < since_restart < 8:
            caps_pkts.append(int(batch.stats["cap_pkts"][0]))
    assert len(caps_pkts) > 50
    assert set(caps_pkts) == {0}


def test_the_smoothed_rtt_is_of_the_first_packet_that_an_ack_is_for_and_the_sample_of_the_last() -> None:
    """tcp_clean_rtx_queue: one waits for the other, here for the 10 ms that the application needs for it."""
    link = {"pkts_per_ack": 2, "app_mbps": 1448 * 8 / 10_000, "mrtt_ms": 40.0, "late_us": 0, "jitter_us": 0}
    _, records = run(constant(12.0), 6.0, **link)
    later = records[records["time_ns"] > 3e9]
    assert len(later) > 50
    assert later["rtt_mean_us"].mean() == pytest.approx(42_000, abs=1500)
    assert later["srtt_us"].mean() - later["rtt_mean_us"].mean() == pytest.approx(10_000, abs=500)
