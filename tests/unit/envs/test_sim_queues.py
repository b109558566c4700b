"""Queues against mm-link's rules in Python; losses, delays, several flows, the wired bottleneck and the cell."""

import itertools
import math
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.links import Ms, assert_conserved, cellular, constant, run
from reinet.core import OPPORTUNITY_BYTES, ConfigError, Flag
from reinet.envs.link.spec import QUEUES
from reinet.envs.sim import SimBatch
from reinet.envs.sim.options import SIM_CONGESTION_CONTROLS

MASK = 2**64 - 1


def share_mbps(log: dict[str, Any], flow: int, from_ms: float = 0.0) -> float:
    counted = (log["departure_flow"] == flow) & (log["departure_ms"] >= from_ms)
    return float(log["departure_bytes"][counted].sum() * 8e-3 / (log["end_ms"] - max(from_ms, log["start_ms"])))


class Oracle:
    """mm-link's dropping queues: packets are (arrival ms, bytes); ``drops`` holds the times of drops."""

    def __init__(self, kind: str, limit_bytes: int, start_ms: int, seed: int) -> None:
        self.kind, self.limit_bytes = kind, limit_bytes
        self.queue: deque[tuple[int, int]] = deque()
        self.size = 0
        self.drops: list[int] = []
        # CoDel: target 5, interval 100
        self.first_above = self.drop_next = self.count = self.lastcount = 0
        self.dropping = False
        # PIE: reference 15, burst 150
        self.prob, self.burst, self.qdelay, self.qdelay_old = 0.0, 0, 0, 0
        self.dq_count, self.dq_from, self.rate, self.updated = -1, 0, 0, start_ms
        self.dice = seed

    def random(self) -> float:
        self.dice = (self.dice + 0x9E3779B97F4A7C15) & MASK
        z = self.dice
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 11) / 2**53

    def enqueue(self, now: int, size: int) -> None:
        fits = self.size + size <= self.limit_bytes
        if self.kind == "drophead":
            self.accept(now, size)
            while self.size > self.limit_bytes:
                self.take()
                self.drops.append(now)
            return
        if self.kind == "pie":
            self.pie_update(now)
            fits = fits and not self.pie_drops()
        if fits:
            self.accept(now, size)
        else:
            self.drops.append(now)

    def accept(self, now: int, size: int) -> None:
        self.queue.append((now, size))
        self.size += size

    def take(self) -> tuple[int, int]:
        packet = self.queue.popleft()
        self.size -= packet[1]
        return packet

    def dequeue(self, now: int) -> tuple[int, int]:
        if self.kind == "codel":
            return self.codel(now)
        packet = self.take()
        if self.kind == "pie":
            self.pie_measure(now, packet[1])
            self.pie_update(now)
        return packet

    def codel_take(self, now: int) -> tuple[tuple[int, int], bool]:
        packet = self.take()
        if not self.queue or now - packet[0] < 5 or self.size <= OPPORTUNITY_BYTES:
            self.first_above = 0
        elif self.first_above == 0:
            self.first_above = now + 100
        elif now >= self.first_above:
            return packet, True
        return packet, False

    def codel(self, now: int) -> tuple[int, int]:
        packet, ok = self.codel_take(now)
        if self.dropping:
            self.dropping = ok
            while self.dropping and now >= self.drop_next:
                _, ok = self.codel_take(now)
                self.drops.append(now)
                self.count += 1
                if ok:
                    self.drop_next += int(100 / math.sqrt(self.count))
                self.dropping = ok
        elif ok:
            self.codel_take(now)
            self.drops.append(now)
            self.dropping = True
            delta = self.count - self.lastcount
            self.count = delta if delta > 1 and now - self.drop_next < 1600 else 1
            self.drop_next = now + int(100 / math.sqrt(self.count))
            self.lastcount = self.count
        return packet

    def pie_drops(self) -> bool:
        if self.burst > 0 or (self.qdelay_old < 7 and self.prob < 0.2) or self.size < 2 * OPPORTUNITY_BYTES:
            return False
        return self.random() < self.prob

    def pie_measure(self, now: int, size: int) -> None:
        if self.size >= 16384 and self.dq_count < 0:
            self.dq_from, self.dq_count = now, 0
        if self.dq_count < 0:
            return
        self.dq_count += size
        elapsed = now - self.dq_from
        if self.dq_count > 16384 and elapsed > 0:
            sample = self.dq_count // elapsed
            self.rate = sample if self.rate == 0 else self.rate - (self.rate >> 3) + (sample >> 3)
            self.dq_from, self.dq_count = (now, 0) if self.size >= 16384 else (self.dq_from, -1)
            self.burst = max(0, self.burst - elapsed)

    def pie_update(self, now: int) -> None:
        while now - self.updated > 30:
            self.qdelay_old, self.qdelay = self.qdelay, self.size // self.rate if self.rate else 0
            step = 0.125 * (self.qdelay - 15) + 1.25 * (self.qdelay - self.qdelay_old)
            self.prob += step / (128 if self.prob < 0.01 else 32 if self.prob < 0.1 else 16)
            capped = self.prob > 1
            self.prob = min(max(self.prob, 0.0), 1.0)
            if self.qdelay == 0 == self.qdelay_old and self.size == 0 and not capped:
                self.prob *= 0.98
            self.burst = max(0, self.burst - 30)
            self.updated += 30
            if self.prob == 0 and self.qdelay < 7 and self.qdelay_old < 7 and self.rate > 0:
                self.dq_count, self.rate, self.burst = -1, 0, 150


