"""TensorBoard event files of what the daemon does to each flow: cap, cwnd, delay and rate over time.

The loop hands records over and never waits: a full queue, a full disk or too many flows cost curves, not caps. What was
left out is counted. Tags and layout are those of every page of flows (``reinet.core.curves``).
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from reinet.core.curves import CURVES, LIVE_LINK, POINT_INTERVAL_MS, layout, panels, tag
from reinet.core.event_file import EventFile, page, scalar
from reinet.core.records import Flag
from reinet.kshim.shim import FlowStatsArray

MAX_POINTS_PER_S = 400
"""The bound over all flows; a point takes about 0.2 ms of Python, mostly its checksum, so at most 8 % of one core."""
MAX_FLOWS = 64
"""So many flows have curves at one time; later ones get theirs when an earlier one ends or falls silent."""
SILENT_FLOW_S = 60
"""A flow without a record for this long gives its place to another."""
QUEUE_BATCHES = 256
"""So many ticks may wait for the writer: at the busiest some seconds' worth."""
FLUSH_INTERVAL_S = 1.0
"""TensorBoard may lag so far behind."""

log = structlog.get_logger("reinet.event_log")


@dataclass
class _Flow:
    """One flow's file and place in time."""

    file: EventFile
    first_ns: int
    last_point_ns: int


class EventLog:
    """Writes ``<folder>/serve-<start>-<pid>/flow-<cookie>/events.out.tfevents...`` from a thread of its own.

    Steps are milliseconds of the flow's life. The folder of the start holds the page's layout.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        wall_s: Callable[[], float] = time.time,
        clock_s: Callable[[], float] = time.monotonic,
        queue_batches: int = QUEUE_BATCHES,
    ) -> None:
        """Makes the folder; raises OSError where it cannot be written."""
        self._wall_s = wall_s
        self._clock_s = clock_s
        started = time.strftime("%Y%m%d-%H%M%S", time.localtime(wall_s()))
        self.folder = folder / f"serve-{started}-{os.getpid()}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._max_bytes = max_bytes
        self._written_bytes = 0
        self.failure: str | None = None
        """Why nothing is written any more, None while all is well."""
        self.dropped_batches = 0
        """How many ticks were left out because the writer was behind."""
        self.dropped_points = 0
        """How many points were left out because of MAX_POINTS_PER_S or MAX_FLOWS."""
        self._flows: dict[int, _Flow] = {}
        self._points_left = float(MAX_POINTS_PER_S)
        self._refilled_s = self._clock_s()
        self._queue: queue.Queue[tuple[float, FlowStatsArray] | None] = queue.Queue(queue_batches)
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    def offer(self, records: FlowStatsArray, caps_pkts: NDArray[np.uint32]) -> None:
        """Hands over N records with the caps now decided for their flows; never waits, never raises.

        A record flagged CLOSED ends its flow's curves.
        """
        if self.failure is not None:
            return
        batch = np.array(records)
        batch["cap_pkts"] = caps_pkts
        try:
            self._queue.put_nowait((self._wall_s(), batch))
        except queue.Full:
            self.dropped_batches += 1

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what is queued and ends; gives up on a stuck disk after the time-out."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        next_flush_s = self._clock_s() + FLUSH_INTERVAL_S
        try:
            self._write_layout()
            while True:
                try:
                    item = self._queue.get(timeout=max(next_flush_s - self._clock_s(), 0.0))
                    if item is None:
                        break
                    self._write_batch(*item)
                except queue.Empty:
                    pass
                if self._clock_s() >= next_flush_s:
                    for flow in self._flows.values():
                        flow.file.flush()
                    next_flush_s = self._clock_s() + FLUSH_INTERVAL_S
        except Exception as error:  # curves are never worth a cap: whatever happens here stays here
            self._fail(f"{self.folder}: {error}; no more curves are written")
        finally:
            for flow in self._flows.values():
                _close(flow.file)
            self._flows.clear()

    def _write_batch(self, wall_s: float, records: FlowStatsArray) -> None:
        for record in records:
            cookie, time_ns = int(record["cookie"]), int(record["time_ns"])
            if record["flags"] & Flag.CLOSED:
                if (ended := self._flows.pop(cookie, None)) is not None:
                    ended.file.close()
                continue
            flow = self._flows.get(cookie)
            if flow is not None and time_ns - flow.last_point_ns < POINT_INTERVAL_MS * 1_000_000:
                continue
            if not self._spend_point():
                self.dropped_points += 1
                continue
            if flow is None and (flow := self._open(cookie, time_ns, wall_s)) is None:
                self.dropped_points += 1
                continue
            flow.last_point_ns = time_ns
            values = [
                scalar(tag(LIVE_LINK, curve), float(record[field]) * scale)
                for field, curve, scale in CURVES
                if record[field] or field != "rtt_mean_us"  # an outage has no delay, not a delay of 0
            ]
            flow.file.add(values, (time_ns - flow.first_ns) // 1_000_000, wall_s)

    def _open(self, cookie: int, time_ns: int, wall_s: float) -> _Flow | None:
        if len(self._flows) >= MAX_FLOWS:
            silent = [c for c, f in self._flows.items() if time_ns - f.last_point_ns > SILENT_FLOW_S * 1_000_000_000]
            if not silent:
                return None
            for other in silent:
                self._flows.pop(other).file.close()
        file = EventFile(self.folder / f"flow-{cookie}", wall_s, str(time_ns), self._spend_bytes)
        self._flows[cookie] = _Flow(file, time_ns, time_ns)
        return self._flows[cookie]

    def _write_layout(self) -> None:
        """Writes what the flows' curves stand in, a run of its own beside theirs."""
        with EventFile(self.folder, self._wall_s(), "layout", self._spend_bytes) as file:
            file.add([page(layout([panels(LIVE_LINK)]))], 0, self._wall_s())

    def _spend_bytes(self, size_bytes: int) -> None:
        self._written_bytes += size_bytes
        if self._written_bytes > self._max_bytes:
            raise OSError(f"log_max_mb reached ({self._max_bytes / 1e6:.0f} MB)")

    def _spend_point(self) -> bool:
        now_s = self._clock_s()
        refill = (now_s - self._refilled_s) * MAX_POINTS_PER_S
        self._points_left = min(self._points_left + refill, float(MAX_POINTS_PER_S))
        self._refilled_s = now_s
        if self._points_left < 1:
            return False
        self._points_left -= 1
        return True

    def _fail(self, reason: str) -> None:
        self.failure = reason
        log.warning("event log stopped", reason=reason)


def _close(file: EventFile) -> None:
    """Closes a file whose disk may be full: what is lost is a tail of curves."""
    try:
        file.close()
    except OSError as error:
        log.warning("event log: the last points were lost", file=file.name, error=str(error))
