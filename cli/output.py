"""What every command shares: JSON output, tables, and the one console, which shows text and interprets none.

Names of traces, models and paths, lines of files and errors come from outside. Nothing of them is markup, an emoji's
name or a terminal's control sequence here: ``console`` shows every string as it is, what a terminal would obey written
out. Colour is for our own words alone, which ``say`` takes as (text, style) pairs.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import rich.progress
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reinet.core.errors import ConfigError, ReinetError
from reinet.core.visible import visible


class PlainConsole(Console):
    """A console for which a string is text: rich turns each into ``Text`` here, wherever it is printed."""

    def render_str(self, text: str, *, style: Any = "", justify: Any = None, overflow: Any = None, **_: Any) -> Text:
        """Returns the text with no markup, emoji or highlighting applied; line breaks stay."""
        return Text(visible(text, keep="\n"), style=style, justify=justify, overflow=overflow)


class TextColumn(rich.progress.TextColumn):
    """A column of a progress bar whose format and fields are text."""

    def __init__(self, text_format: str) -> None:
        super().__init__(text_format, markup=False)

    def render(self, task: rich.progress.Task) -> Text:
        """Returns the text for a task."""
        return Text(visible(self.text_format.format(task=task)))


console = PlainConsole(
    stderr=True, markup=False, emoji=False, highlight=False, width=None if sys.stderr.isatty() else 160
)
"""People read standard error; standard output is kept for ``--json -``. Into a file, lines may be longer."""


def progress_in_seconds() -> rich.progress.Progress:
    """Returns a progress bar whose total is seconds of link time."""
    return rich.progress.Progress(
        TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        TextColumn("s"),
        rich.progress.TimeElapsedColumn(),
        console=console,
    )


def _may_be_written(destination: str | None) -> str | None:
    """Returns the destination; raises ConfigError, before hours of work, where no file can be written there."""
    if destination in (None, "-"):
        return destination
    path = Path(destination)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = f"{folder} is no folder"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        why = f"this user may not write {'it' if path.exists() else f'into {folder}'}"
    else:
        return destination
    raise ConfigError(f"--json {destination}: {why}; name another file, or - for standard output")


JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        callback=_may_be_written,
        help="Write machine-readable results to a file, or - for stdout.",
    ),
]


def say(*parts: str | tuple[str, str]) -> None:
    """Prints a line that wraps where the terminal ends only; a part may be (text, style)."""
    line = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        line.append(visible(text, keep="\n"), style)
    console.print(line, soft_wrap=True)


def without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row in which NaN, which JSON does not have, is None: the figure is not known."""
    return {key: None if value != value else value for key, value in row.items()}


def json_text(data: Mapping[str, Any]) -> str:
    """Returns ``data`` as a file or standard output gets it."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def write_json(destination: str | None, data: Mapping[str, Any]) -> None:
    """Writes ``data`` to a file or, for ``-``, to standard output; does nothing without a destination.

    The file's folder is made where it is missing. Where the file cannot be written, standard output gets the data and
    ReinetError is raised: they may be the result of hours.
    """
    if destination is None:
        return
    text = json_text(data)
    failed = None
    if destination != "-":
        try:
            Path(destination).parent.mkdir(parents=True, exist_ok=True)
            Path(destination).write_text(text)
        except OSError as error:
            failed = error
    if destination == "-" or failed is not None:
        sys.stdout.write(text)
        sys.stdout.flush()
    if failed is not None:
        raise ReinetError(f"--json {destination}: {failed.strerror}; the results are on standard output instead")


def _shown(value: object) -> Text:
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, float):
        return Text(f"{value:.2f}")
    return Text("" if value is None else visible(value))


def print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str], title: str | None = None) -> None:
    """Prints the named columns of some rows; the headings are the keys of the JSON output."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        numeric = any(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_shown(row.get(column)) for column in columns))
    console.print(table)
