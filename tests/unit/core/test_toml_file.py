"""Configuration files: every fault says file, key, value and cure, whichever configuration it is."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from helpers.places import ROOT
from reinet.agents.learn.config import TrainConfig
from reinet.core import toml_file
from reinet.core.errors import ConfigError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = Field(default=1, gt=0)
    pair: tuple[float, float] = (0.0, 1.0)
    name: str = Field(description="what it is called")


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")
    seed: int = 0
    part: Section = Section(name="x")
    more: list[Section] = []
    other: Section | None = None


def refusal(folder: Path, text: str, model: type[BaseModel] = Whole, table: str | None = None) -> str:
    path = folder / "own.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        toml_file.load(path, model, "see the example", table)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return "\n".join(line.removeprefix(f"{path}: ") for line in lines)


def test_every_fault_is_told(tmp_path: Path) -> None:
    said = refusal(tmp_path, "sead = 1\n[part]\nsiz = 1\nsize = 0\npair = [1.0, 'a']\n").splitlines()
    assert said[0] == "part.size: Input should be greater than 0, not 0"
    assert re.fullmatch(r"part\.pair\.1: Input should be a valid number.*, not 'a'", said[1])
    assert said[2:] == [
        "part.name is missing: what it is called",
        "unknown key 'siz' in [part]; nearest is 'size' (known: size, pair, name)",
        "unknown key 'sead'; nearest is 'seed' (known: seed, part, more, other)",
    ]


def test_a_fault_in_a_list_of_sections_is_told_as_one_in_a_section(tmp_path: Path) -> None:
    said = refusal(tmp_path, "[[more]]\nname = 'a'\n[[more]]\nsiz = 1\n[other]\nsiz = 2").splitlines()
    assert said == [
        "more.1.name is missing: what it is called",
        "unknown key 'siz' in [more.1]; nearest is 'size' (known: size, pair, name)",
        "other.name is missing: what it is called",
        "unknown key 'siz' in [other]; nearest is 'size' (known: size, pair, name)",
    ]


def test_a_fault_that_begins_with_its_keys_name_names_it_once(tmp_path: Path) -> None:
    said = refusal(tmp_path, "feature_set = 'nope'", TrainConfig)
    assert said.startswith("feature_set: there is no feature set 'nope'")


def test_a_configuration_may_be_one_table(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path, "[own]\nsiz = 1\nname = 'a'", Section, "own") == "unknown key own.siz; did you mean 'size'?"
    )
    assert refusal(tmp_path, "[own]\nsize = 0\nname = 'a'", Section, "own").startswith("own.size = 0: ")
    assert refusal(tmp_path, "", Section, "own") == "has no [own] table; see the example"
    assert "did you mean [own]?" in refusal(tmp_path, "[owm]", Section, "own")


def test_what_is_no_configuration(tmp_path: Path) -> None:
    assert refusal(tmp_path, "#" * (toml_file.MAX_FILE_BYTES + 1)).startswith("larger than")
    assert refusal(tmp_path, "[part").endswith("see the example")
    with pytest.raises(ConfigError, match="Is a directory; see the example"):
        toml_file.load(tmp_path, Whole, "see the example")


def test_a_mark_that_an_editor_puts_in_front_is_no_fault(tmp_path: Path) -> None:
    """It was told as an invalid statement in the first line, at which nobody sees anything wrong."""
    path = tmp_path / "own.toml"
    path.write_text("seed = 5\n", encoding="utf-8-sig")
    assert toml_file.read(path, "see the example") == {"seed": 5}


def test_toml_is_parsed_in_one_place() -> None:
    for room in ("core", "kshim", "envs", "agents", "daemon", "cli"):
        for path in (ROOT / room).rglob("*.py"):
            assert path.name == "toml_file.py" or not re.search(r"import tom(llib|li)\b", path.read_text()), path
