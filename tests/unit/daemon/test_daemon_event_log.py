"""Event files that TensorBoard reads, and a writer that never holds the loop up."""

import errno
import os
import re
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from helpers.waiting import wait_for
from reinet.core.records import FLOW_STATS_DTYPE, Flag, FlowStatsArray
from reinet.core.tensorboard.curves import CURVES
from reinet.daemon import event_log
from reinet.daemon.event_log import EventLog

MS = 1_000_000
LARGE = 1 << 30


def records(*rows: tuple[int, int], **fields: int) -> FlowStatsArray:
    """Records of (cookie, time in ms)."""
    made = np.zeros(len(rows), FLOW_STATS_DTYPE)
    for record, (cookie, time_ms) in zip(made, rows, strict=True):
        record["cookie"], record["time_ns"] = cookie, time_ms * MS
        for name, value in fields.items():
            record[name] = value
    return made


def read(log: EventLog, cookie: int) -> EventAccumulator:
    accumulator = EventAccumulator(str(log.folder / f"flow-{cookie}"))
    accumulator.Reload()
    return accumulator


def test_a_folder_that_was_removed_is_made_anew_with_its_page_and_its_flows_go_on(tmp_path: Path) -> None:
    log = EventLog(tmp_path, LARGE)
    log.offer(records((7, 1000), cap_pkts=33))
    wait_for(lambda: list(log.folder.glob("flow-7/*")) and log._has_layout)
    shutil.rmtree(log.folder)
    wait_for(lambda: list(log.folder.glob("*layout")) and list(log.folder.glob("flow-7/*")))
    log.offer(records((7, 2000), cap_pkts=34))
    log.close()
    curve = read(log, 7).Scalars("flow/cap_pkts")
    assert [(point.step, point.value) for point in curve] == [(1000, 34)]
    assert log.failure is None


@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_flow_whose_own_curves_were_removed_goes_on_in_another_file(tmp_path: Path, whole_folder: bool) -> None:
    log = EventLog(tmp_path, LARGE)
    log.offer(records((7, 1000), (8, 1000), cap_pkts=33))
    wait_for(lambda: len(list(log.folder.glob("flow-*/*"))) == 2)
    (removed,), (kept,) = log.folder.glob("flow-7/*"), log.folder.glob("flow-8/*")
    if whole_folder:
        shutil.rmtree(removed.parent)
    else:
        removed.unlink()
    wait_for(lambda: list(log.folder.glob("flow-7/*")))
    log.offer(records((7, 2000), (8, 2000), cap_pkts=34))
    log.close()
    assert [(point.step, point.value) for point in read(log, 7).Scalars("flow/cap_pkts")] == [(1000, 34)]
    assert [point.value for point in read(log, 8).Scalars("flow/cap_pkts")] == [33, 34]
    assert list(log.folder.glob("flow-8/*")) == [kept]


def test_curves_of_two_flows(tmp_path: Path) -> None:
    log = EventLog(tmp_path, LARGE, wall_s=lambda: 1_700_000_000.0)
    fields = {
        "cwnd_pkts": 44, "rtt_mean_us": 30_500, "min_rtt_us": 20_000, "delivery_rate_bytes_per_s": 1_250_000
    }  # fmt: skip
    log.offer(records((7, 1000), **fields, cap_pkts=33))
    log.offer(records((8, 1000), **fields))
    log.offer(records((7, 1150), **fields, cap_pkts=34))
    log.close()
    seen = read(log, 7)
    assert set(seen.Tags()["scalars"]) == {f"flow/{curve}" for _, curve, _ in CURVES}
    assert [(p.step, p.value) for p in seen.Scalars("flow/cap_pkts")] == [(0, 33), (150, 34)]
    assert seen.Scalars("flow/cwnd_pkts")[0].value == 44
    assert seen.Scalars("flow/rtt_mean_ms")[0].value == 30.5
    assert seen.Scalars("flow/min_rtt_ms")[0].value == 20
    assert seen.Scalars("flow/delivery_rate_mbps")[0].value == 10
    assert seen.Scalars("flow/cap_pkts")[0].wall_time == 1_700_000_000.0
    assert [p.value for p in read(log, 8).Scalars("flow/cap_pkts")] == [0]


def test_points_are_at_most_ten_per_second(tmp_path: Path) -> None:
    log = EventLog(tmp_path, LARGE)
    for time_ms in range(0, 1000, 20):
        log.offer(records((7, time_ms), cap_pkts=10))
    log.close()
    steps = [p.step for p in read(log, 7).Scalars("flow/cap_pkts")]
    assert steps == list(range(0, 1000, 100))


