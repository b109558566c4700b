"""``reinet bench alcc``: what the gate of ``reinet run`` costs, and how it compares with other ways of sending."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from reinet.cli.options import refuse_said
from reinet.cli.output import JsonOption, say, tell_table, without_nan
from reinet.core.errors import ConfigError

Row = dict[str, Any]
Comparing = Callable[[Sequence[Row]], list[Row]]

UDP = ["law", "trace", "gate_throughput_mbps", "udp_throughput_mbps", "throughput_ratio", "spread",
       "gate_delay_mean_ms", "udp_delay_mean_ms", "delay_ratio", "cpu_ratio", "valid"]  # fmt: skip

JAVA = ["trace", "plain_throughput_mbps", "mdi_throughput_mbps", "throughput_ratio", "plain_qdelay_mean_ms",
        "mdi_qdelay_mean_ms", "qdelay_ratio", "cpu_ratio", "valid"]  # fmt: skip

KERNEL = ["agent", "trace", "gate_throughput_mbps", "kernel_throughput_mbps", "throughput_ratio", "spread",
          "plain_qdelay_mean_ms", "gate_qdelay_mean_ms", "kernel_qdelay_mean_ms", "delay_ratio", "reduction_share",
          "cpu_over_plain",
          "valid"]  # fmt: skip

TUNNEL = ["law", "beside", "plain_throughput_mbps", "gate_throughput_mbps", "gate_beside_mbps", "plain_jain",
          "gate_jain", "plain_delay_mean_ms", "gate_delay_mean_ms", "delay_ratio", "gate_longest_stall_ms",
          "valid"]  # fmt: skip

SHIM = ["trace", "periods", "rtt_share", "delivered_share", "samples_share", "spread", "rtt_off_median",
        "delivered_off_median", "samples_off_median", "run_rtt_ratio", "run_delivered_ratio", "run_samples_ratio",
        "period_ratio", "cwnd_ratio", "valid"]  # fmt: skip

PLAIN = ["law", "flows", "pairs_valid", "quiet", "cpu_ratio_vs_plain", "cpu_ratio_low", "cpu_ratio_high", "own_ratio",
         "throughput_ratio", "capped_rtt_mean_ms"]  # fmt: skip

FETCHES = ["law", "bytes", "fresh", "pairs", "plain_us", "gated_us", "cpu_ratio", "cpu_ratio_q1", "cpu_ratio_q3"]


class Against(str, Enum):
    """What is measured in the place of the gate's own cost; ``bench_alcc`` describes each."""

    plain = "plain"
    udp = "udp"
    kernel = "kernel"
    shim = "shim"
    tunnel = "tunnel"
    java = "java"
    fetches = "fetches"


_GIVEN_LINKS = (Against.udp, Against.kernel, Against.shim, Against.java)
BELONGS_TO: dict[str, tuple[Against | None, ...]] = {
    "connections": (None,),
    "law": (None,),
    "seconds": (None, *(against for against in Against if against is not Against.fetches)),
    "traces": _GIVEN_LINKS,
    "laws": (Against.udp,),
    "agents": (Against.plain, Against.kernel, Against.tunnel, Against.fetches),
    "repeat": tuple(Against),
    "buffer_bytes": (Against.java,),
}
"""Of every option what may be given after --against where it does something, None = without --against."""


def _refuse_foreign(context: typer.Context, against: Against | None) -> None:
    """Raises ConfigError for an option that was given and that this measurement does not look at."""
    where = "over loopback" if against is None else f"with --against {against.value}"
    for name, places in BELONGS_TO.items():
        if against not in places:
            those = ", ".join(place.value for place in places if place is not None)
            at = f"--against {those}" if those else "the measurements without --against"
            refuse_said(context, (name,), f"{where} it does nothing; it belongs to {at}")


