"""Every example of README and the pages runs, as it stands or as a table shortens it; none is left out silently."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.documents import PAGES, Example, examples
from helpers.places import ROOT

_SMALL = """
sed 's/^updates = .*/updates = 2/; s/^hidden = .*/hidden = [8]/; s/^links = .*/workers = 0\\nlinks = 2/
     s/^evaluate_every .*/&\\nevaluate_s = 5\\nevaluate_seeds = 1/' configs/{name}.toml > {name}.toml
printf '[harm]\\nrepeat = {harm}\\n' >> {name}.toml
"""
"""A training configuration, made small: few updates of a small network, on few flows, judged by few and short ones; one
of the trainings asks what its policy costs short transfers, which takes as long as all else."""

SHORTENED = {
    "make demo": (
        "make -n demo && .venv/bin/reinet demo --minutes 0.1 --seconds 5",
        "it trains for minutes and sends for two; make must not set this machine up again",
    ),
    "docker/setup.sh": ("sh -n docker/setup.sh", "it installs packages; this checkout was set up by it"),
    ".venv/bin/pre-commit install": (
        "git init -q . && .venv/bin/pre-commit install && .venv/bin/pre-commit validate-config",
        "it asks for a repository, which the folder of the test is not",
    ),
    "make format lint": ("make -n format lint", "make test runs it, and it would change the files of the checkout"),
    "make test-unit": ("make -n test-unit test-kernel test-end-to-end", "this is one of the tests that they run"),
    "make test": ("make -n test", "this is one of the tests that it runs"),
    ".venv/bin/reinet doctor": (
        ".venv/bin/reinet doctor || [ $? = 1 ]",
        "it exits 1 where something is missing, which is for the machine to say",
    ),
    ".venv/bin/reinet evaluate --agents none,rule,checkpoints/default --traces my.trace --seconds 60": (
        ".venv/bin/reinet evaluate --agents none,rule,checkpoints/default --traces my.trace --seconds 2",
        "three minutes",
    ),
    ".venv/bin/reinet serve configs/daemon.toml": (
        f"""
        sed 's#^cgroups = .*#cgroups = ["{{cgroup}}"]#' configs/daemon.toml > own.toml
        echo "socket = \\"$PWD/control.sock\\"" >> own.toml
        .venv/bin/reinet serve own.toml --check
        .venv/bin/reinet serve own.toml & echo $! > daemon.pid
        for _ in {" ".join(map(str, range(100)))}; do [ -S control.sock ] && break; sleep 0.2; done
        """,
        "it serves until it is told to end; its cgroup and its socket are the test's own, for the host may run another",
    ),
    **{
        "sudo .venv/bin/reinet evaluate --agents fixed:25,rule --traces traces --seconds 20 --repeat 3 "
        f"--actuator {where}": (
            "sudo .venv/bin/reinet evaluate --agents fixed:25 --traces traces/lte-walking.trace --seconds 2 "
            f"--actuator {where}",
            "three minutes of real time",
        )
        for where in ("app", "kernel")
    },
    "sudo .venv/bin/reinet evaluate --actuator app --agents none,rule,checkpoints/small --traces traces/12.trace "
    "--link-option loss=0.01 --seconds 12 --repeat 3": (
        "sudo .venv/bin/reinet evaluate --actuator app --agents checkpoints/small --traces traces/12.trace "
        "--link-option loss=0.01 --seconds 2",
        "two minutes of real time",
    ),
    "reinet bench daemon --json -": (
        ".venv/bin/reinet bench daemon --pairs 0 --seconds 1 --json -",
        "ten minutes, on a host without other work",
    ),
    ".venv/bin/reinet bench alcc": (
        ".venv/bin/reinet bench alcc --connections 20 --seconds 0.5",
        "half a minute",
    ),
    "PYTHONPATH=tests .venv/bin/python tests/helpers/gated/fuzz.py 100 20 20000": (
        "PYTHONPATH=tests .venv/bin/python tests/helpers/gated/fuzz.py 100 1 100",
        "some minutes",
    ),
    ".venv/bin/reinet bench harm --json harm.json": (
        ".venv/bin/reinet bench harm --cc cubic --mrtt-ms 20 --rate-mbps 24 --bytes 10000 --repeat 2 --json harm.json",
        "two minutes",
    ),
    ".venv/bin/reinet ctl flows": (
        ".venv/bin/reinet ctl flows --socket control.sock; kill $(cat daemon.pid); wait $(cat daemon.pid)",
        "it asks the daemon of the line before, which then ends",
    ),
    "sudo .venv/bin/reinet evaluate --agents none,checkpoints/default --traces traces --seconds 30 --repeat 3": (
        "sudo .venv/bin/reinet evaluate --agents none,checkpoints/default --traces traces/lte-walking.trace "
        "--seconds 2",
        "ten minutes of real time",
    ),
    ".venv/bin/reinet evaluate --suite quick": (
        ".venv/bin/reinet evaluate --suite quick --scenarios beside-plain --repeat 1",
        "three minutes",
    ),
    ".venv/bin/reinet evaluate --suite quick --scenarios buffer --agents none,rule:1.3 --traces my-traces/ --repeat 6 "
    "--out runs/suites/mine": (
        """
        mkdir my-traces
        .venv/bin/reinet traces generate lte-driving --seconds 6 --seed 1 --out my-traces/1.trace
        .venv/bin/reinet evaluate --suite quick --scenarios buffer --agents none,rule:1.3 --traces my-traces/ \\
            --repeat 1 --out runs/suites/mine
        """,
        "the folder is the reader's own; less is quicker",
    ),
    ".venv/bin/reinet evaluate --suite quick --scenarios buffer --agents none,rule:1.3 --traces my-traces/ --repeat 8 "
    "--out runs/suites/mine --against runs/suites/mine/report.json": (
        ".venv/bin/reinet evaluate --suite quick --scenarios buffer --agents none,rule:1.3 --traces my-traces/ "
        "--repeat 2 --out runs/suites/mine --against runs/suites/mine/report.json",
        "less is quicker",
    ),
    "reinet evaluate --suite deepcc --scenarios jain,jain-150kb": (
        """
        sed 's/^flow_start_s = .*/flow_start_s = 2/; s/^seconds = .*/seconds = 4/' configs/suites/deepcc.toml > own.toml
        reinet evaluate --suite own.toml --scenarios jain,jain-150kb
        """,
        "three minutes; the suite's flows start a minute after each other",
    ),
    "tensorboard --logdir runs": (
        ".venv/bin/tensorboard --logdir runs --inspect",
        "it serves until it is told to end",
    ),
    "tensorboard --logdir runs/compare": (
        ".venv/bin/tensorboard --logdir runs/compare --inspect",
        "it serves until it is told to end",
    ),
    "reinet traces split my-traces/ --out traces/mine --share 0.75": (
        """
        mkdir my-traces
        for seed in 1 2 3 4; do
            reinet traces generate lte-driving --seconds 6 --seed $seed --out my-traces/$seed.trace; done
        reinet traces split my-traces/ --out traces/mine --share 0.75
        """,
        "the folder is the reader's own",
    ),
    "reinet train configs/default.toml --run-dir runs/generated": (
        f"""
        {_SMALL.format(name="default", harm=1)}
        printf '[traces]\\ntrain_count = 2\\nselect_count = 1\\nseconds = 6\\n' >> default.toml
        reinet train default.toml --run-dir runs/generated --iterations 2
        """,
        "minutes",
    ),
    "reinet train configs/own-traces.toml": (
        f"{_SMALL.format(name='own-traces', harm=0)}\nreinet train own-traces.toml --iterations 2",
        "minutes",
    ),
    "reinet evaluate --agents none,rule:1.3,runs/generated/model,runs/own-traces/model --traces traces/mine/validation "
    "--link sim --seconds 120": (
        "reinet evaluate --agents none,rule:1.3,runs/generated/model,runs/own-traces/model "
        "--traces traces/mine/validation --link sim --seconds 5",
        "it is quick; less is quicker",
    ),
    "reinet trainer configs/trainer.toml": (
        f"""
        sed 's#^folder = .*#folder = "trainer"\\nsocket = "trainer.sock"#; s/^runner = .*/runner = "process"/
             s/^suite = .*/suite = "quick"\\nrepeat = 1/' configs/trainer.toml > own.toml
        export REINET_TRAINER=unix:$PWD/trainer.sock
        reinet trainer own.toml & echo $! > trainer.pid
        trap 'kill $(cat trainer.pid); wait' EXIT
        for _ in {" ".join(map(str, range(100)))}; do [ -S trainer.sock ] && break; sleep 0.2; done
        """,
        "it serves until it is told to end; its folder and its socket are the test's own, and no Ray is started for it",
    ),
    'reinet jobs submit configs/default.toml --traces my-traces/ --note "week 14"': (
        f"""
        mkdir my-traces
        for seed in 1 2 3 4; do
            reinet traces generate lte-driving --seconds 6 --seed $seed --out my-traces/$seed.trace; done
        {_SMALL.format(name="default", harm=0)}
        sed -i 's/^iterations = .*/iterations = 2/' default.toml
        reinet jobs submit default.toml --traces my-traces/ --note "week 14"
        """,
        "minutes; the folder is the reader's own",
    ),
    "tensorboard --logdir runs/trainer/jobs": (
        ".venv/bin/tensorboard --logdir runs --inspect",
        "it serves until it is told to end",
    ),
    "reinet fidelity --traces traces --cc cubic,reno,bbr --buffers 60000,150000,600000 --caps none,20,40 --seconds 60 "
    "--repeat 1": (
        "reinet traces generate constant:12 --seconds 10 --out traces/12.trace && reinet fidelity --traces traces "
        "--cc cubic --buffers 60000 --caps none --seconds 5 --repeat 1 --results own.jsonl",
        "two hours, on recordings that are not distributed",
    ),
}
"""What runs in place of an example, and why: same command, less of it."""

ELSEWHERE = {
    "pip install '.[serve]'": ("tests/end-to-end/test_wheel.py", "a clean environment takes a minute to make"),
    "reinet fidelity --traces traces --cc westwood,illinois,vegas --buffers 60000,150000,600000 --caps none "
    "--seconds 60 --repeat 1 --kernel uml": (
        "tests/unit/evaluation/test_fidelity.py",
        "its kernel takes ten minutes to build",
    ),
    "reinet fidelity --peers --traces traces": (
        "tests/unit/evaluation/test_peers.py",
        "its recordings are not distributed",
    ),
    "reinet bench handover --how stop,kill": (
        "tests/kernel/test_under_load.py",
        "it keeps two cores busy for minutes",
    ),
    **dict.fromkeys(
        (
            "reinet traces from-flows /var/lib/reinet/flows --out estimated",
            "reinet jobs submit configs/default.toml --traces estimated",
            "reinet traces upload estimated",
        ),
        ("tests/end-to-end/test_flywheel.py", "the flows are those of a daemon, and a service must listen"),
    ),
}
"""What another file of tests runs."""

ALL = [example for page in PAGES for example in examples(page)]


def _marks(example: Example) -> list[pytest.MarkDecorator]:
    """Real links need root and Mahimahi, the daemon needs root, javac a JDK."""
    text = example.text
    real = "sudo " in text or " serve " in text or "make demo" in text or "reinet fidelity" in text
    real |= "reinet evaluate" in text and not ("--link sim" in text or "--suite" in text)
    java = [pytest.mark.java] if "javac " in text else []
    return [pytest.mark.kernel, pytest.mark.mahimahi] if real else java


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like the checkout; what an example writes stays in it."""
    for entry in ROOT.iterdir():
        if entry.name not in (".git", "runs", "traces", ".venv"):
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parent.parent)
    return tmp_path


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of the test's own, where it may make one."""
    from reinet.kshim.probe import cgroup2_mount

    mount = cgroup2_mount()
    path = Path(mount or "/none") / f"reinet-documents-{os.getpid()}"
    with contextlib.suppress(OSError):
        path.mkdir()
    yield path
    with contextlib.suppress(OSError):
        path.rmdir()


