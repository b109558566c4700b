"""Caps on the running kernel: they act, lapse by themselves, and meet nobody but the flow they are for."""

import mmap
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from helpers.flows import (
    CAP_PKTS,
    RATE_MBIT,
    LaggedError,
    capped_loop,
    has,
    lose_a_few,
    read_for,
    settled,
    undisturbed,
)
from reinet.core import MIN_CAP_PKTS
from reinet.core.period import SILENCE_NS, PeriodConfig
from reinet.core.records import Flag
from reinet.kshim.kernel import KernelLoader, KernelShim
from reinet.kshim.leases import LeaseKeeper

SLOW_MBIT = 8
"""A packet takes 1.5 ms, so that a window of 80 is on its way for 120 ms."""
pytestmark = pytest.mark.kernel


@undisturbed
def test_cap_acts_and_lapses(cgroup, transfer, cc):
    with KernelShim([cgroup], target_us=50_000) as shim:
        flow = transfer(cc=cc, cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=60, until_told=True)
        assert flow.cc == shim.wrappers[cc]
        plain = read_for(shim, 1.2)
        keeper = LeaseKeeper(shim)
        each = capped_loop(keeper, CAP_PKTS)
        read_for(shim, 0.3, each)
        capped = read_for(shim, 1.0, each)
        read_for(shim, 0.6)  # nobody renews
        lapsed = read_for(shim, 1.0)
        assert flow.result()["intact"]

    for records in (plain, capped, lapsed):
        assert len(records) > 10
        assert set(records["cookie"].tolist()) == {flow.cookie}
        assert set(records["target_us"].tolist()) == {50_000}
    assert (plain["cap_pkts"] == 0).all()
    assert plain["cwnd_pkts"].max() > 2 * CAP_PKTS
    restarted = has(capped, Flag.RESTARTED)  # by a pause of the host that is long beside 6 ms
    assert restarted.mean() < 0.1
    assert (capped["cap_pkts"][~restarted] == CAP_PKTS).all()
    assert capped["cwnd_pkts"][~restarted & ~has(capped, Flag.IN_RECOVERY)].max() <= CAP_PKTS
    capped_window_us = CAP_PKTS * 1500 * 8 / RATE_MBIT  # how long the link needs for it: 6 ms
    rtt_us = np.median(capped["rtt_mean_us"])
    if restarted.any() and rtt_us >= 1.2 * capped_window_us:
        raise LaggedError  # what paused the sender delayed ACKs too; the third such run fails the test
    assert rtt_us < 1.2 * capped_window_us
    assert plain["rtt_mean_us"].max() > 3 * capped_window_us
    assert capped["rtt_samples"].min() > 0
    assert (lapsed["cap_pkts"] == 0).all()
    assert lapsed["cwnd_pkts"].max() > 1.5 * CAP_PKTS  # BBR comes to rest at some 18


@undisturbed
@pytest.mark.parametrize("loss_based", ["cubic", "reno"])
def test_a_loss_right_after_a_cap_took_a_window_leaves_what_the_cap_left(cgroup, transfer, loss_based):
    """Of the capped window the algorithm would take its share a second time: 14 of 20 packets, or 10. The kernel's rate
    reduction may have taken a packet or two itself when the loss is found."""
    seen_pkts = (ssthresh_after_a_fall(cgroup, transfer, loss_based, from_pkts=80, to_pkts=20) for _ in range(12))
    valid_pkts = list(islice((pkts for pkts in seen_pkts if pkts is not None), 3))
    if len(valid_pkts) < 3:
        raise LaggedError
    assert all(17 <= pkts <= 20 for pkts in valid_pkts)  # no share of the earlier window either, which would be 40


