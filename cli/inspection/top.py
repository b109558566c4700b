"""``reinet top``: the flows of a running daemon, live and sorted."""

import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from reinet.cli.inspection.flow import row_of
from reinet.cli.output import JsonOption, PlainConsole, table_within, write_json
from reinet.cli.serving import SocketOption, control_client
from reinet.core.visible import visible

if TYPE_CHECKING:
    from reinet.daemon.client import ControlClient

COLUMNS = {
    "cookie": "{}", "cap_pkts": "{}", "cwnd_pkts": "{}", "rtt_mean_ms": "{:.1f}", "queueing_ms": "{:.1f}",
    "target_ms": "{:.1f}", "delivery_rate_mbps": "{:.2f}", "age_s": "{:.1f}", "reason": "{}",
}  # fmt: skip
REASON = "reason"
KEYS = {"c": "cap", "w": "cwnd", "r": "rtt", "u": "queueing", "d": "rate", "a": "age"}
"""A key sorts by an order of the daemon's; q and Ctrl-C end."""
END_KEY = "q"
FRAME_LINES = 6
"""Title, heading and borders of the table."""
PIPE_FLOWS = 50
"""So many flows are printed where no terminal says how many fit."""


def top(
    sort: Annotated[str, typer.Option(help=f"One of {', '.join(KEYS.values())}; the largest comes first.")] = "rate",
    interval_s: Annotated[float, typer.Option(min=0.2, max=60, help="Time between two looks.")] = 1.0,
    most: Annotated[int, typer.Option(min=0, help="So many flows at most; 0 = as many as fit.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="Print once, as into a pipe.")] = False,
    socket: SocketOption = None,
    json_destination: JsonOption = None,
) -> None:
    """Show the flows of a running daemon, live; into a pipe or with --once it prints them once.

    Keys: c, w, r, u, d, a sort by cap, window, RTT, queueing, delivery rate and age of the latest record; q ends.
    Examples:

        reinet top --sort queueing

        reinet top --most 10 | cat
    """
    if sort not in KEYS.values():
        raise typer.BadParameter(f"there is no order {sort!r}; choose one of {', '.join(KEYS.values())}")
    # Text on standard output, for it is what was asked for; a pipe may be wider than a terminal.
    out = PlainConsole(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 160)
    with control_client(socket) as client:
        if json_destination is not None:
            write_json(json_destination, _look(client, most, sort))
        elif once or not out.is_terminal:
            out.print(_table(_look(client, most or PIPE_FLOWS, sort), None, out.width))
        else:
            with suppress(KeyboardInterrupt):
                _live(client, out, most, sort, interval_s)


def _look(client: "ControlClient", most: int, sort: str) -> dict[str, Any]:
    health, flows = client.health(), client.flows(most, sort)
    rows = [row_of(flow) | {"queueing_ms": max(flow.rtt_mean_us - flow.min_rtt_us, 0) / 1e3} for flow in flows.flows]
    return {
        "rows": rows,
        "ok": health.ok,
        "state": health.state,
        "problem": health.problem,
        "model": health.model,
        "target": health.target,
        "flows": flows.live,
        "decisions": health.decisions,
        "uptime_s": health.uptime_s,
        "sorted_by": sort,
    }


def _table(seen: Mapping[str, Any], decisions_per_s: float | None, width: int) -> Group:
    rate = "" if decisions_per_s is None else f", {decisions_per_s:.0f} decisions/s"
    state = f"{'' if seen['ok'] else 'NOT OK '}{seen['state']}"
    head = f"{state}, {seen['flows']} flows{rate}, {seen['model']}, target {seen['target']}"
    rows = [[Text(visible(form.format(row[column]))) for column, form in COLUMNS.items()] for row in seen["rows"]]
    headings = {column: column != REASON for column in COLUMNS}
    table, _ = table_within(width, headings, rows, f"sorted by {seen['sorted_by']}", REASON)  # a flow has one line
    problem = [Text(visible(seen["problem"]), style="bold red")] if seen["problem"] else []
    return Group(Text(visible(head), style="bold"), *problem, table)


def _live(client: "ControlClient", out: PlainConsole, most: int, sort: str, interval_s: float) -> None:
    before: tuple[float, int] | None = None
    with _keys() as key_within, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            fitting = max(shutil.get_terminal_size().lines - FRAME_LINES, 1)
            seen = _look(client, min(most or fitting, fitting), sort)
            uptime_s, decisions = seen["uptime_s"], seen["decisions"]
            per_s = (decisions - before[1]) / (uptime_s - before[0]) if before and uptime_s > before[0] else None
            before = uptime_s, decisions
            live.update(_table(seen, per_s, out.width), refresh=True)
            key = key_within(interval_s)
            if key == END_KEY:
                return
            sort = KEYS.get(key, sort)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Gives a function that waits so many seconds for a key and returns it, empty when none came."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        # Not sys.stdin.read(1): its buffer would swallow further keys, which select() then does not see.
        yield lambda seconds: os.read(fd, 1).decode(errors="ignore") if select.select([fd], [], [], seconds)[0] else ""
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
