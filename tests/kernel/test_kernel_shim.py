"""The shim on the running kernel: it caps what was chosen, lapses by itself, touches nothing else, leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from helpers.places import HELPERS
from reinet.core.errors import ShimError
from reinet.core.period import SILENCE_NS, PeriodTracker
from reinet.core.records import FLOW_STATS_DTYPE, Flag
from reinet.kshim import kernel, probe
from reinet.kshim.kernel import EVENT_DTYPE, KernelShim
from reinet.kshim.leases import LeaseKeeper
from reinet.kshim.probe import (
    cgroup2_mount,
    leftovers,
    loaded,
    registered_congestion_controls,
    remove_leftovers,
    wrappable,
)
from reinet.kshim.shim import WRAPPED_CC

pytestmark = pytest.mark.kernel

CAP_PKTS = 10
RATE_MBIT = 20
CALLERS_FIELDS = ["cookie", "slot", "target_us", "cap_pkts"]


class Transfer:
    """A running ``transfer.py``; ``result`` waits for its end."""

    def __init__(self, process):
        self.process = process
        start = json.loads(process.stdout.readline())
        self.cookie, self.cc = start["cookie"], start["cc"]

    def result(self):
        line = self.process.stdout.readline()
        assert self.process.wait(timeout=60) == 0
        return json.loads(line)


@pytest.fixture
def cleanup():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def cgroup(cleanup):
    path = cgroup2_mount() / f"reinet-test-{os.getpid()}"
    path.mkdir()
    cleanup.callback(path.rmdir)
    return path


@pytest.fixture(params=WRAPPED_CC)
def cc(request):
    """Every congestion control that this host can wrap."""
    feature = wrappable()[request.param]
    if not feature.ok:
        pytest.skip(f"{feature.why}: {feature.cure}")
    return request.param


@pytest.fixture
def transfer(cleanup):
    """Start transfers; whatever still runs at the end of the test is killed."""

    def start(*, own_network=True, **plan):
        command = [
            sys.executable,
            str(HELPERS / "transfer.py"),
            json.dumps(plan, default=str),
        ]
        process = subprocess.Popen(
            (["unshare", "-n"] if own_network else []) + command, stdout=subprocess.PIPE, text=True
        )
        cleanup.enter_context(process)
        cleanup.callback(process.kill)
        return Transfer(process)

    return start


def read_for(shim, seconds, each=None):
    """Return the records of the next seconds, handing every batch to each."""
    batches = [np.zeros(0, FLOW_STATS_DTYPE)]
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        batches.append(shim.poll(timeout_ms=min(20, int(left * 1000) + 1)))
        if each:
            each(batches[-1])
    return np.concatenate(batches)


def until_closed(shim, cookie, timeout_s=10):
    """Return all records up to the flow's CLOSED."""
    batches = [np.zeros(0, FLOW_STATS_DTYPE)]
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        batches.append(shim.poll(timeout_ms=50))
        closed = (batches[-1]["flags"] & Flag.CLOSED) != 0
        if (batches[-1]["cookie"][closed] == cookie).any():
            return np.concatenate(batches)
    pytest.fail(f"flow {cookie} did not close within {timeout_s} s")


def has(records, flag):
    return (records["flags"] & flag) != 0


