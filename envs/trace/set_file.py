"""Set files, written: what ``load_traces`` reads again, whatever the traces are called."""

from __future__ import annotations

import json
from collections.abc import Sequence

from reinet.core.visible import utf8
from reinet.envs.trace.trace import Trace


def distinct_names(traces: Sequence[Trace]) -> list[str]:
    """Returns a file name for each trace, in order: traces of the same name get part of their hash.

    A set file, which names them, is UTF-8, and so a name that is not is written out.
    """
    names = [utf8(trace.name) for trace in traces]
    hashes = [trace.sha256[:12] for trace in traces]
    distinct = [f"{n}.{part}" if names.count(n) > 1 else n for n, part in zip(names, hashes, strict=True)]
    return [f"{name}.{number}" if distinct.count(name) > 1 else name for number, name in enumerate(distinct)]


def set_file(name: str, files: Sequence[str]) -> bytes:
    """Returns what a set file says: its name and its traces' files, as paths from where it lies."""
    lines = "".join(f"  {_toml_string(file)},\n" for file in files)
    return f"[set]\nname = {_toml_string(name)}\nfiles = [\n{lines}]\n".encode()


def _toml_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON leaves it raw, TOML forbids that