def test_an_outage_shows_no_rate_and_no_delay(tmp_path: Path) -> None:
    log = EventLog(tmp_path, LARGE)
    log.offer(records((7, 0), rtt_mean_us=20_000, delivery_rate_bytes_per_s=125_000, cap_pkts=10))
    log.offer(records((7, 250), flags=int(Flag.NO_SAMPLE), cap_pkts=10))
    log.close()
    seen = read(log, 7)
    assert [p.value for p in seen.Scalars("flow/delivery_rate_mbps")] == [1, 0]
    assert [p.value for p in seen.Scalars("flow/rtt_mean_ms")] == [20]


def test_the_folder_opens_as_panels_that_hold_every_curve(tmp_path: Path) -> None:
    log = EventLog(tmp_path, LARGE)
    log.close()
    events = EventAccumulator(str(log.folder))
    events.Reload()
    (stored,) = events.Tensors("custom_scalars__config__")
    (category,) = layout_pb2.Layout.FromString(stored.tensor_proto.string_val[0]).category
    patterns = [pattern for chart in category.chart for pattern in chart.multiline.tag]
    for _, curve, _ in CURVES:
        assert sum(bool(re.match(pattern, f"flow/{curve}")) for pattern in patterns) == 1


def test_all_flows_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_POINTS_PER_S", 5)
    log = EventLog(tmp_path, LARGE, clock_s=lambda: 0.0)
    log.offer(records(*((cookie, 0) for cookie in range(1, 21))))
    log.close()
    assert log.dropped_points == 15
    assert len(list(log.folder.glob("flow-*"))) == 5


def test_flows_without_a_place_use_up_nothing_of_those_that_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MAX_FLOWS", 2)
    monkeypatch.setattr(event_log, "MAX_POINTS_PER_S", 5)
    log = EventLog(tmp_path, LARGE, clock_s=lambda: 0.0)
    log.offer(records((1, 0), (2, 0), cap_pkts=9))
    log.offer(records(*((cookie, 100) for cookie in range(20, 40)), (1, 100), (2, 100)))
    log.close()
    assert log.dropped_points == 20
    events = EventAccumulator(str(log.folder / "flow-1"))
    events.Reload()
    assert len(events.Scalars("flow/cap_pkts")) == 2


def test_a_flow_that_ends_makes_room_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_FLOWS", 2)
    log = EventLog(tmp_path, LARGE)
    log.offer(records((1, 0), (2, 0), (3, 0), cap_pkts=9))
    log.offer(records((1, 100), flags=int(Flag.CLOSED)))
    log.offer(records((3, 200), cap_pkts=9))
    log.offer(records((2, 70_000), (4, 131_000), cap_pkts=9))  # 3 was silent for over a minute, 2 as well by 131 s
    log.close()
    assert log.dropped_points == 1
    assert {p.name for p in log.folder.glob("flow-*")} == {"flow-1", "flow-2", "flow-3", "flow-4"}


def test_a_slow_disk_costs_curves_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(EventLog, "_write_batch", lambda *_: go_on.wait(60))
    log = EventLog(tmp_path, LARGE, queue_batches=4)
    waits = []
    put = log._queue.put

    def watched_put(item: object, block: bool = True, timeout: float | None = None) -> None:
        waits.append(block)
        put(item, block, timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(log._queue, "put", watched_put)
    log.offer(records((7, 0), cap_pkts=10))
    wait_for(log._queue.empty)
    for _ in range(10):
        log.offer(records((7, 0), cap_pkts=10))
    assert not any(waits)
    assert log.dropped_batches == 6
    log.close(timeout_s=0.05)  # gives up
    assert log._thread.is_alive()
    go_on.set()
    log.close(timeout_s=20)
    assert not log._thread.is_alive()


def held_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("events*"))


def test_the_oldest_files_make_room_and_the_latest_stay(tmp_path: Path) -> None:
    log = EventLog(tmp_path, max_bytes=20_000)
    for cookie in range(1, 40):
        log.offer(records(*((cookie, time_ms) for time_ms in range(0, 500, 100)), cap_pkts=10))
        log.offer(records((cookie, 500), flags=int(Flag.CLOSED)))
    log.close()
    assert log.failure is None
    assert 10_000 < held_bytes(tmp_path) <= 20_000
    kept = sorted(int(path.name.removeprefix("flow-")) for path in log.folder.glob("flow-*"))
    assert kept == list(range(40 - len(kept), 40))
    assert any(log.folder.glob("events*")), "the page's layout stays"


