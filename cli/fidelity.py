"""``reinet fidelity``: what the simulator says against what the kernel does."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from reinet.cli.options import MOST_REPEAT, CcOption, TracesOption, listed
from reinet.cli.output import JsonOption, TextColumn, Unwritten, check_writable, console, say, tell_table, write_whole
from reinet.core.errors import ConfigError
from reinet.core.visible import utf8

if TYPE_CHECKING:
    from reinet.agents.evaluation.fidelity import Comparison, LeftOut

PEER_COLUMNS = ["cc", "trace", "utilization", "utilization_theirs", "qdelay_mean_ms", "qdelay_mean_ms_theirs", "agrees"]
COLUMNS = ["trace", "cc", "buffer_bytes", "cap_pkts", "metric", "sim", "kernel", "ratio", "agrees"]
MRTT_MS = 20.0


def _a_page(path: Path | None) -> Path | None:
    if path is not None:
        check_writable("--markdown", str(path))
    return path


def fidelity(
    traces: TracesOption,
    cc: CcOption = "cubic",
    buffers: Annotated[str, typer.Option(help="Droptail buffers in bytes, by commas.")] = "60000,150000,600000",
    caps: Annotated[str, typer.Option(help="Fixed caps in packets, by commas; none = no cap.")] = "none,20,40",
    mrtt_ms: Annotated[float, typer.Option(help="The path's fixed round trip.")] = MRTT_MS,
    seconds: Annotated[float, typer.Option(min=5, help="Length of each run.")] = 60.0,
    repeat: Annotated[
        int, typer.Option(min=1, max=MOST_REPEAT, help="Kernel runs of every combination; their median counts.")
    ] = 3,
    parallel: Annotated[
        int, typer.Option(min=1, help="Kernel runs side by side; a run in which the host lagged is made again.")
    ] = 1,
    kernel: Annotated[
        Literal["host", "uml"],
        typer.Option(help="host: this machine's; uml: one in virtual time, with all congestion controls but no caps."),
    ] = "host",
    uml: Annotated[
        Path | None, typer.Option(help="The kernel of --kernel uml; default: where docker/uml/build.sh leaves it.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Kernel runs are kept here; a second call goes on from it.")] = Path(
        "runs/fidelity.jsonl"
    ),
    report: Annotated[
        bool, typer.Option("--report", help="Run nothing on the kernel: compare what the results file holds by now.")
    ] = False,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Run nothing on the kernel: compare the simulator's Copa, Sprout, Verus and PCC with recorded runs of "
            "their own implementations. Of the options, --traces, --markdown and --json count.",
        ),
    ] = False,
    markdown: Annotated[
        Path | None, typer.Option(callback=_a_page, help="Write the table as a page, such as docs/fidelity.md.")
    ] = None,
    json_destination: JsonOption = None,
) -> None:
    """Compare the simulator with Mahimahi and the real kernel: same traces, congestion controls, buffers and caps.

    Takes as long as the kernel runs last; Ctrl-C loses only those under way. What this host cannot run is left out, and
    said; the command then fails, with all the rest told. Examples:

        sudo reinet fidelity --traces my.trace --seconds 30 --repeat 1

        sudo reinet fidelity --traces traces/ --cc cubic,reno,bbr --parallel 3 --markdown docs/fidelity.md

        reinet fidelity --traces traces/ --cc westwood,vegas --caps none --kernel uml --repeat 1

        reinet fidelity --peers --traces traces/ --markdown docs/peers.md
    """
    from reinet.agents.evaluation import fidelity as engine
    from reinet.agents.evaluation.kernel_results import Results
    from reinet.envs.mahimahi.uml import find_kernel
    from reinet.envs.trace import load_traces

    if peers:
        _compare_peers(traces, markdown, json_destination)
        return
    if not report or results.is_dir():  # who only reads the file need not be able to write it
        check_writable("--results", str(results))
    combinations = [
        engine.Combination(trace, control, buffer_bytes, cap_pkts)
        for trace in load_traces(traces)
        for control in listed("cc", cc, str)
        for buffer_bytes in listed("buffers", buffers, int)
        for cap_pkts in listed("caps", caps, lambda text: 0 if text == "none" else int(text))
    ]
    if uml is not None and kernel != "uml":
        raise ConfigError(f"--uml {uml} is for --kernel uml")
    machine = find_kernel(uml) if kernel == "uml" else None
    comparison = engine.Comparison(combinations, Results(results), seconds, mrtt_ms, repeat, parallel, machine)
    if others := comparison.of_other_kernels():
        say(f"note: {others} runs in {results} are of another kernel or of links of other programs: left out")
    left_out = [] if report else _measure(comparison)
    done = list(comparison)
    rows = [row for one in done for row in one]
    tell_table(json_destination, {"rows": rows, "left_out": [_row(one) for one in left_out]}, rows, COLUMNS)
    agreeing = sum(all(row["agrees"] in (True, None) for row in one) for one in done)
    console.print(f"{agreeing} of {len(done)} combinations agree; {len(combinations) - len(done)} not measured.")
    if markdown is not None:
        given = " ".join(f"--traces {shlex.quote(str(path))}" for path in traces)
        command = f"reinet fidelity {given} --cc {cc} --buffers {buffers} --caps {caps}"
        command += f" --seconds {seconds:g} --repeat {repeat}"
        command += f" --mrtt-ms {mrtt_ms:g}" if mrtt_ms != MRTT_MS else ""
        command += f" --kernel {kernel}" if kernel != "host" else ""
        _write_page(markdown, engine.markdown(comparison, done, command))
    for one in left_out:
        if one.why != engine.NOT_TRIED:
            row = _row(one)
            cap = f"{row['cap_pkts']} packets" if row["cap_pkts"] else "none"
            where = f"{row['cc']} on {row['trace']}, buffer {row['buffer_bytes']}, cap {cap}"
            say(("left out: ", "bold"), f"{where}: {one.why}")
    if left_out:
        raise typer.Exit(1)


def _row(left_out: "LeftOut") -> dict[str, object]:
    one = left_out.combination
    return {
        "cc": one.cc,
        "trace": one.trace.name,
        "buffer_bytes": one.buffer_bytes,
        "cap_pkts": one.cap_pkts,
        "trace_sha256": one.trace.sha256,
        "why": left_out.why,
    }


def _compare_peers(traces: list[Path], markdown: Path | None, json_destination: str | None) -> None:
    from reinet.agents.evaluation import peers as engine
    from reinet.envs.trace import load_traces

    reference = engine.Reference.load()
    rows = list(engine.Peers(load_traces(traces), reference))
    tell_table(json_destination, {"rows": rows}, rows, PEER_COLUMNS)
    console.print(f"{sum(row['agrees'] for row in rows)} of {len(rows)} cells agree.")
    if markdown is not None:
        given = " ".join(f"--traces {shlex.quote(str(path))}" for path in traces)
        _write_page(markdown, engine.markdown(rows, f"reinet fidelity --peers {given}", reference))


def _write_page(path: Path, text: str) -> None:
    unwritten = Unwritten()
    with unwritten.at(path):
        write_whole(str(path), utf8(text))
    unwritten.tell()


def _measure(comparison: "Comparison") -> "list[LeftOut]":
    columns = (TextColumn("kernel runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("runs", total=None)

        def show(done: int, total: int, invalid_reason: str | None) -> None:
            progress.update(task, completed=done, total=total)
            if invalid_reason:
                progress.console.print(f"thrown away: {invalid_reason}")

        return comparison.measure(show)