def replay(log: dict[str, Any], trace: Ms, oracle: Oracle) -> list[tuple[int, int]]:
    """Departures as (ms, delay) of the log's arrivals through that queue."""
    loops = int(log["end_ms"] // trace[-1]) + 2
    times = (np.arange(loops)[:, None] * int(trace[-1]) + trace.astype(np.int64)).ravel()
    arrivals = deque(zip(log["arrival_ms"].astype(int).tolist(), log["arrival_bytes"].tolist(), strict=True))
    departures = []
    transit: tuple[int, int] | None = None
    left = 0
    for now in times[times <= log["end_ms"]].tolist():
        while arrivals and arrivals[0][0] < now:
            oracle.enqueue(*arrivals.popleft())
        room = OPPORTUNITY_BYTES
        while room:
            if left == 0:
                if not oracle.queue:
                    break
                transit = oracle.dequeue(now)
                left = transit[1]
            used = min(room, left)
            room, left = room - used, left - used
            if left == 0 and transit:
                departures.append((now, now - transit[0]))
    return departures


@pytest.mark.parametrize("mss_bytes", [1448, 700])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["droptail", "drophead", "codel", "pie"])
def test_queues_do_what_mm_links_do(kind: str, seed: int, mss_bytes: int) -> None:
    trace = cellular(seed, 5.0)
    batch, _ = run(
        trace, 12.0, queue=kind, buffer_bytes=60_000, mss_bytes=mss_bytes, start_offset_ms=700, seed=seed, mrtt_ms=40.0
    )
    log = batch.log(0)
    oracle = Oracle(kind, 60_000, 700, seed)
    departures = replay(log, trace, oracle)
    got = list(zip(log["departure_ms"].astype(int), log["departure_delay_ms"].astype(int), strict=True))
    assert len(got) > 500
    last_two_ms = log["end_ms"] - 2  # the link's process may still sleep over those
    assert abs(len(departures) - len(got)) <= sum(at > last_two_ms for at, _ in departures)
    common = min(len(departures), len(got))
    assert departures[:common] == got[:common]
    drops = log["drop_ms"].astype(int).tolist()
    assert len(drops) > 5
    assert abs(len(drops) - len(oracle.drops)) < 4
    common = min(len(drops), len(oracle.drops))
    assert drops[:common] == oracle.drops[:common]


