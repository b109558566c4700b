"""What the pages say: their examples, their inline code, the paths they name."""

import functools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from helpers.places import ROOT
from reinet.cli.main import app

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = ("sh", "python", "text", "mermaid")
"""Of fenced blocks: the first two are examples, the others pictures and quotations."""
PLACEHOLDER = re.compile(r"\.\.\.|\b[A-Z]{1,}\b(?![./-])")
"""A word in capitals stands for what a user writes there."""

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


@dataclass(frozen=True)
class Example:
    """Something a page tells its reader to run: a fenced block, or inline code that is a whole command or statement."""

    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:60]}"

    @property
    def lines(self) -> list[str]:
        """Commands, one each: without comments; continued lines and loops are one."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        lines: list[str] = []
        for line in joined.splitlines():
            line = re.sub(r"(^|\s)#.*", "", line).rstrip()
            if lines and lines[-1].startswith("for ") and not lines[-1].endswith("done"):
                lines[-1] += " " + line.strip()
            elif line:
                lines.append(line)
        return lines


def blocks(page: Path) -> list[Example]:
    """The fenced examples of a page. AssertionError for a block that says no known language."""
    found = []
    for language, text in FENCED.findall(page.read_text()):
        assert language in LANGUAGES, f"{page.name}: a block says {language!r}, one of {LANGUAGES} is needed"
        if language in ("sh", "python"):
            found.append(Example(page.name, language, text))
    return found


def shown_commands(page: Path) -> list[str]:
    """The commands of `reinet` in a page's blocks of text, which no test runs; without sudo and what stands before."""
    found = []
    for language, text in FENCED.findall(page.read_text()):
        for line in Example(page.name, language, text).lines if language == "text" else ():
            for part in re.split(r" && ", line):
                if match := re.match(r"(?:sudo )?(?:chrt -r 1 )?(?:\.venv/bin/)?(reinet .*)", part.strip()):
                    found.append(match[1])
    return found


def inline(page: Path) -> list[str]:
    """Inline code of a page, each on one line."""
    return [" ".join(code.split()) for code in INLINE.findall(FENCED.sub("", page.read_text()))]


def examples(page: Path) -> list[Example]:
    """All that a test must run, blocks first."""
    found = blocks(page)
    for code in dict.fromkeys(inline(page)):
        if re.match(r"import |gym\.|gymnasium\.", code):
            found.append(Example(page.name, "python", code))
        elif is_command(code) and not PLACEHOLDER.search(code) and is_whole(code):
            found.append(Example(page.name, "sh", code))
    return found


def is_command(code: str) -> bool:
    """Whether inline code is a command line, rather than a path or a name."""
    return bool(re.match(r"(sudo )?((\.venv/bin/)?reinet|make|pip|tensorboard) ", code))


def is_whole(code: str) -> bool:
    """Whether a command says more than its name, and nothing is missing."""
    words = shlex.split(code.removeprefix("sudo "))
    if not words[0].endswith("reinet"):
        return words[0] != "make" and len(words) > 1
    try:
        command, rest = command_of(words[1:])
        parsed(command, rest)
    except Exception:
        return False
    return bool(rest)


@functools.cache
def program() -> Any:
    """``reinet`` with all its commands, which take a while to make."""
    return typer.main.get_command(app)


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that ``reinet`` WORDS runs, and its arguments. AssertionError where there is none of that name."""
    command: Any = program()
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"reinet has no {words[0]!r} among {sorted(command.commands)}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def parsed(command: Any, words: list[str]) -> Any:
    """The context of a command line that is well formed; the command does not run."""
    return command.make_context("reinet", list(words))


def options_of(command: Any) -> set[str]:
    """Every option that a command knows."""
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of ``reinet`` with its names."""
    command = command or program()
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))
    else:
        yield path, command


def help_examples(text: str) -> list[str]:
    """The command lines that a help text shows, without sudo and what follows a pipe."""
    found = re.findall(r"(?:^|Example: )\s*((?:sudo )?reinet [^\n]*?)(?:\.$|$)", text, re.MULTILINE)
    return [re.split(r" (?:\||&&) ", line)[0].removeprefix("sudo ") for line in found]
