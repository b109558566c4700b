"""A user's recordings: found, divided by content into those to learn from and those to select by, leaks refused.

[traces] sets -> files -> a role for each content -> the same content in two roles, or a forbidden one: ConfigError
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reinet.agents.learn.config import TraceSection, TraceSet
from reinet.agents.model.artifact import TraceUse
from reinet.core.errors import ConfigError, TraceError
from reinet.core.visible import utf8
from reinet.envs.link.domain import WeightedTrace
from reinet.envs.trace import Trace
from reinet.envs.trace.set_file import Role, called, trace_files
from reinet.envs.trace.split import by_content

LEAST_SECONDS = 5.0
"""A recording is at least as long as a generated trace must be: a shorter one repeats itself within one flow."""


@dataclass(frozen=True)
class Recordings:
    """All recordings of a training, each file by its role; none of them is a test's."""

    learn: list[WeightedTrace]
    """To learn from, each content once, with the weight that its sets give it."""
    select: list[Trace]
    """To choose among checkpoints by, each content once."""
    uses: list[TraceUse]
    """Every file of either kind, copies included, as a model's manifest names them."""
    forbidden: dict[str, str]
    """The contents that may be neither, sha256 -> which file has it."""

    def refuse_forbidden(self, trace: Trace) -> None:
        """Raises ConfigError for a trace whose content is forbidden."""
        if trace.sha256 in self.forbidden:
            raise ConfigError(
                f"traces: {trace.path or trace.name} has the content of {self.forbidden[trace.sha256]}; take it out of "
                "what is learned from and selected by, or judge the model on others"
            )


@dataclass(frozen=True)
class _File:
    """One file of one set."""

    trace: Trace
    entry: TraceSet
    role: Role | None
    name: str
    """The set's or folder's name and the file's, as a checkpoint and a manifest can hold them."""

    @property
    def where(self) -> str:
        """Returns its path."""
        return str(self.trace.path)


def recordings(section: TraceSection) -> Recordings:
    """Returns the recordings that a training uses; reads all files. Raises ConfigError naming what is wrong where."""
    files = [file for entry in section.sets for file in _files_of(entry)]
    forbidden = {file.trace.sha256: f"{file.where}, which is a test's" for file in files if file.role == "test"}
    for path in section.forbid:
        for trace in _loaded("traces.forbid", path):
            forbidden[trace.sha256] = f"{trace.path}, which traces.forbid names"
    used = [file for file in files if file.role != "test"]
    roles = _roles(used, section.select_share)
    found = Recordings(
        forbidden=forbidden,
        learn=_weighted([file for file in used if roles[file.trace.sha256] == "train"]),
        select=_once([file.trace for file in used if roles[file.trace.sha256] == "validation"]),
        uses=[
            TraceUse(
                name=file.name,
                sha256=file.trace.sha256,
                role="train" if roles[file.trace.sha256] == "train" else "select",
            )
            for file in used
        ],
    )
    for file in used:
        found.refuse_forbidden(file.trace)
    return found


def _files_of(entry: TraceSet) -> list[_File]:
    path = expanded("traces.sets", entry.path)
    traces = _loaded("traces.sets", entry.path)
    name, role = called(path)
    role = entry.role or role
    for trace in traces:
        if role != "test" and trace.duration_ms < LEAST_SECONDS * 1000:
            raise ConfigError(
                f"traces.sets: {trace.path} lasts {trace.duration_ms / 1000:g} s, and {LEAST_SECONDS:g} s is the "
                "least; give a longer recording, or take it out"
            )
    return [_File(trace, entry, role, utf8(f"{name}/{trace.name}")) for trace in traces]


def _loaded(key: str, text: str) -> list[Trace]:
    """Returns the traces that a key's path names; raises ConfigError naming key and file."""
    try:
        return [Trace.load(file) for file in trace_files([expanded(key, text)])]
    except TraceError as error:
        raise ConfigError(f"{key}: {error}") from None


def expanded(key: str, text: str) -> Path:
    """Returns a path with its $NAMEs replaced; raises ConfigError for one that the environment does not have."""
    path = os.path.expandvars(text)
    if missing := re.search(r"\$(\w+|\{[^}]*\})", path):
        raise ConfigError(f"{key}: {text}: the environment has no {missing.group()}; set it, or write the path in full")
    return Path(path)


def _roles(files: Sequence[_File], select_share: float) -> dict[str, Role]:
    """Returns what each content is for: what a set says, else by the content's hash. Raises ConfigError for both."""
    said: dict[str, _File] = {}
    for file in files:
        if file.role:
            other = said.setdefault(file.trace.sha256, file)
            if other.role != file.role:
                raise ConfigError(
                    f"traces.sets: {other.where} ({other.role}) and {file.where} ({file.role}) have the same content; "
                    "take one of them out"
                )
    roles: dict[str, Role] = {sha256: file.role for sha256, file in said.items() if file.role}
    open_ones = _once([file.trace for file in files if file.trace.sha256 not in roles])
    learn, select = (
        (open_ones, []) if len(open_ones) < 2 or not select_share else by_content(open_ones, 1 - select_share)
    )
    return roles | {trace.sha256: "train" for trace in learn} | {trace.sha256: "validation" for trace in select}


def _once(traces: Sequence[Trace]) -> list[Trace]:
    """Returns the first of each content."""
    return list({trace.sha256: trace for trace in reversed(traces)}.values())[::-1]


def _weighted(files: Sequence[_File]) -> list[WeightedTrace]:
    """Returns each content once; a set's weight is shared out evenly among its contents."""
    weights: dict[str, float] = {}
    for entry in {id(file.entry): file.entry for file in files}.values():
        contents = {file.trace.sha256 for file in files if file.entry is entry}
        for sha256 in contents:
            weights[sha256] = weights.get(sha256, 0.0) + entry.weight / len(contents)
    return [
        WeightedTrace(trace.opportunities_ms, trace.name, trace.path, weights[trace.sha256])
        for trace in _once([file.trace for file in files])
    ]
