"""The wheel, installed into a clean environment where no checkout is to be seen, does all that needs no training."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from helpers.places import ROOT
from reinet.agents.evaluation.suites.definition import shipped

IMPORT_EVERYTHING = """
import importlib, pkgutil, pathlib, sys
import reinet, reinet.core, reinet.kshim, reinet.envs, reinet.agents, reinet.daemon, reinet.cli
import reinet.proto.control_pb2_grpc
checkout = pathlib.Path(sys.argv[1])
assert not any(checkout.iterdir()), "the checkout is still there"
needs_training = {"torch", "ray", "matplotlib", "cma"}
for package in (reinet.core, reinet.kshim, reinet.envs, reinet.agents, reinet.daemon, reinet.cli):
    assert checkout not in pathlib.Path(package.__file__).parents, package.__file__
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name in needs_training and module.name.startswith("reinet.agents."), f"{module.name}: {error}"
import gymnasium
gymnasium.make("reinet/SimLink-v0").reset(seed=0)
native = sorted(name for name in sys.modules if name.startswith("reinet.") and name.rpartition(".")[2][0] == "_")
print(*(f"{name} {sys.modules[name].__file__}" for name in native))
"""
COVERED = 'mount -t tmpfs -o size=1m none "$1" && shift && exec "$@"'
"""An empty file system over the checkout, in a mount namespace of the process's own."""


class Clean:
    """A clean environment with the wheel, entered by processes that see no checkout and no home folder."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.wheel, self.bin = wheel, folder / "venv" / "bin"
        self.cwd, self.home = folder / "work", folder / "home"
        for path in (self.cwd, self.home):
            path.mkdir(parents=True)
        venv.create(folder / "venv")  # without a pip of its own, which takes as long to install as the wheel
        self.install()

    def install(self, extra: str = "") -> None:
        pip = [sys.executable, "-m", "pip", "--python", self.bin / "python"]
        outside(*pip, "install", "--quiet", "--no-compile", f"{self.wheel}{extra}")

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        path = f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin"
        return subprocess.run(
            ["unshare", "--mount", *user, "sh", "-c", COVERED, "sh", str(ROOT), *map(str, command)],
            cwd=self.cwd,
            env={"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def __call__(self, *command: str | Path) -> str:
        """What a command that must work writes to standard output."""
        done = self.run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def outside(*command: str | Path) -> None:
    done = subprocess.run([str(c) for c in command], cwd="/", capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    # With the tools that built the checkout, so that what is compiled already is compiled no second time.
    outside(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", dist, ROOT)
    (path,) = dist.glob("reinet-*.whl")
    return path


@pytest.fixture(scope="module")
def least(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """Without any extra; the tests of it stand before those of ``serving``, which adds to it."""
    return Clean(tmp_path_factory.mktemp("clean"), wheel)


@pytest.fixture(scope="module")
def serving(least: Clean) -> Clean:
    """With what ``pip install '.[serve]'`` brings."""
    least.install("[serve]")
    return least


def test_it_holds_what_runs_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    data = {f"reinet/configs/suites/{name}.toml" for name in shipped()} | {"reinet/agents/evaluation/peers.toml"}
    assert len(data) > 1
    assert data <= set(names)
    assert not [name for name in names if Path(name).suffix in (".c", ".cpp", ".h", ".hpp", ".o", ".txt", ".toml")
                and ".dist-info/" not in name and name not in data]  # fmt: skip
    assert not [name for name in names if "_driven" in name or name.startswith(("tests/", "reinet/tests"))]
    for module in ("reinet/core/_core", "reinet/envs/sim/_sim", "reinet/kshim/_kshim"):
        assert [name for name in names if name.startswith(module) and name.endswith(".so")], module


def test_the_least_installation_looks_at_traces(least: Clean) -> None:
    """Without any extra: help, doctor and traces work, and what needs more says so."""
    for command in ("evaluate", "train", "serve", "ctl", "bench"):
        least("reinet", command, "--help")
    features = json.loads(least.run("reinet", "doctor", "--json", "-").stdout)["features"]
    assert not features["onnxruntime"]["ok"]
    least("reinet", "traces", "generate", "constant:12", "--seconds", "2", "--out", "12.trace")
    least("reinet", "traces", "check", "12.trace")
    done = least.run("reinet", "serve", "own.toml")
    assert done.returncode == 1
    assert "pip install 'reinet[serve]'" in done.stderr


def test_everything_imports_without_the_checkout(serving: Clean) -> None:
    native = serving("python", "-W", "error::ImportWarning", "-c", IMPORT_EVERYTHING, ROOT)
    for module in ("reinet.core._core", "reinet.envs.sim._sim", "reinet.kshim._kshim"):
        assert f"{module} {serving.bin.parent}" in native


def test_doctor_says_what_there_is(serving: Clean) -> None:
    done = serving.run("reinet", "doctor", "--json", "-")
    assert done.returncode in (0, 1), done.stderr
    features = json.loads(done.stdout)["features"]
    assert features["onnxruntime"]["ok"]
    assert features["mahimahi.helpers"]["ok"]
    assert not features["torch"]["ok"]


def test_traces_are_made_and_evaluated(serving: Clean) -> None:
    serving("reinet", "--help")
    serving("reinet", "traces", "generate", "lte-walking", "--seconds", "20", "--seed", "7", "--out", "my.trace")
    info = json.loads(serving("reinet", "traces", "info", "my.trace", "--json", "-"))
    assert info["duration_s"] == 20
    serving("reinet", "traces", "check", "my.trace")
    evaluation = ["--link", "sim", "--agents", "none,rule", "--traces", "my.trace", "--seconds", "5", "--json", "-"]
    rows = json.loads(serving("reinet", "evaluate", *evaluation))["rows"]
    assert [row["agent"] for row in rows] == ["none", "rule:1.5"]
    assert rows[1]["qdelay_mean_ms"] < rows[0]["qdelay_mean_ms"]


def test_a_suite_runs_without_a_checkout_and_without_pictures(serving: Clean) -> None:
    """The shipped model is the checkout's; --agents names others."""
    suite = ["--suite", "quick", "--scenarios", "beside-plain", "--agents", "none,rule", "--repeat", "1", "--json", "-"]
    done = serving.run("reinet", "evaluate", *suite)
    assert done.returncode == 0, done.stderr
    assert "no pictures" in done.stderr
    assert {row["agent"] for row in json.loads(done.stdout)["rows"]} == {"none", "rule:1.5"}


def test_bench_measures(serving: Clean) -> None:
    result = json.loads(serving("reinet", "bench", "sim", "--links", "16", "--seconds", "0.2", "--json", "-"))
    assert result["env_steps_per_s"] > 0


def test_serve_says_what_it_lacks(serving: Clean) -> None:
    (serving.cwd / "own.toml").write_text('[daemon]\nmodel = "/none/model"\ncgroups = ["/sys/fs/cgroup"]\n')
    done = serving.run("reinet", "serve", "own.toml")
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    host_can_serve = "this host cannot serve" not in done.stderr and "cgroup" not in done.stderr
    assert "/none/model" in done.stderr or not host_can_serve
