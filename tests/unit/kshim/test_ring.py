"""The reader of the kernel's ring buffer, over memory that this file lays out as the kernel does."""

import mmap
import os
import struct
from collections.abc import Iterator

import pytest

from reinet.envs.sim import _driven

PAGE = mmap.PAGESIZE
BYTES = PAGE
BUSY, DISCARDED = 1 << 31, 1 << 30
ENTRY_BYTES = 16
"""A header of eight bytes and a number."""


class Writer:
    """The kernel's side: two positions, and entries that follow each other."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._at = 0

    def write(self, number: int, flags: int = 0) -> None:
        """Adds an entry; its header says what state it is in."""
        struct.pack_into("<IIQ", self._memory, 2 * PAGE + self._at, 8 | flags, 0, number)
        self._at += ENTRY_BYTES
        struct.pack_into("<Q", self._memory, PAGE, self._at)

    def commit(self, index: int) -> None:
        """Ends the writing of the index-th entry."""
        struct.pack_into("<I", self._memory, 2 * PAGE + index * ENTRY_BYTES, 8)

    @property
    def all_read(self) -> bool:
        """Whether the kernel would send an interrupt for the next entry."""
        return bool(struct.unpack_from("<Q", self._memory, 0)[0] == self._at)

    @property
    def given_back(self) -> int:
        """How many entries the reader no longer needs."""
        return int(struct.unpack_from("<Q", self._memory, 0)[0]) // ENTRY_BYTES


@pytest.fixture
def ends() -> Iterator[tuple[Writer, "_driven.DrivenRing"]]:
    fd = os.memfd_create("ring")
    try:
        os.ftruncate(fd, 2 * PAGE + 2 * BYTES)
        with mmap.mmap(fd, 2 * PAGE + 2 * BYTES) as memory:
            yield Writer(memory), _driven.DrivenRing(fd, BYTES)
    finally:
        os.close(fd)


def test_entries_come_once_and_in_order_whatever_is_between_them(ends: tuple[Writer, "_driven.DrivenRing"]) -> None:
    writer, ring = ends
    for number, flags in ((1, 0), (2, DISCARDED), (3, 0), (4, BUSY), (5, 0)):
        writer.write(number, flags)
    assert ring.consume() == [1, 3]
    assert ring.consume() == []
    writer.commit(3)
    assert ring.consume() == [4, 5]
    writer.write(6)
    ring.discard()
    assert (ring.consume(), writer.all_read) == ([], True)


def test_whoever_rests_is_not_interrupted_and_whoever_waits_is(ends: tuple[Writer, "_driven.DrivenRing"]) -> None:
    writer, ring = ends
    assert writer.all_read, "before the first entry the reader may wait"
    for number in range(5):
        writer.write(number)
    assert ring.consume() == list(range(5))
    assert (writer.all_read, writer.given_back) == (False, 4), "only the latest entry is kept"
    writer.write(5)
    assert ring.consume() == [5]
    assert not writer.all_read
    ring.wait()
    assert writer.all_read
