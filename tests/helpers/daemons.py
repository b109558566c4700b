"""A daemon in a process of its own, on a shim in memory, and its configuration."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from reinet.agents.decide.protocol import Agent
from reinet.core.errors import DaemonError
from reinet.daemon.client import ControlClient
from reinet.daemon.config import DaemonConfig
from reinet.daemon.serve import agent_for

DEADLINE_S = 60.0
"""Only a test that fails takes so long."""

SCRIPT = """
import json, os, sys, threading, time
from pathlib import Path

from reinet.cli import serve as command
from reinet.core.errors import ReinetError
from reinet.daemon import serve
from reinet.kshim.fake import FakeShim

fault = sys.argv[2]

class LiveShim(FakeShim):
    '''One flow with a record every 20 ms.'''
    def __init__(self):
        super().__init__(time.monotonic_ns())
        self.open_flow(7)
        self.polls = 0
    def poll(self, timeout_ms):
        time.sleep(0.02)
        self.now_ns = time.monotonic_ns()
        self.polls += 1
        if fault == "shim" and self.polls > 5:
            raise OSError(5, "ring buffer torn")
        if fault == "umask" and self.polls % 5 == 0:
            self.open_flow(self.polls)
            self.feed(self.polls, rtt_mean_us=40000, rtt_samples=1, min_rtt_us=20000)
        self.feed(7, rtt_mean_us=40000, rtt_least_us=35000, rtt_samples=20, min_rtt_us=20000, cwnd_pkts=60,
                  mss_bytes=1448, delivery_rate_bytes_per_s=1448000, period_ns=40000000)
        return super().poll(timeout_ms)
    def close(self):
        self.now_ns = time.monotonic_ns()
        print(json.dumps({"cap_at_close_pkts": self.cap_pkts(7)}), flush=True)
        super().close()

serve.features = dict
serve.cgroups.check = lambda names: None
def open_shim(config, period, link):
    if fault == "period":
        print(f"measured {period}", flush=True)
    return LiveShim()
serve.open_shim = open_shim
if fault == "umask":
    umask = os.umask
    def slow_umask(mask):
        before = umask(mask)
        time.sleep(0.3)
        return before
    os.umask = slow_umask
if fault == "hang":
    real = serve.agent_for
    def agent_for(*asked):
        agent = real(*asked)
        decide, calls = agent.decide, []
        def hang(*args):
            calls.append(1)
            if len(calls) > 20:
                threading.Event().wait()
            return decide(*args)
        agent.decide = hang
        return agent
    serve.agent_for = agent_for
try:
    command.serve(Path(sys.argv[1]), check=False, json_destination="-")
except ReinetError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)
heavy = {name.partition(".")[0] for name in sys.modules} & {"torch", "ray", "tensorflow", "matplotlib", "gymnasium"}
sys.exit(f"imported {sorted(heavy)}" if heavy else 0)
"""


def agent_of(config: DaemonConfig) -> Agent:
    """What a daemon of this configuration decides with."""
    return agent_for(config, config.model, config.asked)


def write_config(folder: Path, model: object = "rule", **more: object) -> Path:
    values = {"model": str(model), "cgroups": ["/unused"], "socket": str(folder / "run" / "control.sock")} | more
    path = folder / "daemon.toml"
    path.write_text("[daemon]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return path


class Daemon:
    """A daemon in a process of its own."""

    started: ClassVar[list["Daemon"]] = []

    def __init__(self, config: Path, fault: str = "none") -> None:
        self.socket = config.parent / "run" / "control.sock"
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(config), fault],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(self)

    def wait_for(self, condition: Callable[[ControlClient], object]) -> None:
        """Until the condition holds; an assertion that fails in it may hold later."""
        end_s = time.monotonic() + DEADLINE_S
        last: Exception | None = None
        while time.monotonic() < end_s and self.process.poll() is None:
            try:
                with ControlClient(self.socket) as client:
                    if condition(client):
                        return
            except (DaemonError, AssertionError) as error:
                last = error
            time.sleep(0.05)
        self.process.kill()
        pytest.fail(f"the daemon never got there: {last}\n{self.process.communicate()[1]}")

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, list[dict[str, Any]]]:
        """Exit status, standard output and log records."""
        if number is not None:
            self.process.send_signal(number)
        try:
            out, err = self.process.communicate(timeout=DEADLINE_S)
        finally:
            self.process.kill()
        return self.process.returncode, out, [json.loads(line) for line in err.splitlines() if line.startswith("{")]


def has_capped(client: ControlClient) -> bool:
    return any(flow.cap_pkts for flow in client.flows().flows)
