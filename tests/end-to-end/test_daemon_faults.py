"""Faults of the daemon as a process: held up by a signal, out of descriptors."""

import os
import resource
import signal
import socket as sockets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from reinet.core.errors import DaemonError
from reinet.daemon.client import ControlClient

DEADLINE_S = 60.0
"""Only a test that fails takes so long."""

SCRIPT = """
import mmap, os, sys, time
from pathlib import Path
from reinet.cli import serve as command
from reinet.daemon import serve
from reinet.kshim.fake import FakeShim

# The decision process may open no file to write, so it has memory of one from before.
seen_fd = os.open(sys.argv[2], os.O_CREAT | os.O_RDWR)
os.ftruncate(seen_fd, 62)
SEEN = mmap.mmap(seen_fd, 62)

class LiveShim(FakeShim):
    '''One flow with a record every 20 ms, also of the time in which nobody asked; what is capped is written down.'''
    def __init__(self):
        super().__init__(time.monotonic_ns())
        self.held_up_ns = 0
        self.open_flow(7)
    def poll(self, timeout_ms):
        time.sleep(0.02)
        now_ns = time.monotonic_ns()
        self.held_up_ns = now_ns if now_ns - self.now_ns > 200_000_000 else self.held_up_ns
        while self.now_ns < now_ns:
            self.now_ns = min(self.now_ns + 20_000_000, now_ns)
            self.feed(7, rtt_mean_us=40000, rtt_least_us=35000, rtt_samples=20, min_rtt_us=20000, cwnd_pkts=60,
                      mss_bytes=1448, delivery_rate_bytes_per_s=1448000, period_ns=40000000)
        SEEN[:] = f"{self.now_ns:20} {self.cap_pkts(7):20} {self.held_up_ns:20}".encode()
        return super().poll(timeout_ms)

serve.features = dict
serve.cgroups.check = lambda names: None
serve.open_shim = lambda config, period, link: LiveShim()
command.serve(Path(sys.argv[1]), check=False, json_destination=None)
"""


class Daemon:
    """A daemon with one capped flow."""

    def __init__(self, folder: Path) -> None:
        self.socket, self.seen = folder / "control.sock", folder / "seen"
        config = folder / "daemon.toml"
        config.write_text(f'[daemon]\nmodel = "rule"\ncgroups = ["/unused"]\nsocket = "{self.socket}"\n')
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(config), str(self.seen)], stderr=log)

    def children(self) -> list[int]:
        """The processes that decide and that answer, in this order."""
        own = self.process.pid
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]

    def until(self, condition: Callable[[ControlClient], object]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            assert self.process.poll() is None
            with suppress(DaemonError), ControlClient(self.socket) as client:
                if condition(client):
                    return
            time.sleep(0.05)
        pytest.fail("the daemon never got there")

    def in_force(self) -> tuple[int, int, int]:
        """When the loop last polled, the cap in force then, and when the host had last held the loop up."""
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            with suppress(OSError, ValueError):
                time_ns, cap_pkts, held_up_ns = self.seen.read_text().split()
                return int(time_ns), int(cap_pkts), int(held_up_ns)
        pytest.fail("the loop never polled")


def is_capped(client: ControlClient) -> bool:
    return any(flow.cap_pkts for flow in client.flows().flows)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="reinet-test-") as folder:
        made = Daemon(Path(folder))
        try:
            made.until(is_capped)
            yield made
        finally:
            made.process.kill()
            made.process.wait()


def test_a_stopped_daemon_goes_on_where_flows_are_now(daemon: Daemon) -> None:
    with ControlClient(daemon.socket) as client:
        before = client.why(7).records[-1].time_ns
    pids = [*daemon.children(), daemon.process.pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)  # three leases
    for pid in pids:
        os.kill(pid, signal.SIGCONT)

    def goes_on_from_now(client: ControlClient) -> bool:
        why = client.why(7)
        return client.health().ok and why.lease_left_ms > 0 and why.records[-1].time_ns - before >= 1_500_000_000

    daemon.until(goes_on_from_now)  # who answers may run again before who decides does
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(DEADLINE_S) == 0


def test_a_daemon_out_of_descriptors_goes_on_capping(daemon: Daemon) -> None:
    _, answering = daemon.children()
    held = len(os.listdir(f"/proc/{answering}/fd"))
    _, hard = resource.prlimit(answering, resource.RLIMIT_NOFILE)
    resource.prlimit(answering, resource.RLIMIT_NOFILE, (held + 3, hard))
    callers = [sockets.socket(sockets.AF_UNIX) for _ in range(30)]
    try:
        for caller in callers:
            caller.setblocking(False)
            with suppress(OSError):
                caller.connect(str(daemon.socket))
        start_ns = daemon.in_force()[0]
        judged, end_s = 0, time.monotonic() + DEADLINE_S
        while judged < 40 and time.monotonic() < end_s:
            now_ns, cap_pkts, held_up_ns = daemon.in_force()
            # A lease lapses where the host holds the loop up; a second later a decision has long been renewed.
            if now_ns > max(start_ns, held_up_ns + 1_000_000_000):
                assert cap_pkts > 0
                judged += 1
            time.sleep(0.05)
        assert judged == 40, "the host held the loop up all the time"
    finally:
        for caller in callers:
            caller.close()
    resource.prlimit(answering, resource.RLIMIT_NOFILE, (hard, hard))
    daemon.until(lambda client: client.health().ok)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(DEADLINE_S) == 0
