"""NumPy's view of the records in ``flow_stats.h``, made from the field tables that the C++ core exports."""

from enum import IntFlag

import numpy as np
import numpy.typing as npt

from reinet.core import _core


def _dtype(fields: list[tuple[str, str, int]], size_bytes: int) -> np.dtype[np.void]:
    names, formats, offsets = zip(*fields, strict=True)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size_bytes})


FLOW_STATS_DTYPE = _dtype(_core.FLOW_STATS_FIELDS, _core.FLOW_STATS_SIZE)
"""One FlowStats record per flow and period; units are in the field names, meanings in ``flow_stats.h``."""

FlowStatsArray = npt.NDArray[np.void]
"""Of ``FLOW_STATS_DTYPE``, one element for each record."""

ACK_DTYPE = _dtype(_core.ACK_FIELDS, _core.ACK_SIZE)
"""One ACK as the period rule sees it."""


HEADER_BYTES: int = _core.HEADER_BYTES
"""On an emulated link a segment is longer than its payload by the headers of IP, of TCP with timestamps and of TUN."""

OPPORTUNITY_BYTES: int = _core.OPPORTUNITY_BYTES
"""What one delivery opportunity carries: a packet of 1500 bytes and its TUN header."""


class Flag(IntFlag):
    """Bits of ``FlowStats.flags``."""

    APP_LIMITED = _core.FLAG_APP_LIMITED
    IN_RECOVERY = _core.FLAG_IN_RECOVERY
    SLOW_START = _core.FLAG_SLOW_START
    NO_SAMPLE = _core.FLAG_NO_SAMPLE
    CLOSED = _core.FLAG_CLOSED
    RESTARTED = _core.FLAG_RESTARTED
    COMPANY = _core.FLAG_COMPANY
    RELATIVE = _core.FLAG_RELATIVE
    SILENCE = _core.FLAG_SILENCE


def empty_stats(count: int) -> FlowStatsArray:
    """Returns ``count`` FlowStats records, all zero."""
    return np.zeros(count, FLOW_STATS_DTYPE)


def told_once(records: FlowStatsArray) -> FlowStatsArray:
    """Returns one flow's records, in order, without those of a silence whose period the next record repeats.

    Such a record does not end its period (``core/period.h``): what is summed or counted over records would hold its
    bytes and samples once more for every 250 ms of the silence. Before the flow's end it tells of them last.
    """
    flags = records["flags"]
    repeated = (flags[:-1] & int(Flag.SILENCE) != 0) & (flags[1:] & int(Flag.CLOSED) == 0)
    once: FlowStatsArray = records[~np.append(repeated, False)[: len(records)]]
    return once


def as_bytes(records: npt.NDArray[np.void], dtype: np.dtype[np.void] = FLOW_STATS_DTYPE) -> npt.NDArray[np.uint8]:
    """Returns records as rows of bytes, as they enter the C++ core; raises TypeError for another dtype."""
    given = records.dtype
    if given is not dtype and given != dtype:  # most are the very one: comparing fields takes longer than all the rest
        raise TypeError(f"records of dtype {dtype} expected, not {given}")
    rows = np.ascontiguousarray(np.atleast_1d(records))
    return rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
