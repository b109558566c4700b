"""Which flows the shim chooses, and that it touches nothing else."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.flows import RATE_MBIT, has, read_for, until_closed
from helpers.foreign import foreign_sockops
from reinet.core.errors import ShimError
from reinet.core.records import Flag
from reinet.kshim import probe
from reinet.kshim.kernel import KernelShim
from reinet.kshim.leftovers import loaded
from reinet.kshim.probe import wrappable

pytestmark = pytest.mark.kernel


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


def test_a_socket_is_of_the_cgroup_it_was_opened_in_whereto_its_process_moves(cgroup, transfer):
    with KernelShim([cgroup]) as shim:
        flow = transfer(cgroup=cgroup, seconds=0.6, own_network=False)
        (cgroup.parent / "cgroup.procs").write_text(str(flow.process.pid))
        assert has(until_closed(shim, flow.cookie), Flag.CLOSED).sum() == 1
        assert flow.result()["cc"] == shim.wrappers["cubic"]
        other = transfer(seconds=0.3, own_network=False)
        (cgroup / "cgroup.procs").write_text(str(other.process.pid))
        assert other.result()["cc"] == "cubic"
        assert shim.counters()["flows_chosen"] == 1


SERVER = """
import os, socket, sys
def accepted(listening):
    listening.setsockopt(socket.IPPROTO_TCP, 13, b"cubic")
    with socket.create_connection(listening.getsockname()):
        return listening.accept()[0].getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b"\\0").decode()
