"""What ``reinet ctl`` shows of single flows and of the model: why, watch, model, target."""

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reinet.cli.output import JsonOption, console, print_table, say, write_json
from reinet.cli.serving import SocketOption, control_client
from reinet.core.records import Flag
from reinet.core.target import Target

if TYPE_CHECKING:
    from reinet.proto import control_pb2

MOST_COOKIE = (1 << 64) - 1
SHOWN_OBSERVATIONS = 6
"""So many of a state's history fit a line; --json has all."""
NO_NUMBER = 0xFFFF_FFFF
"""The agent's answer where it computed no number."""
RECORD_COLUMNS = ["age_s", "rtt_mean_ms", "queueing_ms", "ack_wait_ms", "target_ms", "delivery_rate_mbps",
                  "cwnd_pkts", "inflight_pkts", "cap_pkts", "lost_bytes", "flags"]  # fmt: skip
TAKE_BACK = "default"


def _cookie(text: str) -> int:
    try:
        cookie = int(text, 0)
    except ValueError:
        cookie = 0
    if not 1 <= cookie <= MOST_COOKIE:
        raise typer.BadParameter(f"{text!r} is no flow: give its cookie, 1234 or 0x4d2, as `reinet ctl flows` shows it")
    return cookie


FlowArgument = Annotated[
    int, typer.Argument(metavar="FLOW", parser=_cookie, help="The flow's cookie, decimal or hexadecimal (0x...).")
]


def row_of(flow: "control_pb2.Flow") -> dict[str, Any]:
    """Returns a flow as ``ctl flows`` and ``top`` show it."""
    return {
        "cookie": flow.cookie,
        "cap_pkts": flow.cap_pkts,
        "reason": flow.reason,
        "cwnd_pkts": flow.cwnd_pkts,
        "rtt_mean_ms": flow.rtt_mean_us / 1e3,
        "min_rtt_ms": flow.min_rtt_us / 1e3,
        "target_ms": flow.target_us / 1e3,
        "delivery_rate_mbps": flow.delivery_rate_bytes_per_s * 8e-6,
        "age_s": flow.age_s,
        "actuator": flow.actuator,
        "process": flow.process,
    }


def _record_row(record: "control_pb2.Record") -> dict[str, Any]:
    known = record.rtt_mean_us and record.min_rtt_us
    return {
        "time_ns": record.time_ns,
        "age_s": record.age_s,
        "rtt_mean_ms": record.rtt_mean_us / 1e3,
        "rtt_samples": record.rtt_samples,
        "min_rtt_ms": record.min_rtt_us / 1e3,
        "queueing_ms": max(record.rtt_mean_us - record.min_rtt_us, 0) / 1e3 if known else None,
        "ack_wait_ms": record.ack_wait_us / 1e3,
        "target_ms": record.target_us / 1e3,
        "delivery_rate_mbps": record.delivery_rate_bytes_per_s * 8e-6,
        "cwnd_pkts": record.cwnd_pkts,
        "inflight_pkts": record.inflight_pkts,
        "cap_pkts": record.cap_pkts,
        "lost_bytes": record.lost_bytes,
        "flags": " ".join(flag.name.lower() for flag in Flag if flag & record.flags and flag.name),
    }


