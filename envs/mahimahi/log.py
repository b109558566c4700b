"""What mm-link writes down, read into a ``LinkLog``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reinet.core.errors import LinkError
from reinet.envs.link.metrics import LinkLog


def parse_log(text: str, name: str = "link log") -> tuple[LinkLog, int]:
    """Returns what mm-link wrote: the log, its times counted from the trace's start, and that start (Unix time, ms).

    An unfinished last line is left out: the link was ended while it wrote. Raises LinkError with the line's number.
    """
    stamps = {"# init timestamp": -1, "# base timestamp": -1}
    arrivals: list[tuple[int, int]] = []
    opportunities: list[tuple[int, int]] = []
    departures: list[tuple[int, int, int]] = []
    number = 0
    try:
        for line in text[: text.rfind("\n") + 1].splitlines():
            number += 1
            if line.startswith("#"):
                key, colon, value = line.partition(": ")
                if colon and key in stamps:
                    stamps[key] = int(value)
                continue
            time_ms, kind, *rest = line.split()
            if kind == "#":
                (size,) = rest
                opportunities.append((int(time_ms), int(size)))
            elif kind == "+":
                (size,) = rest
                arrivals.append((int(time_ms), int(size)))
            elif kind == "-":
                size, delay_ms = rest
                departures.append((int(time_ms), int(size), int(delay_ms)))
            elif kind != "d":  # drops, in newer builds only: they follow from arrivals and departures
                raise ValueError(f"unknown event {kind!r}")
    except ValueError as error:
        raise LinkError(f"{name}:{number}: not a line of mm-link's log ({error}); is it another version's?") from error
    if min(stamps.values()) < 0:
        raise LinkError(f"{name}: has no init or no base timestamp; it is not mm-link's log, or the link never started")

    init_ms, base_ms = stamps.values()

    def columns(rows: Sequence[tuple[int, ...]], width: int) -> list[npt.NDArray[np.int64]]:
        return list(np.array(rows, dtype=np.int64).reshape(-1, width).T)

    arrival_ms, arrival_bytes = columns(arrivals, 2)
    opportunity_ms, opportunity_bytes = columns(opportunities, 2)
    departure_ms, departure_bytes, delay = columns(departures, 3)
    log = LinkLog(
        arrival_ms=(arrival_ms - base_ms).astype(np.float64),
        arrival_bytes=arrival_bytes,
        opportunity_ms=(opportunity_ms - base_ms).astype(np.float64),
        opportunity_bytes=opportunity_bytes,
        departure_ms=(departure_ms - base_ms).astype(np.float64),
        departure_bytes=departure_bytes,
        departure_delay_ms=delay.astype(np.float64),
    )
    return log, init_ms + base_ms