def ssthresh_after_a_fall(cgroup, transfer, loss_based, from_pkts, to_pkts):
    """Return what a loss of packets that were sent before a fall of the cap makes ssthresh, or None where the host
    lagged."""
    with resting_under(from_pkts, cgroup, transfer, loss_based) as (flow, shim, cap_at):
        fallen_ns = time.monotonic_ns()
        records = cap_at(to_pkts, 0.02)  # the next ACK takes the window; its packets come for longer than that
        lose_a_few(flow)
        records = np.concatenate([records, read_for(shim, 0.6)])
        assert flow.result()["intact"]
    capped = records[records["cap_pkts"] == to_pkts]
    in_recovery = capped[has(capped, Flag.IN_RECOVERY)]  # the first is of the first loss, the only one that counts
    if not in_recovery.size or has(capped, Flag.RESTARTED).any():
        return None
    # Nothing is sent under the cap before all but its packets have come.
    earlier_ns = (from_pkts - to_pkts) * 1500 * 8 * 1000 // SLOW_MBIT
    return in_recovery["ssthresh_pkts"][0] if in_recovery["time_ns"][0] < fallen_ns + earlier_ns else None


@undisturbed
@pytest.mark.parametrize("loss_based", ["cubic", "reno"])
def test_a_loss_under_a_cap_leaves_the_cap_and_a_further_one_does_not(cgroup, transfer, loss_based):
    """The first counts against a window that has grown for so long under the cap that the algorithm's share of it is
    above that; the second, a few windows later, counts nearly against the cap. The kernel's rate reduction may have
    taken a packet or two itself when a loss is found."""
    cap_pkts = 40
    grown_s = 1.25 * cap_pkts**2 * 1500 * 8 / (SLOW_MBIT * 1e6)  # a packet for each of that many windows
    with resting_under(cap_pkts, cgroup, transfer, loss_based) as (flow, _, cap_at):
        for _ in range(round(grown_s / 0.5)):
            cap_at(cap_pkts, 0.5)
        answers_pkts = []
        for _ in range(2):
            lose_a_few(flow)
            records = cap_at(cap_pkts, 0.3)
            in_recovery = records[has(records, Flag.IN_RECOVERY)]
            if not in_recovery.size or has(records, Flag.RESTARTED).any():
                raise LaggedError
            answers_pkts.append(in_recovery["ssthresh_pkts"][0])
        assert flow.result()["intact"]
    assert cap_pkts - 3 <= answers_pkts[0] <= cap_pkts
    assert answers_pkts[1] <= 0.85 * cap_pkts  # Cubic takes 0.7 of it, and it has grown by five packets, or by eight


@contextmanager
def resting_under(cap_pkts, cgroup, transfer, loss_based):
    """Yield a lossy flow whose window has come to rest under a cap, its shim, and what caps it at so many packets and
    reads for so many seconds."""
    often = PeriodConfig(min_period_ns=2_000_000, packet_timed=False)  # a reduction lasts a round trip, 25 ms or more
    with KernelShim([cgroup], period=often) as shim:
        flow = transfer(cc=loss_based, cgroup=cgroup, rate_mbit=SLOW_MBIT, seconds=60, until_told=True, lossy=True)
        cookies, slots = of_one(flow, shim)

        def cap_at(pkts, seconds):
            shim.apply(cookies, slots, np.full(1, pkts, np.uint32), lease(900), np.zeros(1, np.uint32))
            return read_for(shim, seconds)

        while (cap_at(cap_pkts, 0.5)["cwnd_pkts"] != cap_pkts).any():  # slow start's own loss comes first
            pass
        yield flow, shim, cap_at


def of_one(flow, shim):
    """Return cookie and slot of the only flow, as ``apply`` wants them, when it has been heard of."""
    records = read_for(shim, 0.3)
    while not records.size:
        records = read_for(shim, 0.3)
    return np.array([flow.cookie], np.uint64), records["slot"][-1:].copy()


def lease(ms):
    return time.monotonic_ns() + ms * 1_000_000


