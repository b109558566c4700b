"""Processes around a link: they report JSON lines, and the programs they need are found or named."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reinet.core.errors import LinkError

START_TIMEOUT_S = 60.0
"""The longest wait for a shell, a sender or a connection; all of them take 0.2 s on an idle machine. It took more than
20 s now and then after tests with many flows; the kernel takes ended network namespaces down one after the other."""

HELPERS = ("reinet-gate", "reinet-iptables", "reinet-receiver", "reinet-sender", "reinet-sleeper")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES = "run docker/packages.sh as root"

Event = dict[str, Any]


class Child:
    """A process that reports JSON lines on its standard output and ends when its standard input does."""

    def __init__(self, argv: Sequence[str], name: str) -> None:
        self.name = name
        self.words: list[str] = []  # what it said that is no event
        self._pending = b""
        self._events: list[Event] = []
        # A session of its own: Ctrl-C reaches this process only, which then ends the rest in order.
        self.process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={"PATH": SYSTEM_PATH},
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def events(self) -> list[Event]:
        """Returns the events that are there and have not been waited for, without waiting."""
        self._read()
        taken, self._events = self._events, []
        return taken

    def _read(self) -> None:
        assert self.process.stdout is not None
        while chunk := self.process.stdout.read():
            self._pending += chunk
            *lines, self._pending = self._pending.split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                try:
                    self._events.append(json.loads(text))
                except ValueError:
                    self.words.append(text)

    def wait_for(self, kind: str, timeout_s: float = START_TIMEOUT_S, beside: Child | None = None) -> Event:
        """Waits for an event and returns it; raises LinkError when none comes or this process, or ``beside``, ends.

        Events that came before it stay: two processes that share a standard output write in either order.
        """
        deadline_s = time.monotonic() + timeout_s
        assert self.process.stdout is not None
        while True:
            ended = self.process.poll() is not None
            self._read()
            for index, event in enumerate(self._events):
                if event.get("event") == kind:
                    return self._events.pop(index)
                if event.get("event") == "error":
                    raise LinkError(f"{self.name}: {event['message']}")
            if ended:
                self.check()
            if beside is not None:
                beside.check()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                others = beside.said() if beside is not None else ""
                raise LinkError(f"{self.name}: no '{kind}' within {timeout_s:g} s{self.said()}{others}")
            select.select([self.process.stdout], [], [], min(left_s, 0.05))

    def check(self) -> None:
        """Raises LinkError, with its last words, when it has ended."""
        if self.process.poll() is not None:
            self._read()
            raise LinkError(f"{self.name} ended with status {self.process.returncode}{self.said()}")

    def said(self) -> str:
        """Returns its last words, to end a message with."""
        return f": {' | '.join(self.words[-4:])}" if self.words else ""

    def tell(self, text: str) -> None:
        """Writes to its standard input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()

    def end_input(self) -> None:
        """Closes its standard input, which asks it to end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def reap(self, timeout_s: float) -> None:
        """Collects it; one that has not ended by then is killed."""
        self.end_input()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def helper_folder() -> Path:
    """Returns the folder of the compiled helpers. Raises LinkError when they were not built."""
    import reinet.envs.mahimahi

    for folder in map(Path, reinet.envs.mahimahi.__path__):
        if all((folder / "bin" / name).is_file() for name in (*HELPERS, "reinet-netns")):
            return folder / "bin"
    raise LinkError("the helpers around Mahimahi were not built; install a C compiler and run docker/setup.sh again")


def find_program(name: str, cure: str = _PACKAGES) -> Path:
    """Returns a system program's path. Raises LinkError when it is not installed."""
    path = shutil.which(name, path=SYSTEM_PATH)
    if path is None:
        raise LinkError(f"{name} is not installed; {cure}")
    return Path(path)


def find_xtables(iptables: Path) -> Path:
    """Returns the legacy iptables, which Mahimahi's set-up was proved with; else whatever iptables there is."""
    legacy = shutil.which("xtables-legacy-multi", path=SYSTEM_PATH)
    return Path(legacy) if legacy else iptables


def require_open_to_all(*files: Path) -> None:
    """Raises LinkError unless every user of this host can reach and read the files, as the link's own has to."""
    for file in files:
        for place in (file.absolute(), file.resolve()):
            closed = [folder for folder in place.parents if not folder.stat().st_mode & 0o001]
            if closed or not place.stat().st_mode & 0o004:
                raise LinkError(
                    f"UDP and Java receivers and a gated nginx run as a user without rights, who cannot read {place}"
                    + (f", for {closed[-1]} is closed to others" if closed else "")
                    + "; use a Python and a checkout that all may read, such as /usr/bin/python3 and a folder in /opt"
                )