def settled(condition, timeout_s=5.0):
    """Tell whether the condition comes true; the kernel frees what nobody holds after a grace period."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def held_by(pid):
    return {(item.kind, item.id) for item in loaded() if pid in item.pids}


def still_loaded(items):
    return items & {(item.kind, item.id) for item in loaded()}


def capped_loop(shim, keeper, cap_pkts):
    def each(records):
        keeper.set(records, np.full(len(records), cap_pkts, np.uint32))
        keeper.tick(time.monotonic_ns())

    return each


def test_cap_acts_and_lapses(cgroup, transfer, cc):
    with KernelShim([cgroup], target_us=50_000) as shim:
        flow = transfer(cc=cc, cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=3.5)
        assert flow.cc == shim.wrappers[cc]
        plain = read_for(shim, 1.2)
        keeper = LeaseKeeper(shim)
        read_for(shim, 0.3, capped_loop(shim, keeper, CAP_PKTS))
        capped = read_for(shim, 1.0, capped_loop(shim, keeper, CAP_PKTS))
        read_for(shim, 0.6)  # nobody renews
        lapsed = until_closed(shim, flow.cookie)[:-1]
        assert flow.result()["intact"]

    for records in (plain, capped, lapsed):
        assert len(records) > 10
        assert set(records["cookie"].tolist()) == {flow.cookie}
        assert set(records["target_us"].tolist()) == {50_000}
    assert (plain["cap_pkts"] == 0).all()
    assert plain["cwnd_pkts"].max() > 2 * CAP_PKTS
    assert (capped["cap_pkts"] == CAP_PKTS).all()
    assert capped["cwnd_pkts"][~has(capped, Flag.IN_RECOVERY)].max() <= CAP_PKTS
    assert capped["rtt_mean_us"].mean() < plain["rtt_mean_us"].mean() / 3
    assert capped["rtt_samples"].min() > 0
    assert (lapsed["cap_pkts"] == 0).all()
    assert lapsed["cwnd_pkts"].max() > 2 * CAP_PKTS


def test_release_lifts_at_once_and_a_cap_of_zero_too(cgroup, transfer):
    with KernelShim([cgroup]) as shim:
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=2.0)
        slot = int(read_for(shim, 0.3)["slot"][-1])
        name = np.array([flow.cookie], np.uint64), np.array([slot], np.uint32)
        far_ns = time.monotonic_ns() + 60 * 10**9
        target = np.array([40_000], np.uint32)

        shim.apply(*name, np.array([CAP_PKTS], np.uint32), far_ns, target)
        assert read_for(shim, 0.3)["cap_pkts"][-1] == CAP_PKTS
        shim.release(*name)
        last = read_for(shim, 0.3)[-1]
        assert (last["cap_pkts"], last["target_us"]) == (0, 40_000)
        shim.apply(*name, np.array([CAP_PKTS], np.uint32), far_ns, target)
        shim.apply(*name, np.array([0], np.uint32), far_ns, target)
        assert read_for(shim, 0.3)["cap_pkts"][-1] == 0


def test_a_cap_for_another_flow_of_the_slot_has_no_effect(cgroup, transfer):
    with KernelShim([cgroup]) as shim:
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=1.0)
        slot = read_for(shim, 0.2)["slot"][-1:]
        caps_pkts = np.array([CAP_PKTS], np.uint32)
        shim.apply(np.array([flow.cookie + 1]), slot, caps_pkts, time.monotonic_ns() + 60 * 10**9, caps_pkts)
        records = read_for(shim, 0.5)
        assert (records["cap_pkts"] == 0).all()
        assert (records["target_us"] == 0).all()
        with pytest.raises(IndexError, match="slot 4096 does not exist"):
            shim.apply(np.array([flow.cookie]), np.array([4096]), caps_pkts, 0, caps_pkts)


@pytest.mark.parametrize("passive", [False, True])
def test_chosen_whichever_side_connects(cgroup, transfer, passive):
    with KernelShim([cgroup]) as shim:
        flow = transfer(cgroup=cgroup, seconds=0.3, own_network=False, passive=passive)
        records = until_closed(shim, flow.cookie)
        assert flow.cc == shim.wrappers["cubic"]
        assert has(records, Flag.CLOSED).sum() == 1
        assert shim.counters()["flows_chosen"] == 1


def test_sockets_outside_the_cgroup_are_left_alone(cgroup, transfer, cc):
    with KernelShim([cgroup]) as shim:
        flow = transfer(cc=cc, seconds=0.3, own_network=False)
        assert flow.cc == cc
        end = flow.result()
        assert (end["cc"], end["intact"]) == (cc, True)
        assert read_for(shim, 0.1).size == 0
        assert shim.counters()["flows_chosen"] == 0


def test_what_is_not_wrapped_is_left_alone(cgroup, transfer, monkeypatch):
    monkeypatch.setitem(probe._KFUNCS, "reno", ("reno_of_another_kernel", "tcp_reno"))
    with KernelShim([cgroup]) as shim:
        assert "reno" not in shim.wrappers
        maps = {item.name for item in loaded() if item.kind == "map" and os.getpid() in item.pids}
        assert ("reinet_cubic" in maps, "reinet_reno" in maps) == (True, False)
        reno = transfer(cc="reno", cgroup=cgroup, seconds=0.3, own_network=False)
        assert reno.result()["cc"] == "reno"
        assert shim.counters()["flows_chosen"] == 0
        cubic = transfer(cgroup=cgroup, seconds=0.1, own_network=False)
        assert cubic.cc == shim.wrappers["cubic"]


@pytest.mark.parametrize("later", ["cubic", "reno"])
def test_an_application_that_changes_its_mind_keeps_its_choice(cgroup, transfer, later):
    with KernelShim([cgroup]) as shim:
        flow = transfer(cgroup=cgroup, later_cc=later, seconds=0.6, own_network=False)
        assert flow.cc == shim.wrappers["cubic"]
        until_closed(shim, flow.cookie)
        end = flow.result()
        assert (end["cc"], end["intact"]) == (later, True)


def test_bbr_keeps_its_pace_under_the_wrapper(cgroup, transfer):
    """Window, pacing and model are BBR's: no standing queue on a link that other algorithms fill."""
    if not wrappable()["bbr"].ok:
        pytest.skip("this kernel has no bbr: modprobe tcp_bbr")
    with KernelShim([cgroup]) as shim:
        flow = transfer(cc="bbr", cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=3.0)
        records = until_closed(shim, flow.cookie)[:-1]
    late = records[len(records) // 2 :]
    rate_mbit = late["pacing_rate_bytes_per_s"] * 8 / 1e6
    assert 0.6 * RATE_MBIT < np.median(rate_mbit) < 1.4 * RATE_MBIT


def test_silence_is_reported_and_the_cap_outlives_it(cgroup, transfer):
    with KernelShim([cgroup]) as shim:
        keeper = LeaseKeeper(shim)
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=3.0, outage=(0.5, 1.5))
        records = read_for(shim, 3.0, capped_loop(shim, keeper, CAP_PKTS))
        assert flow.result()["intact"]
    silent = records[has(records, Flag.NO_SAMPLE)]
    assert len(silent) >= 4
    assert (silent["cap_pkts"] == CAP_PKTS).all()
    gaps_ns = np.diff(silent["time_ns"].astype(np.int64))[:3]
    assert gaps_ns.min() >= SILENCE_NS
    assert gaps_ns.max() <= 1.5 * SILENCE_NS
    starts_ns = silent["time_ns"] - silent["period_ns"]
    assert len(set(starts_ns[:4].tolist())) == 1, "a silence ends no period"
    assert (records["cap_pkts"][5:] == CAP_PKTS).all()


