"""How the program begins and ends: neither Ctrl-C nor a standard output that takes nothing shows a traceback."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reinet.cli.main import COMMANDS
from reinet.envs.trace import Trace

RUN = """
import os, signal, sys
from importlib.metadata import entry_points
interrupted = sys.argv.pop(1)
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == interrupted:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
(found,) = [point for point in entry_points(group="console_scripts") if point.name == "reinet"]
sys.argv[0] = "reinet"
found.load()()
"""
"""What pip makes of the entry point; SIGINT comes when a module of this name is imported."""


def run(*arguments: str, stdout: object = subprocess.PIPE, interrupted: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", RUN, interrupted, *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("module", ["reinet.cli.main", "typer", "numpy", "reinet.cli.serve", "reinet.daemon.serve"])
def test_ctrl_c_while_it_imports_ends_it_without_a_traceback(module: str) -> None:
    done = run("serve", "/none", interrupted=module)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (-signal.SIGINT, 130)


def test_who_runs_a_command_waits_for_no_other() -> None:
    code = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n{RUN}"
    command = [sys.executable, "-c", code, "", "ctl", "--help"]
    imported = set(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stderr.split())
    assert "reinet.cli.ctl" in imported
    others = {place.partition(":")[0] for name, place in COMMANDS.items() if name != "ctl"}
    assert not imported & {*others, "reinet.envs", "gymnasium"}


def test_who_starts_it_with_the_signal_ignored_has_it_ignored() -> None:
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{RUN}"
    command = [sys.executable, "-c", code, "typer", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_clears_away_what_it_has_made(told: signal.Signals) -> None:
    code = """if True:
        import time
        from reinet.cli import main
        def made():
            try:
                print("made", flush=True)
                time.sleep(60)
            finally:
                print("cleared away")
        main.app = made
        main.main()"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        process.send_signal(told)
        assert process.stdout.read() == "cleared away\n"
        assert process.wait(60) == -told


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ctl", "--help"], ["traces", "list", "--json", "-"]])
def test_a_standard_output_that_is_full_is_named(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(*arguments, stdout=full)
    assert done.stderr.strip() == "error: standard output: No space left on device; send it to another place"
    assert done.returncode == 1


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["traces", "list", "--json", "-"]])
def test_a_pipe_that_nobody_reads_ends_it_without_a_word(arguments: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    done = run(*arguments, stdout=writes)
    os.close(writes)
    assert (done.stderr, done.returncode) == ("", 1)


@pytest.mark.parametrize("written", ["--png", "--out"])
def test_a_disk_that_is_full_shows_no_traceback_and_loses_no_rows(tmp_path: Path, written: str) -> None:
    trace = str(Trace.constant(12, 5).save(tmp_path / "twelve.trace"))
    of_links = ["--traces", trace, "--seconds", "3", "--json", "-", written, str(tmp_path / "written.png")]
    told = ["evaluate", "--agents", "none", "--link", "sim"] if written == "--png" else ["compare", "rule"]
    command = ["prlimit", "--fsize=1000", sys.executable, "-c", RUN, "", *told, *of_links]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert f"{tmp_path / 'written.png'}: File too large; the figures were told above" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert json.loads(done.stdout)["rows"]
