"""What the control service answers: the loop's plain data as the messages of ``control.proto``."""

from collections.abc import Iterable

import numpy as np

from reinet.agents.decide.active_policy import PolicyStatus
from reinet.agents.decide.inspection.facts import FlowReport, ModelFacts, Snapshot
from reinet.proto import control_pb2

MOST_FLOWS = 20_000
"""An answer tells of so many flows at most: some 6 MB with the longest reasons, put together in half a second, of a
table that may hold 2**20. Who wants all asks again for those after the last one."""


def flows_reply(seen: Snapshot) -> control_pb2.FlowsReply:
    """Returns the flows."""
    reply = control_pb2.FlowsReply(live=seen.live, next=seen.next)
    for row, record in enumerate(seen.stats):
        process = int(seen.pids[row]) if len(seen.pids) else 0
        reply.flows.append(
            control_pb2.Flow(
                cookie=int(record["cookie"]),
                cap_pkts=int(seen.caps_pkts[row]),
                reason=seen.reasons[row],
                cwnd_pkts=int(record["cwnd_pkts"]),
                rtt_mean_us=int(record["rtt_mean_us"]),
                min_rtt_us=int(record["min_rtt_us"]),
                target_us=int(record["target_us"]),
                delivery_rate_bytes_per_s=int(record["delivery_rate_bytes_per_s"]),
                age_s=_age_s(seen.now_ns, int(record["time_ns"])),
                actuator="application" if process else "kernel",
                process=process,
            )
        )
    return reply


def swaps_reply(policies: Iterable[PolicyStatus]) -> list[control_pb2.PolicySwap]:
    """Returns the swaps of those policies that had one."""
    return [
        control_pb2.PolicySwap(policy=policy.name, under_way=policy.swap, latest=policy.latest_swap)
        for policy in policies
        if policy.swap or policy.latest_swap
    ]


def why_reply(report: FlowReport) -> control_pb2.WhyReply:
    """Returns a flow's report."""
    return control_pb2.WhyReply(
        records=[_record(record, report.now_ns) for record in report.records],
        cap_pkts=report.cap_pkts,
        verdict=report.verdict,
        lease_left_ms=report.lease_left_ms,
        target=report.target,
        own_target=report.own_target,
        policy=report.policy,
        feature_set=report.feature_set,
        features=report.features,
        units=report.units,
        state=report.state.reshape(-1).tolist(),
        decided_age_s=_age_s(report.now_ns, report.decided_ns) if report.decided_ns else -1.0,
        rule_pkts=report.rule_pkts,
        head=report.head,
        action=report.action,
        wanted_pkts=report.wanted_pkts,
    )


def model_reply(facts: ModelFacts) -> control_pb2.ModelReply:
    """Returns who decides."""
    return control_pb2.ModelReply(
        name=facts.name,
        identity=facts.identity,
        feature_set=facts.feature_set,
        min_period_ms=facts.min_period_ms,
        packet_timed=facts.packet_timed,
        head=facts.head,
        schema_hash=facts.schema_hash,
        target_range_ms=facts.target_range_ms or (),
        queueing_target_range_ms=facts.queueing_target_range_ms or (),
        congestion_controls=facts.congestion_controls,
        seed=facts.seed,
        env_steps=facts.env_steps,
    )


def _record(record: np.void, now_ns: int) -> control_pb2.Record:
    return control_pb2.Record(
        age_s=_age_s(now_ns, int(record["time_ns"])),
        rtt_mean_us=int(record["rtt_mean_us"]),
        rtt_samples=int(record["rtt_samples"]),
        min_rtt_us=int(record["min_rtt_us"]),
        target_us=int(record["target_us"]),
        delivery_rate_bytes_per_s=int(record["delivery_rate_bytes_per_s"]),
        cwnd_pkts=int(record["cwnd_pkts"]),
        inflight_pkts=int(record["inflight_pkts"]),
        cap_pkts=int(record["cap_pkts"]),
        lost_bytes=int(record["lost_bytes"]),
        flags=int(record["flags"]),
        time_ns=int(record["time_ns"]),
        ack_wait_us=int(record["ack_wait_us"]),
    )


def _age_s(now_ns: int, then_ns: int) -> float:
    return max(now_ns - then_ns, 0) / 1e9
