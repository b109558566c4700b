"""Namespaces in which Mahimahi runs, and that end with the process that made them, kill -9 included."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from reinet.core.errors import LinkError
from reinet.envs.mahimahi.process import HELPERS, Child, find_program, find_xtables, helper_folder

NICENESS = -10
"""Of everything in a cell, the sleeper that judges it included: an emulated link should not slow down because a learner
computes beside it."""

_NOBODY = 65534
USER_FILES = "/run/reinet/user"
BIN = "/run/reinet/bin"
_CGROUP_PREFIX = "reinet-link-"
_numbers = itertools.count()


class Cell:
    """Namespaces in which Mahimahi runs; everything in them ends with ``close``, or with this process.

    Given ``cgroup``, that cgroup v2 folder is made with the cell and removed with it. Raises LinkError.
    """

    def __init__(self, cgroup: Path | None = None) -> None:
        if os.geteuid() != 0:
            raise LinkError("emulated links need root, to make namespaces of their own: run as root")
        for program in ("mm-link", "mm-delay", "nsenter", "setpriv"):
            find_program(program)
        if not Path("/dev/net/tun").exists():
            raise LinkError("/dev/net/tun is missing; modprobe tun, or in a container pass --device /dev/net/tun")
        folder, iptables = helper_folder(), find_program("iptables").resolve()
        self.cgroup = cgroup
        self._children: list[Child] = []
        self._main = Child(
            [
                str(folder / "reinet-cell"),
                str(os.getpid()),
                str(iptables),
                str(find_xtables(iptables)),
                str(cgroup) if cgroup else "-",
                *(str(folder / name) for name in HELPERS),
            ],
            "the link's cell",
        )
        # Forgotten without close(): closing the pipe ends it all the same.
        self._forgotten = weakref.finalize(self, self._main.end_input)
        try:
            self.pid = int(self._main.wait_for("cell")["pid"])
            self._main.wait_for("ready")
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> Path:
        """The folder of the unprivileged user inside, as seen from outside."""
        return Path(f"/proc/{self.pid}/root{USER_FILES}")

    def spawn(self, argv: Sequence[str], name: str, *, privileged: bool) -> Child:
        """Start a program inside, outside all shells; as nobody unless ``privileged``."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--"]
        favour = ["nice", f"--adjustment={NICENESS}"]
        drop = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--"]
        child = Child([*enter, *favour, *([] if privileged else drop), *argv], name)
        self._children.append(child)
        return child

    def fresh(self) -> None:
        """End everything inside and start from an empty network; the cgroup stays."""
        self._main.tell("fresh\n")
        self._main.wait_for("fresh")
        self._reap_children()

    def close(self) -> None:
        """End everything inside, bounded in time; further calls do nothing."""
        if self._main.process.returncode is None:
            self._main.tell("quit\n")  # not only the end of input: a forked child of ours may hold the pipe
            self._main.end_input()
            try:
                self._main.process.wait(5)
            except subprocess.TimeoutExpired:
                self._main.process.send_signal(signal.SIGTERM)
            self._main.reap(5)
        self._reap_children()
        if self.cgroup is not None:
            with contextlib.suppress(OSError):  # the cell removed it, unless it was killed itself
                self.cgroup.rmdir()
        self._forgotten.detach()

    def _reap_children(self) -> None:
        for child in self._children:
            child.reap(5)
        self._children.clear()

    def __enter__(self) -> Cell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def own_cgroup(mount: Path) -> Path:
    """Name a cgroup of this process that no other uses; the owner's pid is in the name.

    Removes empty ones of owners that are gone: a cell's supervisor does so itself, unless it was killed too.
    """
    for stale in mount.glob(f"{_CGROUP_PREFIX}*-*"):
        owner = stale.name[len(_CGROUP_PREFIX) :].partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):  # in use after all, or gone meanwhile
                stale.rmdir()
    return mount / f"{_CGROUP_PREFIX}{os.getpid()}-{next(_numbers)}"
