"""What pages and help texts name exists: paths, commands, options, targets of make, links."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from rich.text import Text

from helpers.documents import (
    FENCED,
    PAGES,
    PLACEHOLDER,
    blocks,
    command_of,
    commands,
    help_examples,
    inline,
    is_command,
    options_of,
    parsed,
    shown_commands,
)
from helpers.places import ROOT

TOP = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
GENERATED = ("runs/", "build/", "dist/", "traces/", "my-traces/")
"""What commands make: no checkout has it."""
pages = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])


@pages
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    for code in inline(page):
        if re.fullmatch(r"[\w.{},*/-]+", code) and code.partition("/")[0] in TOP and not code.startswith(GENERATED):
            path = code.rstrip("/")
            assert any(ROOT.glob(path)) or any(ROOT.glob(f"{path}.py")), f"{page.name}: there is no {code}"
    for link in re.findall(r"\]\(([^)#]+)\)", FENCED.sub("", page.read_text())):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), f"{page.name}: there is no {link}"


def _anchors(page: Path) -> list[str]:
    """What GitHub makes of a page's headings, apart from the number that it adds to one that it has had before."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    shown = [re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", heading).lower() for heading in headings]
    return [re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in shown]


@pages
def test_a_link_to_a_heading_finds_that_one_alone(page: Path) -> None:
    for path, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", FENCED.sub("", page.read_text())):
        target = page.parent / path if path else page
        assert _anchors(target).count(anchor) == 1, f"{page.name}: {path}#{anchor}"


@pages
def test_file_names_that_stand_alone_exist_once_at_least(page: Path) -> None:
    names = {path.name for folder in TOP if folder not in ("build", "runs") for path in (ROOT / folder).rglob("*.*")}
    for code in inline(page):
        if re.fullmatch(r"\w+\.(hpp|cpp|h|c|py|proto|sh)", code) and code not in OTHERS:
            assert code in names, f"{page.name}: no file is called {code}"


def test_every_path_that_a_source_names_exists() -> None:
    """A comment that sends its reader to a file that has moved."""
    suffixes = (".py", ".pyi", ".c", ".cpp", ".h", ".hpp", ".toml", ".proto", ".sh")
    named = re.compile(rf"(?<![\w/.])(?:{'|'.join(TOP)})/[\w/-]+\.(?:py|hpp|cpp|h|c|md|toml|proto|sh)\b")
    for folder in TOP:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in suffixes and folder not in ("build", "runs", "tests"):
                for name in named.findall(path.read_text()):
                    assert (ROOT / name).is_file(), f"{path.relative_to(ROOT)}: there is no {name}"


def test_make_help_lists_every_target_that_a_page_names() -> None:
    listed = subprocess.run(
        ["make", "-C", ROOT, "--no-print-directory", "help"], capture_output=True, text=True, check=True
    )
    targets = {word for line in listed.stdout.splitlines() for word in line.partition(":")[0].split()}
    named = {word for page in PAGES for code in inline(page) if code.startswith("make ") for word in code.split()[1:]}
    assert named
    assert named <= targets, f"make help leaves out {named - targets}"


OTHERS = ("tcp_bbr.c", "tcp_rate.c")
"""The kernel's."""


@pages
def test_every_command_and_option_that_a_page_names_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    lines = [line for block in blocks(page) if block.language == "sh" for line in block.lines]
    for code in [*filter(is_command, inline(page)), *lines]:
        for part in re.split(r" && |; |do ", code):
            words = shlex.split(part.removeprefix("sudo "), comments=True)
            if words[:1] == ["make"]:
                for target in words[1:]:
                    rule = rf"^(?:[\w -]* )?{target}(?: [\w -]*)?:"
                    assert re.search(rule, makefile, re.MULTILINE), f"{page.name}: make has no {target}"
            if not words or not words[0].endswith("reinet"):
                continue
            for variant in _variants(words[1:]):
                command, rest = command_of(variant)
                for word in rest[: rest.index("--")] if "--" in rest else rest:  # beyond it is another program's
                    if word.startswith("--"):
                        assert word in options_of(command), f"{page.name}: {code!r}: there is no {word}"


def _variants(words: list[str]) -> list[list[str]]:
    """``list/info`` means both."""
    for place, word in enumerate(words[:2]):
        if re.fullmatch(r"[a-z]+(/[a-z]+)+", word):
            return [[*words[:place], one, *words[place + 1 :]] for one in word.split("/")]
    return [words]


EVERY_COMMAND = [" ".join(names) for names, _ in commands()]


@pytest.mark.parametrize("names", EVERY_COMMAND)
def test_a_help_text_is_shown_as_it_was_written(names: str) -> None:
    """Typer has rich read help texts as markup, where what stands in square brackets may be a style, and vanishes."""
    command = command_of(names.split())[0]
    for text in [str(command.help), *(str(getattr(one, "help", "") or "") for one in command.params)]:
        assert Text.from_markup(text).plain == text


@pytest.mark.parametrize("names", EVERY_COMMAND)
def test_a_paragraph_of_a_help_text_has_no_line_breaks_of_its_own(names: str) -> None:
    """A terminal that is narrower than the source wraps each line, and every other one would be a short one."""
    for paragraph in str(command_of(names.split())[0].help).split("\n\n"):
        assert "\n" not in paragraph.strip(), paragraph


@pytest.mark.parametrize("names", EVERY_COMMAND)
def test_examples_of_a_help_text_are_well_formed(names: str) -> None:
    command = command_of(names.split())[0]
    found = help_examples(str(command.help))
    assert found, f"reinet {names} --help has no example"
    for line in found:
        words = shlex.split(line)[1:]
        inner, rest = command_of(words)
        assert inner.name == command.name, f"{line!r} is another command's"
        parsed(inner, rest)


@pages
def test_commands_that_no_test_runs_are_well_formed(page: Path) -> None:
    for line in shown_commands(page):
        try:
            parsed(*command_of(shlex.split(line)[1:]))
        except Exception as error:
            pytest.fail(f"{page.name}: {line}: {error}")


def test_the_extraction_sees_what_it_should() -> None:
    """A checker that finds nothing passes."""
    readme = ROOT / "README.md"
    assert any("reinet evaluate" in line for block in blocks(readme) for line in block.lines)
    assert sum(map(is_command, inline(readme))) >= 5
    assert sum(len(shown_commands(page)) for page in PAGES) >= 40
    assert help_examples("Text.\n\n    sudo reinet doctor --json - | jq .\n") == ["reinet doctor --json -"]
    assert PLACEHOLDER.search("reinet train CONFIG")
    with pytest.raises(AssertionError, match="no 'evaluat'"):
        command_of(["evaluat"])
    with pytest.raises(Exception, match="nope"):
        parsed(*command_of(["doctor", "--nope"]))
