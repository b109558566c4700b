"""Options that several commands take, each with its one help text; a command's default stands with the command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from reinet.cli.output import check_writable, say
from reinet.core.errors import ConfigError
from reinet.core.target import Form, Target

if TYPE_CHECKING:
    from reinet.agents.decide.protocol import Agent

_Value = TypeVar("_Value")

PICTURES = (".png", ".svg", ".pdf")
MOST_REPEAT = 1000
"""As in a suite's file: more repetitions tell nothing more of a mean, and each is planned before the first one runs."""


def a_picture(path: Path | None) -> Path | None:
    """Returns the path; raises ConfigError, before hours of work, for one where no picture can be written."""
    if path is not None:
        if path.suffix.lower() not in PICTURES:
            raise ConfigError(f"--png {path}: a picture's name ends in {', '.join(PICTURES)}")
        check_writable("--png", str(path))
    return path


def uncapped_paths(target: Target, mrtts_ms: Iterable[float]) -> list[float]:
    """Returns, and says, on which paths the target is out of reach: flows are plain there, and so are their figures."""
    from reinet.envs.link.spec import check_target  # here, for it imports numpy and --help needs none

    found = []
    for mrtt_ms in sorted(set(mrtts_ms)):
        try:
            check_target(target.resolve_ms(mrtt_ms), mrtt_ms)
        except ConfigError as error:
            say(f"note: over {mrtt_ms:g} ms every flow stays uncapped, so its figures are plain's: {error}")
            found.append(mrtt_ms)
    return found


def note_targets(asked: Iterable[tuple[Agent, Target, float | None]]) -> None:
    """Says once which agents were not trained for which target, on paths of these minimum RTTs in ms; None = any.

    The daemon logs the same (``daemon/serve.py``).
    """
    said: dict[str, set[float]] = {}
    for agent, target, min_rtt_ms in asked:
        if trained_ms := agent.untrained_range_ms(target, min_rtt_ms):
            its = "targets that add" if target.is_relative else "targets from"
            note = f"{agent.name} was trained for {its} {trained_ms[0]:g} to {trained_ms[1]:g} ms, not for {target}"
            over = said.setdefault(note, set())
            if target.form is Form.MULTIPLE and min_rtt_ms is not None:
                over.add(min_rtt_ms)
    for note, over in said.items():
        say(f"note: {note}" + (f" over {', '.join(f'{ms:g}' for ms in sorted(over))} ms" if over else ""))


def note_refusals(rows: Sequence[Mapping[str, Any]]) -> None:
    """Says whose flows ran uncapped, because the guard refused their caps for a while or none acted at all: their
    figures do not tell."""
    for row in rows:
        if row["trace"] == "mean" or row["agent"] == "none":
            continue
        who = _who(row)
        if row["refused_share"]:
            say(f"note: {who}: caps refused in {100 * row['refused_share']:.3g} % of the decisions")
        elif not row["capped_share"]:
            say(
                f"note: {who}: no cap acted, so its figures are plain's: none does in a flow's first second, nor "
                "before it has shown a queue of its own"
            )


def note_stalls(rows: Sequence[Mapping[str, Any]]) -> None:
    """Says of which rows nothing may be quoted, because the flow stalled."""
    for row in rows:
        if row["valid"]:
            continue
        if row["trace"] == "mean":
            say(f"note: {_who(row)}: the flow stalled on every trace, so do not use this row either")
        else:
            say(f"note: {_who(row)}: the flow stalled, so do not use this row, which enters no mean of others")


def note_left_out(who: str, row: Mapping[str, Any]) -> None:
    """Says which traces' figures a training's row leaves out because the flow stalled, and where it has no rank."""
    if row["stalled"]:
        left = "so it is not in the means" if row["valid"] else "as on every trace, so do not quote it"
        say(f"note: {who}: the flow stalled on {', '.join(row['stalled'])}, {left}")
    if row["below_rule"]:
        share = f"{100 * row['below_rule']:.3g} % of the traces"
        say(f"note: {who}: less utilisation than every setting of the rule on {share}, so no rank there")


def note_training(seen: Mapping[str, Sequence[str]]) -> None:
    """Says which agents' figures are of traces that shaped them, by agent the traces' names: a table does not tell."""
    from reinet.agents.evaluation.plan import training_notes  # here, for it imports numpy and --help needs none

    for note in training_notes(seen):
        say(f"note: {note}")


def _who(row: Mapping[str, Any]) -> str:
    return f"{row['agent']} on {row['trace']}" + (f" under {row['target_ms']:g} ms" if "target_ms" in row else "")


def was_said(context: typer.Context, name: str) -> bool:
    """Returns whether an option was given, and does not have its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_said(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Raises ConfigError for options that were given and would do nothing."""
    for name in names:
        if was_said(context, name):
            raise ConfigError(f"--{name.replace('_', '-')}: {why}")


def refuse_idle_buffer(context: typer.Context, options: Mapping[str, Any]) -> None:
    """Raises ConfigError for a buffer that was given beside a queue that never drops: it would do nothing."""
    if options.get("queue") == "infinite":
        why = "queue=infinite holds whatever comes, so it does nothing; leave one of the two out"
        refuse_said(context, ("buffer_bytes",), why)
        if "buffer_pkts" in options:
            raise ConfigError(f"link option buffer_pkts: {why}")


ModelOption = Annotated[str, typer.Option(help="A model folder, or an agent's name: none, fixed:N, rule[:G].")]
TracesOption = Annotated[list[Path], typer.Option(help="A trace, a folder or a set file; may be repeated.")]
CcOption = Annotated[str, typer.Option(help="Congestion controls by their kernel names, by commas.")]
TargetOption = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="RTT to stay below: 50ms, or +30ms or 2.5x of the path's minimum RTT."),
]
TargetMsOption = Annotated[
    float | None, typer.Option(help="The same in ms, for every path (default: 50, as DeepCC's).")
]
MrttOption = Annotated[float, typer.Option(help="The path's fixed round trip in ms (DeepCC: 20).")]
BufferOption = Annotated[int, typer.Option(help="Buffer of the bottleneck in bytes (DeepCC: 150 KB).")]
AllowTrainingTraces = Annotated[
    bool,
    typer.Option(
        "--allow-training-traces",
        help="Evaluate a model even on traces it was trained on; the JSON (trained_on) and a note name them.",
    ),
]
LinkOptions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Another property of the link: queue=codel, loss=0.01, uplink=FILE (docs/simulator.md); may be repeated.",
    ),
]


def listed(option: str, text: str, kind: Callable[[str], _Value]) -> list[_Value]:
    """Returns what stands between the commas of an option's text; raises ConfigError for what is no such number."""
    try:
        return once(option, [kind(part.strip()) for part in text.split(",")])
    except ValueError:
        numbers = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"--{option} {text!r}: give {numbers}, separated by commas") from None


def once(option: str, values: list[_Value]) -> list[_Value]:
    """Returns an option's values; raises ConfigError for one that is there twice, whose figures would count twice."""
    if twice := [value for value in values if values.count(value) > 1]:
        raise ConfigError(f"--{option}: {twice[0]} is there twice; give it once")
    return values
