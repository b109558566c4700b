"""``reinet bench alcc``: what the gate of ``reinet run`` costs; over links, a law through it and the Java client."""

from pathlib import Path
from typing import Annotated

import typer

from reinet.cli.output import JsonOption, print_table, say, write_json
from reinet.core.errors import ConfigError

COMPARED = ["law", "trace", "gate_throughput_mbps", "udp_throughput_mbps", "throughput_ratio", "spread",
            "gate_delay_mean_ms", "udp_delay_mean_ms", "delay_ratio", "cpu_ratio", "valid"]  # fmt: skip

JAVA = ["trace", "plain_throughput_mbps", "mdi_throughput_mbps", "throughput_ratio", "plain_qdelay_mean_ms",
        "mdi_qdelay_mean_ms", "qdelay_ratio", "cpu_ratio", "valid"]  # fmt: skip


def bench_alcc(
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
        str | None,
        typer.Option(
            metavar="udp|java",
            help="Instead, over emulated links: run --laws through the gate and over UDP, or the Java client with its "
            "window and plain.",
        ),
    ] = None,
    traces: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="With --against: the links' traces.")
    ] = None,
    laws: Annotated[str, typer.Option(metavar="A,B", help="With --against udp: of copa, verus, sprout.")] = (
        "copa,verus,sprout"
    ),
    repeat: Annotated[int, typer.Option(min=1, help="With --against: runs of each law, trace and way.")] = 1,
    buffer_bytes: Annotated[
        int | None, typer.Option(metavar="B", help="With --against java: the links' buffer; 150 KB unless said.")
    ] = None,
    json_destination: JsonOption = None,
) -> None:
    """Measure what the gate of reinet run costs, over loopback: a write, closed gates, idle connections, memory.

    No privileges are needed. A closed gate is one whose peer reads nothing; the share is of one core. With --against
    udp, as root, each law runs through the gate over the kernel's Cubic and by itself over UDP, in turn, over the same
    Mahimahi links (20 ms, 150 KB), again where the host lagged; ratios are gate over UDP, of medians, and the spread is
    the larger one of both ways' own throughputs. With --against java the Java client runs plain and with its window, in
    turn; ratios are mdi over plain. Examples:

        reinet bench alcc

        reinet bench alcc --connections 500 --seconds 10 --law checkpoints/small --json -

        sudo reinet bench alcc --against udp --traces traces --seconds 30 --repeat 3

        sudo reinet bench alcc --against java --traces traces --seconds 60 --repeat 3
    """
    if against == "java":
        _java(traces or [], seconds, repeat, buffer_bytes, json_destination)
        return
    if against is not None:
        _against_udp(against, traces or [], laws, seconds, repeat, json_destination)
        return
    from reinet.alcc.bench import measure
    from reinet.cli.run import law_of
    from reinet.core.target import Target

    rows = measure(connections, seconds, law_of(law, Target.parse("+30ms")))
    print_table(rows, ["what", "connections", "plain", "gated"])
    write_json(json_destination, {"rows": rows})


def _against_udp(
    against: str, traces: list[Path], laws: str, seconds: float, repeat: int, json_destination: str | None
) -> None:
    from reinet.agents.evaluation.native import measure
    from reinet.alcc._alcc import law_names
    from reinet.envs.trace import load_traces

    if against != "udp":
        raise ConfigError(f"--against {against}: choose udp or java")
    if not traces:
        raise ConfigError("--against udp needs links: give --traces FILE or FOLDER")
    chosen = laws.split(",")
    if unknown := sorted(set(chosen) - set(law_names())):
        raise ConfigError(f"--laws: {', '.join(unknown)} do not run over UDP; choose of {', '.join(law_names())}")
    runs, rows = measure(
        chosen, load_traces(traces), seconds=seconds, repeat=repeat,
        progress=lambda run: say(
            f"{run['law']} on {run['trace']}, {run['way']}: {run['throughput_mbps']:.2f} Mbit/s, "
            f"{run['delay_mean_ms']:.1f} ms, {run['cpu_s']:.2f} s of CPU"
            + ("" if run["valid"] else f" (not valid: {run['invalid_reason']})")
        ),
    )  # fmt: skip
    print_table(rows, COMPARED)
    write_json(json_destination, {"rows": runs, "compared": rows})


def _java(
    traces: list[Path], seconds: float, repeat: int, buffer_bytes: int | None, json_destination: str | None
) -> None:
    from reinet.agents.evaluation.java import measure
    from reinet.envs.link.spec import LinkSpec
    from reinet.envs.trace import load_traces

    if not traces:
        raise ConfigError("--against java needs links: give --traces FILE or FOLDER")
    runs, rows = measure(
        load_traces(traces), seconds=seconds, repeat=repeat, buffer_bytes=buffer_bytes or LinkSpec.buffer_bytes,
        progress=lambda run: say(
            f"{run['way']} on {run['trace']}: {run['throughput_mbps']:.2f} Mbit/s, {run['qdelay_mean_ms']:.1f} ms of "
            f"queue, {run['cpu_s']:.2f} s of CPU" + ("" if run["valid"] else f" (not valid: {run['invalid_reason']})")
        ),
    )  # fmt: skip
    print_table(rows, JAVA)
    write_json(json_destination, {"rows": runs, "compared": rows})
