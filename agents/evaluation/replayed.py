"""What agents answer to flows that a daemon recorded: the same states, gate and guard, with no flow behind them.

A replay is open: the records are those of a flow under the caps of its time, whatever is answered now. So it tells how
two models differ on the same sights, not what the flow would have become under either.

A recording has not every field of a record (``kshim/recorded.py``). A period's mean RTT stands for its latest, the
smoothed RTT is made anew from the means, losses and the peer's other flows are unknown, and what ACKs waited is out of
the least RTTs already. The cadence is that of the model which the daemon ran.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reinet.agents.decide.decider import Decider, Mask
from reinet.agents.decide.protocol import Agent, CapArray
from reinet.core.guard import Guard
from reinet.core.records import FLOW_STATS_DTYPE, FlowStatsArray
from reinet.core.target import Target
from reinet.envs.trace.flow_records import FlowRecording
from reinet.kshim.recorded import COLUMNS, RecordArray

SRTT_GAIN = 1 / 8
"""RFC 6298's, of each sample: all of a period's count as its mean."""
BEFORE_NS = 10**12
"""Recorded times count from the flow's first record, whose period began earlier."""
UNLIMITED = np.iinfo(np.uint64).max
_ROW = np.zeros(1, np.intp)


@dataclass(frozen=True)
class Replayed:
    """One agent's answers to one recorded flow."""

    flow: str
    agent: str
    records: RecordArray
    caps_pkts: CapArray
    """(N,), in force after each record, 0 = none; it stays where a record asks for no decision."""
    decided: Mask
    """(N,), False where the record asked for no decision."""


def replay(recording: FlowRecording, agent: Agent, target: Target) -> Replayed:
    """Returns what an agent would have had in force after each of a recorded flow's records."""
    caps_pkts, decided, _ = answers(agent, stats_of(recording.records), target)
    return Replayed(recording.flow, agent.name, recording.records, caps_pkts, decided)


def answers(agent: Agent, stats: FlowStatsArray, target: Target | None = None) -> tuple[CapArray, Mask, Any]:
    """Returns what an agent would have had in force after each of one flow's records (N,), which of them asked for a
    decision (N,), and the verdict at the end.

    ``target`` is resolved anew for each record, as the daemon does, by the flow's path as it is then, and written into
    it; None = the records say theirs.
    """
    bank, decider = agent.view.bank(1), Decider(agent, 1, Guard())
    caps_pkts, decided = np.zeros(len(stats), np.uint32), np.zeros(len(stats), np.bool_)
    for at in range(len(stats)):
        one = stats[at : at + 1]
        if target is not None:
            target.write(one, bank.longer_us(_ROW))
        batch = bank.update(_ROW, one)
        decided[at] = batch.decided[0]
        caps_pkts[at] = decider.decide(one, batch.states, batch.rule_pkts, batch.decided, batch.may_cap)[0]
    return caps_pkts, decided, decider.verdicts[0]


def stats_of(records: RecordArray) -> FlowStatsArray:
    """Returns FLOW_STATS_DTYPE (N,) of a flow's recorded ones, RECORD_DTYPE (N,), without a target."""
    stats = np.zeros(len(records), FLOW_STATS_DTYPE)
    stats["cookie"] = 1
    stats["time_ns"] = records["time_us"] * np.uint64(1000) + np.uint64(BEFORE_NS)
    stats["period_ns"] = records["period_us"].astype(np.uint64) * np.uint64(1000)
    for name in COLUMNS:
        stats[name] = records[name]
    period_s = np.maximum(records["period_us"], 1) / 1e6
    stats["delivery_rate_bytes_per_s"] = (records["delivered_bytes"] / period_s).astype(np.uint64)
    stats["rtt_last_us"] = records["rtt_mean_us"]
    stats["srtt_us"] = _smoothed(records)
    stats["pacing_rate_bytes_per_s"] = UNLIMITED
    return stats


def _smoothed(records: RecordArray) -> list[int]:
    srtt_us, found = 0.0, []
    for mean_us, samples in zip(records["rtt_mean_us"].tolist(), records["rtt_samples"].tolist(), strict=True):
        if samples:
            srtt_us += (mean_us - srtt_us) * (1 - (1 - SRTT_GAIN) ** samples if srtt_us else 1.0)
        found.append(round(srtt_us))
    return found


def rows_of(replays: Sequence[Replayed]) -> list[dict[str, object]]:
    """Returns a row for each agent and recording, after one of the caps that were recorded; units are in the keys.

    Shares and medians are over records that asked for a decision. ``same_share``: how often the cap is the first
    agent's of that recording, or none as there; ``median_ratio``: where both have one, the median of its cap over that
    one's. Recordings are told apart by their records: a flow that outlived its daemon has another one of its name.
    """
    rows: list[dict[str, object]] = []
    firsts: dict[int, Replayed] = {}
    for one in replays:
        asked = one.decided
        if id(one.records) not in firsts:
            rows.append({"flow": one.flow, "agent": "recorded"} | _caps(one.records["cap_pkts"][asked]))
        first = firsts.setdefault(id(one.records), one)
        caps, theirs = one.caps_pkts[asked], first.caps_pkts[first.decided]
        row: dict[str, object] = {"flow": one.flow, "agent": one.agent, **_caps(caps)}
        if first is not one:
            both = (caps > 0) & (theirs > 0)
            row["same_share"] = float(np.mean(caps == theirs)) if caps.size else None
            row["median_ratio"] = float(np.median(caps[both] / theirs[both])) if both.any() else None
        rows.append(row)
    return rows


def _caps(caps_pkts: CapArray) -> dict[str, object]:
    capped = caps_pkts[caps_pkts > 0]
    return {
        "decisions": int(caps_pkts.size),
        "capped_share": float(np.mean(caps_pkts > 0)) if caps_pkts.size else None,
        "cap_median_pkts": float(np.median(capped)) if capped.size else None,
        "cap_p5_pkts": float(np.quantile(capped, 0.05)) if capped.size else None,
        "cap_p95_pkts": float(np.quantile(capped, 0.95)) if capped.size else None,
    }


def series_of(one: Replayed) -> dict[str, object]:
    """Returns the caps after each record beside those that were recorded, for whoever draws them."""
    return {
        "flow": one.flow,
        "agent": one.agent,
        "time_s": (one.records["time_us"] / 1e6).tolist(),
        "decided": one.decided.tolist(),
        "cap_pkts": one.caps_pkts.tolist(),
        "recorded_cap_pkts": one.records["cap_pkts"].tolist(),
        "cwnd_pkts": one.records["cwnd_pkts"].tolist(),
    }