def runnable(line: str, cgroup: Path) -> str:
    """What runs for a line of an example."""
    if line in ELSEWHERE:
        assert (ROOT / ELSEWHERE[line][0]).is_file()
        return ":"
    installed = line if line in SHORTENED else f".venv/bin/{line}"  # a page may leave out where the command lies
    command = SHORTENED[installed][0].replace("{cgroup}", str(cgroup)) if installed in SHORTENED else line
    return command if shutil.which("sudo") else re.sub(r"\bsudo ", "", command)


@pytest.mark.parametrize("example", [pytest.param(e, marks=_marks(e), id=str(e)) for e in ALL])
def test_an_example_runs(example: Example, folder: Path, cgroup: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    if example.language == "python":
        text = example.text if "import " in example.text else f"import gymnasium, reinet.envs\n{example.text}"
        command = [sys.executable, "-W", "error", "-c", text]
    else:
        script = "\n".join(["set -euo pipefail", *(runnable(line, cgroup) for line in example.lines)])
        command = ["bash", "-c", script]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, f"{example.text}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def test_the_tables_hold_nothing_that_no_page_says() -> None:
    lines = {line for example in ALL for line in example.lines}
    assert lines >= SHORTENED.keys() | ELSEWHERE.keys(), (SHORTENED.keys() | ELSEWHERE.keys()) - lines
