"""Imports point one way, room by room, and every room is small; serving never needs torch or Ray."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.places import ROOT

ROOMS = [
    "core",
    "kshim",
    "alcc",
    "envs.trace",
    "envs.link",
    "envs.sim",
    "envs.mahimahi",
    "envs",
    "agents.model",
    "agents.decide",
    "agents.evaluation",
    "agents.learn",
    "daemon",
    "agents.service",
    "cli",
]
"""From the bottom up: a room imports from itself and from those before it, never from those after it. ``envs`` alone
stands for the environments, the files that lie beside the rooms in that folder."""
SERVING_ROOMS = ["core", "kshim", "alcc", "envs.trace", "envs.link", "envs.sim", "envs.mahimahi", "envs",
                 "agents.model", "agents.decide", "daemon"]  # fmt: skip

MOST_LINES = 450
MOST_FILES = 20
EXCEPTIONS: dict[str, str] = {}
"""What is larger, and why: each stands in docs/architecture.md too."""

SOURCES = (".py", ".pyi", ".c", ".cpp", ".h", ".hpp", ".sh", ".proto")


def _room_of(module: str) -> str | None:
    """The room that a module ``reinet.x.y.z`` lies in."""
    parts = module.split(".")[1:]
    for size in (2, 1):
        if len(parts) >= size and ".".join(parts[:size]) in ROOMS:
            return ".".join(parts[:size])
    return None


def _modules(room: str) -> list[Path]:
    folder = ROOT / room.replace(".", "/")
    if room == "envs":
        return sorted(folder.glob("*.py"))
    return sorted(folder.rglob("*.py"))


def _imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return {name for name in names if name.startswith("reinet.")}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_those_before_it(room: str) -> None:
    allowed = ROOMS[: ROOMS.index(room) + 1]
    paths = _modules(room)
    assert paths, f"{room} has no files"
    for path in paths:
        for name in _imports(path):
            found = _room_of(name)
            assert found is None or found in allowed, f"{path.relative_to(ROOT)} imports {name}, a room above {room}"


HEADERS = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
NATIVE_ROOMS = {"core": {"core"}, "envs/sim": {"core", "envs/sim"}, "kshim": {"core", "kshim"},
                "alcc": {"core", "kshim", "alcc"}}  # fmt: skip


@pytest.mark.parametrize("room", NATIVE_ROOMS)
def test_native_code_includes_only_from_those_before_it(room: str) -> None:
    for path in sorted(path for ending in ("c", "h", "cpp", "hpp") for path in (ROOT / room).rglob(f"*.{ending}")):
        for include in HEADERS.findall(path.read_text()):
            assert (ROOT / include).is_file(), f"{path}: {include} is not written from the root"
            assert any(include.startswith(f"{allowed}/") for allowed in NATIVE_ROOMS[room]), f"{path}: {include}"


ALCC_FOLDERS = ["base", "stats", "driver", "laws", "link", "gate", "library", "preload", "udp", "native"]
"""The native folders of ``alcc``, from the bottom up, as ``ROOMS``."""


@pytest.mark.parametrize("folder", ALCC_FOLDERS)
def test_a_folder_of_the_gate_includes_only_from_those_before_it(folder: str) -> None:
    allowed = ALCC_FOLDERS[: ALCC_FOLDERS.index(folder) + 1]
    paths = sorted((ROOT / "alcc" / folder).glob("*.[ch]pp"))
    assert paths, f"alcc/{folder} has no files"
    for path in paths:
        for include in HEADERS.findall(path.read_text()):
            parts = include.split("/")
            if parts[0] == "alcc" and len(parts) > 2:  # the C interface lies beside the folders
                assert parts[1] in allowed, f"{path.relative_to(ROOT)} includes {include}, a folder above {folder}"


def test_every_native_folder_of_the_gate_has_its_place() -> None:
    assert {path.parent.name for path in (ROOT / "alcc").glob("*/*.[ch]pp")} == set(ALCC_FOLDERS)


def _sources() -> list[Path]:
    found = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("not a git checkout: which files are sources is not known")
    return [path for name in found.stdout.splitlines() if (path := ROOT / name).suffix in SOURCES and path.is_file()]


OVER_A_LIST = re.compile(r"for \([^;)]*: \{")
"""A loop over a list in braces: GCC 14, Debian 13's, refuses it where no header brings ``std::initializer_list``."""


def test_a_loop_over_a_list_has_the_header_that_newer_compilers_ask_for() -> None:
    looping = [path for path in _sources() if path.suffix in (".cpp", ".hpp") and OVER_A_LIST.search(path.read_text())]
    assert looping, "the expression finds none: is it still right?"
    without = [path.name for path in looping if "#include <initializer_list>" not in path.read_text()]
    assert not without, f"#include <initializer_list> is missing in {without}"


def test_no_file_and_no_folder_is_large_without_a_reason() -> None:
    sources = _sources()
    large = {str(p.relative_to(ROOT)) for p in sources if len(p.read_text().splitlines()) > MOST_LINES}
    folders = [str(path.parent.relative_to(ROOT)) for path in sources]
    crowded = {folder for folder in folders if folders.count(folder) > MOST_FILES}
    assert large | crowded == set(EXCEPTIONS)
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert all(name in page for name in EXCEPTIONS), "docs/architecture.md gives the reason of each"


SERVING = f"""
import importlib, pkgutil, sys
import typer
import reinet.cli.main
commands = dict(typer.main.get_command(reinet.cli.main.app).commands)
assert commands.keys() == reinet.cli.main.COMMANDS.keys()
for room in {SERVING_ROOMS}:
    package = importlib.import_module("reinet." + room)
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not module.name.rpartition(".")[2].startswith("_"):
            importlib.import_module(module.name)
heavy = sorted({{name.split(".")[0] for name in sys.modules}} & {{"torch", "ray", "matplotlib"}})
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""


def test_serving_loads_neither_torch_nor_ray() -> None:
    result = subprocess.run([sys.executable, "-c", SERVING], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_a_rollout_worker_imports_nothing_that_it_does_not_gather_with() -> None:
    """Each starts a process: with cma come SciPy and pyplot, which took three times as long as all the rest."""
    code = """
import sys
import reinet.agents.learn.workers
heavy = sorted({name.split(".")[0] for name in sys.modules} & {"cma", "matplotlib", "scipy", "torch"})
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