def test_release_lifts_at_once_and_a_cap_of_zero_too(cgroup, transfer):
    with KernelShim([cgroup]) as shim:
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=60)
        name = of_one(flow, shim)
        caps_pkts, target = np.array([CAP_PKTS], np.uint32), np.array([40_000], np.uint32)

        def capped():
            shim.apply(*name, caps_pkts, lease(900), target)
            return CAP_PKTS in read_for(shim, 0.3)["cap_pkts"]

        assert settled(capped)
        shim.apply(*name, caps_pkts, lease(900), target)
        shim.release(*name)
        read_for(shim, 0.1)
        assert not (records := read_for(shim, 0.3))["cap_pkts"].any()  # within the lease
        assert (records["target_us"] == 40_000).all()
        assert settled(capped)
        shim.apply(*name, np.array([0], np.uint32), lease(900), target)
        read_for(shim, 0.1)
        assert not read_for(shim, 0.3)["cap_pkts"].any()


def test_a_cap_for_another_flow_of_the_slot_has_no_effect(cgroup, transfer):
    with KernelShim([cgroup]) as shim:
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=60)
        cookies, slots = of_one(flow, shim)
        caps_pkts = np.array([CAP_PKTS], np.uint32)
        batches = []
        for _ in range(5):
            shim.apply(cookies + np.uint64(1), slots, caps_pkts, lease(900), caps_pkts)
            batches.append(read_for(shim, 0.1))
        records = np.concatenate(batches)
        assert len(records) > 5
        assert (records["cap_pkts"] == 0).all()
        assert (records["target_us"] == 0).all()
        with pytest.raises(IndexError, match="slot 4096 does not exist"):
            shim.apply(cookies, np.array([4096]), caps_pkts, 0, caps_pkts)


@pytest.mark.parametrize("ahead_ms", [1_600, 60_000])
def test_a_lease_that_reaches_too_far_ahead_never_acts(cgroup, transfer, ahead_ms):
    """Whoever wrote it by mistake may be killed the next moment, and a second later no cap acts."""
    with KernelShim([cgroup]) as shim:
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=60)
        name = of_one(flow, shim)
        shim.apply(*name, np.array([CAP_PKTS], np.uint32), lease(ahead_ms), np.array([40_000], np.uint32))
        records = read_for(shim, 2.0)  # beyond the end of the shorter one
        assert len(records) > 10
        assert (records["cap_pkts"] == 0).all()
        assert (records["target_us"][-5:] == 40_000).all()  # it was read
        assert shim.counters()["leases_too_long"] == 1


def test_a_cap_below_the_floor_acts_as_the_floor(cgroup, transfer):
    """Whoever writes caps may have gone mad; a window of one packet would stop the flow as good as altogether."""
    with KernelShim([cgroup]) as shim:
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=60)
        name = of_one(flow, shim)

        def floored():
            shim.apply(*name, np.array([1], np.uint32), lease(900), np.array([40_000], np.uint32))
            records = read_for(shim, 0.3)
            seen = records[records["cap_pkts"] != 0]
            assert set(seen["cap_pkts"].tolist()) <= {MIN_CAP_PKTS}
            return seen.size and (seen["cwnd_pkts"] == MIN_CAP_PKTS).any()

        assert settled(floored)


