"""A process of the daemon that SIGKILL does not end, since it waits for a disk that hangs, keeps nobody waiting."""

import os
import signal
import socket as sockets
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from reinet.core.errors import DaemonError
from reinet.daemon.processes import child
from reinet.daemon.processes.claim import SocketClaim

HALF_ENDED = """
import ctypes, socket, sys, threading, time

open("/proc/self/comm", "wb").write(b"\\xff")
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(flush=True)
if sys.argv[2] == "killed":
    ctypes.CDLL(None).syscall(60, 0)  # the first thread ends, as under SIGKILL, and one that cannot stays
time.sleep(60)
"""


def test_who_ends_a_process_waits_for_it_for_seconds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waited without end lifted no caps meanwhile, and obeyed no signal."""
    process = child.Child("answering", lambda link: link.recv(1) and None)
    kill = os.kill
    try:
        with monkeypatch.context() as patched:
            patched.setattr(child, "KILLED_S", 0.2)
            patched.setattr(os, "kill", lambda pid, _signal: kill(pid, signal.SIGSTOP))
            start_s = time.monotonic()
            process.kill()
        assert 0.2 <= time.monotonic() - start_s < 10
    finally:
        with suppress(ProcessLookupError):
            kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="a system call has another number elsewhere")
@pytest.mark.parametrize("kind", ["killed", "alive"])
def test_the_socket_of_a_killed_daemon_is_replaced_though_a_process_of_it_still_listens(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "control.sock"
    command = [sys.executable, "-c", HALF_ENDED, str(path), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as listener:
        try:
            assert listener.stdout is not None
            listener.stdout.readline()
            status = Path(f"/proc/{listener.pid}/status")
            while kind == "killed" and "State:\tZ" not in status.read_text(errors="replace"):
                time.sleep(0.01)
            with sockets.socket(sockets.AF_UNIX) as probe:
                probe.connect(str(path))  # it listens in either case
            if kind == "killed":
                with SocketClaim(path) as claim:
                    assert claim.replaced
            else:
                with pytest.raises(DaemonError, match="another daemon is listening there"):
                    SocketClaim(path)
                assert path.is_socket()
        finally:
            listener.kill()
