"""A folder that one process at a time works in."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reinet.core.errors import ConfigError

LOCK_FILE = ".lock"
"""Hidden: the folder may hold traces too, and a folder of traces gives all its files that are not."""


@contextmanager
def locked(folder: Path, refusal: str) -> Iterator[None]:
    """Makes the folder and keeps a second process out of it; the lock goes with the process, however that ends.

    Raises ConfigError, which names the folder and says ``refusal``, where another one holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder}: {refusal}") from None
        yield
