"""What the tests of whole programs share: daemons that end with their test."""

from collections.abc import Iterator

import pytest

from helpers.daemons import Daemon


@pytest.fixture(autouse=True)
def no_daemon_left() -> Iterator[None]:
    """A test that fails leaves none running."""
    yield
    while Daemon.started:
        with Daemon.started.pop().process as process:
            process.kill()
