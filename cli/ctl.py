"""``reinet ctl``: asks a running daemon, steers it, and clears away what a killed one left."""

import time
from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.inspection import flow as one_flow
from reinet.cli.output import JsonOption, console, print_table, say, write_json
from reinet.cli.serving import SocketOption, control_client, needs_serve_extra
from reinet.core.errors import ShimError

app = typer.Typer(
    help="Talk to a running daemon: flows, why, watch, health, model, target, swap, pause, resume, detach.",
    no_args_is_help=True,
)
app.command()(one_flow.why)
app.command()(one_flow.watch)
app.command()(one_flow.model)
app.command()(one_flow.target)

MOST_FLOWS = 1 << 20
"""No daemon has room for more."""
FLOW_COLUMNS = [
    "cookie", "cap_pkts", "cwnd_pkts", "rtt_mean_ms", "min_rtt_ms", "target_ms", "delivery_rate_mbps", "age_s",
    "actuator", "reason",
]  # fmt: skip


@app.command()
def flows(
    most: Annotated[int, typer.Option(min=0, max=MOST_FLOWS, help="List at most so many flows; 0 = all.")] = 0,
    socket: SocketOption = None,
    json_destination: JsonOption = None,
) -> None:
    """List the flows with their caps; an uncapped flow shows the reason. Example: reinet ctl flows --json -."""
    with control_client(socket) as client:
        found = client.flows(most)
    rows = [one_flow.row_of(flow) for flow in found.flows]
    write_json(json_destination, {"rows": rows, "live": found.live})
    if json_destination != "-":
        of = f"{len(rows)} of {found.live}" if len(rows) < found.live else f"{len(rows)}"
        print_table(rows, FLOW_COLUMNS, title=f"{of} flows (cap 0 = uncapped)")


@app.command()
def health(socket: SocketOption = None, json_destination: JsonOption = None) -> None:
    """Say whether the decision loop is well and what it runs; exits 1 when it is not. Example: reinet ctl health."""
    with control_client(socket) as client:
        found = client.health()
    write_json(
        json_destination,
        {
            "ok": found.ok,
            "state": found.state,
            "problem": found.problem,
            "model": found.model,
            "target": found.target,
            "decisions": found.decisions,
            "records": found.records,
            "flows": found.flows,
            "uptime_s": found.uptime_s,
            "swaps": [
                {"policy": swap.policy, "under_way": swap.under_way, "latest": swap.latest} for swap in found.swaps
            ],
        },
    )
    if json_destination != "-":
        console.print(
            f"{'ok' if found.ok else 'NOT OK'}, {found.state}, {found.model}, target {found.target}\n"
            f"{found.flows} flows, {found.decisions} decisions from {found.records} records in {found.uptime_s:.0f} s",
        )
        for swap in found.swaps:
            if swap.under_way:
                say(f"swap under way, policy {swap.policy}: {swap.under_way}")
            if swap.latest:
                say(f"latest swap, policy {swap.policy}: {swap.latest}")
        if found.problem:
            console.print(found.problem)
    if not found.ok:
        raise typer.Exit(1)


@app.command()
def swap(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder, or rule[:G], fixed:N, none.")],
    policy: Annotated[str, typer.Option(help="The policy whose model it replaces (default: the daemon's own).")] = "",
    socket: SocketOption = None,
    json_destination: JsonOption = None,
) -> None:
    """Swap in another model in steps, while flows continue.

    The new model is tested on recorded states, then decides for a tenth of the flows for 20 s, then for all. If it
    fails, or its flows fare worse, the old model returns. `reinet ctl health` shows the present step. The swap holds
    until the daemon or its decision process ends, or the configuration names another model. A digest pinned by
    model_sha256 applies to it, too. Example:

        sudo reinet ctl swap checkpoints/per-rtt
    """
    named = str(Path(model).absolute()) if Path(model).exists() else model  # the daemon was started in another folder
    with control_client(socket) as client:
        found = client.swap(named, policy)
    answered = {"states": found.states, "refused": found.refused, "us_per_state": found.us_per_state}
    write_json(json_destination, {"model": named, **answered})
    if json_destination != "-":
        console.print(
            f"{named}: {found.refused} of {found.states} recorded states refused; it gets a share of the flows"
        )


@app.command()
def pause(socket: SocketOption = None, json_destination: JsonOption = None) -> None:
    """Lift every cap and write none until resume. Example: sudo reinet ctl pause."""
    with control_client(socket) as client:
        released = client.pause().released
    write_json(json_destination, {"released": released})
    if json_destination != "-":
        console.print(f"paused, {released} caps lifted")


@app.command()
def resume(socket: SocketOption = None, json_destination: JsonOption = None) -> None:
    """End a pause; each flow is capped again with its next RTT sample. Example: sudo reinet ctl resume."""
    with control_client(socket) as client:
        client.resume()
    write_json(json_destination, {"resumed": True})
    if json_destination != "-":
        console.print("resumed")


DETACH_WAIT_S = 3.0
"""A socket that cannot be reached waits for an ACK; this command does not."""
FREE_WAIT_S = 15.0
"""What no socket runs any more the kernel frees after grace periods, which a busy host draws out."""


@app.command()
def detach(socket: SocketOption = None, json_destination: JsonOption = None) -> None:
    """Remove what a killed daemon left: BPF programs that open sockets still run, its control socket and those beside.

    A running daemon and its flows are not touched. Exits 1 when something is still there afterwards. Example:

        sudo reinet ctl detach
    """
    with needs_serve_extra():
        from reinet.daemon.config import default_socket
        from reinet.daemon.processes.claim import remove_stale_socket, stale_sockets
    from reinet.kshim.leftovers import holders, leftovers, remove_leftovers, why_not_looked

    if reason := why_not_looked():
        raise ShimError(f"cannot look for BPF programs: {reason}; run as root, or grant these capabilities")
    left = leftovers()
    remove_leftovers()
    start_s = time.monotonic()
    while still := leftovers():
        waited_s = time.monotonic() - start_s
        if waited_s > FREE_WAIT_S or (waited_s > DETACH_WAIT_S and holders(still)):
            break
        time.sleep(0.1)
    held_by = holders(still)
    path = (socket or default_socket()).absolute()
    removed = [one for one in dict.fromkeys([path, *stale_sockets(path.parent)]) if remove_stale_socket(one)]
    rows = [{"kind": item.kind, "id": item.id, "name": item.name, "removed": item not in still} for item in left]
    found = {"rows": rows, "socket_removed": path in removed, "held_by": [holder._asdict() for holder in held_by]}
    write_json(json_destination, found)
    if json_destination != "-":
        if rows:
            print_table(rows, ["kind", "id", "name", "removed"])
        for one in removed:
            console.print(f"removed the stale {'control ' if one == path else ''}socket {one}")
        if not rows and not removed:
            console.print("nothing was left behind")
        for holder in held_by:
            console.print(f"held by {holder}", highlight=False, markup=False)
        if still:
            console.print("what is not removed goes when the sockets that run it see an ACK or close")
    if still:
        raise typer.Exit(1)
