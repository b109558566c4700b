"""Flows that a daemon records: a sample, bounded, and nothing in it that names anybody."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from reinet.core.errors import ConfigError, TraceError
from reinet.core.records import FLOW_STATS_DTYPE, Flag, FlowStatsArray
from reinet.daemon.processes import flow_recorder
from reinet.daemon.processes.flow_recorder import (
    BLOCK_BYTES,
    LEAST_S,
    FlowRecorder,
    age_key,
    on_disk_bytes,
    site_key,
)
from reinet.envs.trace import estimate
from reinet.envs.trace.flow_records import FlowRecording, flow_files
from reinet.kshim.recorded import kept

KEY = bytes(range(32))
PERIOD_NS = 20_000_000


@pytest.fixture(autouse=True)
def however_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps flows of a few records, which are all that most of these tests need."""
    monkeypatch.setattr(flow_recorder, "LEAST_S", 0.0)


def records(cookie: int, first: int, count: int, **fields: int) -> FlowStatsArray:
    made = np.zeros(count, FLOW_STATS_DTYPE)
    made["cookie"], made["period_ns"], made["mss_bytes"] = cookie, PERIOD_NS, 1448
    made["time_ns"] = 10**15 + PERIOD_NS * np.arange(first, first + count)
    made["delivered_bytes"] = 1448 * np.arange(first, first + count)
    for name, value in fields.items():
        made[name] = value
    return made