def _state_rows(report: "control_pb2.WhyReply") -> list[dict[str, Any]]:
    """A row for each feature, its observations from the newest back."""
    count = len(report.features)
    return [
        {"feature": name, "unit": unit, "values": list(report.state[place::count])}
        for place, (name, unit) in enumerate(zip(report.features, report.units, strict=True))
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def why(flow: FlowArgument, socket: SocketOption = None, json_destination: JsonOption = None) -> None:
    """Say why a flow has its cap: records, state, action, verdict, cap, lease. Example: reinet ctl why 0x4d2."""
    with control_client(socket) as client:
        report = client.why(flow)
    decided = report.decided_age_s >= 0
    asked = report.HasField("wanted_pkts") and report.wanted_pkts != NO_NUMBER
    found: dict[str, Any] = {
        "cookie": flow,
        "cap_pkts": report.cap_pkts,
        "verdict": report.verdict,
        "lease_left_ms": report.lease_left_ms,
        "target": report.target,
        "own_target": report.own_target,
        "policy": report.policy,
        "decided_age_s": report.decided_age_s if decided else None,
        "rule_pkts": report.rule_pkts,
        "head": report.head,
        "action": _finite(report.action) if report.HasField("action") else None,
        "wanted_pkts": report.wanted_pkts if asked else None,
        "feature_set": report.feature_set,
        "state": _state_rows(report),
        "records": [_record_row(record) for record in report.records],
    }
    write_json(json_destination, found)
    if json_destination != "-":
        _show(found, report)


def _show(found: Mapping[str, Any], report: "control_pb2.WhyReply") -> None:
    cap = f"cap {report.cap_pkts} packets, lease ends in {report.lease_left_ms:.0f} ms" if report.cap_pkts else "no cap"
    say((f"flow {found['cookie']} ({found['cookie']:#x}): {cap}", "bold"))
    say(f"verdict  {report.verdict or 'nothing speaks against the cap'}")
    say(f"target   {report.target}{' (its own)' if report.own_target else ''}, policy {report.policy}")
    if found["decided_age_s"] is None:
        say("agent    has decided nothing for it yet")
    else:
        say(f"agent    {_said(found, report)}; {report.decided_age_s:.3f} s ago")
    print_table(
        found["records"], RECORD_COLUMNS, title="latest records, oldest first (cap_pkts: in force in the kernel)"
    )
    shown = [
        {"feature": row["feature"], "unit": row["unit"]}
        | {_ago(place): float(value) for place, value in enumerate(row["values"][:SHOWN_OBSERVATIONS])}
        for row in found["state"]
        if row["values"]
    ]
    if shown:
        columns = ["feature", "unit", *(_ago(place) for place in range(len(shown[0]) - 2))]
        print_table(shown, columns, title=f"state {report.feature_set}, as the agent saw it")


def _ago(place: int) -> str:
    return "newest" if place == 0 else f"-{place}"


def _said(found: Mapping[str, Any], report: "control_pb2.WhyReply") -> str:
    rule = f"the hand rule's product {report.rule_pkts:.1f} packets"
    if (wanted_pkts := found["wanted_pkts"]) is None:
        wanted = "computed no number"
    else:
        wanted = f"asked for {wanted_pkts} packets" if wanted_pkts else "asked for no cap"
    action = f"action {report.action:+.4f} (head {report.head}), " if report.HasField("action") else ""
    return f"{action}{rule}, {wanted}"


def watch(
    flow: FlowArgument,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to watch; Ctrl-C ends it earlier.")] = 3600.0,
    interval_s: Annotated[
        float, typer.Option(min=0.05, max=60, help="Time between two questions; the daemon keeps the last records.")
    ] = 0.1,
    socket: SocketOption = None,
    json_destination: JsonOption = None,
) -> None:
    """Print each record of a flow as it comes, until the flow ends. Example: reinet ctl watch 0x4d2 --seconds 10."""
    from reinet.core.errors import DaemonError

    rows: list[dict[str, Any]] = []
    latest_ns, missed = 0, ""
    with control_client(socket) as client, suppress(KeyboardInterrupt):  # which ends it as its time does
        report = client.why(flow)  # whose error says that there is no such flow
        end_s = time.monotonic() + seconds  # to connect, which takes long on a busy host, is not to watch
        if json_destination != "-":
            say(_line(None))
        while True:
            new = [record for record in report.records if record.time_ns > latest_ns]
            for record in new:
                row = _record_row(record) | {"verdict": report.verdict if record is new[-1] else ""}
                latest_ns = record.time_ns
                if json_destination != "-":
                    say(_line(row))
                if json_destination is not None:
                    rows.append(row)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(interval_s, left_s))
            try:
                report = client.why(flow)
            except DaemonError as error:
                missed = str(error)
                break
    write_json(json_destination, {"rows": rows})
    if json_destination != "-" and missed:
        console.print(missed)


def _line(row: Mapping[str, Any] | None) -> str:
    """A record on a line; None makes the heading."""
    columns = [column for column in RECORD_COLUMNS if column not in ("age_s", "flags")]
    if row is None:
        return "  ".join([*columns, "flags and verdict"])
    cells = [" " * len(c) if row[c] is None else f"{row[c]:>{len(c)}.6g}" for c in columns]
    return "  ".join([*cells, row["flags"], row["verdict"]]).rstrip()


def model(socket: SocketOption = None, json_destination: JsonOption = None) -> None:
    """Say which model decides and what it was made for. Example: reinet ctl model --json -."""
    with control_client(socket) as client:
        found = client.model()
    facts: dict[str, Any] = {
        "name": found.name,
        "identity": found.identity,
        "feature_set": found.feature_set,
        "head": found.head,
        "schema_hash": found.schema_hash,
        "min_period_ms": found.min_period_ms,
        "packet_timed": found.packet_timed,
        "target_range_ms": list(found.target_range_ms) or None,
        "queueing_target_range_ms": list(found.queueing_target_range_ms) or None,
        "congestion_controls": list(found.congestion_controls) or None,
        "seed": found.seed if found.HasField("seed") else None,
        "env_steps": found.env_steps if found.HasField("env_steps") else None,
    }
    write_json(json_destination, facts)
    if json_destination != "-":
        for key, value in facts.items():
            if value not in (None, ""):
                say(f"{key:26} {value}")


def target(
    value: Annotated[
        str | None,
        typer.Argument(metavar="[TARGET]", help=f"50ms, +30ms or 2.5x; {TAKE_BACK} takes a flow's own one back."),
    ] = None,
    flow: Annotated[
        int | None, typer.Option("--flow", metavar="FLOW", parser=_cookie, help="Of this flow alone, by its cookie.")
    ] = None,
    socket: SocketOption = None,
    json_destination: JsonOption = None,
) -> None:
    """Show or set the target: of one flow, or of all under no policy that have none of their own.

    One flow's holds until it or the daemon ends, that of all until the daemon ends or reads its file again. Example:

        sudo reinet ctl target +20ms --flow 7
    """
    if value == TAKE_BACK and not flow:
        raise typer.BadParameter(f"{TAKE_BACK} is for one flow: name it with --flow, or give a target")
    if value not in (None, TAKE_BACK):
        Target.parse(value)  # what is none is no daemon's fault
    with control_client(socket) as client:
        if value is not None:
            in_force = client.set_target(flow or 0, "" if value == TAKE_BACK else value)
        else:
            in_force = client.why(flow).target if flow else client.health().target
    write_json(json_destination, {"target": in_force, "cookie": flow})
    if json_destination != "-":
        whose = f"flow {flow}" if flow else "every flow under no policy and without a target of its own"
        console.print(f"{whose}: {in_force}")
