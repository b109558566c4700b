"""What every command shares: JSON output, tables, and the one console, which shows text and interprets none.

Names of traces, models and paths, lines of files and errors come from outside. Nothing of them is markup, an emoji's
name or a terminal's control sequence here: ``console`` shows every string as it is, what a terminal would obey written
out. Colour is for our own words alone, which ``say`` takes as (text, style) pairs.
"""

import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import rich.progress
import typer
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console
from rich.segment import Segments
from rich.table import Column, Table
from rich.text import Text

from reinet.core.disk import durable
from reinet.core.errors import ConfigError, ReinetError
from reinet.core.visible import visible


class PlainConsole(Console):
    """A console for which a string is text: rich turns each into ``Text`` here, wherever it is printed."""

    def render_str(self, text: str, *, style: Any = "", justify: Any = None, overflow: Any = None, **_: Any) -> Text:
        """Returns the text with no markup, emoji or highlighting applied; line breaks stay."""
        return Text(visible(text, keep="\n"), style=style, justify=justify, overflow=overflow)


class TextColumn(rich.progress.TextColumn):
    """A column of a progress bar whose format and fields are text."""

    def __init__(self, text_format: str, column: Column | None = None) -> None:
        super().__init__(text_format, markup=False, table_column=column)

    def render(self, task: rich.progress.Task) -> Text:
        """Returns the text for a task."""
        return Text(visible(self.text_format.format(task=task)))


console = PlainConsole(
    stderr=True, markup=False, emoji=False, highlight=False,
    width=None if sys.stderr is not None and sys.stderr.isatty() else 160,
)  # fmt: skip
"""People read standard error; standard output is kept for ``--json -``. Into a file, lines may be longer. Whoever
starts a command may have closed either: Python has None in its place then."""


def note_column() -> TextColumn:
    """Returns the column of a task's field ``note``: what of the line the other columns leave, and they are not cut.

    The progress bar is to be expanded.
    """
    return TextColumn("{task.fields[note]}", Column(ratio=1, no_wrap=True, overflow="ellipsis"))


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
    """Returns where ``--json`` goes; raises ConfigError, before hours of work, where no file can be written there."""
    if destination is not None and destination != "-":
        check_writable("--json", destination, ", or - for standard output")
    return destination


def check_writable(option: str, destination: str, or_else: str = "") -> None:
    """Raises ConfigError naming the option where no file can be written; ``or_else`` is what else can be given."""
    if why := _why_not_written(Path(destination)):
        raise ConfigError(f"{option} {destination}: {why}; name another file{or_else}")


def _why_not_written(path: Path) -> str:
    try:
        if path.is_dir():
            return "it is a folder"
        if path.exists():
            return "" if os.access(path, os.W_OK) else "this user may not write it"
    except OSError as error:  # a name that is longer than names may be
        return error.strerror or str(error)
    return _why_none_into(path.absolute().parent)


def check_folder(option: str, folder: Path) -> None:
    """Raises ConfigError naming the option where no file can be written into a folder, which need not be there yet."""
    if why := _why_none_into(folder.absolute()):
        raise ConfigError(f"{option} {folder}: {why}; name another folder")


