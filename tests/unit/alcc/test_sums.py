"""The memory in which processes under the gate add up what they come to."""

import fcntl
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.gated import FOLDER, TIMEOUT_S, environment, seen_in, settings
from reinet.alcc import sums
from reinet.alcc._alcc import SUM_COUNTS, SUMS_MAGIC, SUMS_PLACES
from reinet.alcc.sums import Sums

PLACE_BYTES = 128
DELAYS = ("delivered_bytes", "delay_byte_us", "saved_byte_us")


def _write(into: Sums, taken: int, *places: dict[str, float]) -> None:
    fd = os.open(into.path, os.O_RDWR)
    os.pwrite(fd, struct.pack("<Q", taken), 8)
    for number, place in enumerate(places, 1):
        counts = [int(place.get(key, 0)) for key in SUM_COUNTS]
        os.pwrite(fd, struct.pack("<9Q3d", *counts, *[place.get(key, 0.0) for key in DELAYS]), number * PLACE_BYTES)
    os.close(fd)


def test_the_sums_of_several_processes_are_added_up_and_delays_are_means_over_bytes() -> None:
    own = Sums()
    one = {"flows": 1, "bytes": 120, "delivered_bytes": 100, "delay_byte_us": 400_000.0, "saved_byte_us": 100_000.0}
    other = {"flows": 2, "bytes": 300, "delivered_bytes": 300, "delay_byte_us": 2_400_000.0}
    _write(own, 2, one, other)
    total = own.total()
    assert (total["flows"], total["bytes"], total["processes"], total["senseless"]) == (3, 420, 2, 0)
    assert (total["qdelay_mean_ms"], total["qdelay_saved_ms"]) == (7.0, 0.25)


def test_of_nobody_they_are_nothing() -> None:
    total = Sums().total()
    assert set(total) == {*SUM_COUNTS, "qdelay_mean_ms", "qdelay_saved_ms", "processes", "senseless"}
    assert not any(total.values())


def test_a_place_that_a_thread_took_in_vain_is_no_process() -> None:
    own = Sums()
    _write(own, 2, {}, {"flows": 1})
    assert own.total()["processes"] == 1


def test_processes_beyond_the_places_are_counted() -> None:
    own = Sums()
    _write(own, SUMS_PLACES + 5, *[{"flows": 1}] * SUMS_PLACES)
    assert own.total()["processes"] == SUMS_PLACES + 5


@pytest.mark.parametrize("key", ["bytes", *DELAYS])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e300])
def test_what_nobody_counted_is_left_out(key: str, value: float) -> None:
    own, good = Sums(), {"flows": 1, "delivered_bytes": 10.0}
    _write(own, 2, good, {"flows": 1, key: 2**64 - 1 if key == "bytes" else value})
    total = own.total()
    assert (total["flows"], total["processes"], total["senseless"]) == (1, 1, 1)
    assert total["qdelay_mean_ms"] == 0.0


def test_whoever_writes_nonsense_everywhere_breaks_nothing() -> None:
    own = Sums()
    fd = os.open(own.path, os.O_RDWR)
    os.pwrite(fd, b"\xff" * os.fstat(fd).st_size, 0)
    os.close(fd)
    total = own.total()
    assert (total["flows"], total["senseless"]) == (0, SUMS_PLACES)
    assert total["processes"] <= sums.MOST_OF_A_SUM


def test_nobody_can_take_the_memory_away() -> None:
    """A process that touches memory which was cut off ends by SIGBUS."""
    own = Sums()
    fd = os.open(own.path, os.O_RDWR)
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    with pytest.raises(OSError, match="not permitted"):
        os.posix_fallocate(fd, 1 << 20, 1)
    os.close(fd)


def test_a_gate_takes_no_memory_that_somebody_can_take_away(tmp_path: Path) -> None:
    """What is there instead of it is let alone: a file, or memory without a seal."""
    as_made = SUMS_MAGIC.to_bytes(8, "little") + bytes(1 << 20)
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.pwrite(unsealed, as_made, 0)
    file, none = tmp_path / "file", tmp_path / "none"
    file.write_bytes(as_made)
    for path in (Path(f"/proc/{os.getpid()}/fd/{unsealed}"), file, none):
        seen_in("passed_on", settings(report=path))
    assert os.pread(unsealed, 2 << 20, 0) == file.read_bytes() == as_made
    assert not none.exists()
    os.close(unsealed)


def test_a_gate_takes_nobody_elses_memory() -> None:
    """Who made the sums may be gone, and another process have its number."""
    others = os.memfd_create("others", os.MFD_ALLOW_SEALING)
    os.ftruncate(others, 1 << 20)
    fcntl.fcntl(others, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    seen_in("passed_on", settings(report=Path(f"/proc/{os.getpid()}/fd/{others}")))
    assert os.pread(others, 1 << 20, 0) == bytes(1 << 20)
    os.close(others)


STARTER = """
import os, subprocess, sys
from helpers.gated import settings
from reinet.alcc.sums import Sums

own = Sums()
subprocess.Popen(sys.argv[1:], env=settings(report=own.path).environment(), stdin=subprocess.PIPE)
os._exit(0)
"""
SENDER = "import sys; sys.stdin.read(); sys.path.insert(0, sys.argv[1]); import edges; print(edges.passed_on())"
"""It begins when its starter has ended."""


def test_a_process_that_outlives_its_starter_goes_on_counting() -> None:
    """As nghttpx's: the main process dies of SIGTERM first. The memory is theirs as well."""
    command = [sys.executable, "-c", STARTER, sys.executable, "-c", SENDER, str(FOLDER)]
    told = {**environment(None), "PYTHONPATH": str(FOLDER.parent.parent)}
    done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert done.stdout.startswith("{'held'"), done.stderr