before = socket.create_server(("127.0.0.1", 0))
with open(f"{sys.argv[1]}/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
print(accepted(before), accepted(socket.create_server(("127.0.0.1", 0))))
"""


def test_what_a_server_accepts_is_of_the_cgroup_that_its_listening_socket_was_opened_in(cgroup):
    with KernelShim([cgroup]) as shim:
        moved = subprocess.run([sys.executable, "-c", SERVER, cgroup], stdout=subprocess.PIPE, text=True, check=True)
        assert moved.stdout.split() == ["cubic", shim.wrappers["cubic"]]


def test_what_is_not_wrapped_is_left_alone(cgroup, transfer, monkeypatch):
    monkeypatch.setitem(probe._KFUNCS, "reno", ("reno_of_another_kernel",))
    monkeypatch.setattr(probe, "_mentions", probe._mentions.__wrapped__)  # looks again, for this name too
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


def test_full_table_leaves_flows_alone_until_a_slot_is_free(cgroup, transfer):
    with KernelShim([cgroup], max_flows=1) as shim:
        first = transfer(cgroup=cgroup, seconds=60, until_told=True, own_network=False)
        second = transfer(cgroup=cgroup, seconds=0.1, own_network=False)
        assert (first.cc, second.cc) == (shim.wrappers["cubic"], "cubic")
        assert shim.counters()["flows_without_slot"] == 1
        assert first.result()["intact"]
        until_closed(shim, first.cookie)
        third = transfer(cgroup=cgroup, seconds=0.1, own_network=False)
        assert third.cc == shim.wrappers["cubic"]


def test_a_daemons_table_is_large_and_only_what_was_used_of_it_is_looked_at(cgroup, transfer):
    with KernelShim([cgroup], max_flows=65_536, records_bytes=8 << 20) as shim:
        assert shim.counters()["slots_used"] == 0
        flows = [transfer(cgroup=cgroup, seconds=60, until_told=True, own_network=False) for _ in range(2)]
        assert {flow.cc for flow in flows} == {shim.wrappers["cubic"]}
        records = read_for(shim, 0.3)
        assert set(records["slot"].tolist()) == {0, 1}
        assert shim.counters()["slots_used"] == 2


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


def test_of_two_shims_on_one_cgroup_the_first_has_its_flows(cgroup, transfer):
    with KernelShim([cgroup]) as shim, KernelShim([cgroup]) as second:
        flow = transfer(cgroup=cgroup, seconds=0.3, own_network=False)
        assert flow.cc == shim.wrappers["cubic"]
        second.adopt()
        assert flow.result()["cc"] == shim.wrappers["cubic"]
        until_closed(shim, flow.cookie)
        assert (shim.counters()["flows_chosen"], second.counters()["flows_chosen"]) == (1, 0)
        assert second.counters()["flows_adopted"] == 0


def test_a_cgroup_made_anew_and_one_that_came_are_followed(cgroup, transfer, cleanup):
    inner, later = cgroup / "inner", cgroup / "later"
    inner.mkdir()
    cleanup.callback(lambda: [path.rmdir() for path in (inner, later) if path.exists()])
    with KernelShim([inner]) as shim:
        inner.rmdir()
        inner.mkdir()
        later.mkdir()
        assert transfer(cgroup=inner, seconds=0.05, own_network=False).cc == "cubic"  # what was attached went with it
        shim.follow([inner, later])
        for path in (inner, later):
            flow = transfer(cgroup=path, seconds=0.1, own_network=False)
            assert flow.cc == shim.wrappers["cubic"]
            until_closed(shim, flow.cookie)
        shim.follow([later])
        assert transfer(cgroup=inner, seconds=0.05, own_network=False).cc == "cubic"


def test_a_cgroup_that_cannot_be_attached_keeps_no_other_from_being_followed(cgroup, transfer, cleanup, tmp_path):
    inner, later = cgroup / "inner", cgroup / "later"
    inner.mkdir()
    later.mkdir()
    cleanup.callback(lambda: [path.rmdir() for path in (inner, later)])
    with KernelShim([inner]) as shim:
        told = set()
        for _ in range(2):  # as a daemon tries each second
            with pytest.raises(ShimError, match=f"attach to cgroup {tmp_path}") as raised:
                shim.follow([tmp_path, later])
            told.add(str(raised.value))
        assert len(told) == 1, "what was complained of before is told again"
        flow = transfer(cgroup=later, seconds=0.1, own_network=False)
        assert flow.cc == shim.wrappers["cubic"]
        until_closed(shim, flow.cookie)
        assert transfer(cgroup=inner, seconds=0.05, own_network=False).cc == "cubic", "it is not to be followed"


def test_cgroups_beyond_those_that_there_is_room_for_are_told_each_time(cgroup, cleanup):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    cleanup.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    many = [cgroup / str(number) for number in range(1025)]
    for path in many:
        path.mkdir()
        cleanup.callback(path.rmdir)
    with KernelShim(many[:1]) as shim:
        for _ in range(2):
            with pytest.raises(ShimError, match=f"note cgroup {many[-1]} among 1024 at most"):
                shim.follow(many)
        shim.follow(many[:-1])


def test_a_cgroup_whose_name_is_no_utf8_is_followed_as_others_are(cgroup, cleanup, transfer):
    """Whoever may make one under a pattern chooses its name: none beside it was followed, and no daemon began."""
    named, beside = cgroup / os.fsdecode(b"docker-\xff.scope"), cgroup / "docker-1.scope"
    for path in (named, beside):
        path.mkdir()
        cleanup.callback(path.rmdir)
    with KernelShim([named]) as shim:
        shim.follow([named, beside])
        for path in (named, beside):
            flow = transfer(cgroup=path, seconds=0.05, own_network=False)
            assert flow.cc == shim.wrappers["cubic"]
            flow.result()
        with pytest.raises(ShimError, match=r"docker-\udcff\.scope/gone: No such file"):
            shim.follow([named / "gone"])


def test_a_foreign_sockops_program_works_on_beside_ours(cgroup, transfer):
    with foreign_sockops(cgroup) as before:
        transfer(cgroup=cgroup, seconds=0.05, own_network=False).result()
        alone = before.calls()
        assert alone > 0
        with KernelShim([cgroup]) as shim, foreign_sockops(cgroup) as later:
            flow = transfer(cgroup=cgroup, seconds=0.05, own_network=False)
            assert flow.cc == shim.wrappers["cubic"]
            assert flow.result()["intact"]
            beside = before.calls()
            assert beside - alone == later.calls() > 0
        assert transfer(cgroup=cgroup, seconds=0.05, own_network=False).cc == "cubic"
        assert before.calls() > beside


MULTIPATH = """
import os, socket, subprocess, sys
subprocess.run("ip link set lo mtu 1500 up".split(), check=True)
subprocess.run("tc qdisc add dev lo root tbf rate 20mbit burst 3000 limit 150000".split(), check=True)
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
MPTCP, SOL_MPTCP, MPTCP_INFO = 262, 284, 1
server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
server.bind(("127.0.0.1", 0))
server.listen()
client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
client.connect(server.getsockname())
other = server.accept()[0]
for _ in range(60):  # 16 ms of sending each: a period counts no idle time, and one of at least 10 ms has a record
    client.sendall(bytes(40_000))
    other.recv(40_000, socket.MSG_WAITALL)
client.getsockopt(SOL_MPTCP, MPTCP_INFO, 64)  # fails where it fell back to plain TCP
"""


def test_the_subflows_of_a_multipath_connection_are_flows_like_others(cgroup):
    if not Path("/proc/sys/net/mptcp/enabled").exists():
        pytest.skip("this kernel has no MPTCP")
    with KernelShim([cgroup]) as shim:
        subprocess.run(["unshare", "-n", sys.executable, "-IS", "-c", MULTIPATH, str(cgroup)], check=True, timeout=60)
        records = shim.poll(timeout_ms=100)
        assert shim.counters()["flows_chosen"] == 2
        assert len(records[records["rtt_samples"] > 0])


def test_only_cgroups_of_version_2(tmp_path):
    with pytest.raises(ShimError, match="is no cgroup: create it"):
        KernelShim([tmp_path])


def test_a_host_that_lacks_something_is_told_what(cgroup, monkeypatch):
    monkeypatch.setattr("reinet.kshim.probe.BTF", Path("/nonexistent/vmlinux"))
    with pytest.raises(ShimError, match="btf: /nonexistent/vmlinux does not exist; cure: boot a kernel"):
        KernelShim([cgroup])
