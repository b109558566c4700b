"""Namespaces in which Mahimahi runs, and that end with the process that made them, kill -9 included."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import stat
import subprocess
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from reinet.core.closing import Closing
from reinet.core.errors import LinkError, ShimError
from reinet.envs.mahimahi.process import HELPERS, START_TIMEOUT_S, Child, find_program, find_xtables, helper_folder
from reinet.kshim.probe import cgroup2_mount, missing_capabilities

NICENESS = -10
"""The niceness of everything in a link's namespaces, the sleeper that judges it included: an emulated link should not
slow down because a learner computes beside it."""

LINK_USER = 65521
"""Everything without rights inside runs as this user, who is nobody else's; helpers/user.h says why this one."""

CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
"""Of those that a link needs, what root lacks in a container as it is usually started: for addresses and devices, to
reach the namespaces of another user's process, and to make namespaces."""
CAPABILITIES_CURE = "run as root, in a container with --privileged"

TRACES = "/run/reinet/traces"
"""The folder of traces inside; it is root's, so that what is there is what was written."""
USER_FILES = "/run/reinet/user"
"""The folder of logs inside; it is the link's user's, so that root follows no link there."""
BIN = "/run/reinet/bin"
_CGROUP_PREFIX = "reinet-link-"
_numbers = itertools.count()


class LinkNamespace(Closing):
    """Namespaces in which Mahimahi runs; everything in them ends with ``close``, or with this process.

    Given ``cgroup``, that cgroup v2 folder is made with them and removed with them. Raises LinkError.
    """

    def __init__(self, cgroup: Path | None = None) -> None:
        if os.geteuid() != 0:
            raise LinkError("emulated links need root, to make namespaces of their own: run as root")
        if missing := missing_capabilities(CAPABILITIES):
            raise LinkError(f"emulated links need {', '.join(missing)}, which this root lacks: {CAPABILITIES_CURE}")
        for program in ("mm-link", "mm-delay", "nsenter", "setpriv"):
            find_program(program)
        if not Path("/dev/net/tun").exists():
            raise LinkError("/dev/net/tun is missing; modprobe tun, or in a container pass --device /dev/net/tun")
        folder, iptables = helper_folder(), find_program("iptables").resolve()
        self.cgroup = cgroup
        self._children: list[Child] = []
        self._main = Child(
            [
                str(folder / "reinet-netns"),
                str(os.getpid()),
                str(iptables),
                str(find_xtables(iptables)),
                str(cgroup) if cgroup else "-",
                *(str(folder / name) for name in HELPERS),
            ],
            "the link's namespaces",
        )
        # Forgotten without close(): closing the pipe ends it all the same.
        self._forgotten = weakref.finalize(self, self._main.end_input)
        try:
            self.pid = int(self._main.wait_for("namespaces")["pid"])
            self._main.wait_for("ready")
        except BaseException:
            self.close()
            raise

    def write_trace(self, name: str, text: str) -> None:
        """Writes a file below TRACES, which processes inside can only read."""
        with self._open(TRACES, name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            os.fchmod(file.fileno(), 0o644)  # whatever the caller's umask is
            file.write(text.encode())

    def read_log(self, name: str) -> str:
        """Returns what a file below USER_FILES says. Raises LinkError when it is no regular file of that folder."""
        return self.read_bytes(name).decode(errors="replace")

    def read_bytes(self, name: str) -> bytes:
        """Returns what a file below USER_FILES holds. Raises LinkError as ``read_log``."""
        with self._open(USER_FILES, name, os.O_RDONLY) as file:
            return file.read()

    def _open(self, folder: str, name: str, flags: int) -> BinaryIO:
        """Opens a file inside, as root from outside: a link planted there would be followed on the host's side."""
        where = f"{folder}/{name} inside the link's namespaces"
        try:
            inside = os.open(f"/proc/{self.pid}/root{folder}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                # Without waiting for the other end of a pipe.
                fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
            finally:
                os.close(inside)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise LinkError(
                    f"{where} is a symbolic link, which is not followed; did something inside it?"
                ) from None
            raise LinkError(f"{where} cannot be opened: {error.strerror}") from error
        file: BinaryIO = open(fd, "wb" if flags & os.O_WRONLY else "rb")  # noqa: SIM115 (the caller's)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            file.close()
            raise LinkError(f"{where} is no regular file; did something inside replace it?")
        return file

    def spawn(self, argv: Sequence[str], name: str, *, privileged: bool) -> Child:
        """Starts a program inside, outside all shells, as LINK_USER unless ``privileged``; returns the process."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", "--"]
        favour = ["nice", f"--adjustment={NICENESS}"]
        drop = ["setpriv", f"--reuid={LINK_USER}", f"--regid={LINK_USER}", "--clear-groups", "--"]
        child = Child([*enter, *favour, *([] if privileged else drop), *argv], name)
        self._children.append(child)
        return child

    def run(self, command: str, name: str, *arguments: str) -> None:
        """Runs a command of the shell's inside, as root; its arguments are $0, $1 ... Raises LinkError if it fails."""
        child = self.spawn(["sh", "-c", command, *arguments], name, privileged=True)
        if child.process.wait(START_TIMEOUT_S):
            child.events()
            raise LinkError(f"{name} failed inside the link's namespaces{child.said()}")

    def route_by(self, cc: str) -> None:
        """Has all routes say the congestion control, for programs that cannot choose one. Raises LinkError."""
        routes = 'ip route show | while read -r route; do ip route change $route congctl "$0" || exit 1; done'
        self.run(routes, "ip", cc)

    def fresh(self) -> None:
        """Ends everything inside and starts from an empty network; the cgroup stays."""
        self._main.tell("fresh\n")
        self._main.wait_for("fresh")
        self._reap_children()

    def close(self) -> None:
        """Ends everything inside, bounded in time; further calls do nothing."""
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
            with contextlib.suppress(OSError):  # the supervisor removed it, unless it was killed itself
                self.cgroup.rmdir()
        self._forgotten.detach()

    def _reap_children(self) -> None:
        for child in self._children:
            child.reap(5)
        self._children.clear()


def stale_cgroups(mount: Path) -> list[Path]:
    """Returns the empty cgroups of owners that are gone: those of runs that were killed."""
    stale = []
    for path in sorted(mount.glob(f"{_CGROUP_PREFIX}*-*")):
        owner = path.name[len(_CGROUP_PREFIX) :].partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            events = path / "cgroup.events"
            with contextlib.suppress(OSError):  # gone meanwhile
                if not events.exists() or "populated 1" not in events.read_text():
                    stale.append(path)
    return stale


def new_cgroup() -> Path:
    """Returns what ``own_cgroup`` does, where the hierarchy is mounted; raises ShimError where it is not."""
    mount = cgroup2_mount()
    if mount is None:
        raise ShimError("no cgroup v2 hierarchy is mounted; mount -t cgroup2 none /sys/fs/cgroup/unified")
    return own_cgroup(mount)


def own_cgroup(mount: Path) -> Path:
    """Returns a cgroup of this process that no other uses; the owner's pid is in the name.

    Removes empty ones of owners that are gone: a link's supervisor does so itself, unless it was killed too, and a
    benchmark that was killed leaves its own.
    """
    for stale in stale_cgroups(mount):
        with contextlib.suppress(OSError):  # gone meanwhile
            stale.rmdir()
    while (path := mount / f"{_CGROUP_PREFIX}{os.getpid()}-{next(_numbers)}").exists():
        pass  # left by a process of the same pid, which are few in a container, or another container's
    return path
