"""The cgroups whose sockets are capped: found by name or pattern, followed as they come and go, and claimed.

Service managers and container engines make a cgroup anew at every restart, under the same name or another, and what was
attached goes with the old one. A claim keeps a second daemon from the same sockets, which would then be two daemons'
flows in turn: a lock on the folder itself, exclusive where a daemon serves, shared on every folder above.
"""

import fcntl
import os
import resource
import time
from collections.abc import Sequence
from contextlib import suppress
from glob import glob, has_magic
from pathlib import Path

import structlog

from reinet.core.closing import Closing
from reinet.core.errors import ConfigError, DaemonError
from reinet.core.visible import some_of
from reinet.daemon.policies import PolicyConfig
from reinet.daemon.processes import locks
from reinet.kshim.probe import cgroup2_mount

LOCKS = Path("/proc/locks")
PER_CGROUP = 2
"""A cgroup takes so many descriptors: that of its claim, and that of what is attached to it."""
SPARE_DESCRIPTORS = 160
"""So many stay free of cgroups: programs and maps take some sixty, and without any nobody looks after the processes."""

CHEAP_LOOK_S = 0.01
"""Looks of so little CPU time are made whenever one is asked for, five times a second."""
MOST_OF_A_CORE = 0.05
"""Dearer ones, at hundreds of containers, are made so much later that they take no more of a core."""

log = structlog.get_logger("reinet.serve")


def is_pattern(name: Path) -> bool:
    """Tells whether a name has ``*``, ``?`` or ``[``, and so stands for as many folders as there are."""
    return has_magic(str(name))


def standing_for(names: Sequence[Path]) -> list[Path]:
    """Returns the folders that names and patterns stand for now; a plain name stands for itself, there or not.

    Each is there once, by its own name: links are followed, so that nobody meets himself under another one.
    """
    found: dict[Path, None] = {}
    for name in names:
        paths = [Path(path) for path in sorted(glob(str(name)))] if is_pattern(name) else [name]
        found.update(dict.fromkeys(path.resolve() for path in paths if path.is_dir() or not is_pattern(name)))
    return list(found)


