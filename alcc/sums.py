"""What the processes of a command that runs under the gate come to, in memory that they share with its starter."""

import fcntl
import os
import sys
from pathlib import Path
from typing import Any

from reinet.alcc._alcc import SUM_COUNTS, SUMS_BYTES, SUMS_MAGIC, SUMS_PLACES, sums_of

MOST_OF_A_SUM = 1e18
"""Bytes at 100 Gbit/s for two years: what is larger nobody has counted."""
_MOST_DELAY_US = 1e9


class Sums:
    """Memory that processes add to as they go, so that no end of theirs loses anything (``alcc/gate/sums.hpp``).

    Who may write there is not known: places that make no sense are left out.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("reinet-sums", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(self._fd, 0, SUMS_BYTES)  # else a full memory ended whoever touches it first
        os.pwrite(self._fd, SUMS_MAGIC.to_bytes(8, sys.byteorder), 0)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)

    @property
    def path(self) -> Path:
        """Returns what leads to it for as long as this process lives; for this user's processes, and root's."""
        return Path(f"/proc/{os.getpid()}/fd/{self._fd}")

    def close(self) -> None:
        """Gives the descriptor back; who shares the memory goes on adding."""
        os.close(self._fd)

    def total(self) -> dict[str, Any]:
        """Returns the sums of all processes.

        SUM_COUNTS; ``qdelay_mean_ms``, and ``qdelay_saved_ms``, what a cap would have saved of it, means over bytes;
        ``processes``, how many had a connection that sent anything or was let go; ``senseless``, how many places were
        left out.
        """
        taken, places = sums_of(os.pread(self._fd, SUMS_BYTES, 0))
        sane = [place for place in places if _makes_sense(place)]
        total: dict[str, Any] = {key: sum(place[key] for place in sane) for key in SUM_COUNTS}
        delivered_bytes = sum(place["delivered_bytes"] for place in sane)
        for key, name in (("delay_byte_us", "qdelay_mean_ms"), ("saved_byte_us", "qdelay_saved_ms")):
            total[name] = sum(place[key] for place in sane) / delivered_bytes / 1000 if delivered_bytes else 0.0
        beyond = min(max(taken - SUMS_PLACES, 0), int(MOST_OF_A_SUM))
        # A child that goes on with its parent's connection has bytes alone: the connection is counted once.
        telling = sum(bool(place["flows"] or place["bytes"] or place["not_gated"]) for place in sane)
        return total | {"processes": telling + beyond, "senseless": len(places) - len(sane)}


def _makes_sense(place: dict[str, float]) -> bool:
    # NaN and infinities fail the comparisons, too.
    counted = all(0 <= place[key] < MOST_OF_A_SUM for key in (*SUM_COUNTS, "delivered_bytes"))
    most_byte_us = place["delivered_bytes"] * _MOST_DELAY_US
    return counted and all(0 <= place[key] <= most_byte_us for key in ("delay_byte_us", "saved_byte_us"))
