"""Recordings of a link's rate become traces of delivery opportunities.

=============  =====================================================================================================
format         one line of it
=============  =====================================================================================================
``mahimahi``   a time in ms per opportunity; taken as it is, without blanks around it
``phone-csv``  a phone logger's CSV with a header: ``Timestamp`` (2020.02.14_09.38.22 or ISO 8601), ``DL_bitrate`` in
               kbit/s, ``State`` (D while downloading), about one line a second
``s-mbps``     seconds and Mbit/s, separated by white space or a comma; likewise ``s-kbps``, ``ms-mbps``, ``ms-kbps``
=============  =====================================================================================================

A rate holds from its line's time to the next line's; the last one for as long as lines usually are apart. Lines of the
same time count as their mean. The trace starts at the first line. A rate of 0 is an outage and stays one. What was not
measured is left out and the trace closes up there: a rate given as ``-``, a phone that was not downloading, and what
lies more than 10 s after a line of a phone's log. The rate's integral is cut into 1500-byte opportunities with the
remainder carried from line to line, so the mean rate is kept exactly, up to one opportunity in the whole trace.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from reinet.core.errors import TraceError
from reinet.envs.trace.files import read_limited
from reinet.envs.trace.trace import (
    DESCRIBE_BYTES,
    GZIP_BEGINS,
    LOOKS_COMPRESSED,
    MAX_FILE_BYTES,
    MAX_MS,
    PKTS_PER_MBIT,
    Trace,
    most_opportunities,
    served_at_ms,
)

_SECONDS = {"s": ("seconds", 1.0), "ms": ("milliseconds", 1e-3)}
_MBPS = {"mbps": ("Mbit/s", 1.0), "kbps": ("kbit/s", 1e-3)}
PAIRS = tuple(f"{time}-{rate}" for time in _SECONDS for rate in _MBPS)
FORMATS = ("mahimahi", "phone-csv", *PAIRS)

MOST_STEP_S, LEAST_STEP_MS = 15.0, 20.0
"""Loggers write every 15 s at least and every 20 ms at most: so far apart, a time's unit is plain."""
PLAIN_STEP_MS, MINUTE_S = 100.0, 60.0
"""Slow loggers count in seconds too, some 30 between lines or whole minutes: such steps, and what is below 100, may be
of seconds or of milliseconds. Nobody writes every 100, 200 or 500 s."""
MOST_TYPICAL_MBPS, LEAST_TYPICAL_KBPS = 100.0, 100.0
"""Above and below, what looks like the usual unit of a rate (Mbit/s beside seconds, kbit/s beside milliseconds) may be
the other one: 300 are a 5G link's Mbit/s or a 3G link's kbit/s."""

MAX_HOLD_S = 10.0
"""A phone logs once a second and skips two or three at times; after ten nothing is known of the link any more."""
MAX_MBPS = 100_000.0
"""Beyond any radio link: a rate above it is in another unit."""

_TIME_COLUMN, _DOWNLOAD_COLUMN, _STATE_COLUMN, _DOWNLOADING = "Timestamp", "DL_bitrate", "State", "D"
_MISSING = "-"
_SEPARATOR = re.compile(r"[\s,]+")


@dataclass(frozen=True)
class Imported:
    """A converted recording: its trace, the format it was in, lines with a time, seconds left out as not measured."""

    trace: Trace
    format: str
    lines: int
    left_out_s: float


@dataclass(frozen=True)
class _Line:
    number: int
    time_s: float
    mbps: float | None
    """The rate that the line tells; None = not measured."""