def test_an_infinite_queue_drops_nothing_and_active_ones_keep_it_short() -> None:
    delays = {}
    for kind in QUEUES:
        log = run(constant(12), 20.0, queue=kind, buffer_bytes=0, buffer_pkts=300)[0].log(0)
        assert (len(log["drop_ms"]) == 0) == (kind == "infinite")
        delays[kind] = log["departure_delay_ms"].mean()
    assert delays["codel"] < 20
    assert delays["pie"] < 40
    assert delays["droptail"] > 150
    assert delays["infinite"] > delays["droptail"]


@pytest.mark.parametrize(("cc", "queue"), list(zip(SIM_CONGESTION_CONTROLS, itertools.cycle(QUEUES), strict=False)))
@settings(max_examples=8)
@given(
    seed=st.integers(0, 1000),
    cap_pkts=st.sampled_from([0, 4, 40]),
    loss=st.sampled_from([0.0, 0.02, 0.3]),
    wired=st.sampled_from([(), ((0.0, 6.0), (700.0, 0.0), (900.0, 2.0))]),
    scheduler=st.sampled_from(["fifo", "proportional-fair"]),
    others=st.lists(st.sampled_from(SIM_CONGESTION_CONTROLS), max_size=3),
    forward_jitter_us=st.sampled_from([0, 3000]),
    pkts_per_ack=st.sampled_from([2.0, 3.5]),
)
def test_no_packet_is_made_or_lost_on_any_path(
    cc: str,
    queue: str,
    seed: int,
    cap_pkts: int,
    loss: float,
    wired: tuple[tuple[float, float], ...],
    scheduler: str,
    others: list[str],
    forward_jitter_us: int,
    pkts_per_ack: float,
) -> None:
    further = [
        {"cc": other, "start_ms": 300.0 * i, "stop_ms": 2000.0 + 500 * i, "mrtt_ms": 5.0 + 30 * i}
        for i, other in enumerate(others)
    ]
    batch, records = run(
        cellular(seed, 5.0), 4.0, cap_pkts, cc=cc, queue=queue, buffer_bytes=20_000, buffer_pkts=10, loss=loss,
        wired_mbps=wired, wired_buffer_bytes=30_000, scheduler=scheduler, flows=further, seed=seed,
        forward_jitter_us=forward_jitter_us, pkts_per_ack=pkts_per_ack,
    )  # fmt: skip
    assert_conserved(batch)
    assert np.all(np.diff(records["time_ns"].astype(np.int64)) > 0)
    log = batch.log(0)
    assert batch.packets(0)["queued_pkts"] == len(log["arrival_ms"]) - len(log["departure_ms"]) - len(log["drop_ms"])
    users = len(others) + 1 if scheduler != "fifo" else 1
    for name in ("arrival_ms", "departure_ms", "drop_ms"):
        assert np.all(np.diff(log[name]) >= 0)
    events = sorted(
        [(t, 1, 1) for t in log["arrival_ms"]] + [(t, 2, -1) for t in log["drop_ms"]]
        + [(t, 0, -1) for t in log["departure_ms"]]
    )  # fmt: skip
    after_each_ms = {t: total for (t, *_), total in zip(events, np.cumsum([e[2] for e in events]), strict=True)}
    limit = 10**9 if queue == "infinite" else users * 11
    assert all(0 <= total <= limit for total in after_each_ms.values())


def test_losses_come_from_the_seed_at_their_rate() -> None:
    batch, _ = run(constant(12), 20.0, cap_pkts=30, loss=0.05, seed=3)
    assert len(batch.log(0)["drop_ms"]) == 0
    p = batch.packets(0)
    assert p["dropped_pkts"] / p["sent_pkts"] == pytest.approx(0.05, rel=0.2)
    assert (
        run(constant(12), 5.0, loss=0.05, seed=3)[1].tobytes() == run(constant(12), 5.0, loss=0.05, seed=3)[1].tobytes()
    )
    assert (
        run(constant(12), 5.0, loss=0.05, seed=3)[1].tobytes() != run(constant(12), 5.0, loss=0.05, seed=4)[1].tobytes()
    )


