"""Traces: reading, refusing, describing, hashing, sets."""

import hashlib
import os
import re
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reinet.core.errors import TraceError
from reinet.envs.trace.files import write_atomically
from reinet.envs.trace.set_file import load_traces
from reinet.envs.trace.trace import MAX_FILE_BYTES, Trace, served_at_ms

TraceFunction = Callable[[FrameType, str, Any], Any]

times = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50).map(sorted).filter(lambda values: values[-1] > 0)


def write(folder: Path, content: bytes, name: str = "a.down") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@given(values=times, crlf=st.booleans(), last_newline=st.booleans())
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, values: list[int], crlf: bool, last_newline: bool
) -> None:
    end = "\r\n" if crlf else "\n"
    text = end.join(map(str, values)) + (end if last_newline else "")
    path = write(tmp_path_factory.mktemp("trace"), text.encode())
    trace = Trace.load(path)
    assert trace.opportunities_ms.dtype == np.uint32
    assert trace.opportunities_ms.tolist() == values
    canonical = "".join(f"{value}\n" for value in values).encode()
    assert trace.sha256 == hashlib.sha256(canonical).hexdigest()
    again = trace.save(path.parent / "again")
    assert again.read_bytes() == canonical


BAD = {
    b"": (1, "empty", "one time in ms per line"),
    b"\n": (1, "empty line", "delete it"),
    b"1\n\n2\n": (2, "empty line", "delete it"),
    b"1\n2\n\n": (3, "empty line", "delete it"),
    b"1\n2.5\n": (2, "'2.5' is not a whole number", "traces import"),
    b"1\n 2\n": (2, "' 2' is not a whole number", "traces import"),
    b"1\n+2\n": (2, "'+2' is not a whole number", "traces import"),
    b"1\nx\n": (2, "'x' is not a whole number", "traces import"),
    b"0\n-7\n5\n": (2, "negative time '-7'", "shift"),
    b"5\n9\n8\n": (3, "goes back from 9 to 8", "sort"),
    b"0\n0\n": (2, "last time is 0", "above 0"),
    b"1\n\x002\n": (2, "not text", "plain text"),
    b"1\n\xff\xfe2\n": (2, "not text", "plain text"),
    b"\x1f\x8b\x08\x00\n": (1, "not text", "unpack"),
    b"1\n4294967296\n": (2, "beyond the largest time", "unit"),
    b"1\n" + b"9" * 5000 + b"\n": (2, "beyond the largest time", "unit"),
    b"1\n000000000002\n": (2, "more than 10 digits", "leading zeros"),
    b"1\n" + b"0" * 5000 + b"2\n": (2, "more than 10 digits", "leading zeros"),
    "1\n\u0662\n".encode(): (2, "not text", "plain text"),
    b"1\r2\r3\r": (1, "not text", "plain text"),
}


@pytest.mark.parametrize("content", BAD, ids=lambda content: repr(content[:12]))
def test_refuses_with_file_line_and_cure(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, content)
    line, what, cure = BAD[content]
    with pytest.raises(TraceError, match=rf"^{re.escape(str(path))}:{line}: ") as caught:
        Trace.load(path)
    assert what in str(caught.value)
    assert cure in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(path))