def test_what_was_recorded_is_what_the_loop_saw_without_cookie_and_clock(tmp_path: Path) -> None:
    recorder = FlowRecorder(tmp_path, 1.0, 10**6, KEY)
    cookie = 0x1122334455667788
    recorder.take(records(cookie, 0, 3, rtt_samples=7))
    recorder.take(np.concatenate([records(cookie, 3, 2), records(9, 0, 1)]))
    recorder.take(records(cookie, 5, 1, flags=int(Flag.CLOSED)))
    ended = max(flow_files([tmp_path]), key=lambda path: path.stat().st_size)  # of the other the header alone
    recorder.close()
    found = FlowRecording.load(ended).records
    assert found["time_us"].tolist() == [0, 20_000, 40_000, 60_000, 80_000]
    assert found["period_us"].tolist() == [20_000] * 5
    assert found["rtt_samples"].tolist() == [7, 7, 7, 0, 0]
    assert (found["delivered_bytes"] // found["mss_bytes"]).tolist() == [0, 1, 2, 3, 4]
    data = b"".join(path.read_bytes() + path.name.encode() for path in flow_files([tmp_path]))
    for secret in (cookie.to_bytes(8, "little"), cookie.to_bytes(8, "big"), str(cookie).encode(), b"%x" % cookie):
        assert secret not in data


def test_what_acks_waited_is_no_queue_that_a_links_rate_shows_in() -> None:
    made = records(5, 0, 5, rtt_least_us=60_000, min_rtt_us=20_000)
    made["ack_wait_us"] = [0, 30_000, 50_000, 2**64 - 1, 30_000]
    made["rtt_least_us"][4] = 0  # a silence
    assert kept(made, 10**15)["rtt_least_us"].tolist() == [60_000, 30_000, 20_000, 20_000, 0]


def test_a_flow_has_one_name_with_a_key_and_another_with_another(tmp_path: Path) -> None:
    names = []
    for number, key in enumerate((KEY, KEY, KEY[::-1])):
        recorder = FlowRecorder(tmp_path / str(number), 1.0, 10**6, key)
        recorder.take(records(5, 0, 1))
        recorder.close()
        names.append(FlowRecording.load(flow_files([tmp_path / str(number)])[0]).flow)
    assert names[0] == names[1] != names[2]


def test_a_share_of_the_flows_is_recorded_the_same_ones_each_time(tmp_path: Path) -> None:
    chosen = []
    for number in range(2):
        recorder = FlowRecorder(tmp_path / str(number), 0.2, 10**7, KEY)
        for cookie in range(400):
            recorder.take(np.concatenate([records(cookie, 0, 1), records(cookie, 1, 1, flags=int(Flag.CLOSED))]))
        chosen.append({FlowRecording.load(path).flow for path in flow_files([tmp_path / str(number)])})
    assert chosen[0] == chosen[1]
    assert 50 < len(chosen[0]) < 110


def test_the_folder_stays_below_its_bound_and_the_oldest_recordings_make_room(tmp_path: Path) -> None:
    bound = 8 * BLOCK_BYTES + 100
    (tmp_path / "not-ours.txt").write_text("x" * 10_000)
    flow_recorder.FlowRecorder(tmp_path, 1.0, bound, KEY).close()
    for start in range(2):
        recorder = FlowRecorder(tmp_path, 1.0, bound, KEY)
        for cookie in range(30):
            recorder.take(records(100 * start + cookie, 0, 5))
            recorder.take(records(100 * start + cookie, 5, 1, flags=int(Flag.CLOSED)))
        recorder.close()
        taken = [on_disk_bytes(path.stat().st_size) for path in flow_files([tmp_path])]
        assert taken == [BLOCK_BYTES] * 8, "a file takes whole blocks"
    assert (tmp_path / "not-ours.txt").exists()
    assert not recorder.left_out


def test_a_file_servers_clock_may_be_a_little_ahead() -> None:
    now_ns = time.time_ns()
    in_order = [now_ns + 10**16, 0, now_ns - 10**9, now_ns + 10**10]
    assert sorted(in_order, key=age_key) == in_order


def test_recordings_from_before_the_clock_was_set_back_make_room_first(tmp_path: Path) -> None:
    kept_of: list[set[Path]] = []
    for start in range(3):
        recorder = FlowRecorder(tmp_path, 1.0, 8 * BLOCK_BYTES, KEY)
        for cookie in range(4):
            recorder.take(records(10 * start + cookie, 0, 5))
        recorder.close()
        kept_of.append(set(flow_files([tmp_path])).difference(*kept_of))
        for path in kept_of[start] if start == 0 else ():
            os.utime(path, (time.time() + 1e7,) * 2)
    assert set(flow_files([tmp_path])) == kept_of[1] | kept_of[2]


def test_the_folder_has_no_more_files_than_may_be_and_the_newest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = FlowRecorder(tmp_path, 1.0, 10**9, KEY)
    for cookie in range(20):
        recorder.take(np.concatenate([records(cookie, 0, 1), records(cookie, 1, 1, flags=int(Flag.CLOSED))]))
    recorder.close()
    earlier = flow_files([tmp_path])
    assert len(earlier) == 20
    monkeypatch.setattr(flow_recorder, "MOST_FILES", 5)
    recorder = FlowRecorder(tmp_path, 1.0, 10**9, KEY)
    assert len(flow_files([tmp_path])) == 5, "also of what an earlier start left"
    for cookie in range(100, 110):
        recorder.take(records(cookie, 0, 2))
        if cookie < 108:  # the last two go on
            recorder.take(records(cookie, 2, 1, flags=int(Flag.CLOSED)))
        assert len(flow_files([tmp_path])) == 5
    recorder.close()
    found = flow_files([tmp_path])
    assert len(found) == 5
    assert not set(found) & set(earlier)
    assert not recorder.left_out


def test_a_flow_too_short_to_learn_a_link_from_leaves_no_file_and_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_recorder, "LEAST_S", LEAST_S)
    assert LEAST_S == estimate.LEAST_S
    recorder = FlowRecorder(tmp_path, 1.0, 8 * BLOCK_BYTES, KEY)
    enough = int(LEAST_S * 10**9) // PERIOD_NS
    spread = records(1, 0, enough)[:: enough - 1]  # its first and its last record
    recorder.take(spread)
    recorder.take(records(1, enough, 1, flags=int(Flag.CLOSED)))
    kept_one = flow_files([tmp_path])
    for cookie in range(2, 102):
        recorder.take(records(cookie, 0, enough - 1)[:: enough - 2])
        recorder.take(records(cookie, enough, 1, flags=int(Flag.CLOSED)))
    recorder.take(records(200, 0, 2))
    recorder.close()
    assert list(tmp_path.iterdir()) == kept_one
    assert recorder.left_out == 0, "they were written, and are of no use"


def test_a_long_flow_ends_in_its_file_and_not_in_the_next_one(tmp_path: Path) -> None:
    recorder = FlowRecorder(tmp_path, 1.0, 8 * BLOCK_BYTES, KEY)
    for first in range(0, 100, 5):
        recorder.take(records(5, first, 5))
    recorder.close()
    (path,) = flow_files([tmp_path])
    assert path.stat().st_size <= BLOCK_BYTES