def test_the_way_there_may_be_longer_than_the_way_back() -> None:
    for forward_ms in (0.0, 5.0, 20.0):
        batch, records = run(constant(12), 2.0, cap_pkts=4, mrtt_ms=20.0, forward_ms=forward_ms, late_us=0, jitter_us=0)
        assert records["min_rtt_us"][-1] == 22_000
        assert batch.log(0)["arrival_ms"][0] == forward_ms
    late, punctual = (
        np.mean(run(constant(12), 2.0, cap_pkts=4, jitter_us=0, forward_jitter_us=us)[1]["rtt_mean_us"])
        for us in (6000, 0)
    )
    assert 1500 < late - punctual < 6000


def test_flows_share_a_queue_and_each_has_its_life() -> None:
    flows = [{"cc": "cubic", "start_ms": 4000.0, "stop_ms": 12_000.0}]
    batch, records = run(constant(12), 20.0, flows=flows)
    log = batch.log(0)
    other = log["arrival_ms"][log["arrival_flow"] == 1]
    assert 4010 <= other[0] < 4011
    assert 11_000 < other[-1] <= 12_010
    during = (log["departure_ms"] > 6000) & (log["departure_ms"] < 12_000)
    assert 0.2 < np.mean(log["departure_flow"][during] == 1) < 0.8
    assert share_mbps(log, 0, 14_000) > 11.5
    assert set(records["cookie"]) == {1}  # the other's records are its own business


def test_flows_that_are_stepped_take_turns_with_a_cap_each() -> None:
    batch = SimBatch([{"trace": constant(12), "flows": [{"stepped": True, "mrtt_ms": 40.0}, {"cap_pkts": 7}]}])
    batch.reset()
    caps = {1: 10, 1 + 2**32: 20}
    seen = []
    for _ in range(200):
        batch.step_caps([caps[int(batch.stats["cookie"][0])]])
        seen.append(batch.stats.copy())
    records = np.concatenate(seen)
    assert np.all(np.diff(records["time_ns"].astype(np.int64)) >= 0)
    for cookie, cap_pkts in caps.items():
        own = records[records["cookie"] == cookie]
        assert len(own) > 40
        assert np.all(own["cap_pkts"][2:] == cap_pkts)
        assert np.all(own["cwnd_pkts"][2:] <= cap_pkts)
        assert np.all(np.diff(own["time_ns"].astype(np.int64)) > 0)
    assert (
        records["min_rtt_us"][records["cookie"] > 1][-1] >= 40_000 > records["min_rtt_us"][records["cookie"] == 1][-1]
    )


def test_a_stopped_flow_says_so_and_time_goes_on() -> None:
    _, records = run(constant(12), 4.0, start_ms=500.0, stop_ms=2000.0)
    closed = records[(records["flags"] & Flag.CLOSED) != 0]
    assert records["time_ns"][0] > 500_000_000
    assert closed["time_ns"][0] == 2_000_000_000
    assert np.all(np.diff(closed["time_ns"].astype(np.int64)) == 250_000_000)


def test_a_wired_bottleneck_follows_its_rate() -> None:
    # DeepCC's experiment: 30 -> 6 -> 30 Mbit/s in front of a faster link.
    steps = ((0.0, 30.0), (5000.0, 6.0), (10_000.0, 30.0))
    batch, _ = run(constant(48), 15.0, wired_mbps=steps, wired_buffer_bytes=150_000)
    log = batch.log(0)
    rates = [
        log["departure_bytes"][(log["departure_ms"] > a) & (log["departure_ms"] <= b)].sum() * 8e-3 / (b - a)
        for a, b in ((1000, 5000), (6000, 10_000), (11_000, 15_000))
    ]
    assert rates == pytest.approx([30, 6, 30], rel=0.06)
    assert max(rates) <= 30.1
    assert len(log["drop_ms"]) == 0 < batch.packets(0)["dropped_pkts"]
    assert log["departure_delay_ms"].mean() > 20  # the queue is before the wired link