def test_one_sequence_of_acks_gives_the_same_records_everywhere(cgroup, transfer):
    with KernelShim([cgroup], record_events=True) as shim:
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=2.0)
        live = until_closed(shim, flow.cookie)[:-1]
        events = shim.take_events()
        in_kernel = shim.replay(events)
        assert shim.counters()["acks_lost"] == 0
    assert set(events["cookie"].tolist()) == {flow.cookie}
    assert np.count_nonzero(events["kind"] == 0) > 500

    tracker = PeriodTracker()
    batches = [np.zeros(0, FLOW_STATS_DTYPE)]
    for event in events:
        if event["kind"] == 0:
            batches.append(tracker.on_acks(event["ack"].reshape(1)))
        else:
            tracker.on_restart(int(event["ack"]["time_ns"]))
    in_core = np.concatenate(batches)

    assert len(in_core) > 20
    assert in_kernel.tolist() == in_core.tolist()
    # The reader's records know their flow, and hold the silences that no ACK reports.
    live, in_core = live[~has(live, Flag.NO_SAMPLE)].copy(), in_core[~has(in_core, Flag.NO_SAMPLE)]
    for field in CALLERS_FIELDS:
        live[field] = 0
    assert live.tolist() == in_core.tolist()


def test_event_layout_is_slot_h_s():
    from reinet.kshim import _kshim

    assert EVENT_DTYPE.itemsize == _kshim.EVENT_SIZE
    assert (_kshim.EVENT_ACK, _kshim.EVENT_RESTART) == (0, 1)


