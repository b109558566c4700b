"""``reinet serve`` as a process of its own, beside what it is measured by."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from reinet.core.errors import DaemonError
from reinet.daemon.client import ControlClient
from reinet.envs.mahimahi.namespace import own_cgroup
from reinet.kshim.probe import cgroup2_mount

DAEMON_NICENESS = 3
"""The weight of a process is halved by it, as CPUWeight=50 of the daemon's unit does."""
PROCESSES = ("loader", "decision", "answering")
"""In the order in which they are started."""
SERVE = "from reinet.cli.main import main; main()"
TIED = "import signal; from reinet.daemon.processes.sandbox import end_with; end_with({parent}, signal.SIGTERM); "
"""Before anything else: a daemon whose measurement is killed, however that may be, ends in order."""
START_S = 60.0
"""The slowest start of a daemon on a host that is busy otherwise."""


def free_cgroup() -> Path:
    """Returns a cgroup for this process to make, of its own; raises DaemonError where it can make none."""
    mount = cgroup2_mount()
    if mount is None:
        raise DaemonError("no cgroup v2 hierarchy is mounted: mount -t cgroup2 none /sys/fs/cgroup")
    if not os.access(mount, os.W_OK):
        raise DaemonError(
            f"{mount}: this user may make no cgroup there, and what is measured needs its own: run as root"
        )
    return own_cgroup(mount)


def weigh(pid: int, niceness: int) -> None:
    """Weighs a process's session against others, where the kernel schedules sessions."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def _resident_mb(pid: str) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _cpu_s(pid: str) -> float:
    """Returns what the scheduler counted, in nanoseconds, of all threads."""
    spent_ns = [int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(spent_ns) / 1e9


class ServedDaemon:
    """``reinet serve`` as a process of its own, up when this is made."""

    def __init__(self, folder: Path, cgroup: Path, model: str) -> None:
        config, self._log, self._socket = folder / "daemon.toml", folder / "log", folder / "control.sock"
        values = {"model": model, "cgroups": [str(cgroup)], "socket": str(self._socket)}
        config.write_text("[daemon]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
        command = [sys.executable, "-c", TIED.format(parent=os.getpid()) + SERVE, "serve", str(config)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
        weigh(self._process.pid, DAEMON_NICENESS)
        end_s = time.monotonic() + START_S
        while '"serving"' not in self._log.read_text():
            if self._process.poll() is not None or time.monotonic() > end_s:
                self._process.kill()
                raise DaemonError(f"reinet serve did not start: {self._log.read_text()[-1000:]}")
            time.sleep(0.02)

    def flows(self) -> tuple[int, int]:
        """Returns how many flows there are, and how many have a cap."""
        with ControlClient(self._socket) as client:
            flows = client.flows().flows
        return len(flows), sum(bool(flow.cap_pkts) for flow in flows)

    def resident_mb(self) -> dict[str, float]:
        """Returns the memory of each process, by what it does."""
        return {name: _resident_mb(pid) for name, pid in self._pids().items()}

    def cpu_s(self) -> dict[str, float]:
        """Returns the CPU time of each process, by what it does."""
        return {name: _cpu_s(pid) for name, pid in self._pids().items()}

    def bpf_runs(self) -> tuple[float, int]:
        """Returns how long its BPF programs ran, in seconds, and how often, since the kernel counts that.

        It does while somebody asks it to (``count_runs`` of ``reinet.kshim._kshim``).
        """
        run_s, runs = 0.0, 0
        for entry in Path(f"/proc/{self._process.pid}/fdinfo").iterdir():
            with suppress(OSError):  # a descriptor that was closed meanwhile
                told = dict(line.split(":", 1) for line in entry.read_text().splitlines() if ":" in line)
                run_s += int(told.get("run_time_ns", 0)) / 1e9
                runs += int(told.get("run_cnt", 0))
        return run_s, runs

    def _pids(self) -> dict[str, str]:
        own = self._process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        return dict(zip(PROCESSES, [str(own), *children], strict=False))

    def said(self) -> list[dict[str, Any]]:
        """Returns what it has logged."""
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    def end(self, how: str) -> float:
        """Stops or kills it; returns when, CLOCK_MONOTONIC."""
        at_s = time.monotonic()
        self._process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
        self._process.wait(START_S)
        return at_s

    def __enter__(self) -> "ServedDaemon":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(START_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
