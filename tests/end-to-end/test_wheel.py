"""The wheel, installed into a clean environment outside the checkout, serves without torch, Ray and Mahimahi."""

import subprocess
import sys
import venv
from pathlib import Path

from helpers.places import ROOT

IMPORT_EVERYTHING = """
import importlib, pkgutil, pathlib, sys
import reinet, reinet.core, reinet.kshim, reinet.envs, reinet.agents, reinet.daemon, reinet.cli
import reinet.proto.control_pb2_grpc
checkout = pathlib.Path(sys.argv[1])
needs_training = {"torch", "ray", "matplotlib"}
for package in (reinet.core, reinet.kshim, reinet.envs, reinet.agents, reinet.daemon, reinet.cli):
    assert checkout not in pathlib.Path(package.__file__).parents, package.__file__
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name in needs_training and module.name.startswith("reinet.agents."), f"{module.name}: {error}"
import gymnasium
gymnasium.make("reinet/SimLink-v0").reset(seed=0)
print("imported")
"""


def _run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_wheel_in_a_clean_environment(tmp_path: Path) -> None:
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path / "dist", ROOT, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("reinet-*.whl")
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", f"{wheel}[serve]", cwd=tmp_path)
    assert "imported" in _run(python, "-c", IMPORT_EVERYTHING, ROOT, cwd=tmp_path)
    _run(tmp_path / "clean" / "bin" / "reinet", "--help", cwd=tmp_path)
