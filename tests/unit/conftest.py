"""What unit tests of several folders share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.gated import built


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch as in training; on a loaded machine two threads that wait for each other take twenty times as long."""
    import torch  # the other tests here need not wait for it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``corners.cpp`` of ``helpers/gated`` and the files beside it that it names, built."""
    sources = ["corners.cpp", "processes.cpp", "memory.cpp", "calls.cpp", "waits.cpp"]
    where = tmp_path_factory.mktemp("corners") / "corners"
    return built(sources, where, "-rdynamic")  # the gate is to find its getsockopt
