"""Sets of traces: what files, folders and set files name, read; and set files, written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from reinet.core import toml_file
from reinet.core.errors import TraceError
from reinet.core.visible import utf8
from reinet.envs.trace.files import read_limited
from reinet.envs.trace.trace import Trace

Role = Literal["train", "validation", "test"]
ROLES: tuple[Role, ...] = ("train", "validation", "test")

SET_SUFFIX = ".toml"
_NOT_TRACES = frozenset({".toml", ".md", ".json", ".yaml", ".yml"})
"""Suffixes that a folder of traces may hold beside its traces."""


def load_traces(paths: Iterable[str | Path]) -> list[Trace]:
    """Returns the traces in files, folders of them and set files (TOML), each file once, in the order given.

    A folder gives its files by name, without hidden ones and documents (``.toml``, ``.md``, ``.json``, ``.yaml``); it
    is not searched deeper. A set file is ``[set]`` with ``name`` and ``files``, whose paths are relative to the set
    file and may be folders. Traces of one name, from several folders, are named apart, for rows go by names. Raises
    TraceError.
    """
    loaded = [Trace.load(file) for file in trace_files(paths)]
    named = [trace.name for trace in loaded]
    return [
        replace(trace, name=name) if named.count(trace.name) > 1 else trace
        for trace, name in zip(loaded, distinct_names(loaded), strict=True)
    ]


def trace_files(paths: Iterable[str | Path]) -> list[Path]:
    """Returns the files that ``load_traces`` would load; raises TraceError when there is none."""
    found: dict[str, Path] = {}
    for path in paths:
        if "\0" in str(path):
            raise TraceError(f"{path}: a NUL is in no file's name; write the path without it")
        for file in _trace_files(Path(path)):
            found.setdefault(os.path.realpath(file), file)  # of a loop of links too, which cannot be read then
    if not found:
        raise TraceError("no trace was given: name a trace file, a folder of traces or a set file (.toml)")
    return list(found.values())


def _trace_files(path: Path) -> list[Path]:
    if path.is_dir():
        try:
            entries = sorted(path.iterdir())
        except OSError as error:
            raise TraceError(f"{path}: cannot list the folder ({error.strerror}); check its permissions") from error
        visible = [entry for entry in entries if not entry.name.startswith(".")]
        files = [entry for entry in visible if entry.is_file() and entry.suffix.lower() not in _NOT_TRACES]
        if not files:
            folders = ", ".join(entry.name for entry in visible if entry.is_dir())
            cure = f"name one of its sub-folders: {folders}" if folders else "put trace files there or name another"
            raise TraceError(f"{path}: the folder holds no trace file; {cure}")
        return files
    return _set_files(path) if path.suffix.lower() == SET_SUFFIX else [path]


def called(path: Path) -> tuple[str, Role | None]:
    """Returns the name of the set at a path, a set file's own or else its folder's, and what it is for: a set file's
    name says that where it is a role's, as those of ``reinet traces split`` do. Raises TraceError.
    """
    if path.is_dir():
        return path.absolute().name, None
    if path.suffix.lower() != SET_SUFFIX:
        return path.absolute().parent.name, None
    name = str(_read_set(path)["name"])
    return name, next((role for role in ROLES if role == name), None)


def _read_set(path: Path) -> dict[str, Any]:
    example = 'a set file is [set] with name = "..." and files = ["a.down", ...]'
    raw = read_limited(path, toml_file.MAX_FILE_BYTES, "set file")
    try:
        table = toml_file.loads(raw.decode())
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise TraceError(f"{path}:{line}: a set file is UTF-8 text, this has other bytes; write it as TOML") from error
    except toml_file.TomlError as error:
        raise TraceError(f"{path}: not valid TOML: {error}; {example}") from error
    section = table.get("set")
    if not isinstance(section, dict) or set(table) != {"set"}:
        raise TraceError(f"{path}: sections are {sorted(table)}; {example}")
    unknown = sorted(set(section) - {"name", "files"})
    if unknown:
        raise TraceError(f"{path}: [set] has unknown key {unknown[0]!r}; {example}")
    files = section.get("files")
    if not isinstance(section.get("name"), str) or not isinstance(files, list) or not files:
        raise TraceError(f"{path}: [set] lacks a name or a list of files; {example}")
    return section


def _set_files(path: Path) -> list[Path]:
    result: list[Path] = []
    for number, entry in enumerate(_read_set(path)["files"], 1):
        if not isinstance(entry, str) or not entry:
            raise TraceError(f"{path}: files[{number}] is {entry!r}; each is a path as text")
        member = path.parent / entry
        if member.suffix.lower() == SET_SUFFIX:
            raise TraceError(f"{path}: files[{number}] is another set file ({entry}); list its traces instead")
        if not member.exists():
            raise TraceError(f"{path}: files[{number}] ({entry}) does not exist; paths are relative to the set file")
        result += _trace_files(member)
    return result


def distinct_names(traces: Sequence[Trace]) -> list[str]:
    """Returns a file name for each trace, in order: traces of the same name get part of their hash.

    A set file, which names them, is UTF-8, and so a name that is not is written out.
    """
    names = [utf8(trace.name) for trace in traces]
    hashes = [trace.sha256[:12] for trace in traces]
    distinct = [f"{n}.{part}" if names.count(n) > 1 else n for n, part in zip(names, hashes, strict=True)]
    return [f"{name}.{number}" if distinct.count(name) > 1 else name for number, name in enumerate(distinct)]


def folder_name(name: str) -> str:
    """Returns the name for a file that a folder of traces is to give: none of a hidden file or of a document."""
    shown = f"_{name}" if name.startswith(".") else name
    return f"{shown}.trace" if Path(shown).suffix.lower() in _NOT_TRACES else shown


def set_file(name: str, files: Sequence[str]) -> bytes:
    """Returns what a set file says: its name and its traces' files, as paths from where it lies."""
    lines = "".join(f"  {_toml_string(file)},\n" for file in files)
    return f"[set]\nname = {_toml_string(name)}\nfiles = [\n{lines}]\n".encode()


def _toml_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON leaves it raw, TOML forbids that