def test_events_must_be_asked_for(cgroup):
    with KernelShim([cgroup]) as shim, pytest.raises(OSError, match="started without record_events"):
        shim.take_events()


def test_full_table_leaves_flows_alone_until_a_slot_is_free(cgroup, transfer):
    with KernelShim([cgroup], max_flows=1) as shim:
        first = transfer(cgroup=cgroup, seconds=0.6, own_network=False)
        second = transfer(cgroup=cgroup, seconds=0.1, own_network=False)
        assert (first.cc, second.cc) == (shim.wrappers["cubic"], "cubic")
        assert shim.counters()["flows_without_slot"] == 1
        until_closed(shim, first.cookie)
        third = transfer(cgroup=cgroup, seconds=0.1, own_network=False)
        assert third.cc == shim.wrappers["cubic"]


def test_a_flow_closes_once_even_if_its_last_record_was_lost(cgroup, transfer, monkeypatch):
    monkeypatch.setattr(kernel, "RECORDS_BYTES", 4096)
    with KernelShim([cgroup]) as shim:
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=2.0)
        assert flow.result()["intact"]
        assert settled(lambda: shim.counters()["records_lost"] > 0)
        time.sleep(0.2)  # the socket's last words
        records = read_for(shim, 0.3)
        assert records["cookie"].tolist() == [flow.cookie] * len(records)
        assert has(records, Flag.CLOSED).tolist() == [False] * (len(records) - 1) + [True]


def test_two_shims_at_once(cgroup, transfer, cleanup):
    other = cgroup.with_name(cgroup.name + "-other")
    other.mkdir()
    cleanup.callback(other.rmdir)
    with KernelShim([cgroup]) as shim:
        with KernelShim([other]) as second:
            assert second.wrappers != shim.wrappers
            flow = transfer(cgroup=other, seconds=0.2, own_network=False)
            assert flow.cc == second.wrappers["cubic"]
            until_closed(second, flow.cookie)
        mine = transfer(cgroup=cgroup, seconds=0.2, own_network=False)
        assert mine.cc == shim.wrappers["cubic"]
        until_closed(shim, mine.cookie)


def host_settings():
    """Return what the shim has no business with: sysctls and firewall tables."""
    neighbours = {"tcp_available_congestion_control", "tcp_allowed_congestion_control"}
    folders = [Path("/proc/sys/net/ipv4"), Path("/proc/sys/net/core")]
    sysctls = [
        path for folder in folders for path in folder.iterdir() if path.is_file() and path.name not in neighbours
    ]
    sysctls += Path("/proc/sys/kernel").glob("*bpf*")
    settings = {path: path.read_bytes() for path in sysctls if path.stat().st_mode & 0o444}
    for table in ("ip_tables_names", "ip6_tables_names"):
        path = Path("/proc/net") / table
        settings[path] = path.read_bytes() if path.exists() else b""
    return settings


