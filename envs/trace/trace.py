"""Traces of a link's delivery opportunities, in Mahimahi's format.

One integer (milliseconds) per line, non-decreasing, the last above 0. Each line is one opportunity to deliver one
full-size packet; a repeated value is several in that millisecond; the trace loops at its last value.
"""

from __future__ import annotations

import codecs
import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from reinet.core.errors import TraceError
from reinet.envs.trace.files import read_limited, write_atomically

MAX_MS = 2**32 - 1
"""Times are unsigned 32-bit milliseconds here, in the simulator and on 32-bit builds of Mahimahi: 49.7 days."""
MAX_FILE_BYTES = 64 * 2**20
"""About 8 million opportunities (an hour at 27 Mbit/s). More than this is rarely a trace, and every link that runs it
would hold it in memory."""

DESCRIBE_BYTES = 1500
"""A described opportunity carries an IP packet, as published figures count; on the link it carries 1504 bytes."""
PKTS_PER_MBIT = 1e6 / 8 / DESCRIBE_BYTES
"""Opportunities that make up one megabit."""
BIN_MS = 100
OUTAGE_MS = 200
"""A gap this long is an outage: ten round trips of a 20 ms path, and past the kernel's smallest RTO (200 ms)."""
AUTOCORRELATION_LAGS_MS = (100, 200, 500, 1000, 2000, 5000, 10000)

FloatArray = npt.NDArray[np.float64]

_LF, _ZERO, _MINUS = b"\n0-"
GZIP_BEGINS, LOOKS_COMPRESSED = b"\x1f\x8b", " (it looks compressed: unpack it first)"
_LOOKS = {
    GZIP_BEGINS: LOOKS_COMPRESSED,
    codecs.BOM_UTF8: " (it begins with an editor's byte-order mark: reinet traces import takes that away)",
}
"""How files begin that are no plain text, and what to do about them."""
_MAX_DIGITS = len(str(MAX_MS))