def bench_alcc(
    context: typer.Context,
    connections: Annotated[
        int, typer.Option(min=1, help="Of the crowd whose gates are closed; ten times as many are idle.")
    ] = 1000,
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of each measurement.")] = 3.0,
    law: Annotated[
        str,
        typer.Option(
            metavar="LAW", help="What decides: fixed:N, rule[:G], a small model's folder, copa, verus, sprout."
        ),
    ] = "fixed:8",
    against: Annotated[
        Against | None,
        typer.Option(help="What to measure instead; each is described above."),
    ] = None,
    traces: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="With --against: the links' traces.")
    ] = None,
    laws: Annotated[str, typer.Option(metavar="A,B", help="With --against udp: of copa, verus, sprout.")] = (
        "copa,verus,sprout"
    ),
    agents: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="With --against plain, kernel, tunnel, fetches: fixed:N, rule[:G], small models."
        ),
    ] = "rule",
    repeat: Annotated[int, typer.Option(min=1, help="With --against: runs of each law, trace and way; pairs.")] = 1,
    buffer_bytes: Annotated[
        int | None, typer.Option(metavar="B", help="With --against java: the links' buffer; 150 KB unless said.")
    ] = None,
    json_destination: JsonOption = None,
) -> None:
    """Measure what the gate of reinet run costs, over loopback: a write, closed gates, idle connections, memory.

    No privileges are needed. A closed gate is one whose peer reads nothing; the share is of one core.

    With --against it measures one of the following instead, in runs that take turns; all but fetches need root. udp,
    kernel, shim, tunnel and java send over Mahimahi links of 20 ms and 150 KB under the kernel's Cubic; there a run in
    which the host lagged is made again, ratios are of medians, and the spread is the largest of any way's throughputs.

    --against plain: what --agents through the gate cost the machine, gate over plain. cpu_ratio_vs_plain and own_ratio
    are as bench daemon has them, of 1 flow of 100 Mbit/s and of 100 of 1 Mbit/s over the target +30ms; own is the
    sending process, and a 95 % interval needs six pairs.

    --against udp: --laws through the gate and over UDP, gate over UDP.

    --against kernel: --agents through the gate, in the kernel and plain, gate over kernel. reduction_share is the
    queueing delay that the gate takes from plain, over what the kernel's cap takes.

    --against shim: what the gate measures of a socket that nobody caps, and the kernel's shim of the same. Shares are
    of the gate's periods that are within 5 % or 0.5 ms (rtt, of the same bytes' ACKs), 1 % and 2 segments (delivered in
    the same time), 10 % (samples of the same bytes); off is the median deviation, run the whole run's ratio, gate over
    shim, period that of their mean lengths, and cwnd that of the virtual window and the kernel's own. The spread is the
    largest of a share's, between runs.

    --against tunnel: --agents, of which some may be copa, verus and sprout, inside openvpn over TCP at 40 Mbit/s and
    plain there, gate over plain, with plain TCP and with UDP that goes on and off beside it. Delays are the flow's
    round trips.

    --against java: the Java client with its learned window and plain, mdi over plain.

    --against fetches: CPU time of nginx' threads for a short fetch over loopback, gated over plain: median and
    quartiles of --repeat pairs in random order.

    Examples:

        reinet bench alcc

        reinet bench alcc --connections 500 --seconds 10 --law checkpoints/small --json -

        sudo reinet bench alcc --against plain --agents rule,checkpoints/default --seconds 8 --repeat 10 --json -

        sudo reinet bench alcc --against udp --traces traces --seconds 30 --repeat 3

        sudo reinet bench alcc --against kernel --agents rule,checkpoints/small --traces traces --seconds 30 --repeat 3

        sudo reinet bench alcc --against shim --traces traces --seconds 30 --repeat 3

        sudo reinet bench alcc --against tunnel --agents rule,copa --seconds 60 --repeat 5

        sudo reinet bench alcc --against java --traces traces --seconds 60 --repeat 3

        reinet bench alcc --against fetches --agents rule --repeat 25
    """
    _refuse_foreign(context, against)
    from reinet.agents.decide.names import split_names

    names = split_names(laws if against is Against.udp else agents)
    if against is Against.plain:
        _against_plain(names, repeat, seconds, json_destination)
        return
    if against is Against.fetches:
        _fetches(names, repeat, json_destination)
        return
    if against is not None:
        make, compared, columns = _over_links(against, traces or [], names, buffer_bytes)
        _tell_as_far(make(seconds=seconds, repeat=repeat, progress=_tell), json_destination, columns, compared)
        return
    from reinet.alcc.bench import measure
    from reinet.cli.run import law_of
    from reinet.core.target import Target

    rows = measure(connections, seconds, law_of(law, Target.parse("+30ms")))
    tell_table(json_destination, {"rows": rows}, rows, ["what", "connections", "plain", "gated"])