def test_what_the_kernel_writes_cannot_be_written_by_whoever_holds_the_descriptors(cgroup):
    loader = KernelLoader([cgroup])
    try:
        for name in ("slots", "counters"):
            fd = getattr(loader.descriptors, name)
            mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ).close()
            with pytest.raises(PermissionError):
                mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        mmap.mmap(loader.descriptors.caps, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()
    finally:
        loader.close()


def test_a_child_has_no_memory_of_the_shims(cgroup):
    """Those of the daemon are forked from its loader, and are to write nothing but what they are handed."""
    with KernelShim([cgroup]):
        assert "bpf-map" in Path("/proc/self/maps").read_text()
        if not (child := os.fork()):
            os._exit("bpf-map" in Path("/proc/self/maps").read_text())
        assert os.waitpid(child, 0)[1] == 0


@undisturbed
def test_silence_is_reported_and_the_cap_outlives_it(cgroup, transfer):
    with KernelShim([cgroup]) as shim:
        keeper = LeaseKeeper(shim)
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=3.0, outage=(0.5, 1.5))
        records = read_for(shim, 3.0, capped_loop(keeper, CAP_PKTS))
        assert flow.result()["intact"]
    records = records[np.flatnonzero(records["cap_pkts"])[0] :]  # from the first answer on
    silent = records[has(records, Flag.NO_SAMPLE)]
    assert len(silent) >= 4
    starts_ns = (silent["time_ns"] - silent["period_ns"]).tolist()
    longest = silent[np.array(starts_ns) == max(set(starts_ns), key=starts_ns.count)]
    assert len(longest) >= 3, "a silence ends no period"
    gaps_ns = np.diff(longest["time_ns"].astype(np.int64))
    assert gaps_ns.min() >= SILENCE_NS
    assert np.median(gaps_ns) <= 1.5 * SILENCE_NS
    assert (records["cap_pkts"] == CAP_PKTS).all()


@undisturbed
def test_the_first_window_after_a_pause_is_the_congestion_controls_own(cgroup, transfer, cc):
    """The pauses are longer than an RTT and shorter than a lease, which is renewed throughout."""
    with KernelShim([cgroup], target_us=50_000) as shim:
        keeper = LeaseKeeper(shim)
        transfer(cc=cc, cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=60, burst=(150_000, 0.15))
        records = read_for(shim, 4.0, capped_loop(keeper, CAP_PKTS))
        assert len(keeper) == 1
    records = records[np.flatnonzero(records["cap_pkts"])[0] :]  # from the first answer on
    after_pause = has(records, Flag.RESTARTED)
    assert after_pause.sum() >= 4
    assert (records["cap_pkts"][after_pause] == 0).all()
    assert records["cwnd_pkts"][after_pause].max() > CAP_PKTS
    # A host that lags by a period answers a pause's record late.
    assert np.mean(records["cap_pkts"][~after_pause] == CAP_PKTS) > 0.5


@undisturbed
@pytest.mark.parametrize(("loss_based", "pause_s"), [("cubic", 0.15), ("reno", 0.15), ("cubic", 0.8)])
def test_after_a_pause_the_window_that_the_cap_withheld_is_given_back(cgroup, transfer, loss_based, pause_s):
    """What is sent each time fits into the queue, so that no loss makes the window another one. It may go out at once,
    so a period must end, and a cap come, within its ACKs. A pause of several timeouts halves no window where the host's
    tcp_slow_start_after_idle is off."""
    often = PeriodConfig(min_period_ns=2_000_000, packet_timed=False)
    with KernelShim([cgroup], period=often, target_us=50_000) as shim:
        keeper = LeaseKeeper(shim)
        keeps = pause_s > 0.2  # the least timeout
        transfer(
            cc=loss_based, cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=60, burst=(60_000, pause_s), keeps_windows=keeps
        )
        plain = read_for(shim, 10 * pause_s)
        capped = read_for(shim, 10 * pause_s + 1.5, capped_loop(keeper, CAP_PKTS))
    own_pkts = np.median(plain["cwnd_pkts"][has(plain, Flag.RESTARTED)])
    assert own_pkts > 3 * CAP_PKTS
    capped = capped[np.flatnonzero(capped["cap_pkts"])[0] :]  # from the first answer on
    if (lost := np.flatnonzero(has(capped, Flag.IN_RECOVERY))).size:
        capped = capped[: lost[0]]  # a timeout, on a host that lags: the window is another one from there on
    after_pause = capped[has(capped, Flag.RESTARTED)]
    if after_pause.size < 4:
        raise LaggedError
    assert capped["cwnd_pkts"][capped["cap_pkts"] == CAP_PKTS].max() == CAP_PKTS
    assert np.median(after_pause["cwnd_pkts"]) >= own_pkts


