"""What several files of this folder need."""

from pathlib import Path

import pytest

from helpers.gated.built import built


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``corners.cpp`` and the files beside it that it names, built."""
    sources = ["corners.cpp", "processes.cpp", "memory.cpp", "tables.cpp", "calls.cpp", "waits.cpp"]
    where = tmp_path_factory.mktemp("corners") / "corners"
    return built(sources, where, "-rdynamic")  # the gate is to find its getsockopt