def test_flows_beyond_the_most_at_a_time_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_recorder, "MOST_FLOWS", 2)
    recorder = FlowRecorder(tmp_path, 1.0, 10**6, KEY)
    for cookie in (1, 2, 3):
        recorder.take(records(cookie, 0, 2))
    assert recorder.left_out == 2
    recorder.take(records(4, 50 * (flow_recorder.SILENT_S + 1), 2))  # the others have been silent by then
    recorder.close()
    assert len(flow_files([tmp_path])) == 3


def test_a_disk_that_fails_costs_recordings_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_minute = flow_recorder.RETRY_S * 50  # records
    recorder = FlowRecorder(tmp_path, 1.0, 10**6, KEY)
    with monkeypatch.context() as failing:
        failing.setattr(flow_recorder, "SUFFIX", "/no-such-folder")
        recorder.take(records(1, 0, 2))
    assert recorder.left_out == 2
    recorder.take(records(1, 2, 2))
    assert recorder.left_out == 4, "nothing is tried for a minute"
    recorder.take(records(1, 2 + a_minute, 2))
    recorder.close()
    assert len(FlowRecording.load(flow_files([tmp_path])[0]).records) == 2


def test_a_file_that_breaks_off_is_good_up_to_its_last_whole_record(tmp_path: Path) -> None:
    recorder = FlowRecorder(tmp_path, 1.0, 10**6, KEY)
    recorder.take(records(1, 0, 4))
    recorder.close()
    (path,) = flow_files([tmp_path])
    path.write_bytes(path.read_bytes()[:-1])
    assert len(FlowRecording.load(path).records) == 3


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"x" * 1000, b'{"reinet_flow": 1, "flow": "../x"}\n',
                                     b'{"reinet_flow": 9, "flow": "ab"}\n', b"[1]\n",
                                     b'{"reinet_flow": 1e999, "flow": "ab"}\n'])  # fmt: skip
def test_what_is_no_recorded_flow_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.flow"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"x\.flow"):
        FlowRecording.load(path)


def test_a_key_that_is_too_short_or_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"key_file: .*; name a readable file"):
        site_key(tmp_path / "none")
    (tmp_path / "key").write_text("secret\n")
    with pytest.raises(ConfigError, match="holds 6 bytes, 32 are the least"):
        site_key(tmp_path / "key")
    assert site_key(None) != site_key(None)


def test_a_folder_that_was_removed_is_made_anew_with_the_next_flow(tmp_path: Path) -> None:
    folder = tmp_path / "flows"
    recorder = FlowRecorder(folder, 1.0, 10**6, KEY)
    recorder.take(records(5, 0, 1))
    shutil.rmtree(folder)
    recorder.take(records(6, 1, 3))
    recorder.close()
    (path,) = flow_files([folder])
    assert len(FlowRecording.load(path).records) == 3
    assert folder.stat().st_mode & 0o777 == 0o700
    assert recorder.left_out == 0


def test_a_second_daemon_records_nothing_in_the_folder_of_another_and_takes_none_of_its_files(tmp_path: Path) -> None:
    bound = 8 * BLOCK_BYTES
    first = FlowRecorder(tmp_path, 1.0, bound, KEY)
    first.take(records(1, 0, 2))
    second = FlowRecorder(tmp_path, 1.0, bound, KEY)
    a_minute = flow_recorder.RETRY_S * 50  # records
    with capture_logs() as log:
        for cookie in range(2, 22):
            second.take(records(cookie, 0, 2))
            second.take(records(cookie, 2, 1, flags=int(Flag.CLOSED)))
    assert [(entry["event"], entry["error"]) for entry in log] == [
        ("flows are not recorded for now", "[Errno 16] another daemon records there; give each a folder of its own")
    ]
    assert (second.left_out, second.has_folder()) == (60, False)
    first.take(records(1, 2, 2))
    first.close()
    (path,) = flow_files([tmp_path])
    assert len(FlowRecording.load(path).records) == 4
    for cookie in range(102, 122):  # the other one is gone
        second.take(records(cookie, a_minute, 2))
        second.take(records(cookie, a_minute + 2, 1, flags=int(Flag.CLOSED)))
    second.close()
    assert len(flow_files([tmp_path])) == 8
    assert not path.exists(), "the oldest one made room"