def _against_plain(names: list[str], pairs: int, seconds: float, json_destination: str | None) -> None:
    """Measures and shows what the gate costs the machine. Raises ConfigError."""
    from reinet.cli.run import law_of
    from reinet.daemon.benches.gate_cost import TARGET, measure_all

    laws = [law_of(name, TARGET) for name in names]
    found = (without_nan(asdict(row)) for law in laws for row in measure_all(law, pairs, seconds, say))
    _tell_as_far(found, json_destination, PLAIN)


def _fetches(names: list[str], pairs: int, json_destination: str | None) -> None:
    """Measures and shows what a short fetch costs nginx. Raises ConfigError."""
    from reinet.agents.evaluation.ways.fetches import TARGET, measure
    from reinet.cli.run import law_of

    laws = [law_of(name, TARGET) for name in names]
    _tell_as_far((row for law in laws for row in measure(law, pairs, say)), json_destination, FETCHES)


def _tell_as_far(
    found: Iterable[Row], json_destination: str | None, columns: list[str], compared: Comparing | None = None
) -> None:
    """Shows the rows that were found, or what comparing them gives, whatever ends the command."""
    rows: list[Row] = []
    try:
        rows.extend(found)
    finally:
        if rows:
            shown = {"rows": rows} if compared is None else {"rows": rows, "compared": compared(rows)}
            tell_table(json_destination, shown, shown.get("compared", rows), columns)


def _over_links(
    against: Against, paths: list[Path], names: list[str], buffer_bytes: int | None
) -> tuple[Callable[..., Iterable[Row]], Comparing, list[str]]:
    """Returns what makes runs, what compares their rows, and the columns to show of these. Raises ConfigError."""
    from reinet.agents.evaluation.ways import actuators, java, native, shim, tunnel
    from reinet.alcc._alcc import law_names
    from reinet.cli.run import law_of
    from reinet.envs.link.spec import LinkSpec
    from reinet.envs.trace import load_traces

    if against is Against.tunnel:
        return partial(tunnel.measure, [law_of(name, tunnel.TARGET) for name in names]), tunnel.compared, TUNNEL
    if not paths:
        raise ConfigError(f"--against {against.value} needs links: give --traces FILE or FOLDER")
    if against is Against.udp and (unknown := sorted(set(names) - set(law_names()))):
        raise ConfigError(f"--laws: {', '.join(unknown)} do not run over UDP; choose of {', '.join(law_names())}")
    traces = load_traces(paths)
    if against is Against.java:
        make = partial(java.measure, traces, buffer_bytes=buffer_bytes or LinkSpec.buffer_bytes)
        return make, java.compared, JAVA
    if against is Against.shim:
        return partial(shim.measure, traces), shim.compared, SHIM
    if against is Against.kernel:
        return partial(actuators.measure, names, traces), actuators.compared, KERNEL
    return partial(native.measure, names, traces), native.compared, UDP


def _tell(run: Row) -> None:
    """Says a run's row as it comes."""
    what = ", ".join(str(run[label]) for label in ("law", "agent", "trace", "beside", "way") if label in run)
    cpu = f", {run['cpu_s']:.2f} s of CPU" if "cpu_s" in run else ""
    beside = f", {run['beside_mbps']:.2f} Mbit/s beside" if "beside_mbps" in run else ""
    shares = f", {run['rtt_share']:.0%} of {run['periods']} periods' RTT as the shim's" if "rtt_share" in run else ""
    stall = f", {run['longest_stall_ms']:.0f} ms without a delivery at most" if "longest_stall_ms" in run else ""
    say(
        f"{what}: {run['throughput_mbps']:.2f} Mbit/s{beside}, {run['delay_mean_ms']:.1f} ms{shares}{stall}{cpu}"
        + ("" if run["valid"] else f" (not valid: {run['invalid_reason']})")
    )
