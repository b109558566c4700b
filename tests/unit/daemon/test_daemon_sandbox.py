"""What a confined process still can and cannot do: it tries, in a child, and fails."""

import ctypes
import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reinet.core.errors import ConfigError, DaemonError
from reinet.daemon.processes import child, sandbox

NO_CAPABILITY = "0" * 16
SYS_BPF = {"x86_64": 321, "aarch64": 280}
SYS_TKILL = {"x86_64": 200, "aarch64": 130}
SYS_RT_SIGQUEUEINFO = {"x86_64": 129, "aarch64": 138}
SYS_RT_TGSIGQUEUEINFO = {"x86_64": 297, "aarch64": 240}
SI_QUEUE = -1
BPF_MAP_CREATE = 0


def status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def refused(attempt: Callable[[], object]) -> str:
    """Returns the name of the error that an attempt fails with; empty where it does not fail."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def libc(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def capset_all() -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    libc(ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)))


def bpf() -> None:
    attribute = (ctypes.c_uint32 * 32)(2, 4, 4, 1)  # an array of one number
    number = SYS_BPF[os.uname().machine]
    libc(ctypes.CDLL(None, use_errno=True).syscall(number, BPF_MAP_CREATE, attribute, ctypes.sizeof(attribute)))


def system_call(numbers: dict[str, int], *arguments: object) -> None:
    libc(ctypes.CDLL(None, use_errno=True).syscall(numbers[os.uname().machine], *arguments))


def queued() -> ctypes.Array[ctypes.c_int32]:
    """What a signal that is none says of itself, as a caller of the same user may write it."""
    return (ctypes.c_int32 * 32)(0, 0, SI_QUEUE)


def write_to(path: str) -> None:
    with open(path, "a", encoding="utf-8"):
        pass


ATTEMPTS: dict[str, Callable[[], object]] = {
    "capset": capset_all,
    "bpf": bpf,
    "setuid": lambda: os.setuid(0),
    "execve": lambda: os.execv("/bin/true", ["true"]),
    "fork": os.fork,
    "kill": lambda: os.kill(os.getppid(), 0),
    "tkill": lambda: system_call(SYS_TKILL, os.getppid(), 0),
    "rt_sigqueueinfo": lambda: system_call(SYS_RT_SIGQUEUEINFO, os.getppid(), 0, queued()),
    "rt_tgsigqueueinfo": lambda: system_call(SYS_RT_TGSIGQUEUEINFO, os.getppid(), os.getppid(), 0, queued()),
    "prlimit": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE),
    "unshare": lambda: libc(ctypes.CDLL(None, use_errno=True).unshare(0x40000000)),
}


def attempts(confine: Callable[[], None], more: dict[str, Callable[[], object]]) -> dict[str, object]:
    """Returns what a confined process is and what it was refused."""

    def inside(link: socket.socket) -> None:
        confine()
        shown = status()
        found: dict[str, object] = {name: refused(attempt) for name, attempt in {**ATTEMPTS, **more}.items()}
        worked: list[int] = []
        thread = threading.Thread(target=worked.append, args=(1,))  # threads are not programs
        thread.start()
        thread.join()
        found |= {name: shown[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp")}
        child.plain.send(link, found | {"threads": worked})

    process = child.Child("confined", inside)
    try:
        return dict(process.receive())
    finally:
        process.kill()


@pytest.mark.parametrize("confine", [sandbox.confine_decisions, sandbox.confine_answers])
def test_a_confined_process_has_nothing_and_regains_nothing(confine: Callable[[], None]) -> None:
    found = attempts(confine, {})
    assert {found[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {NO_CAPABILITY}
    assert (found["NoNewPrivs"], found["Seccomp"], found["threads"]) == ("1", "2", [1])
    assert {name: found[name] for name in ATTEMPTS} == dict.fromkeys(ATTEMPTS, "EPERM")


def test_what_is_refused_of_others_works_unconfined() -> None:
    def inside(link: socket.socket) -> None:
        names = ("kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "prlimit")
        child.plain.send(link, [refused(ATTEMPTS[name]) for name in names])

    process = child.Child("unconfined", inside)
    try:
        assert process.receive() == [""] * 5
    finally:
        process.kill()


@pytest.mark.parametrize("confine", [sandbox.confine_decisions, sandbox.confine_answers])
def test_a_confined_process_signals_itself_and_knows_its_limits(confine: Callable[[], None]) -> None:
    own: dict[str, Callable[[], object]] = {
        "own kill": lambda: os.kill(os.getpid(), 0),
        "own thread": lambda: signal.pthread_kill(threading.get_ident(), 0),
        "own limits": lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
    }
    found = attempts(confine, own)
    assert {name: found[name] for name in own} == dict.fromkeys(own, "")


def test_deciding_neither_writes_files_nor_opens_sockets_and_answering_does(tmp_path: Path) -> None:
    more: dict[str, Callable[[], object]] = {
        "file": lambda: write_to(str(tmp_path / "file")),
        "socket": lambda: socket.socket().close(),
        "read": lambda: Path("/proc/self/status").read_text(),
    }
    found = attempts(sandbox.confine_decisions, more)
    assert (found["file"], found["socket"], found["read"]) == ("EPERM", "EPERM", "")
    found = attempts(sandbox.confine_answers, more)
    assert (found["file"], found["socket"], found["read"]) == ("", "", "")


def test_a_child_ends_with_its_parent() -> None:
    """However the parent ends: here by SIGKILL."""
    script = """
import os, signal, time
from reinet.daemon.processes.child import Child
process = Child("test", lambda link: time.sleep(600))
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    parent = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    left = int(parent.stdout)
    pid_fd = -1
    try:
        pid_fd = os.pidfd_open(left)
        assert select.select([pid_fd], [], [], 30)[0]
    except ProcessLookupError:
        pass  # it is gone already
    finally:
        if pid_fd >= 0:
            os.close(pid_fd)


def test_a_childs_error_is_raised_by_whoever_hears_it() -> None:
    def fail() -> None:
        raise ConfigError("daemon.x: wrong")

    with pytest.raises(ConfigError, match=r"daemon\.x: wrong"):
        child.ask("checking", fail)
    assert child.ask("checking", lambda: {"model": "m", "sizes": (1, 2.5)}) == {"model": "m", "sizes": (1, 2.5)}


def test_a_child_that_dies_is_named_with_its_end() -> None:
    with pytest.raises(DaemonError, match="the checking process was ended by SIGKILL"):
        child.ask("checking", lambda: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give a folder away")
def test_a_file_that_is_closed_without_capabilities_is_told_with_what_to_do(tmp_path: Path) -> None:
    closed = tmp_path / "home"
    closed.mkdir(0o700)
    (closed / "module.py").write_text("")
    os.chown(closed, 65534, 65534)
    with pytest.raises(DaemonError, match=r"home/module\.py: Permission denied; open it .* without root's privilege"):
        child.ask("checking", lambda: (closed / "module.py").read_text())