@dataclass(frozen=True, eq=False)
class Trace:
    """Delivery opportunities of a link, at least one, checked once and never changed.

    ``opportunities_ms`` is a read-only ``uint32`` array, non-decreasing, its last value (the loop's length) above 0.
    Raises TraceError when it is not.
    """

    opportunities_ms: npt.NDArray[np.uint32]
    name: str
    path: Path | None = field(default=None)

    def __post_init__(self) -> None:
        values = np.asarray(self.opportunities_ms)
        if values.ndim != 1 or values.size == 0:
            raise TraceError(f"trace {self.name}: has no delivery opportunity; give at least one time in ms above 0")
        if not np.issubdtype(values.dtype, np.integer):
            raise TraceError(f"trace {self.name}: times are {values.dtype}; give whole milliseconds")
        if int(values.min()) < 0 or int(values.max()) > MAX_MS:
            raise TraceError(f"trace {self.name}: times must lie in 0..{MAX_MS} ms")
        if values[-1] == 0:
            raise TraceError(f"trace {self.name}: the last time is 0, so the loop has no length; end above 0 ms")
        falls = np.flatnonzero(values[1:] < values[:-1])
        if falls.size:
            at = int(falls[0])
            raise TraceError(
                f"trace {self.name}: opportunity {at + 2} ({values[at + 1]} ms) comes before the one ahead of it "
                f"({values[at]} ms); sort the times"
            )
        own = np.array(values, dtype=np.uint32)
        own.setflags(write=False)
        object.__setattr__(self, "opportunities_ms", own)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Returns the trace in a file; raises TraceError naming file, line, what is wrong and the cure."""
        path = Path(path)
        return cls.parse(read_limited(path, MAX_FILE_BYTES, "trace"), path)

    @classmethod
    def parse(cls, raw: bytes, path: Path) -> Trace:
        """Returns the trace in a file's bytes; raises TraceError as ``load``."""
        return cls(_parse(raw, path), path.name, path)

    @classmethod
    def constant(cls, mbps: float, seconds: float, name: str | None = None) -> Trace:
        """Returns a steady rate: opportunities of 1500 B evenly spaced over ``seconds``.

        Raises TraceError for a rate or a length that no trace can have.
        """
        if not (math.isfinite(mbps) and math.isfinite(seconds) and mbps > 0 and seconds >= 0.001):
            raise TraceError(f"constant trace: {mbps} Mbit/s over {seconds} s; both must be positive (1 ms at least)")
        duration_ms = round(min(seconds * 1000, MAX_MS + 1))  # products of finite numbers may be infinite
        pkts, most = mbps * PKTS_PER_MBIT * duration_ms / 1000, most_opportunities(duration_ms)
        count = round(min(pkts, most + 1))
        if duration_ms > MAX_MS or not 1 <= count <= most:
            raise TraceError(
                f"constant trace: {mbps} Mbit/s over {seconds} s is {pkts:.7g} opportunities; between 1 and "
                f"{most} within {MAX_MS} ms are possible: change the rate or the length"
            )
        # Rounded up, so that the last one falls on the loop's end and the rate holds across loops.
        times_ms = -(-np.arange(1, count + 1, dtype=np.int64) * duration_ms // count)
        return cls(times_ms.astype(np.uint32), name or f"constant-{mbps:g}mbps")

    @property
    def duration_ms(self) -> int:
        """Returns the length of the loop."""
        return int(self.opportunities_ms[-1])

    @property
    def mean_mbps(self) -> float:
        """Returns the mean rate at 1500 B per opportunity."""
        return self.opportunities_ms.size * DESCRIBE_BYTES * 8 / (self.duration_ms * 1000)

    @cached_property
    def canonical_text(self) -> bytes:
        r"""Returns ``%d\n`` per opportunity: what ``save`` writes and what ``sha256`` names."""
        return b"%s\n" % "\n".join(map(str, self.opportunities_ms.tolist())).encode()

    @cached_property
    def sha256(self) -> str:
        """Returns ``sha256sum`` of the canonical text; line endings, leading zeros and names do not change it."""
        return hashlib.sha256(self.canonical_text).hexdigest()

    def cut(self, start_ms: int, end_ms: int, name: str) -> Trace:
        """Returns the piece after ``start_ms`` up to ``end_ms``, with a time of its own; raises TraceError if empty."""
        if not 0 <= start_ms < end_ms <= self.duration_ms:
            raise TraceError(
                f"trace {self.name}: cannot cut {start_ms}..{end_ms} ms out of {self.duration_ms} ms; stay within it"
            )
        first = 0 if start_ms == 0 else int(np.searchsorted(self.opportunities_ms, start_ms, side="right"))
        last = int(np.searchsorted(self.opportunities_ms, end_ms, side="right"))
        times_ms = self.opportunities_ms[first:last].astype(np.int64) - start_ms
        if not times_ms.size:
            raise TraceError(f"trace {self.name}: no opportunity between {start_ms} and {end_ms} ms; cut elsewhere")
        if times_ms[-1] < end_ms - start_ms:
            times_ms = np.append(times_ms, end_ms - start_ms)  # the loop's length is its last time
        return Trace(times_ms.astype(np.uint32), name)

    def scaled(self, factor: float) -> Trace:
        """Returns the same link at ``factor`` times its rate: gaps and loop stay where they are. Another content."""
        self.check_scale(factor)
        size = self.opportunities_ms.size
        count = max(1, round(factor * size))
        # Opportunity k of the new trace comes when the old one has had k / factor of them; the last stays the last.
        nth = -(-np.arange(1, count + 1, dtype=np.int64) * size // count) - 1
        return Trace(self.opportunities_ms[nth], f"{self.name} x {factor:.3g}")

    def check_scale(self, factor: float) -> None:
        """Raises TraceError where ``scaled`` does: not above 0, or more opportunities than a file may have."""
        if not 0 < factor * self.opportunities_ms.size <= most_opportunities(self.duration_ms):
            raise TraceError(f"trace {self.name}: cannot be scaled by {factor}; give a factor above 0, not as large")

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Writes the canonical text, whole or not at all, and returns the path.

        Raises TraceError if the file exists or cannot be written.
        """
        path = Path(path)
        write_atomically(path, self.canonical_text, overwrite=overwrite)
        return path

    def describe(self) -> dict[str, Any]:
        """Returns figures of the trace, units in the keys; see ``describe`` in this module."""
        return describe(self)


def describe(trace: Trace) -> dict[str, Any]:
    """Returns figures of a trace; rates are at 1500 B per opportunity in 100 ms bins, without a last, partial bin.

    ``kurtosis`` is the plain one (3 for a normal distribution), as in DeepCC's tables; it and ``skewness`` are None
    for a constant rate, and so is the autocorrelation. Outages are gaps of at least 200 ms, the loop's seam included.
    """
    times_ms = trace.opportunities_ms.astype(np.int64)
    duration_ms = trace.duration_ms
    bin_ms = min(BIN_MS, duration_ms)
    bins = duration_ms // bin_ms
    # An opportunity stamped t belongs to the millisecond that ends at t, so that the loop's last one is inside its last
    # bin. Only occupied bins are held: a trace of one line may last 49 days.
    index, count = np.unique(np.maximum(times_ms - 1, 0) // bin_ms, return_counts=True)
    inside = index < bins
    rate = count[inside].astype(np.float64) * (DESCRIBE_BYTES * 8 / (bin_ms * 1000))
    moments = _SparseMoments(index[inside], rate, bins)

    gaps_ms = np.diff(times_ms, prepend=0)  # the first gap starts at the loop's seam, where the last opportunity is
    outages_ms = gaps_ms[gaps_ms >= OUTAGE_MS]
    return {
        "duration_s": duration_ms / 1000,
        "mean_mbps": trace.mean_mbps,
        "sd_mbps": moments.sd,
        "min_mbps": moments.smallest,
        "max_mbps": float(rate.max()) if rate.size else 0.0,
        "skewness": moments.standardised(3),
        "kurtosis": moments.standardised(4),
        "longest_gap_ms": int(gaps_ms.max()),
        "outages": int(outages_ms.size),
        "outages_per_min": outages_ms.size * 60_000 / duration_ms,
        "outage_share": float(outages_ms.sum()) / duration_ms,
        "outage_median_ms": float(np.median(outages_ms)) if outages_ms.size else None,
        "autocorrelation_by_lag_ms": {
            str(lag): moments.autocorrelation(lag // bin_ms) for lag in AUTOCORRELATION_LAGS_MS if lag >= bin_ms
        },
        "opportunities": int(times_ms.size),
        "sha256": trace.sha256,
    }


class _SparseMoments:
    """Moments of a series that is ``value`` at the sorted places ``index`` and 0 at the rest of its ``length``."""

    def __init__(self, index: npt.NDArray[np.int64], value: FloatArray, length: int) -> None:
        self.index, self.value, self.length = index, value, length
        self.mean = float(value.sum()) / length
        self.sd = math.sqrt(max(self._central(2), 0.0))
        # Below this the spread is rounding of the sums, not of the trace.
        self.constant = self.sd <= 1e-9 * max(self.mean, 1e-300)
        self.smallest = 0.0 if value.size < length else float(value.min())

    def _central(self, power: int) -> float:
        zeros = self.length - self.value.size
        return (float(((self.value - self.mean) ** power).sum()) + zeros * (-self.mean) ** power) / self.length

    def standardised(self, power: int) -> float | None:
        return None if self.constant else self._central(power) / self.sd**power

    def autocorrelation(self, lag: int) -> float | None:
        if self.constant or not 1 <= lag < self.length // 2:
            return None
        there = np.searchsorted(self.index, self.index + lag)
        hit = there < self.index.size
        hit[hit] = self.index[there[hit]] == self.index[hit] + lag
        products = float((self.value[hit] * self.value[there[hit]]).sum())
        early = float(self.value[self.index < self.length - lag].sum())
        late = float(self.value[self.index >= lag].sum())
        covariance = products - self.mean * (early + late) + (self.length - lag) * self.mean**2
        return covariance / (self.length - lag) / self.sd**2


def most_opportunities(duration_ms: int) -> int:
    """Returns how many opportunities a trace of this length may have so that its file can be read again."""
    return MAX_FILE_BYTES // (len(str(duration_ms)) + 1)


def served_at_ms(edges_ms: FloatArray, served_pkts: FloatArray, at_pkts: FloatArray) -> npt.NDArray[np.int64]:
    """Returns when a link has served ``at_pkts``, in ms, if its running total is ``served_pkts`` at ``edges_ms``.

    The total is linear between, starts at 0 and never falls; ``at_pkts`` lie above 0, up to the last total. Times are
    rounded up to whole ms.
    """
    # A millionth of a packet of grace: the sums' rounding must not push what completes a stretch of service behind the
    # outage that follows.
    at_pkts = np.maximum(at_pkts - 1e-6, 1e-9)
    piece = np.searchsorted(served_pkts, at_pkts, side="left") - 1
    rise = served_pkts[piece + 1] - served_pkts[piece]  # above 0: the search ends where the total first reaches it
    inside = (at_pkts - served_pkts[piece]) / rise
    exact_ms = edges_ms[piece] + inside * (edges_ms[piece + 1] - edges_ms[piece])
    return np.ceil(exact_ms).astype(np.int64)


def _parse(raw: bytes, path: Path) -> npt.NDArray[np.uint32]:
    """Returns the times in a file's bytes; NumPy reads them, and goes line by line to say where something is wrong."""
    if not raw:
        raise TraceError(f"{path}:1: the file is empty; a trace has one time in ms per line, the last above 0")
    text = raw.replace(b"\r\n", b"\n") if b"\r" in raw else raw
    data = np.frombuffer(text if text.endswith(b"\n") else text + b"\n", dtype=np.uint8)
    ends = np.flatnonzero(data == _LF)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts
    digits = data - _ZERO  # wraps below '0', so one comparison finds every other byte
    if int(lengths.min()) == 0 or int(lengths.max()) > _MAX_DIGITS or int((digits > 9).sum()) != ends.size:
        _explain(text, path)
    times_ms = np.zeros(ends.size, dtype=np.uint64)
    for place in range(int(lengths.max())):
        has = lengths > place
        if bool(has.all()):
            times_ms = times_ms * np.uint64(10) + digits[starts + place]
        else:
            times_ms[has] = times_ms[has] * np.uint64(10) + digits[starts[has] + place]
    if int(times_ms.max()) > MAX_MS or bool((times_ms[1:] < times_ms[:-1]).any()) or times_ms[-1] == 0:
        _explain(text, path)
    return times_ms.astype(np.uint32)


def _explain(text: bytes, path: Path) -> NoReturn:
    """Raises TraceError for the first line that is wrong."""
    lines = (text[:-1] if text.endswith(b"\n") else text).split(b"\n")
    before = 0
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}:"
        shown = _shown(line)
        if not line:
            raise TraceError(f"{where} empty line; every line is one time in ms: delete it")
        if not line.isascii() or any(byte < 32 and byte != 9 for byte in line) or b"\x7f" in line:
            looks = next((cure for begin, cure in _LOOKS.items() if number == 1 and line.startswith(begin)), "")
            raise TraceError(f"{where} not text: {shown}; a trace is plain text with one time in ms per line{looks}")
        if line[0] == _MINUS and line[1:].isdigit():
            raise TraceError(f"{where} negative time {shown}; times count from the start: shift them to 0 or above")
        if not line.isdigit():
            raise TraceError(
                f"{where} {shown} is not a whole number of milliseconds; "
                "if the file is a recording in another format, convert it with: reinet traces import"
            )
        value = int(line.lstrip(b"0")[: _MAX_DIGITS + 1] or b"0")  # Python itself refuses thousands of digits
        if value > MAX_MS:
            raise TraceError(
                f"{where} {shown} ms is beyond the largest time ({MAX_MS} ms, 49.7 days); check the unit (ms)"
            )
        if len(line) > _MAX_DIGITS:
            raise TraceError(f"{where} {shown} has more than {_MAX_DIGITS} digits; drop the leading zeros")
        if value < before:
            raise TraceError(
                f"{where} time goes back from {before} to {value} ms; times must not decrease: sort the file"
            )
        before = value
    raise TraceError(f"{path}:{len(lines)}: the last time is 0 ms, so the loop has no length; end above 0 ms")


def _shown(line: bytes) -> str:
    """Returns a line for a message: quoted, printable, short."""
    return repr(line[:40])[1:] + ("..." if len(line) > 40 else "")
