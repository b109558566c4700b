"""However a shim ends, flows get their own congestion control back and nothing stays on the host."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from helpers.flows import (
    CAP_PKTS,
    RATE_MBIT,
    capped_loop,
    held_by,
    line_of,
    read_for,
    running_loader,
    settled,
    still_loaded,
    undisturbed,
)
from helpers.places import HELPERS
from reinet.core.records import Flag
from reinet.kshim.kernel import KernelLoader, KernelShim
from reinet.kshim.leases import LeaseKeeper
from reinet.kshim.leftovers import (
    ask_leftovers_to_leave,
    holders,
    leftovers,
    loaded,
    on_their_way,
    remove_leftovers,
)
from reinet.kshim.probe import registered_congestion_controls, wrappable

pytestmark = [pytest.mark.kernel, pytest.mark.alone]  # whoever starts a shim asks what killed ones left to go


ASKING = """
from reinet.kshim.leftovers import ask_leftovers_to_leave
while True:
    ask_leftovers_to_leave()
    print("asked", flush=True)
"""


def either_way(name):
    """Return a decorator: each congestion control once and Cubic twice, for what does not depend on which one it is."""
    return pytest.mark.parametrize(("cc", name), [("cubic", False), ("cubic", True), ("reno", False), ("bbr", True)],
                                   indirect=["cc"])  # fmt: skip


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


def open_flows(transfer, cgroup, cc, own_network):
    """Start a flow that sends and one that is idle, so that no ACK comes; both last until they are told to end."""
    bottleneck = {"rate_mbit": RATE_MBIT} if own_network else {}
    idle = transfer(cc=cc, cgroup=cgroup, seconds=0.1, idle=True, own_network=own_network, **bottleneck)
    busy = transfer(cc=cc, cgroup=cgroup, seconds=120, until_told=True, own_network=own_network, **bottleneck)
    idle.wait_idle()
    return idle, busy


def assert_given_back(flows, cc):
    for flow in flows:
        assert flow.process.poll() is None, "the flow has ended by itself, which proves nothing"
        end = flow.result()
        assert (end["cc"], end["intact"]) == (cc, True)


@either_way("own_network")
def test_close_gives_sending_flows_back_and_leaves_nothing(cgroup, transfer, cc, own_network):
    settings = host_settings()
    with KernelShim([cgroup]) as shim:
        held = held_by(os.getpid())
        bottleneck = {"rate_mbit": RATE_MBIT} if own_network else {}
        busy = transfer(cc=cc, cgroup=cgroup, seconds=120, until_told=True, own_network=own_network, **bottleneck)
        assert busy.cc == shim.wrappers[cc]
        read_for(shim, 0.5)
    assert settled(lambda: not still_loaded(held)), "something stayed loaded although the flow sends"
    assert_given_back([busy], cc)
    assert host_settings() == settings
    shim.close()  # again: nothing happens
    with pytest.raises(OSError, match="closed"):
        shim.poll(0)


def test_a_shim_in_a_process_that_hides_what_it_holds_is_no_leftover(cgroup, transfer, cc, monkeypatch):
    """As one of another pid namespace does, or one with more capabilities than who looks."""
    with KernelShim([cgroup]) as shim:
        held = held_by(os.getpid())
        idle = transfer(cc=cc, cgroup=cgroup, seconds=0.1, idle=True, rate_mbit=RATE_MBIT)
        idle.wait_idle()
        with monkeypatch.context() as hidden:
            hidden.setattr("reinet.kshim.leftovers._openers", dict)
            assert not held & {(item.kind, item.id) for item in leftovers()}
            assert not held & {(item.kind, item.id) for item in ask_leftovers_to_leave()}
        end = idle.result()
        assert (end["cc"], end["intact"]) == (shim.wrappers[cc], True)


def test_a_shim_that_loads_is_no_leftover_to_who_does_not_see_its_process(cgroup, transfer):
    """Two containers that start at once: to either nobody holds what the other loads, and nothing is registered yet."""
    elsewhere = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", ASKING]
    with subprocess.Popen(elsewhere, stdout=subprocess.PIPE, text=True) as asking:
        try:
            line_of(asking)
            with KernelShim([cgroup]) as shim:
                flow = transfer(cgroup=cgroup, seconds=120, until_told=True, rate_mbit=RATE_MBIT)
                assert flow.cc == shim.wrappers["cubic"]
                assert len(read_for(shim, 0.5))
                assert flow.result()["cc"] == shim.wrappers["cubic"], "it was asked to leave"
        finally:
            asking.kill()


def test_who_was_asked_to_leave_before_it_had_flows_stays(cgroup):
    """An earlier version's start asks what loads, where it does not see the process."""
    from reinet.kshim import _kshim

    loader = KernelLoader([cgroup])
    (control,) = (item.id for item in loaded() if item.name == "reinet_control" and os.getpid() in item.pids)
    _kshim.ask_to_leave(control)
    loader.attach()
    assert not _kshim.is_leaving(control)
    loader.close()