@undisturbed
def test_what_a_pause_made_void_is_not_renewed(cgroup, transfer):
    """Nobody decides from then on; each burst takes longer than it is from one renewal to the next."""
    with KernelShim([cgroup]) as shim:
        keeper = LeaseKeeper(shim)
        transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=60, burst=(600_000, 0.15))
        decided = read_for(shim, 2.0, capped_loop(keeper, CAP_PKTS))

        def renew(records):
            keeper.see_alive(records)
            keeper.tick(time.monotonic_ns())

        records = read_for(shim, 2.0, renew)
        assert len(keeper) == 1
    assert CAP_PKTS in decided["cap_pkts"]
    after_pause = np.flatnonzero(has(records, Flag.RESTARTED))
    assert after_pause.size >= 2
    assert not records["cap_pkts"][after_pause[0] :].any()


def test_the_cap_of_a_flow_that_pauses_for_long_lapses(cgroup, transfer):
    with KernelShim([cgroup], target_us=50_000) as shim:
        keeper = LeaseKeeper(shim)
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=60, burst=(400_000, 1.5))
        slots = of_one(flow, shim)[1]
        held = []  # whether the keeper holds the flow, at each change

        def lapsed_and_came_again():
            records = shim.poll(timeout_ms=20)
            keeper.set(records, np.full(len(records), CAP_PKTS, np.uint32))
            keeper.tick(time.monotonic_ns())
            if not held or held[-1] != bool(len(keeper)):
                held.append(bool(len(keeper)))
                if held[-2:] == [True, False]:
                    assert not shim.outstanding(slots).any()
            return held[-3:] == [True, False, True]

        assert settled(lapsed_and_came_again)
        assert settled(lambda: shim.outstanding(slots).all())
        with pytest.raises(IndexError, match="slot 4096 does not exist"):
            shim.outstanding(np.array([4096], np.uint32))


CONNECTING_ANEW = """
import contextlib, ctypes, socket, subprocess, sys, threading, time
subprocess.run("ip link set lo mtu 1500 up".split(), check=True)
subprocess.run("tc qdisc add dev lo root tbf rate 20mbit burst 3000 limit 150000".split(), check=True)
listening = socket.create_server(("127.0.0.1", 0))
def take():
    while True:
        taken, _ = listening.accept()
        with contextlib.suppress(ConnectionResetError):
            while taken.recv(100_000):
                pass
threading.Thread(target=take, daemon=True).start()
with open(sys.argv[1], "w") as procs:
    procs.write("0")
sending = socket.socket()
sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
for _ in range(2):
    sending.connect(listening.getsockname())
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        sending.sendall(bytes(10_000))
    if ctypes.CDLL(None).connect(sending.fileno(), bytes(16), 16):  # AF_UNSPEC
        raise OSError("connect")
"""


@undisturbed
def test_a_socket_that_connects_anew_is_free_of_its_former_connections_cap(cgroup):
    """It has the same cookie, most often the same slot, and begins within the lease."""
    with KernelShim([cgroup]) as shim:
        command = ["unshare", "-n", sys.executable, "-IS", "-c", CONNECTING_ANEW, str(cgroup / "cgroup.procs")]
        with subprocess.Popen(command) as program:
            while not (first := shim.poll(timeout_ms=50)).size:
                assert program.poll() is None
            name = first["cookie"][:1].copy(), first["slot"][:1].copy()
            until_ns = lease(900)
            shim.apply(*name, np.array([CAP_PKTS], np.uint32), until_ns, np.array([40_000], np.uint32))
            records = read_for(shim, 1.5)
            assert program.wait(timeout=60) == 0
    assert set(records["cookie"].tolist()) == set(name[0].tolist())
    assert set(records["slot"].tolist()) == set(name[1].tolist())
    ended, ended_again = np.flatnonzero(has(records, Flag.CLOSED))
    if records["time_ns"][ended + 1] > until_ns:
        raise LaggedError
    assert CAP_PKTS in records["cap_pkts"][:ended]
    assert not records["cap_pkts"][ended + 1 : ended_again].any()
