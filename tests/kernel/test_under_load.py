"""Under load: a daemon restarted, or beside a crowd of sockets; what the gate costs. The docs have larger runs."""

import pytest

from helpers.figures import figures_hold
from reinet.alcc.launch import Law
from reinet.daemon.benches import gate_cost, handover, load
from reinet.daemon.benches.sending import BUFFER_BYTES, Senders
from reinet.kshim.probe import wrappable

pytestmark = [pytest.mark.kernel, pytest.mark.mahimahi]


@pytest.mark.alone  # another shim that starts would ask what the killed one left to go
@pytest.mark.parametrize(("cc", "how"), [("cubic", "stop"), ("bbr", "kill")])
def test_a_restart_loses_no_flow_and_no_throughput_and_builds_no_queue(monkeypatch, cc, how):
    if not wrappable()[cc].ok:
        pytest.skip(f"this kernel has no {cc}: modprobe tcp_{cc}")
    monkeypatch.setattr(handover, "SETTLE_S", 4.0)
    monkeypatch.setattr(handover, "BEFORE_S", 2.0)

    def restarted():
        found = handover.measure(cc, flows=20, how=how)
        assert (found.flows_lost, found.flows_taken_over) == (0, 20)
        return found

    def check(found):
        assert min(found.leaving_within_5_percent, found.taking_over_within_5_percent) == 1.0
        assert found.qdelay_p99_ms < 1.25 * found.plain_qdelay_p99_ms

    figures_hold(restarted, check, lambda found: found.late_ms > 50 or found.plain_within_5_percent < 1)


def test_every_flow_has_a_bottleneck_of_its_own_and_fills_its_queue():
    with Senders("cubic", 3, rate_mbps=1.0, mrtt_ms=20.0) as senders:
        senders.wait(5.0)
        run = senders.end()
    assert run.lost == 0
    mbit = run.rate(run.times_s[-1, 0] - 2.0, run.times_s[-1, 0]) * 8e-6
    assert mbit.min() > 0.8
    assert mbit.max() < 1.0  # the link counts headers too
    full_ms = 20.0 + BUFFER_BYTES * 8e-3
    assert run.rtts_ms.max(axis=0).min() > 0.8 * full_ms


def test_the_gates_cost_is_of_flows_whose_queues_it_shortens():
    cost = gate_cost.measure(Law("rule:1.5"), 3, 1.0, pairs=1, seconds=2.0)
    assert (cost.pairs, cost.law, cost.flows) == (1, "rule:1.5", 3)
    assert cost.capped_rtt_mean_ms < 0.6 * cost.plain_rtt_mean_ms
    assert cost.throughput_ratio > 0.8
    assert cost.own_plain_percent > 0 or cost.pairs_valid == 0


def test_a_crowd_of_sockets_leaves_nothing_behind():
    found = load.measure(held_sockets=2000, per_s=1000, seconds=2.0)
    assert found.connections == 2000
    assert (found.connections_failed, found.flows_missed) == (0, 0)
    assert found.counters["flows_chosen"] == 2000 + 2 * 2000
    assert (found.flows_after, found.caps_after, found.left_loaded, found.counters["records_lost"]) == (0, 0, 0, 0)
    assert max(found.resident_mb_end.values()) < 200