def test_a_cgroup_that_went_while_the_programs_were_loaded_keeps_no_other_from_being_served(cgroup, transfer):
    """As containers that match a daemon's pattern do, every few seconds."""
    gone = cgroup.with_name(cgroup.name + "-gone")
    gone.mkdir()
    loader = KernelLoader([gone, cgroup])
    gone.rmdir()
    loader.attach()
    flow = transfer(cgroup=cgroup, own_network=False, seconds=0.5)
    assert flow.cc == loader.wrappers["cubic"]
    flow.result()
    loader.close()


def test_what_a_killed_shim_left_is_found_and_removed_though_another_has_its_names(
    cgroup, transfer, cleanup, monkeypatch
):
    other = cgroup.with_name(cgroup.name + "-next")
    other.mkdir()
    cleanup.callback(other.rmdir)
    idle = {"seconds": 0.1, "idle": True, "rate_mbit": RATE_MBIT}
    monkeypatch.setattr("reinet.kshim.kernel._SUFFIXES", ["88"])
    with running_loader(cgroup, "88") as (loader, wrappers):
        held = held_by(loader.pid)
        old = transfer(cgroup=cgroup, **idle)
        old.wait_idle()
    assert settled(lambda: not set(wrappers.values()) & registered_congestion_controls())
    with KernelShim([other]) as shim:
        assert shim.wrappers == wrappers
        new = transfer(cgroup=other, **idle)
        new.wait_idle()
        assert settled(lambda: any((item.kind, item.id) in held for item in leftovers() if item.name == "reinet_flows"))
        remove_leftovers(patience_s=0.1)
        assert settled(lambda: not still_loaded(held)), "it waits for the flow's next ACK"
        assert_given_back([old], "cubic")
        assert new.result()["cc"] == wrappers["cubic"], "the flow of the shim that lives was swept too"


def test_a_sweep_leaves_the_flows_of_who_has_the_names_by_then(cgroup, transfer, cc):
    """A shim may take names that were free when somebody began to clear up after a killed one."""
    from reinet.kshim import _kshim

    with KernelShim([cgroup]) as shim:
        idle = transfer(cc=cc, cgroup=cgroup, seconds=0.1, idle=True, rate_mbit=RATE_MBIT)
        idle.wait_idle()
        assert not _kshim.sweep(list(shim.wrappers.items()))
        assert idle.result()["cc"] == shim.wrappers[cc]


def test_an_idle_flow_keeps_the_inert_wrapper_until_its_next_ack(cgroup, transfer, cc):
    with KernelShim([cgroup]) as shim:
        held = held_by(os.getpid())
        idle = transfer(cc=cc, cgroup=cgroup, seconds=0.1, idle=True, rate_mbit=RATE_MBIT)
        idle.wait_idle()
        wrapper = shim.wrappers[cc]
    assert wrapper not in registered_congestion_controls()  # nobody can choose it any more
    assert settled(lambda: held & {(item.kind, item.id) for item in leftovers()})
    left = [item for item in leftovers() if (item.kind, item.id) in held]
    assert on_their_way(left)
    assert [holder.sockets for holder in holders(left)] == [1]
    end = idle.result()
    assert (end["cc"], end["intact"]) == (wrapper, True)
    assert settled(lambda: not still_loaded(held)), "something stayed loaded although the flow has ended"


def test_an_answer_to_a_keepalive_probe_gives_no_idle_flow_back(cgroup, transfer):
    """It acknowledges no data, and so the kernel does not tell the wrapper of it: only the next data's ACK does."""
    with KernelShim([cgroup]) as shim:
        held = held_by(os.getpid())
        idle = transfer(cgroup=cgroup, seconds=0.1, idle=True, keepalive=True, rate_mbit=RATE_MBIT)
        idle.wait_idle()
        wrapper = shim.wrappers["cubic"]
    time.sleep(2.5)  # two probes
    assert on_their_way([item for item in leftovers() if (item.kind, item.id) in held])
    assert idle.result()["cc"] == wrapper


