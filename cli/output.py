"""What every command shares: JSON output, tables, and one way to end with an error."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
"""People read standard error; standard output is kept for ``--json -``. Into a file, lines may be longer."""

JsonOption = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="Write machine-readable results to a file, or - for stdout."),
]


def write_json(destination: str | None, data: Mapping[str, Any]) -> None:
    """Writes ``data`` to a file or, for ``-``, to standard output; does nothing without a destination."""
    if destination is None:
        return
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    if destination == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        Path(destination).write_text(text)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else str(value)


def print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str], title: str | None = None) -> None:
    """Prints the named columns of some rows; the headings are the keys of the JSON output."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        numeric = any(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_shown(row.get(column)) for column in columns))
    console.print(table)
