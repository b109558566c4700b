"""Commands that are imported when they are asked for: who runs one does not wait for all the others."""

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from reinet.cli.entry import ended_at_once
from reinet.cli.output import FoldingTable


class Commands(Mapping[str, Any]):
    """Commands by name, each imported from its place (``module:attribute``, a function or a Typer) at its first use."""

    def __init__(self, places: Mapping[str, str], options: Mapping[str, dict[str, Any]]) -> None:
        self._places, self._options = places, options
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module, _, attribute = self._places[name].partition(":")
            if module not in sys.modules:
                with ended_at_once():
                    import_module(module)
            self._made[name] = _command(name, getattr(sys.modules[module], attribute), self._options.get(name, {}))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places  # Mapping's own would import it


def _command(name: str, found: Any, options: dict[str, Any]) -> Any:
    group = typer.Typer(add_completion=False)
    group.callback()(lambda: None)  # with it a single command is one of a group too
    if isinstance(found, typer.Typer):
        group.add_typer(found, name=name)
    else:
        group.command(name, **options)(found)
    made: Any = typer.main.get_command(group)
    _reflow(made.commands[name])
    return made.commands[name]


def _fold(command: Any) -> None:
    """Makes a command's help tell its options in a ``FoldingTable``.

    Typer's own cut a word that is wider than its column: on a terminal of 80 columns that was the name of an option.
    """
    show = command.format_help

    def format_help(context: Any, formatter: Any) -> None:
        from typer import rich_utils  # here, for nothing but help needs it

        typers: Any = rich_utils
        typers.Table = FoldingTable
        show(context, formatter)

    command.format_help = format_help


def _reflow(command: Any) -> None:
    """Makes each paragraph of a command's help, and of those below it, one line, which a terminal wraps at its width.

    Typer prints a docstring's line breaks as they are, so on any narrower terminal every other line is a short one.
    What is indented, an example, stays as it is. Their tables of options fold.
    """
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(text if text.startswith(" ") else " ".join(text.split("\n")) for text in paragraphs)
    _fold(command)
    for inner in getattr(command, "commands", {}).values():
        _reflow(inner)


def group_of(places: Mapping[str, str], options: Mapping[str, dict[str, Any]] | None = None) -> type[TyperGroup]:
    """Returns what a Typer takes as its class to have these commands, in this order, with Click's options of some."""

    class Group(TyperGroup):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.commands: Any = Commands(places, options or {})
            _fold(self)

    return Group