def test_a_wired_link_carries_bits_exactly() -> None:
    # 3 Mbit/s: 1504 bytes take 4010.7 us.
    _, records = run(constant(48), 20.0, cap_pkts=40, wired_mbps=((0.0, 3.0),))
    steady = records[20:]
    spacing_us = 1448 * steady["period_ns"].sum() / 1000 / steady["delivered_bytes"].sum()
    assert spacing_us == pytest.approx(1504 * 8 / 3, rel=0.003)


def test_a_cell_with_one_user_is_a_link() -> None:
    for kind in ("droptail", "codel"):
        link, cell = (
            run(cellular(2), 10.0, queue=kind, scheduler=scheduler, late_us=0)[1]
            for scheduler in ("fifo", "proportional-fair")
        )
        assert np.array_equal(link, cell)


def test_a_cell_shares_time_fairly_and_rides_on_good_channels() -> None:
    # Equal shares of time: the user whose channel carries three times as much gets three times as much.
    batch, _ = run(
        constant(12), 20.0, scheduler="proportional-fair", buffer_bytes=600_000, flows=[{"trace": constant(36)}]
    )
    slow, fast = (share_mbps(batch.log(0), flow, 5000) for flow in (0, 1))
    assert slow == pytest.approx(6, rel=0.15)
    assert fast == pytest.approx(18, rel=0.15)
    # Channels that take turns at being good, 100 ms each: the scheduler waits for each one's good times.
    ms = np.arange(1, 10_001)
    good = (ms // 50) % 2 == 0
    one, two = (
        np.sort(np.concatenate([ms, *[ms[at]] * 3])).astype(np.uint32) for at in (good, ~good)
    )  # 48 Mbit/s when good, else 12
    batch, _ = run(one, 20.0, scheduler="proportional-fair", buffer_bytes=1_000_000, flows=[{"trace": two}])
    log = batch.log(0)
    assert share_mbps(log, 0, 5000) + share_mbps(log, 1, 5000) > 1.3 * (30.0 / 2 + 30.0 / 2)


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ({"queue": "codl"}, "no queue 'codl'; did you mean 'codel'"),
        ({"buffer_bytes": 0}, "buffer_bytes: a droptail queue needs a limit"),
        ({"loss": 1.0}, "loss"),
        ({"forward_ms": 21.0}, "forward_ms"),
        ({"scheduler": "pf"}, "no scheduler 'pf'"),
        ({"wired_mbps": [(1.0, 5.0)]}, "first at 0 ms"),
        ({"wired_mbps": [(0.0, 0.0)]}, "last above it"),
        ({"wired_mbps": [(0.0, 1.0), (0.0, 2.0)]}, "times rising"),
        ({"detour_ms": [(5.0, 1.0), (5.0, 2.0)]}, "times rising"),
        ({"detour_ms": [(5.0, -1.0)]}, "detours from 0"),
        ({"detour_ms": 20}, "detour_ms: .* pairs are needed"),
        ({"flows": [{"cc": "cubik"}]}, "did you mean 'cubic'"),
        ({"flows": [{"strat_ms": 1}]}, "flow: unknown key strat_ms"),
        ({"flows": [{"start_ms": 5.0, "stop_ms": 5.0}]}, "not after start_ms"),
        ({"flows": [{"trace": constant(1)}]}, "proportional-fair"),
        ({"flows": [{"mrtt_ms": -1.0}]}, "mrtt_ms"),
        ({"codel_target_ms": 0}, "codel_target_ms"),
        ({"pie_burst_ms": 0}, "pie_burst_ms"),
    ],
)
def test_a_path_that_makes_no_sense_is_refused(link: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimBatch([{"trace": constant(1), **link}])
