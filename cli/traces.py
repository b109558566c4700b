"""``reinet traces``: look at, check, convert, generate and split traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from reinet.cli.output import JsonOption, console, print_table, say, tell_table, write_json
from reinet.cli.service import flows
from reinet.core.errors import ConfigError, TraceError
from reinet.envs.link.spec import check_choice
from reinet.envs.trace.files import write_atomically
from reinet.envs.trace.importers import FORMATS, import_trace
from reinet.envs.trace.model import CONSTANT, PRESETS, RANDOM, constant, generate
from reinet.envs.trace.set_file import distinct_names, folder_name, load_traces, set_file, trace_files
from reinet.envs.trace.split import by_content
from reinet.envs.trace.trace import Trace

app = typer.Typer(
    name="traces",
    help="Look at, check, convert, generate and split traces of a link's delivery opportunities (Mahimahi's format).",
    no_args_is_help=True,
)

LIST_COLUMNS = ["trace", "duration_s", "mean_mbps", "longest_gap_ms", "sha256"]

Traces = Annotated[list[Path], typer.Argument(help="Trace files, folders or set files (.toml).", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]


class By(str, Enum):
    """How ``split`` divides a set."""

    TRACE = "trace"
    TIME = "time"


@app.command("list")
def list_traces(
    traces: Annotated[list[Path] | None, typer.Argument(help="Trace files, folders or set files (.toml).")] = None,
    json_destination: JsonOption = None,
) -> None:
    """List traces, one row each; without any, the presets that generate knows.

    Examples:

        reinet traces list

        reinet traces list my-traces/ evaluation.toml
    """
    if not traces:
        rows: list[dict[str, Any]] = [{"preset": name, **_preset(name)} for name in PRESETS]
        tell_table(json_destination, {"rows": rows}, rows, ["preset", "median_mbps", "outages_per_min", "cell_s"])
        return
    rows = [_row(trace) for trace in load_traces(traces)]
    tell_table(json_destination, {"rows": rows}, [{**row, "sha256": row["sha256"][:8]} for row in rows], LIST_COLUMNS)


@app.command()
def info(traces: Traces, json_destination: JsonOption = None) -> None:
    """Describe traces: rate (1500 B per opportunity, 100 ms bins), its moments and autocorrelation, outages, hash.

    The JSON has a row for each trace and, when there is one only, its figures at the top as well. Examples:

        reinet traces info lte.trace

        reinet traces info my-traces/ --json -
    """
    rows = [_row(trace) for trace in load_traces(traces)]
    data = {**rows[0], "rows": rows} if len(rows) == 1 else {"rows": rows}
    write_json(json_destination, data)
    if json_destination == "-":
        return
    for row in rows:
        print_table([{"figure": key, "value": _shown(value)} for key, value in row.items()], ["figure", "value"])


@app.command()
def check(traces: Traces, json_destination: JsonOption = None) -> None:
    """Check every trace and say, with file and line, what is wrong with each bad one; exits 2 if any is.

    Examples:

        reinet traces check recording.down

        reinet traces check my-traces/ && echo good
    """
    rows: list[dict[str, Any]] = []
    for path in trace_files(traces):
        try:
            trace = Trace.load(path)
        except TraceError as error:
            rows.append({"path": str(path), "ok": False, "error": str(error), "sha256": None})
        else:
            rows.append({"path": str(path), "ok": True, "error": None, "sha256": trace.sha256})
    bad = [row for row in rows if not row["ok"]]
    write_json(json_destination, {"ok": not bad, "rows": rows})
    for row in bad:
        say(("bad:", "bold red"), f" {row['error']}")
    if json_destination != "-":
        console.print(f"{len(rows) - len(bad)} of {len(rows)} traces are good")
    if bad:
        raise typer.Exit(2)


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="The recording.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Trace to write (default: its name with .trace)"),
    ] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", help=f"{', '.join(FORMATS)} (default: found out from the file)")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="phone-csv: the column of rates in kbit/s (default: DL_bitrate).")
    ] = None,
    force: Force = False,
    json_destination: JsonOption = None,
) -> None:
    """Convert a recording of a link's rate into a trace.

    Formats: mahimahi (taken as it is), phone-csv (a header with Timestamp, DL_bitrate in kbit/s, State), and two
    numbers a line, a time and a rate: s-mbps (seconds and Mbit/s), s-kbps, ms-mbps, ms-kbps. A rate holds until the
    next line; what was not measured is left out.
    Examples:

        reinet traces import phone.csv --out phone.trace

        reinet traces import tram.txt --format s-mbps --json -
    """
    imported = import_trace(source, format_name, column)
    path = imported.trace.save(out or Path(f"{source.stem}.trace"), overwrite=force)
    details = {"format": imported.format, "lines": imported.lines, "left_out_s": imported.left_out_s}
    row = {"path": str(path), **details, **_row(imported.trace)}
    write_json(json_destination, row)
    if json_destination != "-":
        left_out = f"; {imported.left_out_s:g} s not measured and left out" if imported.left_out_s else ""
        console.print(
            f"{path}: {row['duration_s']:g} s, {row['mean_mbps']:.3f} Mbit/s, from {imported.lines} lines of "
            f"{imported.format}{left_out}",
            soft_wrap=True,
        )


@app.command("generate")
def generate_(
    preset: Annotated[
        str, typer.Argument(help=f"{', '.join([*PRESETS, RANDOM])}, or constant:MBPS.", show_default=False)
    ],
    seconds: Annotated[float, typer.Option(help="Length of the loop; evaluate runs 60 s by default.")] = 60.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace, anywhere.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Trace to write (default: named by preset, length, seed)"),
    ] = None,
    force: Force = False,
    json_destination: JsonOption = None,
) -> None:
    """Generate a synthetic cellular trace from a stochastic model fitted to recordings; random draws the model too.

    Examples:

        reinet traces generate lte-driving --seconds 120 --seed 7 --out lte.trace

        reinet traces generate constant:12 --out wired.trace
    """
    draws = not preset.startswith(CONSTANT)
    if not draws:
        trace = constant(preset, seconds)
    else:
        check_choice("generate", "there is no preset", preset, [*PRESETS, RANDOM, f"{CONSTANT}MBPS"])
        trace = generate(preset, seconds, seed)
    path = trace.save(out or Path(f"{trace.name}.trace"), overwrite=force)
    row = {"path": str(path), "preset": preset, "seed": seed if draws else None, **_row(trace)}
    write_json(json_destination, row)
    if json_destination != "-":
        console.print(
            f"{path}: {row['duration_s']:g} s, {row['mean_mbps']:.3f} Mbit/s, longest gap {row['longest_gap_ms']} ms",
            soft_wrap=True,
        )


@app.command()
def split(
    traces: Traces,
    out: Annotated[Path, typer.Option("--out", "-o", help="New folder for train/, validation/ and their set files.")],
    share: Annotated[float, typer.Option(help="Training's share of the traces or of the time.")] = 0.8,
    by: Annotated[By, typer.Option(help="Whole traces to one side, or each trace cut in time.")] = By.TRACE,
    json_destination: JsonOption = None,
) -> None:
    """Split traces into a training and a validation set that share no content.

    Whole traces are dealt out by their content hash, so names and order do not matter and copies stay on one side; a
    single trace can be cut in time. Examples:

        reinet traces split my-traces/ --out sets --share 0.75

        reinet traces split long.trace --by time --out sets
    """
    if not 0 < share < 1:
        raise ConfigError(f"--share {share:g}: training's share must lie between 0 and 1, both excluded")
    if out.exists():
        raise TraceError(f"{out}: exists already; name a new folder")
    loaded = load_traces(traces)
    if by is By.TIME:
        sides = _by_time(loaded, share)
    else:
        first, rest = by_content(loaded, share)
        sides = {"train": first, "validation": rest}
    rows: list[dict[str, Any]] = []
    for side, members in sides.items():
        names = distinct_names([replace(trace, name=folder_name(trace.name)) for trace in members])
        for trace, name in zip(members, names, strict=True):
            rows.append({"set": side, "path": str(trace.save(out / side / name)), **_row(trace)})
        write_atomically(out / f"{side}.toml", set_file(side, [f"{side}/{name}" for name in names]))
    tell_table(json_destination, {"rows": rows}, rows, ["set", "path", "duration_s", "mean_mbps"])
    if by is By.TIME:
        say(
            f"note: judge what learns from {out / 'train.toml'} on {out / 'validation.toml'}, not on the whole traces: "
            "a piece is another content than they are, so nothing would refuse them"
        )


def _by_time(traces: Sequence[Trace], share: float) -> dict[str, list[Trace]]:
    sides: dict[str, list[Trace]] = {"train": [], "validation": []}
    seen: set[str] = set()
    for trace in traces:
        if trace.sha256 in seen:
            continue
        seen.add(trace.sha256)
        at_ms = round(trace.duration_ms * share)
        sides["train"].append(trace.cut(0, at_ms, trace.name))
        sides["validation"].append(trace.cut(at_ms, trace.duration_ms, trace.name))
    learned = {trace.sha256 for trace in sides["train"]}
    for trace in sides["validation"]:
        if trace.sha256 in learned:
            raise TraceError(
                f"{trace.name}: its later piece is one to learn from as well, to the byte, so it cannot judge what was "
                "learned; choose another --share, leave the trace out, or split --by trace"
            )
    return sides


def _preset(name: str) -> dict[str, float]:
    model = PRESETS[name]
    return {
        "median_mbps": model.rates_mbps[len(model.rates_mbps) // 2],
        "outages_per_min": model.outages_per_min,
        "cell_s": model.cell_s,
    }


def _row(trace: Trace) -> dict[str, Any]:
    return {"trace": trace.name, **trace.describe()}


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_shown(entry)}" for key, entry in value.items())
    if value is None:
        return "none"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


app.command("from-flows")(flows.from_flows)
app.command("upload")(flows.upload)