@pytest.mark.parametrize("own_network", [False, True])
def test_close_gives_open_flows_back_and_leaves_nothing(cgroup, transfer, cc, own_network):
    bottleneck = {"rate_mbit": RATE_MBIT} if own_network else {}
    settings = host_settings()
    with KernelShim([cgroup]) as shim:
        held = held_by(os.getpid())
        idle = transfer(cc=cc, cgroup=cgroup, seconds=0.1, idle_s=3.0, own_network=False)
        busy = transfer(cc=cc, cgroup=cgroup, seconds=2.0, own_network=own_network, **bottleneck)
        assert (idle.cc, busy.cc) == (shim.wrappers[cc], shim.wrappers[cc])
        read_for(shim, 0.5)
    assert settled(lambda: not still_loaded(held), 1.2), "something stayed loaded although flows are open"
    for flow in (busy, idle):
        end = flow.result()
        assert (end["cc"], end["intact"]) == (cc, True)
    assert host_settings() == settings
    shim.close()  # again: nothing happens
    with pytest.raises(OSError, match="closed"):
        shim.poll(0)


@contextmanager
def running_loader(cgroup):
    command = [sys.executable, str(HELPERS / "loader.py"), str(cgroup), str(CAP_PKTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_kill_9_frees_the_flow_within_a_second(cgroup, transfer, cc):
    with running_loader(cgroup) as (loader, wrappers):
        held = held_by(loader.pid)
        flow = transfer(cc=cc, cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=3.5)
        assert flow.cc == wrappers[cc]
        time.sleep(1.5)
        loader.send_signal(signal.SIGKILL)
        killed_ns = time.monotonic_ns()
        loader.wait()
        assert settled(lambda: not set(wrappers.values()) & registered_congestion_controls(), 1.0)
        newcomer = transfer(cc=cc, cgroup=cgroup, seconds=0.05, own_network=False)
        assert newcomer.cc == cc
        end = flow.result()
    assert end["intact"]
    samples = np.array(end["cwnd_samples"])
    before = samples[(samples[:, 0] < killed_ns) & (samples[:, 0] > killed_ns - 10**9), 1]
    after = samples[samples[:, 0] > killed_ns + 10**9, 1]
    assert before.max() <= CAP_PKTS
    assert after.max() > 2 * CAP_PKTS
    assert settled(lambda: not still_loaded(held)), "something stayed loaded although the flow is closed"


def test_leftovers_are_listed_and_removed(cgroup, transfer, cc):
    with running_loader(cgroup) as (loader, wrappers):
        held = held_by(loader.pid)
        assert not held & {(item.kind, item.id) for item in leftovers()}
        idle = transfer(cc=cc, cgroup=cgroup, seconds=0.1, idle_s=3.0, own_network=False)
        busy = transfer(cc=cc, cgroup=cgroup, seconds=3.0, rate_mbit=RATE_MBIT)
        assert (idle.cc, busy.cc) == (wrappers[cc], wrappers[cc])
        time.sleep(0.3)
        loader.kill()
        loader.wait()
    assert settled(lambda: held & {(item.kind, item.id) for item in leftovers()})
    remove_leftovers()
    assert settled(lambda: not still_loaded(held), 1.2)
    for flow in (busy, idle):
        end = flow.result()
        assert (end["cc"], end["intact"]) == (cc, True)


def test_a_failure_half_way_undoes_everything(cgroup):
    from reinet.kshim import _kshim

    options = _kshim.Options()
    options.max_flows, options.records_bytes, options.wrappers = 16, 4096, [("cubic", "reinet_half")]
    with pytest.raises(OSError, match="attach to cgroup /proc"):
        _kshim.Shim([str(cgroup), "/proc"], options)
    assert "reinet_half" not in registered_congestion_controls()
    assert not held_by(os.getpid())


def test_only_cgroups_of_version_2(tmp_path):
    with pytest.raises(ShimError, match="is no cgroup: create it"):
        KernelShim([tmp_path])


def test_a_host_that_lacks_something_is_told_what(cgroup, monkeypatch):
    monkeypatch.setattr("reinet.kshim.probe.BTF", Path("/nonexistent/vmlinux"))
    with pytest.raises(ShimError, match="btf: /nonexistent/vmlinux does not exist; cure: boot a kernel"):
        KernelShim([cgroup])
