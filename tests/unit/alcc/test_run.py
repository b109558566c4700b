"""What ``reinet run`` and ``reinet bench alcc`` report."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from helpers.gated import FOLDER, TIMEOUT_S
from helpers.gated.web import needed
from reinet.agents.evaluation.ways import fetches
from reinet.alcc.launch import PRELOAD, Law
from reinet.cli import run
from reinet.cli.main import app
from reinet.core.errors import LinkError

REINET = Path(sys.executable).with_name("reinet")


def test_shadow_mode_measures_and_gates_nothing(tmp_path: Path) -> None:
    script = "import os, sys; sys.path.insert(0, sys.argv[1]); import edges; print(edges.passed_on())"
    asked = [str(REINET), "run", "--shadow", "--json", str(tmp_path / "json"), "--"]
    done = subprocess.run(
        [*asked, sys.executable, "-c", script, str(FOLDER)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "a cap would have saved" in done.stderr
    report = json.loads((tmp_path / "json").read_text())
    assert report["flows"] == 1
    assert report["bytes"] > 0
    assert report["closings"] == 0


def test_sums_of_nobody_are_said_to_be_such(tmp_path: Path) -> None:
    asked = [str(REINET), "run", "--json", str(tmp_path / "json"), "--", "sh", "-c", "kill $$"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert "none of its processes had a connection" in done.stderr
    assert json.loads((tmp_path / "json").read_text())["processes"] == 0


@pytest.mark.parametrize("call", ["stdio", "write"])
def test_a_server_that_sends_past_the_gate_is_named_at_its_end(call: str, tmp_path: Path) -> None:
    """Nobody said that such a server had no gate."""
    script = (
        "import ctypes, os, socket, sys\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "sock, _ = server.accept()\n"
        "if sys.argv[1] == 'write': os.write(sock.fileno(), b'words')\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.fdopen.restype = ctypes.c_void_p\n"
        "if sys.argv[1] == 'stdio':\n"
        "  file = ctypes.c_void_p(libc.fdopen(sock.fileno(), b'w'))\n"
        "  libc.fputs(b'words', file); libc.fflush(file)\n"
        "assert client.recv(5) == b'words'"
    )
    asked = [str(REINET), "run", "--json", str(tmp_path / "json"), "--", sys.executable, "-c", script, call]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True)
    assert ("1 connections were accepted, and the gate saw nothing" in done.stderr) == (call == "stdio"), done.stderr
    report = json.loads((tmp_path / "json").read_text())
    assert (report["accepted"], report["flows"]) == (1, int(call == "write"))


def test_what_a_server_sent_that_a_signal_ends_is_counted(tmp_path: Path) -> None:
    """As of HAProxy, Ruby's servers and PHP's, which die of SIGTERM: it looked as if they had sent nothing."""
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import edges; edges.passed_on(); os.kill(os.getpid(), 15)"
    )
    asked = [str(REINET), "run", "--json", str(tmp_path / "json"), "--", sys.executable, "-c", script, str(FOLDER)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")
    report = json.loads((tmp_path / "json").read_text())
    assert report["flows"] == 1
    assert report["bytes"] > 0


def test_a_process_that_goes_on_with_its_parents_connection_is_counted() -> None:
    script = (
        "import os, socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "client.send(b'x')\n"
        "if os.fork() == 0: os._exit(client.send(b'x') - 1)\n"
        "os.wait()"
    )
    command = [str(REINET), "run", "--json", "-", "--", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    report = json.loads(done.stdout)
    assert (report["processes"], report["flows"], report["bytes"]) == (2, 1, 2)


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH])
def test_signals_that_servers_know_reach_the_command(number: signal.Signals, tmp_path: Path) -> None:
    """Nginx ends in order at SIGQUIT, and reads its log anew at SIGUSR1; Apache ends in order at SIGWINCH."""
    script = (
        "import signal, sys; signal.signal(int(sys.argv[1]), lambda *_: sys.exit(7)); print(flush=True); signal.pause()"
    )
    command = [
        str(REINET),
        "run",
        "--json",
        str(tmp_path / "json"),
        "--",
        sys.executable,
        "-c",
        script,
        str(int(number)),
    ]
    # Without a terminal: what its keys send is not passed on.
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(60) == 7
    assert json.loads((tmp_path / "json").read_text())["status"] == 7


@pytest.mark.parametrize("sent", ["by the key", "by somebody"])
@pytest.mark.parametrize("group", ["", "os.setpgid(0, 0)"], ids=["reinet's group", "a group of its own"])
def test_ctrl_c_reaches_the_command_once(tmp_path: Path, group: str, sent: str) -> None:
    """The terminal sends it to both, and a second one has many programs end at once; a command that has left the
    group, as `timeout` and `setsid` do, is sent none, nor is any by who sends it to reinet alone."""
    script = (
        f"import os, signal, time; {group}\n"
        "seen = []; signal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 60\n"
        "while not seen and time.monotonic() < end: time.sleep(0.05)\n"
        "time.sleep(1); raise SystemExit(len(seen))"
    )
    command = [str(REINET), "run", "--json", str(tmp_path / "json"), "--", sys.executable, "-c", script]
    ours, theirs = pty.openpty()
    with subprocess.Popen(["setsid", "--ctty", *command], stdin=theirs, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        if sent == "by the key":
            os.write(ours, b"\x03")
        else:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
    os.close(ours)
    os.close(theirs)


def test_the_command_has_the_descriptors_and_the_listening_sockets_that_reinet_was_handed() -> None:
    """As systemd hands them: from 3 on, for the process that LISTEN_PID names; without a report it is reinet's own."""
    hand_over = (
        "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); os.dup2(int(sys.argv[1]), 3)\n"
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    script = "import os, socket\n"
    script += "print(os.environ['LISTEN_PID'] == str(os.getpid()), socket.socket(fileno=3).getsockname())"
    for options in ([], ["--json", os.devnull]):
        run_it = [str(REINET), "run", *options, "--", sys.executable, "-c", script]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            done = subprocess.run(
                [sys.executable, "-c", hand_over, str(listener.fileno()), *run_it],
                capture_output=True, text=True, timeout=TIMEOUT_S, check=False, pass_fds=[listener.fileno()],
            )  # fmt: skip
            assert done.stdout == f"True {listener.getsockname()}\n", done.stderr


@pytest.mark.parametrize("options", [[], ["--json", os.devnull]], ids=["in its place", "beside it"])
def test_the_watchdog_of_reinet_is_the_commands(options: list[str]) -> None:
    """Systemd names the process that is to tell of itself; nobody told, and the service was ended for it."""
    begin = "import os, sys; os.environ['WATCHDOG_PID'] = str(os.getpid()); os.execv(sys.argv[1], sys.argv[1:])"
    script = "import os; print(os.environ['WATCHDOG_PID'] == str(os.getpid()), os.environ.get('LISTEN_PID'))"
    command = [sys.executable, "-c", begin, str(REINET), "run", *options, "--", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.stdout == "True None\n", done.stderr


def test_the_command_has_a_pipe_that_reinet_was_handed() -> None:
    """Also where nobody says so with LISTEN_PID: a lock, or where to say that it is ready."""
    script = "import os, sys; os.write(int(sys.argv[1]), b'ready')"
    for options in ([], ["--json", os.devnull]):
        read, write = os.pipe()
        with os.fdopen(read, "rb") as said:
            command = [str(REINET), "run", *options, "--", sys.executable, "-c", script, str(write)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, pass_fds=[write]
            )
            os.close(write)
            assert said.read() == b"ready", done.stderr


def test_a_signal_that_comes_as_the_command_starts_reaches_it() -> None:
    """It ended reinet alone, and left the command to nobody; here the command sends it, as its first deed."""
    code = "import sys; from pathlib import Path; from reinet.cli.run import run_reported\n"
    code += "from reinet.alcc.launch import Law, Settings; from reinet.core.target import Target\n"
    code += "settings = Settings(Law('none'), Target.parse('+30ms'))\n"
    code += "print([run_reported(settings, Path('/bin/sh'), sys.argv[1:])[0] for _ in range(10)])"
    command = [sys.executable, "-c", code, "sh", "-c", "kill $PPID; sleep 30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.stdout == f"{[128 + signal.SIGTERM] * 10}\n"


def test_a_signal_that_comes_just_before_reinet_waits_reaches_the_command() -> None:
    """Python would handle it after the wait; here it comes within the same call of C, where Python looks for none."""
    code = """
import ctypes, itertools, operator, os, select, signal
from pathlib import Path
from reinet.alcc.launch import Law, Settings
from reinet.cli.run import run_reported
from reinet.core.errors import LinkError
from reinet.core.target import Target

calls = [(ctypes.CDLL(None).kill, os.getpid(), signal.SIGTERM)]

def after_a_signal(wait):
    def waiting(*asked):
        told = [*calls, (wait, *asked)]
        calls.clear()
        return list(itertools.starmap(operator.call, told))[-1]
    return waiting

os.waitpid, select.select = after_a_signal(os.waitpid), after_a_signal(select.select)
print(run_reported(Settings(Law("none"), Target.parse("+30ms")), Path("/bin/sleep"), ["sleep", "30"])[0], calls)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.stdout == f"{128 + signal.SIGTERM} []\n", done.stderr


def test_an_interrupt_before_the_command_runs_is_no_word_on_a_key_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command had the key's interrupt from the terminal and from reinet."""
    reached: list[int] = []
    monkeypatch.setattr(run, "_in_foreground", lambda _: True)
    with run._forwarded() as begin:
        os.kill(os.getpid(), signal.SIGINT)
        begin(cast(Any, SimpleNamespace(pid=0, send_signal=reached.append)))
        handler = cast(Any, signal.getsignal(signal.SIGINT))
        handler(signal.SIGINT, None)  # by the key, which no process sends
    assert reached == [signal.SIGINT]


def test_what_reinet_was_told_to_ignore_its_command_ignores() -> None:
    """As by nohup."""
    script = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    command = ["env", "--ignore-signal=HUP", str(REINET), "run", "--json", "-", "--", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert done.stdout.startswith("True\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which it gives up")
def test_processes_of_another_user_are_counted_beside_those_of_this_user() -> None:
    script = (
        "import os, socket\n"
        "for user in (0, 65534):\n"
        "  server = socket.create_server(('127.0.0.1', 0))\n"
        "  client = socket.create_connection(server.getsockname())\n"
        "  if os.fork() == 0:\n"
        "    os.setuid(user)\n"
        "    client.send(b'x')\n"
        "    os._exit(0)\n"
        "  os.wait()"
    )
    command = [str(REINET), "run", "--json", "-", "--", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    report = json.loads(done.stdout)
    assert (report["processes"], report["flows"], report["bytes"]) == (2, 2, 2)


def test_the_bench_says_what_the_gate_costs() -> None:
    done = CliRunner().invoke(app, ["bench", "alcc", "--connections", "30", "--seconds", "0.5", "--json", "-"])
    assert done.exit_code == 0, done.output
    rows = {(row["what"], row["connections"]): row for row in json.loads(done.stdout)["rows"]}
    assert set(rows) == {
        ("write_us", 1),
        ("cpu_share", 1),
        ("memory_kb_per_connection", 1),
        ("cpu_share", 30),
        ("memory_kb_per_connection", 30),
        ("threads", 1),
        ("threads", 30),
        ("wake_ups_per_s", 300),
        ("openings", 10),
        ("lost_wake_ups", 10),
        ("active_cpu_share_of_the_gates_thread", 30),
        ("active_mbps", 30),
        ("active_memory_kb_per_connection", 30),
    }
    assert rows["openings", 10]["gated"] > 0
    assert rows["lost_wake_ups", 10]["gated"] == 0
    assert rows["active_mbps", 30]["gated"] > 0
    assert rows["wake_ups_per_s", 300]["gated"] <= 2
    assert rows["threads", 30] == {"what": "threads", "connections": 30, "plain": 1, "gated": 2}


def test_what_a_short_fetch_costs_is_measured_of_nginx_plain_and_gated(monkeypatch: pytest.MonkeyPatch) -> None:
    gated = []
    usual = fetches._fetch_us

    def fetch_us(pid: int, port: int, size_bytes: int, is_fresh: bool) -> float:
        gated.append(PRELOAD in Path(f"/proc/{pid}/maps").read_text())
        return usual(pid, port, size_bytes, is_fresh)

    needed("nginx", "--bench")
    monkeypatch.setattr(fetches, "_fetch_us", fetch_us)
    monkeypatch.setattr(fetches, "FETCHES", 20)
    rows = fetches.measure(Law("rule"), 2)
    assert [(row["bytes"], row["fresh"]) for row in rows] == list(fetches.KINDS)
    assert all(row["plain_us"] > 0 and row["cpu_ratio_q1"] <= row["cpu_ratio"] <= row["cpu_ratio_q3"] for row in rows)
    assert sum(gated) == len(gated) / 2 == 2 * len(fetches.KINDS)
    done = CliRunner().invoke(app, ["bench", "alcc", "--against", "fetches", "--traces", "x"])
    assert "--traces: with --against fetches it does nothing" in str(done.exception)


def test_an_nginx_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    needed("nginx", "--bench")
    monkeypatch.setattr(fetches, "nginx_config", lambda *_: "nonsense;")
    with pytest.raises(LinkError, match=r'nginx did not start: .*unknown directive "nonsense"'):
        fetches.measure(Law("rule"), 1)
