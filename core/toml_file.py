"""Configuration files: TOML, read within a limit, checked by a pydantic model, every fault with its place and cure."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ValidationError

from reinet.core.errors import ConfigError, unread

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

MAX_FILE_BYTES = 1 << 20
"""A configuration is a screenful; what is larger is another file given by mistake."""


def _named(value: Any) -> Any:
    """Returns a path as it was given; raises ValueError for a text that names none: "" would be the present folder."""
    if isinstance(value, str) and (not value or "\0" in value):
        raise ValueError(f"{value!r} names no file or folder; write its path, or leave the key out")
    return value


NamedPath = Annotated[Path, BeforeValidator(_named)]
"""A path in a configuration."""
Model = TypeVar("Model", bound=BaseModel)
TomlError = tomllib.TOMLDecodeError


def loads(text: str) -> dict[str, Any]:
    """Returns a document; raises TomlError, also for numbers and nesting that Python itself refuses."""
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TomlError(str(error)) from None
    return document


def load(path: Path, model: type[Model], cure: str, table: str | None = None) -> Model:
    """Returns what a file says, as ``model``; with ``table`` all of it stands in that one table.

    Raises ConfigError naming the file and, each on a line, every wrong key with its value. ``cure`` says what to do
    about a file that is not there or lacks its table.
    """
    return check(read(path, cure), str(path), model, cure, table)


def read(path: Path, cure: str) -> dict[str, Any]:
    """Returns the document in a file; raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {unread(error)}; {cure}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes, so not a configuration; {cure}")
    try:
        return loads(content.decode("utf-8-sig"))  # some editors begin a file with a mark that nobody sees
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not TOML: byte {error.start} is not UTF-8; {cure}") from None
    except TomlError as error:
        raise ConfigError(f"{path}: not TOML, or not valid TOML: {error}; {cure}") from None


def check(document: Mapping[str, Any], source: str, model: type[Model], cure: str, table: str | None = None) -> Model:
    """Returns a parsed document as ``model``; ``source`` names it in the ConfigError that a fault raises."""
    inside: Any = document
    if table is not None:
        for key in document:
            if key != table:
                raise ConfigError(f"{source}: {_outside(key, table, model)}")
        inside = document.get(table)
        if not isinstance(inside, dict):
            raise ConfigError(f"{source}: has no [{table}] table; {cure}")
    try:
        return model.model_validate(inside)
    except ValidationError as error:
        faults = [_explain(dict(fault), model, table) for fault in error.errors()]
        raise ConfigError(f"{source}: " + f"\n{source}: ".join(faults)) from None


def first_fault(error: ValidationError) -> str:
    """Returns the place and the words of the first fault, for data that a program wrote and nobody mends by hand."""
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc'])) or 'document'}: {fault['msg']}"


def _outside(key: str, table: str, model: type[BaseModel]) -> str:
    hint = f"; did you mean [{table}]?" if difflib.get_close_matches(key, [table]) else ""
    known = f"it belongs into the [{table}] table" if key in model.model_fields else f"only [{table}] is known"
    return f"unknown key {key!r} outside [{table}]: {known}{hint}"


def paths_as_tables(entries: Any) -> Any:
    """Returns a list in which paths stand beside tables with a table for each: a path alone is one with defaults.

    What is no list is returned as it is, for whoever checks the tables to refuse.
    """
    if not isinstance(entries, list):
        return entries
    return [{"path": entry} if isinstance(entry, str) else entry for entry in entries]


def _explain(fault: dict[str, Any], model: type[BaseModel], table: str | None) -> str:
    """Returns a fault as a sentence: an unknown key and its neighbours, a missing one, or a value and what is wrong."""
    keys = [str(part) for part in fault["loc"]]
    where = ".".join([table, *keys] if table else keys) or "configuration"
    if fault["type"] == "extra_forbidden":
        return _unknown(keys, list(_section(model, keys).model_fields), table)
    if fault["type"] == "missing":
        field = _section(model, keys).model_fields.get(keys[-1])
        return f"{where} is missing: {(field and field.description) or 'write it down'}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "tuple_type":  # TOML has none
        message = "write a list, in brackets, also of one"
    if fault["type"] == "value_error":
        own = f"{keys[-1]}: " if keys else ""  # what also checks an argument of the same name begins with it
        return f"{where}: {message.removeprefix(own)}"
    return f"{where} = {fault['input']!r}: {message}" if table else f"{where}: {message}, not {fault['input']!r}"


def _unknown(keys: list[str], known: list[str], table: str | None) -> str:
    near = difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.5 if table else 0.0)
    everything = ", ".join(known)
    if table:
        hint = f"did you mean {near[0]!r}?" if near else f"known are {everything}"
        return f"unknown key {'.'.join([table, *keys])}; {hint}"
    section = f" in [{'.'.join(keys[:-1])}]" if keys[:-1] else ""
    return f"unknown key {keys[-1]!r}{section}; nearest is {near[0]!r} (known: {everything})"


def _section(model: type[BaseModel], keys: list[str]) -> type[BaseModel]:
    """Returns the model of the section that the last key stands in, which may be one of a list."""
    for key in keys[:-1]:
        kind = model.model_fields[key].annotation if key in model.model_fields else None
        inner = [one for one in (kind, *get_args(kind)) if isinstance(one, type) and issubclass(one, BaseModel)]
        model = inner[0] if inner else model
    return model
