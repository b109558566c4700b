"""Imports point one way: cli > daemon > agents > envs > kshim > core; serving never needs torch or Ray."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ["core", "kshim", "envs", "agents", "daemon", "cli"]


def _imports(path: Path) -> set[str]:
    """Top two levels of every module that a file imports, wherever the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("layer", LAYERS)
def test_a_folder_imports_only_from_those_below(layer: str) -> None:
    above = LAYERS[LAYERS.index(layer) + 1 :]
    for path in sorted((ROOT / layer).rglob("*.py")):
        for name in _imports(path):
            assert not any(name == f"reinet.{a}" or name.startswith(f"reinet.{a}.") for a in above), f"{path}: {name}"


def test_every_folder_has_files() -> None:
    assert all(list((ROOT / layer).rglob("*.py")) for layer in LAYERS)


SERVING = """
import sys
import reinet.daemon.serve, reinet.agents.policy, reinet.cli.main
heavy = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "ray", "matplotlib"})
sys.exit(f"imported {heavy}" if heavy else 0)
"""


def test_serving_loads_neither_torch_nor_ray() -> None:
    result = subprocess.run([sys.executable, "-c", SERVING], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