@pytest.mark.parametrize("killed", [False, True])
def test_bbr_goes_on_with_what_it_has_learned(cgroup, transfer, killed):
    """A switch from outside would begin anew: STARTUP sends at nearly three times the rate of the link."""
    if not wrappable()["bbr"].ok:
        pytest.skip("this kernel has no bbr: modprobe tcp_bbr")
    plan = {"cc": "bbr", "cgroup": cgroup, "rate_mbit": RATE_MBIT, "seconds": 120, "until_told": True}
    if killed:
        with running_loader(cgroup) as (_, wrappers):
            flow = transfer(**plan)
            assert flow.cc == wrappers["bbr"]
            time.sleep(2)
        assert settled(leftovers)
        other = cgroup.with_name(cgroup.name + "-next")
        other.mkdir()
        try:
            with KernelShim([other]):  # the next start asks what the killed one left
                time.sleep(1.5)
        finally:
            other.rmdir()
    else:
        with KernelShim([cgroup]) as shim:
            flow = transfer(**plan)
            assert flow.cc == shim.wrappers["bbr"]
            read_for(shim, 2)
        time.sleep(1.5)
    end = flow.result()
    assert (end["cc"], end["intact"]) == ("bbr", True)
    assert len(end["samples"]) > 300
    assert not any(startup for _, _, startup in end["samples"])


@undisturbed
@either_way("lapses")
def test_the_end_of_a_cap_releases_no_burst(cgroup, transfer, cc, lapses):
    """The window comes back by slow start: an ACK lets no more out than twice what it says has arrived."""
    with KernelShim([cgroup], record_events=True) as shim:
        flow = transfer(cc=cc, cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=60, until_told=True)
        keeper = LeaseKeeper(shim)
        read_for(shim, 1.0)
        read_for(shim, 1.0, capped_loop(keeper, CAP_PKTS))
        shim.take_events()
        if not lapses:
            keeper.release_all()
        read_for(shim, 1.5)
        events = shim.take_events()
        acks = events["ack"][events["kind"] == 0]
        assert flow.result()["intact"]
    window_pkts = acks["cwnd_pkts"].astype(np.int64)
    assert window_pkts[0] <= CAP_PKTS
    assert window_pkts.max() > 1.5 * CAP_PKTS
    arrived_pkts = np.diff(acks["delivered_bytes"].astype(np.int64)) / acks["mss_bytes"][1:]
    recovers = (acks["flags"] & Flag.IN_RECOVERY) != 0
    grown_pkts = np.diff(window_pkts)[1:]  # an event shows the window that the ACK before it has led to
    steady = ~(recovers[2:] | recovers[1:-1] | recovers[:-2])
    assert (grown_pkts[steady] <= np.ceil(arrived_pkts[:-1][steady]) + 1).all()


def test_kill_9_frees_the_flow_within_a_second(cgroup, transfer, cc):
    with running_loader(cgroup) as (loader, wrappers):
        held = held_by(loader.pid)
        flow = transfer(cc=cc, cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=120, until_told=True)
        assert flow.cc == wrappers[cc]
        time.sleep(1.5)
        loader.send_signal(signal.SIGKILL)
        killed_ns = time.monotonic_ns()
        loader.wait()
        assert settled(lambda: not set(wrappers.values()) & registered_congestion_controls())
        newcomer = transfer(cc=cc, cgroup=cgroup, seconds=0.05, own_network=False)
        assert newcomer.cc == cc
        time.sleep(2.5)
        end = flow.result()
    assert end["intact"]
    samples = np.array(end["samples"])
    before = samples[(samples[:, 0] < killed_ns) & (samples[:, 0] > killed_ns - 10**9), 1]
    after = samples[samples[:, 0] > killed_ns + 10**9, 1]
    assert np.median(before) <= CAP_PKTS  # a host that keeps the loader from renewing lets a cap lapse
    assert np.median(after) > CAP_PKTS
    assert cc == "bbr" or after.max() > 2 * CAP_PKTS  # BBR's own window is 14 to 20 packets here
    assert settled(lambda: not still_loaded(held)), "something stayed loaded although the flow is closed"


