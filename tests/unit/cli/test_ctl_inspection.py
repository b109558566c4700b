"""``reinet ctl why``, ``watch``, ``model``, ``target`` and ``reinet top`` against a loop on a shim in memory."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from helpers.loops import HEALTHY, started
from reinet.agents.decide.baselines import FixedCap, Rule
from reinet.agents.decide.protocol import Agent, CapArray, FloatArray
from reinet.cli.inspection import flow
from reinet.cli.inspection.top import _keys
from reinet.cli.main import app
from reinet.cli.serving import control_client
from reinet.core.errors import ConfigError, DaemonError
from reinet.core.records import FlowStatsArray
from reinet.daemon.client import ControlClient
from reinet.daemon.control import ControlServer
from reinet.daemon.processes.claim import SocketClaim
from reinet.kshim.fake import FakeShim

DEADLINE_S = 60.0
"""Only a test that fails takes so long."""


class Broken(Agent):
    """A network that computes no number."""

    def __init__(self) -> None:
        super().__init__("broken")

    def outputs(self, states: FloatArray) -> FloatArray:
        return np.full(len(states), np.nan, np.float32)

    def decide(self, stats: FlowStatsArray, states: FloatArray, rule_pkts: FloatArray) -> CapArray:
        return np.full(len(stats), 0xFFFF_FFFF, np.uint32)


class Served:
    """A loop that serves at ``socket``; records come when a test feeds them."""

    def __init__(self, socket: Path, agent: Agent) -> None:
        self.shim: FakeShim
        self.shim, self.loop = started(agent, 0x4D2, 8)
        self.socket = socket

    def feed(self, cookie: int, **fields: int) -> None:
        self.shim.advance_ms(10)
        self.shim.feed(cookie, **HEALTHY | fields)
        self.loop.tick()

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--socket", str(self.socket)])

    def json(self, *words: str) -> Any:
        done = self.run(*words, "--json", "-")
        assert done.exit_code == 0, done.exception
        return json.loads(done.stdout)


@pytest.fixture(params=[Rule])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="reinet-test-") as folder:
        made = Served(Path(folder) / "control.sock", request.param())
        with SocketClaim(made.socket) as claim:
            server = ControlServer(claim, made.loop, "what decided at the start")
            yield made
            server.close()


def test_why_is_one_screen_that_has_everything(served: Served) -> None:
    for _ in range(10):
        served.feed(0x4D2)
    shown = served.run("ctl", "why", "1234").output
    for part in ("flow 1234 (0x4d2): cap 30 packets", "lease ends in 500 ms", "asked for 30 packets", "target   50ms",
                 "nothing speaks against the cap", "queueing_ms", "newest"):  # fmt: skip
        assert part in shown, shown
    assert len(shown.splitlines()) <= 24
    assert max(map(len, shown.splitlines())) <= 160


def test_why_as_json_takes_a_cookie_in_hex(served: Served) -> None:
    found = served.json("ctl", "why", "0x4d2")
    assert (found["cookie"], found["cap_pkts"], found["wanted_pkts"], found["verdict"]) == (1234, 30, 30, "")
    assert found["records"][0]["queueing_ms"] == 20
    assert [len(row["values"]) for row in found["state"]] == [20] * len(found["state"])


def test_why_tells_what_acks_waited_and_that_the_cap_is_higher_for_it(served: Served) -> None:
    served.feed(0x4D2, ack_wait_us=12_000)
    found = served.json("ctl", "why", "0x4d2")
    assert [row["ack_wait_ms"] for row in found["records"]][-2:] == [0, 12]
    assert found["cap_pkts"] == 48, "30 over 20 ms are 48 over 32"


@pytest.mark.parametrize("served", [Broken], indirect=True)
def test_an_output_that_is_no_number_shows_as_such(served: Served) -> None:
    found = served.json("ctl", "why", "8")
    assert (found["action"], found["wanted_pkts"], found["cap_pkts"]) == (None, None, 0)
    assert "not a finite number" in found["verdict"]
    assert "computed no number" in served.run("ctl", "why", "8").output


@pytest.mark.parametrize("flow", ["x", "-1", "0", "0x", str(1 << 64), "1.5"])
def test_what_is_no_cookie_is_wrong_usage(served: Served, flow: str) -> None:
    done = served.run("ctl", "why", "--", flow)
    assert done.exit_code == 2


def test_a_flow_that_is_not_there(served: Served) -> None:
    for command in ("why", "watch"):
        done = served.run("ctl", command, "9")
        assert isinstance(done.exception, DaemonError)
        assert "no flow 9 is open" in str(done.exception)


def test_watch_prints_each_record_once_until_the_flow_ends(served: Served) -> None:
    def live() -> None:
        for cwnd_pkts in range(1, 9):
            time.sleep(0.1)
            served.feed(8, cwnd_pkts=cwnd_pkts)
        time.sleep(0.5)
        served.shim.close_flow(8)
        served.loop.tick()

    worker = threading.Thread(target=live)
    worker.start()
    rows = served.json("ctl", "watch", "8", "--interval-s", "0.05", "--seconds", str(DEADLINE_S))["rows"]
    worker.join()
    times = [row["time_ns"] for row in rows]
    assert times == sorted(set(times))
    assert [row["cwnd_pkts"] for row in rows][-1] == 8


def test_watch_ends_when_its_time_is_over_which_begins_when_the_daemon_answers(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def slow(socket: Path | None) -> Iterator[ControlClient]:
        with control_client(socket) as client:
            time.sleep(0.3)  # longer than the flow is watched
            yield client

    monkeypatch.setattr(flow, "control_client", slow)
    shown = served.run("ctl", "watch", "8", "--seconds", "0.2").output.splitlines()
    assert "rtt_mean_ms" in shown[0]
    assert len(shown) == 2


@pytest.mark.parametrize("calls_before", [1, 3])
def test_what_was_watched_until_ctrl_c_is_written_and_that_is_no_failure(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls_before: int
) -> None:
    @contextmanager
    def interrupted(socket: Path | None) -> Iterator[ControlClient]:
        with control_client(socket) as client:
            why, calls = client.why, []

            def ask(cookie: int) -> Any:
                calls.append(cookie)
                if len(calls) > calls_before:
                    raise KeyboardInterrupt
                served.feed(8, cwnd_pkts=len(calls))
                return why(cookie)

            monkeypatch.setattr(client, "why", ask)
            yield client

    monkeypatch.setattr(flow, "control_client", interrupted)
    watching = ("ctl", "watch", "8", "--interval-s", "0.05")
    rows = served.json(*watching)["rows"]
    assert [row["cwnd_pkts"] for row in rows][-calls_before:] == list(range(1, calls_before + 1))
    assert served.run(*watching, "--json", str(tmp_path / "rows.json")).exit_code == 0
    assert len(json.loads((tmp_path / "rows.json").read_text())["rows"]) > calls_before
    assert served.run(*watching).exit_code == 0


def test_the_model(served: Served) -> None:
    found = served.json("ctl", "model")
    assert (found["name"], found["identity"], found["seed"], found["target_range_ms"]) == ("rule:1.5",) * 2 + (
        None,
    ) * 2
    assert "rule:1.5" in served.run("ctl", "model").output


def test_health_and_top_name_the_model_in_force_and_the_swap_under_way(served: Served) -> None:
    found = served.json("ctl", "health")
    assert (found["model"], found["swaps"]) == ("rule:1.5", [])
    served.loop.swap(FixedCap(20))
    served.feed(8)
    found = served.json("ctl", "health")
    assert found["model"] == "rule:1.5"  # a tenth of the flows is the new model's
    assert found["swaps"] == [{"policy": "default", "under_way": "share: fixed:20", "latest": ""}]
    served.loop.swap(FixedCap(20), share=1.0)
    served.feed(8)
    assert served.json("ctl", "health")["model"] == served.json("top")["model"] == "fixed:20"
    said = served.run("ctl", "health").output.splitlines()
    assert "fixed:20, target 50ms" in said[0]
    assert said[2] == "swap under way, policy default: watch: fixed:20"
    served.loop._policies.all[0].roll_back("its flows were slower", served.shim.now_ns)
    served.feed(8)
    found = served.json("ctl", "health")
    (swap,) = found["swaps"]
    assert (found["model"], swap["under_way"]) == ("rule:1.5", "")
    assert swap["latest"] == "rolled back from fixed:20 to rule:1.5: its flows were slower"
    assert swap["latest"] in served.run("ctl", "health").output


def test_targets_are_shown_set_and_taken_back(served: Served) -> None:
    assert served.json("ctl", "target") == {"target": "50ms", "cookie": None}
    assert served.json("ctl", "target", "+40ms") == {"target": "+40ms", "cookie": None}
    assert served.json("ctl", "target", "2.5x", "--flow", "0x4d2") == {"target": "2.5x", "cookie": 1234}
    assert served.json("ctl", "target", "--flow", "1234")["target"] == "2.5x"
    served.feed(8)  # the loop takes it up with its next tick
    assert served.json("ctl", "target", "--flow", "8")["target"] == "+40ms"
    assert served.json("ctl", "target", "default", "--flow", "1234")["target"] == "+40ms"
    assert "every flow under no policy and without a target of its own: +40ms" in served.run("ctl", "target").output
    assert served.run("ctl", "target", "default").exit_code == 2
    wrong = served.run("ctl", "target", "fast")
    assert isinstance(wrong.exception, ConfigError), "who asks is wrong, not the daemon, so that it exits 2"
    assert "write 50ms" in str(wrong.exception)


def test_top_into_a_pipe_prints_once_and_sorted(served: Served) -> None:
    served.feed(8, cwnd_pkts=99)
    lines = served.run("top", "--sort", "cwnd").stdout.splitlines()
    rows = [line for line in lines if " 1234 " in line or " 8 " in line]
    assert lines[0].startswith("enforcing, 2 flows, rule:1.5, target 50ms")
    assert [" 8 " in row for row in rows] == [True, False]
    assert [row["cookie"] for row in served.json("top", "--most", "1", "--sort", "cwnd")["rows"]] == [8]
    assert served.run("top", "--sort", "name").exit_code == 2


@pytest.mark.parametrize("ends", ["q", "Ctrl-C"])
def test_top_on_a_terminal_is_live_obeys_keys_and_puts_the_terminal_back(served: Served, ends: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from reinet.cli.main import main; main()", "top", "--interval-s", "0.2"]
    process = subprocess.Popen(
        [*command, "--socket", str(served.socket)], stdin=theirs, stdout=theirs, stderr=theirs,
        env=os.environ | {"TERM": "xterm", "LINES": "24", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""

    def until(wanted: bytes) -> None:
        nonlocal seen
        end_s = time.monotonic() + DEADLINE_S
        while wanted not in seen:
            assert time.monotonic() < end_s, seen
            if select.select([ours], [], [], 0.1)[0]:
                with suppress(OSError):  # the other side is closed
                    seen += os.read(ours, 65536)

    try:
        until(b"sorted by rate")
        os.write(ours, b"u")
        until(b"sorted by queueing")
        if ends == "q":
            os.write(ours, b"q")
        else:
            process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        until(b"\x1b[?1049l")  # the screen as it was
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize(
    "words",
    [("flows",), ("health",), ("why", "8"), ("model",), ("target",), ("watch", "8", "--seconds", "0.1")],
    ids=lambda words: words[0],
)
def test_people_read_the_same_whether_a_file_gets_the_results_too(
    served: Served, tmp_path: Path, words: tuple[str, ...]
) -> None:
    served.feed(8)
    shown = served.run("ctl", *words).stderr
    beside = served.run("ctl", *words, "--json", str(tmp_path / "found.json"))
    assert shown
    numbers = re.compile(r"[\d.]+ *")  # ages are others by then
    assert numbers.sub("", beside.stderr) == numbers.sub("", shown)
    assert json.loads((tmp_path / "found.json").read_bytes())
    assert not beside.stdout


def test_keys_that_come_at_once_are_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", terminal)
        with _keys() as key_within:
            os.write(ours, b"uq")
            assert [key_within(DEADLINE_S), key_within(0.5), key_within(0.0)] == ["u", "q", ""]
    os.close(ours)
