"""What is left of a Ray whose program was killed: its agents try for a minute to tell a head that is gone as well."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_SESSION = re.compile(r"/session_\d[\d_-]*_(?P<program>\d+)(?=/)")
"""The folder of a Ray; its name ends in the pid of the program that started it."""


class LeftProcess(NamedTuple):
    """A process of a Ray that has ended."""

    pid: int
    name: str
    program: int
    """The pid that the program had which started the Ray."""


def ray_processes_left(proc: Path = Path("/proc")) -> list[LeftProcess]:
    """Returns the processes of each Ray, anybody's, of which neither the program nor the raylet is there any more.

    They are known by the files of its session that they have open; those of other users are not seen.
    """
    processes = [process for process in proc.iterdir() if process.name.isdigit()]
    alive = {found[0] for process in processes if (found := _SESSION.search(command_of(process)))}
    left = []
    for process in processes:
        for path in open_files(process):
            found = _SESSION.search(path)
            if found is not None and found[0] not in alive and not (proc / found["program"]).exists():
                left.append(LeftProcess(int(process.name), _name(process), int(found["program"])))
                break
    return sorted(left)


def command_of(process: Path) -> str:
    """Returns how a process was started, or what it calls itself since; empty for one that has ended."""
    with suppress(OSError):
        return (process / "cmdline").read_bytes().decode(errors="replace")
    return ""


def _name(process: Path) -> str:
    return command_of(process).partition("\0")[0].strip() or "unknown"


def open_files(process: Path) -> Iterator[str]:
    """Yields the paths of what a process of ours has open; none for another user's, or one that has ended."""
    with suppress(OSError):
        for entry in (process / "fd").iterdir():
            with suppress(OSError):
                yield str(entry.readlink())