def test_a_host_that_slept_a_day_caps_as_before(cgroup, transfer):
    """A sleep moves CLOCK_BOOTTIME and lets CLOCK_MONOTONIC stand, which leases and records go by on both sides."""
    slept = ["unshare", "--time", "--boottime", "86400", "--fork", "--kill-child"]
    with running_loader(cgroup, enter=slept) as (_, wrappers):
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=120, until_told=True)
        assert flow.cc == wrappers["cubic"]
        time.sleep(2.0)
        end = flow.result()
    assert end["intact"]
    window_pkts = np.array(end["samples"])[-100:, 1]
    assert np.median(window_pkts) <= CAP_PKTS


def test_in_a_time_namespace_with_a_clock_of_its_own_it_is_refused(cgroup):
    """Leases written by another CLOCK_MONOTONIC would lapse at once, or reach too far ahead: no cap would ever act."""
    elsewhere = ["unshare", "--time", "--monotonic", "1000", "--fork", "--kill-child"]
    loader = [sys.executable, str(HELPERS / "loader.py"), str(cgroup), str(CAP_PKTS)]
    done = subprocess.run([*elsewhere, *loader], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "moves CLOCK_MONOTONIC by 1000 s, so no cap would act; cure: start it in the host's" in done.stderr


@either_way("own_network")
def test_leftovers_are_listed_and_removed(cgroup, transfer, cc, own_network):
    with running_loader(cgroup) as (loader, wrappers):
        held = held_by(loader.pid)
        assert not held & {(item.kind, item.id) for item in leftovers()}
        flows = open_flows(transfer, cgroup, cc, own_network)
        assert {flow.cc for flow in flows} == {wrappers[cc]}
        loader.kill()
        loader.wait()
    assert settled(lambda: held & {(item.kind, item.id) for item in leftovers()})
    remove_leftovers()
    assert settled(lambda: not still_loaded(held))
    assert_given_back(flows, cc)


@pytest.mark.parametrize("killed", [False, True])
def test_a_namespace_that_only_sockets_hold_is_swept_too(cgroup, transfer, killed):
    """No thread lives in it and it is mounted nowhere: a descriptor of one of its sockets is all that leads there."""
    flow = {"cgroup": cgroup, "rate_mbit": RATE_MBIT, "seconds": 0.1, "idle": True, "leave_network": True}
    if killed:
        with running_loader(cgroup) as (loader, wrappers):
            held, idle = held_by(loader.pid), transfer(**flow)
            idle.wait_idle()
        assert settled(lambda: held & {(item.kind, item.id) for item in leftovers()})
        remove_leftovers()
    else:
        with KernelShim([cgroup]) as shim:
            wrappers, held, idle = shim.wrappers, held_by(os.getpid()), transfer(**flow)
            idle.wait_idle()
        remove_leftovers()
    assert idle.cc == wrappers["cubic"]
    assert settled(lambda: not still_loaded(held))
    assert_given_back([idle], "cubic")


def test_what_holds_leftovers_is_said(cgroup, transfer):
    with running_loader(cgroup) as (loader, _):
        held = held_by(loader.pid)
        flows = open_flows(transfer, cgroup, "cubic", own_network=True)
    assert settled(lambda: held & {(item.kind, item.id) for item in leftovers()})
    left = [item for item in leftovers() if (item.kind, item.id) in held]
    homes = {os.stat(f"/proc/{flow.process.pid}/ns/net").st_ino: flow.process.pid for flow in flows}
    found = holders(left)
    assert {holder.network_namespace for holder in found} == set(homes)
    for holder in found:
        assert (holder.sockets, holder.pids) == (1, (homes[holder.network_namespace],))
    remove_leftovers()
    assert settled(lambda: not still_loaded(held))


def test_a_failure_half_way_undoes_everything(cgroup):
    from reinet.kshim import _kshim

    options = _kshim.Options()
    options.max_flows, options.records_bytes, options.wrappers = 16, 4096, [("cubic", "reinet_half")]
    loader = _kshim.Loader(options)
    assert "reinet_half" in registered_congestion_controls()
    with pytest.raises(OSError, match="attach to cgroup /proc"):
        loader.attach([str(cgroup), "/proc"])
    loader.close()
    assert "reinet_half" not in registered_congestion_controls()
    assert not held_by(os.getpid())
