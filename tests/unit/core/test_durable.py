"""Files that are written whole, or grow by whole lines, whatever a disk takes."""

import os
import resource
import signal
from pathlib import Path

import pytest

from reinet.core.disk import durable


def test_a_disk_that_takes_a_part_leaves_the_lines_that_were_there(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    durable.append(path, "one\n")
    limits, signal_before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            durable.append(path, "two\n" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, signal_before)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"one\n"
    durable.append(path, "four\n")
    assert path.read_bytes() == b"one\nfour\n"


@pytest.mark.parametrize("left", [b"", b"half of a li"])
@pytest.mark.parametrize("before", [b"", b"one\ntwo\n"])
def test_what_a_killed_writer_left_of_a_line_is_none_and_gives_way(tmp_path: Path, before: bytes, left: bytes) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(before + left)
    assert durable.lines_of(path) == before.splitlines()
    assert path.read_bytes() == before + left, "it may be written just now"
    durable.append(path, "three\n")
    assert path.read_bytes() == before + b"three\n"


def test_a_file_of_nobodys_mode_is_as_the_umask_says(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 200)
    before = os.umask(0o027)
    try:
        durable.write(path, b"1")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]
