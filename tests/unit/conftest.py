"""What unit tests of several folders share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch as in training; on a loaded machine two threads that wait for each other take twenty times as long."""
    import torch  # the other tests here need not wait for it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