def test_a_long_flow_goes_on_in_further_files_and_loses_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MAX_POINTS_PER_S", LARGE)
    log = EventLog(tmp_path, max_bytes=30_000)
    for time_ms in range(0, 100_000, 100):
        log.offer(records((7, time_ms), cap_pkts=10))
        if time_ms % 5_000 == 0:
            wait_for(log._queue.empty)
    log.close(timeout_s=60)
    assert held_bytes(tmp_path) <= 30_000
    assert len(list((log.folder / "flow-7").iterdir())) > 3
    steps = [point.step for point in read(log, 7).Scalars("flow/cap_pkts")]
    assert steps == sorted(set(steps))
    assert steps[0] > 0
    assert steps[-1] == 99_900


def test_files_of_earlier_starts_count_and_make_room_first(tmp_path: Path) -> None:
    for start in range(6):
        log = EventLog(tmp_path, max_bytes=8_000, wall_s=lambda start=start: 1_700_000_000.0 + start)
        for time_ms in range(0, 1000, 100):
            log.offer(records((7, time_ms), cap_pkts=10))
        log.close()
        assert held_bytes(tmp_path) <= 8_000
        assert len(read(log, 7).Scalars("flow/cap_pkts")) == 10
        if start == 2:  # and then the clock is set back
            before = list(log.folder.rglob("events*"))
            for path in before:
                os.utime(path, (time.time() + 1e7,) * 2)
    folders = sorted(tmp_path.iterdir())
    assert folders[-1] == log.folder
    assert len(folders) < 6, "folders that are empty go too"
    assert not any(path.exists() for path in before)


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    log = EventLog(tmp_path, LARGE, max_files=10)
    for cookie in range(1, 60):
        log.offer(records((cookie, 0), cap_pkts=10))
        log.offer(records((cookie, 500), flags=int(Flag.CLOSED)))
    log.close()
    assert len(list(tmp_path.rglob("events*"))) <= 10
    assert (log.folder / "flow-59").is_dir()


def test_a_daemon_at_work_and_what_is_no_event_file_are_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "serve-20200101-000000-1" / "flow-7"
    precious.mkdir(parents=True)
    (precious / "notes").write_text("x" * 5000)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "events.out.tfevents.1.reinet.1.1").write_text("x" * 5000)
    (tmp_path / "serve-20200101-000000-2").symlink_to(outside)
    at_work = EventLog(tmp_path, LARGE, wall_s=lambda: 1_600_000_000.0)
    at_work.offer(records((8, 0), (8, 100), cap_pkts=10))
    wait_for(lambda: list(at_work.folder.glob("flow-8/*")))
    log = EventLog(tmp_path, max_bytes=3_000)
    for cookie in range(1, 20):
        log.offer(records((cookie, 0), cap_pkts=10))
        log.offer(records((cookie, 500), flags=int(Flag.CLOSED)))
    log.close()
    at_work.close()
    assert len(read(at_work, 8).Scalars("flow/cap_pkts")) == 2
    assert (precious / "notes").exists()
    assert len(list(outside.iterdir())) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_no_inodes_are_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(event_log, "RETRY_S", 0.05)
    told: list[str] = []
    monkeypatch.setattr(event_log.log, "warning", lambda event, **_: told.append(event))
    full = threading.Event()
    full.set()
    make = event_log.EventFile

    def made(*args: object) -> object:
        if full.is_set():
            raise OSError(number, os.strerror(number))
        return make(*args)  # type: ignore[arg-type]

    made.path = make.path  # type: ignore[attr-defined]
    monkeypatch.setattr(event_log, "EventFile", made)
    log = EventLog(tmp_path, LARGE)
    wait_for(lambda: log.failure)
    for time_ms in range(0, 1000, 100):
        log.offer(records((7, time_ms), cap_pkts=10))
        threading.Event().wait(0.02)
    assert told == ["event log stopped"]
    full.clear()

    def goes_on() -> bool:
        log.offer(records((7, 5000), cap_pkts=10))
        return log.failure is None

    wait_for(goes_on)
    log.close()
    assert read(log, 7).Scalars("flow/cap_pkts")


def test_a_wall_clock_that_jumps_costs_nothing(tmp_path: Path) -> None:
    wall = iter([1_700_000_000.0, 1_600_000_000.0, 1_600_000_000.0, 1_900_000_000.0])
    latest = [0.0]

    def wall_s() -> float:
        latest[0] = next(wall, latest[0])
        return latest[0]

    log = EventLog(tmp_path, LARGE, wall_s=wall_s)
    for time_ms in range(0, 1000, 100):
        log.offer(records((7, time_ms), cap_pkts=10))
    log.close()
    assert log.failure is None
    assert [point.step for point in read(log, 7).Scalars("flow/cap_pkts")] == list(range(0, 1000, 100))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        EventLog(tmp_path / "file", LARGE)