class Cgroups:
    """Notices which of the named cgroups came, went or were made anew."""

    def __init__(self, names: Sequence[Path]) -> None:
        self._names = names
        self._next_look_s = 0.0
        self.came: list[Path] = []
        """Those that the latest change brought, one that was made anew among them."""
        self._known = self._look()
        self._seen = set(self.here())

    def changed(self) -> bool:
        """Returns whether others are there than at the latest look, or the same ones made anew."""
        if time.monotonic() < self._next_look_s:
            return False
        before, self._known = self._known, self._look()
        if before == self._known:
            return False
        self.came = [path for path in self.here() if before.get(path) != self._known[path]]
        self._seen = (self._seen | set(self.here())) & self._known.keys()  # not all containers that ever were
        return True

    def here(self) -> list[Path]:
        """Returns those that are there."""
        return [path for path, identity in self._known.items() if identity is not None]

    def problem(self) -> str:
        """Returns which cgroups are missing, and the cure; empty while all are there. A pattern may find nothing."""
        lost = [str(path) for path, identity in self._known.items() if identity is None and path in self._seen]
        if not lost:
            return ""
        return (
            f"cgroup {', '.join(lost)} was removed; it is attached again when it is made anew (to have it stay, name "
            "one that outlives its services, a systemd slice)"
        )

    def _look(self) -> dict[Path, tuple[int, int] | None]:
        began_s = time.thread_time()
        found = {path: _identity(path) for path in standing_for(self._names)}
        took_s = time.thread_time() - began_s
        self._next_look_s = time.monotonic() + took_s / MOST_OF_A_CORE if took_s > CHEAP_LOOK_S else 0.0
        return found


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class CgroupClaim(Closing):
    """The right to serve these cgroups, held until ``close`` or the process's end; raises DaemonError.

    No daemon may serve a folder at, below or above one of another's. Locks of other users do not count: any user may
    open a cgroup's folder, and none but root may serve it.
    """

    def __init__(self, cgroups: Sequence[Path]) -> None:
        self._held: dict[Path, int] = {}
        self._room = 0  # there are descriptors for so many further ones
        self._lockers: dict[str, list[int]] | None = None  # as of this look, None = not asked for yet
        self._others: dict[Path, int] = {}  # what other users lock, each by a process of theirs
        if refusals := self.take(cgroups):
            self.close()
            raise DaemonError(some_of(list(refusals.values()), "; "))

    def take(self, cgroups: Sequence[Path]) -> dict[Path, str]:
        """Claims these folders in place of those before; returns which of them cannot be had, and why.

        What was claimed before and is named again is never given back meanwhile.
        """
        for path in [path for path, fd in self._held.items() if _moved(path, fd)]:
            self._give_back(path)
        self._room, self._lockers = _room(), None
        known, self._others = self._others, {}
        mount = cgroup2_mount()  # once: the table of mounts is long where there are many containers
        above = {path: _above(path, mount) for path in cgroups}
        refusals: dict[Path, str] = {}
        own: set[Path] = set()
        for path in sorted(cgroups):  # those above before those below, which count on them
            try:
                self._claim(path, fcntl.LOCK_EX)
                for folder in above[path] - own:
                    self._claim(folder, fcntl.LOCK_SH)
                own.add(path)
            except DaemonError as error:
                refusals[path] = str(error)
        for path in self._held.keys() - own.union(*(above[path] for path in own)):
            self._give_back(path)
        if new := {path: pid for path, pid in self._others.items() if path not in known}:
            of = {"cgroups": some_of(list(new)), "pids": some_of(sorted(set(new.values())))}
            log.warning("another user locks cgroups, which counts for nothing", **of)
        return refusals

    def close(self) -> None:
        """Gives every claim back."""
        for path in list(self._held):
            self._give_back(path)

    def _claim(self, path: Path, kind: int) -> None:
        if path not in self._held:
            if self._room <= 0:
                raise DaemonError(
                    f"cgroup {path}: no descriptors are left for it; have more open files allowed (ulimit -n, or "
                    "LimitNOFILE= in its unit)"
                )
            self._room -= 1
            try:
                self._held[path] = locks.opened(path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:  # it went meanwhile; whoever attaches says so
                return
        try:
            fcntl.flock(self._held[path], kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if self._lockers is None:
                self._lockers = _lockers()
            pid, others = _holder(self._lockers.get(_in_table(os.fstat(self._held[path])), []))
            if others:
                self._others[path] = pid
                return
            self._give_back(path)  # to lock it otherwise has ended the lock that it had
            raise DaemonError(
                f"cgroup {path}: another daemon (pid {pid or 'unknown'}) serves it, or one below or above it; two "
                "would take each other's flows: stop that one, or name other cgroups in one of both"
            ) from None

    def _give_back(self, path: Path) -> None:
        locks.close(self._held.pop(path))


def _room() -> int:
    """Returns for how many further cgroups there are descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (limit - len(os.listdir("/proc/self/fd")) - SPARE_DESCRIPTORS) // PER_CGROUP


def _above(path: Path, mount: Path | None) -> set[Path]:
    return {folder for folder in path.parents if mount is not None and folder.is_relative_to(mount)}


def _moved(path: Path, fd: int) -> bool:
    found = os.fstat(fd)
    return _identity(path) != (found.st_dev, found.st_ino)


def _in_table(found: os.stat_result) -> str:
    """Returns what ``LOCKS`` calls a file: with its file system, for each has files of the same numbers."""
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"


def _lockers() -> dict[str, list[int]]:
    """Returns the other processes that lock each file of the host; any user may hold many thousands of locks."""
    pids: dict[str, list[int]] = {}
    for line in LOCKS.read_text().splitlines():
        words = line.replace("-> ", "").split()
        if words[1] == "FLOCK" and int(words[4]) != os.getpid():
            pids.setdefault(words[5], []).append(int(words[4]))
    return pids


def _holder(pids: Sequence[int]) -> tuple[int, bool]:
    """Returns which of the processes locks, 0 = unknown, and whether only other users than root and our own do."""
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}").stat().st_uid in (0, os.geteuid()):
                return pid, False
    return (pids[0], True) if pids else (0, False)


def check(names: Sequence[Path]) -> None:
    """Raises ConfigError with the cure where one of the names is no cgroup v2 folder."""
    for name in names:
        _check_name(name)


def check_policies(policies: Sequence[PolicyConfig]) -> None:
    """Raises ConfigError where a policy names a folder outside cgroup v2, which would never hold a socket.

    A folder that is not there passes, since a service's own one comes and goes with the service.
    """
    mount = cgroup2_mount()
    if mount is None:
        return
    for policy in policies:
        for name in policy.cgroups:
            below = (name if is_pattern(name) else name.resolve()).is_relative_to(mount)
            if not below and not (name / "cgroup.controllers").exists():
                raise ConfigError(
                    f"[[policy]] {policy.name!r}: cgroups: {name} lies outside cgroup v2, so no socket would be under "
                    f"the policy; name a folder below {mount}"
                )


def _check_name(name: Path) -> None:
    mount = cgroup2_mount()
    if is_pattern(name):
        if mount is None or not name.is_relative_to(mount):
            raise ConfigError(f"daemon.cgroups: {name}: a pattern names folders below {mount}")
        return
    if not name.is_dir():
        raise ConfigError(f"daemon.cgroups: {name} does not exist; make it with mkdir, below {mount}")
    if not (name / "cgroup.procs").exists():
        raise ConfigError(f"daemon.cgroups: {name} is not a cgroup; name a folder below {mount}")
    if not (name / "cgroup.controllers").exists():
        raise ConfigError(f"daemon.cgroups: {name} is a cgroup of version 1; name a folder below {mount}")
    if name == mount:
        log.warning("this cgroup holds the whole host; usually only chosen services are capped", cgroup=str(name))