def _why_none_into(folder: Path) -> str:
    """Returns why no file can be written into a folder, or the one that it would be made in; empty where one can."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        return f"{there} is no folder"
    return "" if os.access(there, os.W_OK) else f"this user may not write into {there}"


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


def put_out(text: str) -> None:
    """Writes to standard output; raises ReinetError where it is closed or full."""
    if sys.stdout is None:
        raise ReinetError("standard output is closed, and results were to go there; leave it open, or name a file")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has enough: the command ends without a word
        raise
    except OSError as error:
        raise ReinetError(f"standard output: {error.strerror}; send it to another place") from None


def flush_output() -> None:
    """Has standard output take what was written to it; raises as ``put_out``, and nothing is left to write then.

    What is left would be tried again by the interpreter at its end, which then shows a traceback of its own.
    """
    if sys.stdout is None:
        return
    try:
        put_out("")
    except (ReinetError, BrokenPipeError):
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            sys.stdout.flush()
        raise


_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EBUSY)
"""Of a file that may be written in a folder that may not, or that is mounted by itself."""


def write_json(destination: str | None, data: Mapping[str, Any]) -> None:
    """Writes ``data`` to a file or, for ``-``, to standard output; does nothing without a destination.

    The file's folder is made where it is missing. Where the file cannot be written, it stays what it was, standard
    output gets the data and ReinetError is raised: they may be the result of hours.
    """
    if destination is None:
        return
    text = json_text(data)
    failed = None
    if destination != "-":
        try:
            write_whole(destination, text)
        except OSError as error:
            failed = error
    if destination == "-" or failed is not None:
        put_out(text)
    if failed is not None:
        raise ReinetError(f"--json {destination}: {failed.strerror}; the results are on standard output instead")


def keep_json(destination: str | None, data: Mapping[str, Any]) -> None:
    """Has the file of ``--json``, if that is one, hold what there is so far; ``write_json`` has the last word.

    The earlier one stays until the new one is whole: whoever ends the command in between, or fills the disk, takes no
    result with it. A pipe or a terminal, which would get one after another, gets the last one alone.
    """
    if destination is None or destination == "-":
        return
    with suppress(OSError):  # said at the end, with all of the data
        if _may_be_replaced(destination):
            write_whole(destination, json_text(data))


class Unwritten:
    """What could not be written of a report: the figures are told first, whatever the disk takes, then this."""

    def __init__(self) -> None:
        self._why: list[str] = []

    @contextmanager
    def at(self, path: Path) -> Iterator[None]:
        """Takes down what stood in the way of writing there, and lets the command go on."""
        try:
            yield
        except OSError as error:
            self._why.append(f"{path}: {error.strerror or error}")

    def tell(self) -> None:
        """Raises ReinetError where something could not be written."""
        if self._why:
            raise ReinetError(f"{'; '.join(self._why)}; the figures were told above, make room and run this again")


def write_whole(destination: str, text: str) -> None:
    """Writes a file that is whole or what it was before, where another may take its place; raises OSError."""
    path = Path(os.path.realpath(destination))
    path.parent.mkdir(parents=True, exist_ok=True)
    if _may_be_replaced(destination):
        try:
            durable.write(path, text.encode())
        except OSError as error:
            if error.errno not in _IN_PLACE:
                raise
        else:
            return
    Path(destination).write_text(text)


def _may_be_replaced(destination: str) -> bool:
    """Returns whether it is a file or will be one. What /dev and /proc name, as /dev/stdout does, may be a file too,
    but is open already: whoever opened it does not see another in its place."""
    path = Path(destination)
    return (path.is_file() or not path.exists()) and path.absolute().parts[1] not in ("dev", "proc")


def _shown(value: object) -> Text:
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, float):
        return Text(f"{value:.2f}")
    return Text("" if value is None else visible(value))


LEAST_TEXT = 12
"""A column of text is no narrower: what is left of a path or a sentence would be a tower of letters."""
_BETWEEN, _LEFT = 3, 1
"""A column's border and padding, and the border before the first one."""


def table_within(
    room: int,
    headings: Mapping[str, bool],
    rows: Sequence[Sequence[Text]],
    title: str | None = None,
    cut: str | None = None,
) -> tuple[Table, int]:
    """Returns a table and its width, ``room`` where that can be: text goes on in a further line, then headings do, and
    no number is ever cut. ``headings`` says of each column whether it stands to the right, as numbers do, which never
    give way; of the column ``cut`` what does not fit is left out.
    """
    heads = [cell_len(heading) for heading in headings]
    widest = [max([1, *(cells[at].cell_len for cells in rows)]) for at in range(len(heads))]
    texts = [at for at, is_right in enumerate(headings.values()) if not is_right]
    least = [min(width, LEAST_TEXT) if at in texts else width for at, width in enumerate(widest)]
    widths = [max(pair) for pair in zip(heads, widest, strict=True)]
    room -= _LEFT + _BETWEEN * len(widths)
    for giving in (texts, range(len(widths))):
        while sum(widths) > room and (can := [at for at in giving if widths[at] > least[at]]):
            widths[max(can, key=widths.__getitem__)] -= 1
    table = Table(title=None if title is None else Text(title), title_justify="left")
    for (heading, is_right), width in zip(headings.items(), widths, strict=True):
        table.add_column(
            Text(heading, overflow="fold"), justify="right" if is_right else "left", width=width,
            no_wrap=heading == cut, overflow="ellipsis" if heading == cut else "fold",
        )  # fmt: skip
    for cells in rows:
        table.add_row(*cells)
    return table, sum(widths) + _LEFT + _BETWEEN * len(widths)


class FoldingTable(Table):
    """A table whose words go on in a further line where they do not fit, and are not cut."""

    def add_row(self, *cells: Any, **others: Any) -> None:
        """Adds a row."""
        for cell in cells:
            for text in cell.renderables if isinstance(cell, Columns) else [cell]:
                if isinstance(text, Text):
                    text.overflow = "fold"
        super().add_row(*cells, **others)


def print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str], title: str | None = None) -> None:
    """Prints the named columns of some rows; the headings are the keys of the JSON output."""
    headings = {column: any(isinstance(row.get(column), int | float) for row in rows) for column in columns}
    cells = [[_shown(row.get(column)) for column in columns] for row in rows]
    table, width = table_within(console.width, headings, cells, title)
    # What is wider than the terminal goes on in its next line, whole: rich would make it fit at any price.
    console.print(Segments(console.render(table, console.options.update_width(width))), crop=False)


def tell_table(
    destination: str | None, data: Mapping[str, Any], rows: Sequence[Mapping[str, object]], columns: Sequence[str]
) -> None:
    """Writes ``data`` to where ``--json`` goes, and prints the rows unless that is standard output."""
    write_json(destination, data)
    if destination != "-":
        print_table(rows, columns)