def import_trace(path: str | Path, format: str | None = None, column: str | None = None) -> Imported:
    """Returns a recording as a trace; ``format`` is one of FORMATS, None to find out; ``column`` is a phone's rates,
    None = those of its download. Raises TraceError naming file, line, what is wrong and the cure.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise TraceError(f"import: unknown format {format!r}; choose one of {', '.join(FORMATS)}")
    text = _text(path)
    format = format or _detect(text, path)
    if column is not None and format != "phone-csv":
        raise TraceError(f"{path}: --column is for phone-csv, and this is {format}; leave it out")
    if format == "mahimahi":
        trace = Trace.parse("\n".join(line.strip() for line in text.split("\n")).encode(), path)
        return Imported(trace, format, trace.opportunities_ms.size, 0.0)
    if format == "phone-csv":
        lines, longest_hold_s = _phone_lines(text, path, column or _DOWNLOAD_COLUMN), MAX_HOLD_S
    else:
        lines, longest_hold_s = _pair_lines(text, path, format), math.inf
    trace, left_out_s = _resample(lines, longest_hold_s, path)
    return Imported(trace, format, len(lines), left_out_s)


def _text(path: Path) -> str:
    raw = read_limited(path, MAX_FILE_BYTES, "recording")
    if not raw.removeprefix(codecs.BOM_UTF8).strip():
        raise TraceError(f"{path}:1: the file is empty; name a recording of a link's rate")
    nul = raw.find(b"\0")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        nul = error.start if nul < 0 else min(nul, error.start)
    if nul >= 0:
        line = raw.count(b"\n", 0, nul) + 1
        looks = LOOKS_COMPRESSED if raw.startswith(GZIP_BEGINS) else ""
        raise TraceError(f"{path}:{line}: not text{looks}; a recording is UTF-8 text, one measurement per line")
    return text


def _detect(text: str, path: Path) -> str:
    """Returns the format that the first lines show; raises TraceError where their unit is not plain."""
    first = text.lstrip().split("\n", 1)[0].strip()
    if _TIME_COLUMN in (name.strip().strip('"') for name in first.split(",")):
        return "phone-csv"
    fields = _fields(first)
    if len(fields) == 1 and fields[0].isdigit():
        return "mahimahi"
    if len(fields) == 2 and _number(fields[0]) is not None:
        lines = _pair_lines(text, path, "s-mbps", is_known=False)
        steps = np.diff([line.time_s for line in lines])
        rates = [line.mbps for line in lines if line.mbps]
        if steps.size and steps.max() > 0 and rates:
            step, rate = float(np.median(steps[steps > 0])), float(np.median(rates))
            may_be_seconds = lines[-1].time_s - lines[0].time_s <= MAX_MS / 1000 and (
                step < PLAIN_STEP_MS or not np.any(steps % MINUTE_S)
            )
            if LEAST_STEP_MS <= step <= MOST_STEP_S * 1000 and rate >= LEAST_TYPICAL_KBPS and not may_be_seconds:
                return "ms-kbps"
            if step <= MOST_STEP_S and rate <= MOST_TYPICAL_MBPS:
                return "s-mbps"
            raise TraceError(
                f"{path}: two numbers per line, typically {step:g} apart with a rate of {rate:g}: the units are "
                f"not plain; say --format {', '.join(PAIRS)}"
            )
        if len(lines) > 1 and not rates:
            raise TraceError(f"{path}: no line has a rate above 0; a trace needs a link that delivers at least once")
        raise TraceError(f"{path}: too few lines to tell the units from; say --format {', '.join(PAIRS)}")
    raise TraceError(
        f"{path}:1: {_shown(first)} starts none of the formats known ({', '.join(FORMATS)}); delete what stands above "
        "the first measurement, and put blanks or a comma between a time and its rate"
    )


def _pair_lines(text: str, path: Path, format: str, is_known: bool = True) -> list[_Line]:
    """Returns the lines of pairs; where it is not known yet that their units are these, any of all units passes."""
    time_unit, rate_unit = format.split("-")
    (time_name, seconds_per_unit), (rate_name, mbps_per_unit) = _SECONDS[time_unit], _MBPS[rate_unit]
    lines: list[_Line] = []
    for number, content in enumerate(_split(text), 1):
        where = f"{path}:{number}:"
        fields = _fields(content)
        if len(fields) != 2:
            what = "empty line" if not content.strip() else f"{_shown(content)} has {len(fields)} values"
            raise TraceError(f"{where} {what}; a line of {format} is a time in {time_name} and a rate in {rate_name}")
        time = _number(fields[0])
        if time is None:
            raise TraceError(f"{where} {_shown(fields[0])} is not a time in {time_name}; correct or delete the line")
        mbps = _rate(fields[1], mbps_per_unit, rate_name, where, is_known)
        _append(lines, _Line(number, time * seconds_per_unit, mbps), path, MAX_MS / 1000 if is_known else MAX_MS)
    return lines


def _phone_lines(text: str, path: Path, column: str) -> list[_Line]:
    rows = csv.reader(text.splitlines(keepends=True), strict=True)
    lines: list[_Line] = []
    try:
        header = [name.strip() for name in next(row for row in rows if row)]
        for name in (_TIME_COLUMN, column):
            if header.count(name) != 1:
                found = "more than once" if name in header else "not at all"
                raise TraceError(
                    f"{path}:{rows.line_num}: column {name} is there {found}; the header has {', '.join(header)}; "
                    "name the column of rates with --column"
                )
        time_at, rate_at = header.index(_TIME_COLUMN), header.index(column)
        state_at = header.index(_STATE_COLUMN) if _STATE_COLUMN in header else None
        for row in rows:
            where = f"{path}:{rows.line_num}:"
            if len(row) != len(header):
                what = "empty line" if not row else f"{len(row)} fields where the header has {len(header)}"
                raise TraceError(f"{where} {what}; correct or delete the line")
            mbps = _rate(row[rate_at].strip(), 1e-3, "kbit/s", where)
            if state_at is not None and row[state_at].strip() != _DOWNLOADING:
                mbps = None  # an idle phone's rate says nothing of the link
            _append(lines, _Line(rows.line_num, _timestamp_s(row[time_at].strip(), where), mbps), path)
    except csv.Error as error:
        raise TraceError(f"{path}:{rows.line_num}: not valid CSV ({error}); correct or delete the line") from error
    return lines


def _timestamp_s(text: str, where: str) -> float:
    parsers: tuple[Callable[[str], datetime], ...] = (
        lambda stamp: datetime.strptime(stamp, "%Y.%m.%d_%H.%M.%S"),
        lambda stamp: datetime.fromisoformat(re.sub("Z$", "+00:00", stamp)),  # Python 3.10 knows no Z
    )
    for parse in parsers:
        try:
            # A stamp without a zone is read as UTC, so that no change to or from summer time falls inside a recording.
            moment = parse(text)
            return (moment.replace(tzinfo=None) - (moment.utcoffset() or _NO_OFFSET) - _EPOCH).total_seconds()
        except (ValueError, OverflowError):
            continue
    raise TraceError(f"{where} {_shown(text)} is not a timestamp; write it as 2020.02.14_09.38.22 or in ISO 8601")


_EPOCH = datetime(1970, 1, 1)
_NO_OFFSET = _EPOCH - _EPOCH


def _rate(text: str, mbps_per_unit: float, unit: str, where: str, check: bool = True) -> float | None:
    if text == _MISSING:
        return None
    value = _number(text)
    if value is None:
        raise TraceError(f"{where} {_shown(text)} is not a rate in {unit}; a rate that was not measured is written -")
    if value < 0:
        raise TraceError(f"{where} negative rate {_shown(text)} {unit}; a rate that was not measured is written -")
    if check and value * mbps_per_unit > MAX_MBPS:
        raise TraceError(f"{where} {_shown(text)} {unit} is more than {MAX_MBPS:g} Mbit/s; check the unit (--format)")
    return value * mbps_per_unit


def _append(lines: list[_Line], line: _Line, path: Path, longest_s: float = MAX_MS / 1000) -> None:
    if lines and line.time_s < lines[-1].time_s:
        raise TraceError(
            f"{path}:{line.number}: time goes back by {lines[-1].time_s - line.time_s:g} s; "
            "times must not decrease: sort the lines, or import the parts of the recording one by one"
        )
    if lines and line.time_s - lines[0].time_s > longest_s:
        raise TraceError(
            f"{path}:{line.number}: {line.time_s - lines[0].time_s:g} s after the first line is more than a trace can "
            f"hold ({MAX_MS / 1000:.0f} s, 49.7 days); check the unit (--format)"
        )
    lines.append(line)


def _resample(lines: list[_Line], longest_hold_s: float, path: Path) -> tuple[Trace, float]:
    """Cuts the integral of a rate into opportunities; returns the trace and the seconds that were left out."""
    time_s = np.array([line.time_s for line in lines])
    mbps = np.array([math.nan if line.mbps is None else line.mbps for line in lines])
    starts_s, group = np.unique(time_s, return_inverse=True)
    measured = np.isfinite(mbps)
    count = np.bincount(group[measured], minlength=starts_s.size)
    total = np.bincount(group[measured], weights=mbps[measured], minlength=starts_s.size)
    if starts_s.size < 2:
        raise TraceError(f"{path}: fewer than two lines with different times; a rate over time needs more")
    if not count.any():
        raise TraceError(f"{path}: no line has a measured rate while downloading; name another column or recording")

    span_s = np.diff(starts_s)
    span_s = np.append(span_s, np.median(span_s))
    held_s = np.where(count > 0, np.minimum(span_s, longest_hold_s), 0.0)
    pkts = held_s * PKTS_PER_MBIT * total / np.maximum(count, 1)
    served_pkts = np.concatenate(([0.0], np.cumsum(pkts)))
    if not served_pkts[-1] >= 1 - 1e-6:
        raise TraceError(
            f"{path}: {served_pkts[-1] * DESCRIBE_BYTES:.0f} bytes in all, less than one opportunity of "
            f"{DESCRIBE_BYTES}; the recording has no rate, or check the unit (--format)"
        )
    edges_ms = np.concatenate(([0.0], np.cumsum(held_s))) * 1000
    duration_ms = max(round(float(edges_ms[-1])), 1)
    if duration_ms > MAX_MS:  # the lines themselves are not, but the last one's rate is held for a while
        raise TraceError(
            f"{path}: {duration_ms / 1000:.0f} s are more than a trace can hold ({MAX_MS / 1000:.0f} s, 49.7 days); "
            f"the last line's rate lasts for {held_s[-1]:g} s of them, the median step; check the unit (--format), or "
            "leave out the last lines"
        )
    most = most_opportunities(duration_ms)
    if served_pkts[-1] > most:
        raise TraceError(
            f"{path}: {served_pkts[-1]:.0f} opportunities are more than a trace of this length may have ({most}); "
            "check the unit (--format), or import a part of the recording"
        )
    # The k-th opportunity comes when k packets' worth has been served.
    at_pkts = np.arange(1, int(served_pkts[-1] + 1e-6) + 1, dtype=np.float64)
    times_ms = np.minimum(served_at_ms(edges_ms, served_pkts, at_pkts), duration_ms)
    if times_ms[-1] < duration_ms:
        # The last fraction of an opportunity falls on the end, so that the loop is as long as the recording.
        times_ms = np.append(times_ms, duration_ms)
    trace = Trace(times_ms.astype(np.uint32), path.stem)
    return trace, float(span_s.sum() - held_s.sum())


def _split(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _fields(line: str) -> list[str]:
    return [part for part in _SEPARATOR.split(line.strip()) if part]


def _number(text: str) -> float | None:
    """Returns a finite decimal number; None for anything else, ``nan`` and ``1_000`` included."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None


def _shown(text: str) -> str:
    return repr(text[:40]) + ("..." if len(text) > 40 else "")