@given(st.binary(max_size=80))
def test_any_bytes_load_or_are_refused_by_name(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = write(tmp_path_factory.mktemp("bytes"), content)
    message, values = "", None
    try:
        values = Trace.load(path).opportunities_ms.tolist()
    except TraceError as error:
        message = str(error)
    if values is None:
        assert message.startswith(f"{path}:")
    else:
        assert values == [int(line) for line in content.decode().split()]


def test_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(TraceError, match=r"65 MiB is more than a trace may have \(64 MiB\)"):
        Trace.load(path)
    os.truncate(path, 40 * 2**30)  # sparse
    tracemalloc.start()
    with pytest.raises(TraceError, match="40960 MiB"):
        Trace.load(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_refuses_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        Trace.load(tmp_path / "absent")
    with pytest.raises(TraceError, match="is a folder"):
        Trace.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # opening it would block for ever
    with pytest.raises(TraceError, match="not a regular file"):
        Trace.load(tmp_path / "pipe")
    with pytest.raises(TraceError):
        Trace.load("nul\0byte")


def lines_run_to_load(path: Path) -> int:
    """How many lines of Python reading a trace runs, a comprehension's every turn included."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> TraceFunction:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        Trace.load(path)
    finally:
        sys.settrace(before)
    return count


def test_a_longer_file_takes_no_more_python(tmp_path: Path) -> None:
    few, many = (
        write(tmp_path, "".join(f"{value}\n" for value in range(100_000, 100_000 + count)).encode(), str(count))
        for count in (10, 300_000)
    )
    assert lines_run_to_load(many) == lines_run_to_load(few)


def test_arrays_are_checked_copied_and_frozen() -> None:
    source = np.array([1, 2, 3])
    trace = Trace(source, "t")
    source[0] = 9
    assert trace.opportunities_ms.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        trace.opportunities_ms[0] = 5
    for bad, what in (
        ([], "no delivery"), ([0], "last time is 0"), ([3, 2], "opportunity 2"), ([1.5], "whole"),
        ([-1, 2], "must lie"), ([1, 2**32], "must lie"),
    ):  # fmt: skip
        with pytest.raises(TraceError, match=what):
            Trace(np.array(bad), "t")


def test_constant_rate_is_even_and_loops() -> None:
    trace = Trace.constant(12, 2)
    assert trace.opportunities_ms.tolist() == list(range(1, 2001))
    assert Trace.constant(48, 1).opportunities_ms.tolist() == [1 + k // 4 for k in range(4000)]
    slow = Trace.constant(0.5, 10)
    assert slow.duration_ms == 10_000
    assert slow.mean_mbps == pytest.approx(0.5, rel=0.01)
    # In floating point 142 200 times a 142 200th of this loop is more than the loop.
    assert Trace.constant(0.0395, 43_200).duration_ms == 43_200_000
    wrong = ((0, 1), (-1, 1), (float("nan"), 1), (1, 0), (1e9, 1), (1, 1e8), (1e-9, 1), (1e308, 1), (1, 1e308))
    for mbps, seconds in wrong:
        with pytest.raises(TraceError) as caught:
            Trace.constant(mbps, seconds)
        assert len(str(caught.value)) < 200


def test_describe_by_hand() -> None:
    # Four bins of 100 ms with 2, 0, 1 and 1 packets, that is .24, 0, .12 and .12 Mbit/s; the last at the loop's end.
    figures = Trace(np.array([50, 100, 300, 400]), "t").describe()
    assert figures["duration_s"] == 0.4
    assert figures["mean_mbps"] == pytest.approx(0.12)
    assert figures["sd_mbps"] == pytest.approx(0.12 * np.sqrt(0.5))
    assert (figures["min_mbps"], figures["max_mbps"]) == (0.0, pytest.approx(0.24))
    assert figures["skewness"] == pytest.approx(0.0, abs=1e-9)
    assert figures["kurtosis"] == pytest.approx(2.0)
    assert figures["longest_gap_ms"] == 200
    assert (figures["outages"], figures["outage_share"]) == (1, 0.5)
    assert figures["outages_per_min"] == pytest.approx(150)
    # Deviations +1, -1, 0, 0: one step apart they multiply to -1, 0, 0; over 3 pairs and a variance of 1/2.
    assert figures["autocorrelation_by_lag_ms"]["100"] == pytest.approx(-2 / 3)
    assert figures["opportunities"] == 4


def test_describe_agrees_with_dense_arithmetic() -> None:
    draw = np.random.default_rng(4)
    times_ms = np.sort(draw.integers(1, 60_001, 3000) // 700 * 700 + draw.integers(1, 60, 3000))
    trace = Trace(times_ms, "t")
    figures = trace.describe()
    bins = trace.duration_ms // 100
    rate = np.bincount((times_ms - 1) // 100, minlength=bins)[:bins] * 0.12
    centred = rate - rate.mean()
    assert figures["sd_mbps"] == pytest.approx(rate.std())
    assert figures["skewness"] == pytest.approx((centred**3).mean() / rate.std() ** 3)
    assert figures["kurtosis"] == pytest.approx((centred**4).mean() / rate.std() ** 4)
    for lag in (1, 2, 5, 10, 20, 50, 100):
        expected = (centred[:-lag] * centred[lag:]).mean() / rate.var()
        assert figures["autocorrelation_by_lag_ms"][str(lag * 100)] == pytest.approx(expected)


def test_describe_edge_cases() -> None:
    constant = Trace.constant(12, 5).describe()
    assert (constant["sd_mbps"], constant["skewness"], constant["longest_gap_ms"]) == (
        pytest.approx(0, abs=1e-9),
        None,
        1,
    )
    assert constant["autocorrelation_by_lag_ms"]["100"] is None
    tiny = Trace(np.array([0, 7]), "t").describe()
    assert tiny["mean_mbps"] == pytest.approx(2 * 12 / 7)
    tracemalloc.start()
    sparse = Trace(np.array([2**32 - 1]), "t").describe()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000  # there are 43 million bins, which must not all be held
    assert (sparse["outages"], sparse["longest_gap_ms"]) == (1, 2**32 - 1)
    # The gap over the seam: from the loop's end to the next round's first opportunity.
    assert Trace(np.array([500, 510]), "t").describe()["longest_gap_ms"] == 500


def test_cut() -> None:
    trace = Trace(np.array([0, 10, 20, 20, 35, 50]), "t")
    head, tail = trace.cut(0, 20, "head"), trace.cut(20, 50, "tail")
    assert head.opportunities_ms.tolist() == [0, 10, 20, 20]
    assert tail.opportunities_ms.tolist() == [15, 30]
    assert trace.cut(0, 30, "h").opportunities_ms.tolist() == [0, 10, 20, 20, 30]
    for bad in ((0, 51), (30, 20), (-1, 5), (36, 49)):
        with pytest.raises(TraceError):
            trace.cut(*bad, "bad")


def test_a_scaled_trace_has_another_rate_and_the_same_gaps() -> None:
    trace = Trace(np.array([1, 1, 2, 3, 900, 901, 901, 1000], np.uint32), "a")
    assert trace.scaled(1.0).sha256 == trace.sha256
    assert (
        trace.scaled(2.0).opportunities_ms.tolist() == [1] * 4 + [2] * 2 + [3] * 2 + [900] * 2 + [901] * 4 + [1000] * 2
    )
    assert trace.scaled(0.5).opportunities_ms.tolist() == [1, 3, 901, 1000]
    assert trace.scaled(1e-6).opportunities_ms.tolist() == [1000]
    for factor in (0.0, -1.0, float("nan"), 1e12):
        with pytest.raises(TraceError, match="trace a: cannot be scaled"):
            trace.scaled(factor)


@given(values=times, factor=st.floats(0.1, 5.0))
def test_scaling_keeps_the_loop_and_scales_the_service(values: list[int], factor: float) -> None:
    trace = Trace(np.array(values, np.uint32), "a")
    scaled = trace.scaled(factor)
    assert scaled.duration_ms == trace.duration_ms
    assert scaled.opportunities_ms.size == max(1, round(factor * len(values)))
    for t in values:
        served = np.searchsorted(scaled.opportunities_ms, t, side="right")
        assert (
            abs(served - factor * np.searchsorted(trace.opportunities_ms, t, side="right")) <= 1.5
        )  # the total is rounded


def test_served_at_skips_times_without_service() -> None:
    edges_ms, served = np.array([0.0, 10, 30, 40]), np.array([0.0, 2, 2, 4])
    assert served_at_ms(edges_ms, served, np.array([0.5, 1, 2, 2.1, 3, 4])).tolist() == [3, 5, 10, 31, 35, 40]


def test_sets_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for name in ("b.down", "a.down"):
        write(folder, b"1\n5\n", name)
    write(folder, b"hidden", ".hidden")
    write(folder, b"text", "README.md")
    set_file = write(tmp_path, b'[set]\nname = "s"\nfiles = ["traces/b.down", "traces"]\n', "s.toml")
    assert [trace.name for trace in load_traces([folder])] == ["a.down", "b.down"]
    assert [trace.name for trace in load_traces([set_file, folder / "a.down"])] == ["b.down", "a.down"]
    with pytest.raises(TraceError, match="no trace was given"):
        load_traces([])
    other = tmp_path / "other"
    other.mkdir()
    write(other, b"2\n", "a.down")  # whose rows are not to be taken for the other's
    named = [trace.name for trace in load_traces([folder, other])]
    assert [name.partition("down")[0] for name in named] == ["a.", "b.", "a."]
    assert len(set(named)) == 3
    set_file.unlink()
    with pytest.raises(TraceError, match="sub-folders: other, traces"):
        load_traces([tmp_path])


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"[set", r"not valid TOML: .*; a set file is \[set\] with name"),
        (b"\xff", ":1: a set file is UTF-8"),
        (b"files = []", "sections are"),
        (b"[set]\nn = " + b"9" * 5000, "not valid TOML: Exceeds the limit"),
        (b"[set]\nfiles = " + b"[" * 5000, "not valid TOML: maximum recursion"),
        (b'[set]\nname = "s"\nfile = ["a"]', "unknown key 'file'"),
        (b'[set]\nname = "s"\nfiles = []', "lacks a name or a list"),
        (b'[set]\nname = "s"\nfiles = [3]', r"files\[1\] is 3"),
        (b'[set]\nname = "s"\nfiles = ["none"]', r"files\[1\] \(none\) does not exist"),
        (b'[set]\nname = "s"\nfiles = ["s.toml"]', "another set file"),
    ],
)
def test_set_file_errors(tmp_path: Path, content: bytes, what: str) -> None:
    path = write(tmp_path, content, "s.toml")
    with pytest.raises(TraceError, match=what) as caught:
        load_traces([path])
    assert str(path) in str(caught.value)


def test_no_device_pipe_or_link_is_replaced(tmp_path: Path) -> None:
    """`--out /dev/null --force` left a trace for everybody on the host in place of the device."""
    pipe, link, found = tmp_path / "pipe", tmp_path / "link", tmp_path / "found"
    os.mkfifo(pipe)
    link.symlink_to(found)
    with pytest.raises(TraceError, match="pipe: is no regular file; name another"):
        write_atomically(pipe, b"one", overwrite=True)
    assert pipe.is_fifo()
    write_atomically(link, b"one")
    write_atomically(link, b"two", overwrite=True)
    assert link.is_symlink()
    assert found.read_bytes() == b"two"


def test_atomic_write(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"one")
    with pytest.raises(TraceError, match="--force"):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    write_atomically(path, b"two", overwrite=True)
    assert path.read_bytes() == b"two"
    with pytest.raises(TraceError, match="cannot write"):
        write_atomically(path / "f", b"")  # below a file
    assert os.listdir(tmp_path) == ["f"]
    write_atomically(tmp_path / "absent" / "too" / "f", b"three")
    assert (tmp_path / "absent" / "too" / "f").read_bytes() == b"three"
