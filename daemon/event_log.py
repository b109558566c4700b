"""TensorBoard event files of what the daemon does to each flow: cap, cwnd, delay and rate over time.

The loop hands records over and never waits: a full queue, a full disk or too many flows cost curves, not caps. What was
left out is counted. The files of all starts together have a bound, and the oldest make room (``event_shelf``); after a
failure, as of a full disk, writing is tried again now and then. Tags and layout are those of every page of flows
(``reinet.core.tensorboard.curves``).
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from reinet.core.records import Flag, FlowStatsArray
from reinet.core.tensorboard.curves import CURVES, LIVE_LINK, POINT_INTERVAL_MS, layout, panels, tag
from reinet.core.tensorboard.event_file import EventFile, page, scalar
from reinet.daemon.event_shelf import EventShelf

MAX_POINTS_PER_S = 400
"""The bound over all flows; a point takes about 0.2 ms of Python, mostly its checksum, so at most 8 % of one core."""
MAX_FLOWS = 64
"""So many flows have curves at one time; later ones get theirs when an earlier one ends or falls silent."""
SILENT_FLOW_S = 60
"""A flow without a record for this long gives its place to another."""
QUEUE_BATCHES = 256
"""So many ticks may wait for the writer: at the busiest some seconds' worth."""
MAX_FILES = 2048
"""TensorBoard reads a folder of so many runs in seconds; a busy server opens as many flows in a minute."""
FILES_PER_BOUND = 16
"""A flow goes on in another file at a sixteenth of all bytes, so that a long one's beginning can make room."""
RETRY_S = 60.0
"""A disk that was full is tried again this often."""
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
        max_files: int = MAX_FILES,
    ) -> None:
        """Makes the folder; raises OSError where it cannot be written, but for a disk that is full or read-only."""
        self._wall_s = wall_s
        self._clock_s = clock_s
        started = time.strftime("%Y%m%d-%H%M%S", time.localtime(wall_s()))
        self._shelf = EventShelf(folder, f"serve-{started}-{os.getpid()}", max_bytes, max_files)
        self.folder = self._shelf.own
        self._max_file_bytes = max_bytes // FILES_PER_BOUND
        self.failure: str | None = None
        """Why nothing is written for now, None while all is well."""
        self._retry_s = 0.0
        self._has_layout = False
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

    def offer(self, records: FlowStatsArray) -> None:
        """Hands over N records, whose caps are those now decided, for keeps; never waits, never raises.

        A record flagged CLOSED ends its flow's curves.
        """
        if self.failure is not None and self._clock_s() < self._retry_s:
            return
        try:
            self._queue.put_nowait((self._wall_s(), records))
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
        while True:
            try:
                if not self._has_layout:
                    self._shelf.make_folder()
                    self._write_layout()
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
                    if self._has_layout and not self.folder.exists():
                        self._begin_folder_again()
                    self._go_on_elsewhere()
                    next_flush_s = self._clock_s() + FLUSH_INTERVAL_S
                    self._recovered()
            except Exception as error:  # curves are never worth a cap: whatever happens here stays here
                self._fail(error)
                if not self._wait_for_retry():
                    break
        self._close_all()
        self._shelf.close()

    def _write_batch(self, wall_s: float, records: FlowStatsArray) -> None:
        for record in records:
            cookie, time_ns = int(record["cookie"]), int(record["time_ns"])
            if record["flags"] & Flag.CLOSED:
                if cookie in self._flows:
                    self._end(cookie)
                continue
            flow = self._flows.get(cookie)
            if flow is not None and time_ns - flow.last_point_ns < POINT_INTERVAL_MS * 1_000_000:
                continue
            # In this order: flows without a place are not to use up the points of those that have one.
            if (flow is None and not self._has_room(time_ns)) or not self._spend_point():
                self.dropped_points += 1
                continue
            if flow is not None and self._shelf.size_bytes(Path(flow.file.name)) > self._max_file_bytes:
                flow = self._open_again(cookie, flow, wall_s)
            if flow is None:
                flow = self._open(cookie, time_ns, wall_s)
            flow.last_point_ns = time_ns
            values = [
                scalar(tag(LIVE_LINK, curve), float(record[field]) * scale)
                for field, curve, scale in CURVES
                if record[field] or field != "rtt_mean_us"  # an outage has no delay, not a delay of 0
            ]
            flow.file.add(values, (time_ns - flow.first_ns) // 1_000_000, wall_s)

    def _has_room(self, time_ns: int) -> bool:
        """Returns whether a further flow has a place, and ends those that have fallen silent for it."""
        if len(self._flows) >= MAX_FLOWS:
            silent = [c for c, f in self._flows.items() if time_ns - f.last_point_ns > SILENT_FLOW_S * 1_000_000_000]
            for other in silent:
                self._end(other)
        return len(self._flows) < MAX_FLOWS

    def _open(self, cookie: int, time_ns: int, wall_s: float) -> _Flow:
        self._flows[cookie] = _Flow(
            self._new_file(self.folder / f"flow-{cookie}", wall_s, str(time_ns)), time_ns, time_ns
        )
        return self._flows[cookie]

    def _open_again(self, cookie: int, flow: _Flow, wall_s: float) -> _Flow:
        """Goes on with a flow in another file of the same run."""
        self._end(cookie)
        suffix = str(flow.last_point_ns)
        flow.file = self._new_file(self.folder / f"flow-{cookie}", wall_s, suffix)
        self._flows[cookie] = flow
        return flow

    def _begin_folder_again(self) -> None:
        """Makes the folder anew where somebody removed it, and has its page written."""
        self._shelf.make_folder()
        self._has_layout = False

    def _go_on_elsewhere(self) -> None:
        """Goes on in other files with flows whose own somebody removed: what is written there is lost."""
        for cookie, flow in list(self._flows.items()):
            if not Path(flow.file.name).exists():
                self._open_again(cookie, flow, self._wall_s())

    def _new_file(self, folder: Path, wall_s: float, suffix: str) -> EventFile:
        path = EventFile.path(folder, wall_s, suffix)
        self._shelf.opened(path)
        try:
            return EventFile(folder, wall_s, suffix, lambda size_bytes: self._spend_bytes(path, size_bytes))
        except BaseException:
            self._shelf.closed(path)
            raise

    def _end(self, cookie: int, tells: bool = True) -> None:
        file = self._flows.pop(cookie).file
        _close(file, tells)
        self._shelf.closed(Path(file.name))

    def _close_all(self, tells: bool = True) -> None:
        for cookie in list(self._flows):
            self._end(cookie, tells)

    def _write_layout(self) -> None:
        """Writes what the flows' curves stand in, a run of its own beside theirs."""
        file = self._new_file(self.folder, self._wall_s(), "layout")
        try:
            with file:
                file.add([page(layout([panels(LIVE_LINK)]))], 0, self._wall_s())
        except BaseException:
            self._shelf.closed(Path(file.name))
            raise
        self._has_layout = True  # for the shelf its file stays open: closed ones are removed

    def _spend_bytes(self, path: Path, size_bytes: int) -> None:
        """Makes room for a record: the oldest closed file goes; where there is none, the oldest open one is closed."""
        while not self._shelf.spend(path, size_bytes):
            oldest = next((c for c, flow in self._flows.items() if Path(flow.file.name) != path), None)
            if oldest is None:
                raise OSError("log_max_mb leaves no room for one flow")
            self._end(oldest)

    def _spend_point(self) -> bool:
        now_s = self._clock_s()
        refill = (now_s - self._refilled_s) * MAX_POINTS_PER_S
        self._points_left = min(self._points_left + refill, float(MAX_POINTS_PER_S))
        self._refilled_s = now_s
        if self._points_left < 1:
            return False
        self._points_left -= 1
        return True

    def _fail(self, error: Exception) -> None:
        """Closes every file and says so, once for each failure that lasts."""
        self._close_all(tells=False)  # that all of them lose their tails goes without saying
        self._retry_s = self._clock_s() + RETRY_S
        reason = f"{self.folder}: {error}; curves are left out, which is tried again every {RETRY_S:g} s"
        if self.failure is None:
            log.warning("event log stopped", reason=reason)
        self.failure = reason

    def _recovered(self) -> None:
        if self.failure is not None and self._flows:
            self.failure = None
            log.info("event log goes on", folder=str(self.folder))

    def _wait_for_retry(self) -> bool:
        """Drops what is offered until it is time to try again; returns False when the log is closed meanwhile."""
        while (left_s := self._retry_s - self._clock_s()) > 0:
            try:
                if self._queue.get(timeout=left_s) is None:
                    return False
            except queue.Empty:
                continue
        return True


def _close(file: EventFile, tells: bool) -> None:
    """Closes a file whose disk may be full: what is lost is a tail of curves."""
    try:
        file.close()
    except OSError as error:
        if tells:
            log.warning("event log: the last points were lost", file=file.name, error=str(error))
