"""Flows that were open before the shim: they are taken over as they are, and none begins anew."""

import os
import subprocess
import sys
import time

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
from reinet.kshim.kernel import KernelShim
from reinet.kshim.leases import LeaseKeeper
from reinet.kshim.leftovers import leftovers
from reinet.kshim.probe import wrappable

pytestmark = [pytest.mark.kernel, pytest.mark.alone]  # whoever starts a shim asks what killed ones left to go

CLOSED_WITH_DATA = """
import os, socket, subprocess, sys
peer_ends, = sys.argv[2:]
subprocess.run("ip link set lo mtu 1500 up".split(), check=True)
subprocess.run("tc qdisc add dev lo root tbf rate 4mbit burst 3000 limit 60000".split(), check=True)
listening = socket.create_server(("127.0.0.1", 0))
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
sending = socket.socket()
sending.setsockopt(socket.SOL_SOCKET, 32, 1 << 20)  # SO_SNDBUFFORCE: all is taken at once, whatever wmem_max is
sending.setsockopt(socket.IPPROTO_TCP, 13, b"cubic")
sending.connect(listening.getsockname())
taking, _ = listening.accept()
if peer_ends == "first":
    taking.shutdown(socket.SHUT_WR)
    sending.recv(1)
sending.sendall(bytes(1_000_000))
sending.close()
if peer_ends == "later":
    taking.shutdown(socket.SHUT_WR)
print("[]", flush=True)
while taking.recv(100_000):
    pass
"""
"""Two seconds of data are left to send when the socket is closed; the peer ends its own direction or not."""


def adopted(shim):
    """Take over what is open; a flow that recovers from a loss waits for another call."""
    assert settled(lambda: not shim.adopt().waiting)
    return shim.counters()["flows_adopted"]


@undisturbed
def test_an_open_flow_is_taken_over_measured_capped_and_given_back(cgroup, transfer, cc):
    plan = {"cc": cc, "seconds": 120, "until_told": True}
    flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, **plan)
    near, other = transfer(cgroup=cgroup, own_network=False, **plan), transfer(own_network=False, **plan)
    assert {one.cc for one in (flow, near, other)} == {cc}
    with KernelShim([cgroup]) as shim:
        held = held_by(os.getpid())
        assert adopted(shim) == 2
        assert adopted(shim) == 2, "a flow is taken over once"
        keeper = LeaseKeeper(shim)
        records = read_for(shim, 1.0, capped_loop(keeper, CAP_PKTS))
        assert set(records["cookie"].tolist()) == {flow.cookie, near.cookie}
        far = records[records["cookie"] == flow.cookie]
        assert far["cap_pkts"][-1] == CAP_PKTS
        assert far["cwnd_pkts"][-1] <= CAP_PKTS
    assert settled(lambda: not still_loaded(held))
    for one in (flow, near, other):
        end = one.result()
        assert (end["cc"], end["intact"]) == (cc, True)


@pytest.mark.parametrize("killed", [False, True])
def test_bbr_goes_on_under_the_next_shim_with_what_it_has_learned(cgroup, transfer, killed):
    """Taken over from the kernel's own, or from a wrapper whose loader was killed; STARTUP would show at the end."""
    if not wrappable()["bbr"].ok:
        pytest.skip("this kernel has no bbr: modprobe tcp_bbr")
    plan = {"cc": "bbr", "cgroup": cgroup, "rate_mbit": RATE_MBIT, "seconds": 120, "until_told": True}
    if killed:
        with running_loader(cgroup) as (_, wrappers):
            flow = transfer(**plan)
            assert flow.cc == wrappers["bbr"]
            time.sleep(2)
        assert settled(leftovers)
    else:
        flow = transfer(**plan)
        time.sleep(2)
    with KernelShim([cgroup]) as shim:
        assert adopted(shim) == 1
        records = read_for(shim, 1.0)
    time.sleep(0.5)
    end = flow.result()
    assert (end["cc"], end["intact"]) == ("bbr", True)
    assert not any(startup for _, _, startup in end["samples"][-200:])
    rate_mbit = records["pacing_rate_bytes_per_s"] * 8 / 1e6
    assert rate_mbit[:5].max() < 2 * RATE_MBIT, "STARTUP paces at nearly three times the link's rate"


def test_an_idle_flow_of_a_killed_shim_is_taken_over_as_it_is(cgroup, transfer, cc):
    """No ACK comes that could let it go back to its own congestion control first, so its names are taken on as well."""
    with running_loader(cgroup, "77") as (loader, wrappers):
        held = held_by(loader.pid)
        flow = transfer(cc=cc, cgroup=cgroup, seconds=0.1, idle=True, rate_mbit=RATE_MBIT)
        flow.wait_idle()
        assert flow.cc == wrappers[cc]
    assert settled(lambda: held & {(item.kind, item.id) for item in leftovers()})
    with KernelShim([cgroup]) as shim:
        assert shim.wrappers == wrappers
        assert adopted(shim) == 1
        assert settled(lambda: not still_loaded(held)), "the killed shim's programs are still in use"
    end = flow.result()
    assert end["intact"]


def test_idle_flows_and_many_are_taken_over_in_one_call(cgroup, transfer):
    flows = [transfer(cgroup=cgroup, seconds=0.05, idle=True, own_network=False, passive=bool(i % 2)) for i in range(6)]
    for flow in flows:
        flow.wait_idle()
    with KernelShim([cgroup], max_flows=4) as shim:
        assert adopted(shim) == 4
        assert shim.counters()["flows_without_slot"] == 2
    assert all(flow.result()["intact"] for flow in flows)


@pytest.mark.parametrize("peer_ends", ["first", "later", "never"])
def test_a_closed_flow_with_data_left_is_taken_over_whichever_end_closed_first(cgroup, peer_ends):
    command = ["unshare", "-n", sys.executable, "-IS", "-c", CLOSED_WITH_DATA, str(cgroup), peer_ends]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            line_of(program)
            with KernelShim([cgroup]) as shim:
                assert adopted(shim) == 1
            assert program.wait(timeout=60) == 0
        finally:
            program.kill()


def test_flows_of_a_living_shim_stay_its_own(cgroup, transfer):
    with KernelShim([cgroup]) as first:
        flow = transfer(cgroup=cgroup, seconds=120, until_told=True, own_network=False)
        with KernelShim([cgroup]) as second:
            assert adopted(second) == 0
            assert second.wrappers != first.wrappers
        end = flow.result()
        assert (end["cc"], end["intact"]) == (first.wrappers["cubic"], True)
