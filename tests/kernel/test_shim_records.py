"""The records of real flows: one rule in the kernel and in user space, one end per flow."""

import subprocess
import sys
import time

import numpy as np
import pytest

from helpers.flows import RATE_MBIT, has, read_for, settled, until_closed
from helpers.period import PeriodTracker
from reinet.core.peers import peer_of
from reinet.core.records import FLOW_STATS_DTYPE, Flag
from reinet.kshim.kernel import KernelShim

pytestmark = pytest.mark.kernel


CALLERS_FIELDS = ["cookie", "slot", "target_us", "cap_pkts", "peer"]
OVER_IPV6 = """
import os, socket, sys, time
with open(sys.argv[1], "w") as procs:
    procs.write(str(os.getpid()))
listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
sending = socket.create_connection(listening.getsockname()[:2])
taking, _ = listening.accept()
if os.fork():
    sending.sendall(bytes(20_000_000))
else:  # slowly, for longer than some periods
    sending.close()
    while taking.recv(100_000):
        time.sleep(0.002)
"""


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
    assert set(live["peer"][~has(live, Flag.NO_SAMPLE)].tolist()) == {peer_of("127.0.0.1")}
    # The reader's records know their flow, and hold the silences that no ACK reports.
    live, in_core = live[~has(live, Flag.NO_SAMPLE)].copy(), in_core[~has(in_core, Flag.NO_SAMPLE)]
    for field in CALLERS_FIELDS:
        live[field] = 0
    assert live.tolist() == in_core.tolist()


def test_records_name_their_peer_over_ipv6_too(cgroup):
    with KernelShim([cgroup]) as shim:
        command = [sys.executable, "-c", OVER_IPV6, str(cgroup / "cgroup.procs")]
        with subprocess.Popen(command) as program:
            records = read_for(shim, 2.0)
            assert program.wait(timeout=60) == 0
    heard = records[~has(records, Flag.NO_SAMPLE) & ~has(records, Flag.CLOSED)]
    assert len(heard) > 5
    assert set(heard["peer"].tolist()) == {peer_of("::1")}


def test_events_must_be_asked_for(cgroup):
    with KernelShim([cgroup]) as shim, pytest.raises(OSError, match="started without record_events"):
        shim.take_events()


def test_a_flow_closes_once_even_if_its_last_record_was_lost(cgroup, transfer):
    with KernelShim([cgroup], records_bytes=4096) as shim:
        flow = transfer(cgroup=cgroup, rate_mbit=RATE_MBIT, seconds=2.0)
        assert flow.result()["intact"]
        assert settled(lambda: shim.counters()["records_lost"] > 0)
        time.sleep(0.2)  # the socket's last words
        records = read_for(shim, 0.3)
        assert records["cookie"].tolist() == [flow.cookie] * len(records)
        assert has(records, Flag.CLOSED).tolist() == [False] * (len(records) - 1) + [True]
