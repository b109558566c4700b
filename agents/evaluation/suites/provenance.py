"""What shaped a run beside its definition and its agent: the code, its version and commit, the kernel."""

import hashlib
import os
import subprocess
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOMS = ("core", "kshim", "envs", "agents.model", "agents.decide")
"""Whatever lies in these packages, native code as it was compiled, may shape a run; of ``agents.evaluation`` ``FILES``
do, and nothing of the commands or the report."""
FILES = ("batch.py", "live.py", "run.py", "scenario.py", "suites/links.py", "suites/measure.py", "suites/runner.py")


@cache
def code_sha256() -> str:
    """Returns the hash of the code that runs go through: Python's text, and native modules as they were compiled."""
    digest = hashlib.sha256()
    for room in ROOMS:
        folder = _file(room).parent
        for path in sorted(folder.rglob("*.py")):
            _add(digest, f"{room}/{path.relative_to(folder)}", path)
    for native in ("core._core", "envs.sim._sim", "kshim._kshim"):
        _add(digest, native, _file(native))
    for name in FILES:
        _add(digest, name, Path(__file__).parents[1] / name)
    return digest.hexdigest()


@cache
def emulator_sha256() -> str:
    """Returns the hash of what only real runs go through beside that: the programs of an emulated link."""
    digest = hashlib.sha256()
    for folder in import_module("reinet.envs.mahimahi").__path__:
        for path in sorted((Path(folder) / "bin").glob("*")):
            _add(digest, path.name, path)
    return digest.hexdigest()


def _file(module: str) -> Path:
    file = import_module(f"reinet.{module}").__file__
    assert file is not None, f"reinet.{module} is a package or a compiled module"
    return Path(file)


def _add(digest: Any, name: str, path: Path) -> None:
    digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())


@cache
def versions() -> dict[str, str | None]:
    """Returns the versions that a report tells; ``commit`` is None outside a checkout, and ends in + with changes."""
    return {
        "reinet": version("reinet"),
        "commit": _commit(),
        "code_sha256": code_sha256(),
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "numpy": version("numpy"),
        "onnxruntime": _version("onnxruntime"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ModuleNotFoundError:  # importlib.metadata's PackageNotFoundError is one
        return None


def _commit() -> str | None:
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()
