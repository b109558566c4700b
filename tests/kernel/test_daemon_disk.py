"""Curves and recordings on a file system that is really full: it costs these, and neither time nor the process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.places import ROOT

pytestmark = pytest.mark.kernel

SCRIPT = """
import json, subprocess, sys, time
from contextlib import suppress
import numpy as np
from pathlib import Path
from reinet.core.records import FLOW_STATS_DTYPE
from reinet.daemon import event_log

folder, limit, plenty = sys.argv[1:]
def mount(*options):
    subprocess.run(["mount", "-t", "tmpfs", *options, "none", folder], check=True)
def fill():
    with open(folder + "/hog", "wb") as hog:
        while limit.startswith("size"):
            hog.write(bytes(4096))
            hog.flush()
    for number in range(1000):
        open(f"{folder}/hog{number}", "w").close()

mount("-o", limit)
event_log.RETRY_S = event_log.FLUSH_INTERVAL_S = 0.2
told, slowest_s = [], 0.0
event_log.log.warning = lambda event, **_: told.append(event)
event_log.log.info = lambda event, **_: None  # its line would mix with the last one below
log = event_log.EventLog(Path(folder), 1 << 30)
record = np.zeros(1, FLOW_STATS_DTYPE)

def offer(seconds, cookie, until=lambda: False):
    global slowest_s
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not until():
        record["cookie"], record["time_ns"] = cookie, time.monotonic_ns()
        before_s = time.monotonic()
        log.offer(record.copy())
        slowest_s = max(slowest_s, time.monotonic() - before_s)
        time.sleep(0.02)
    return until()

offer(0.5, 7)
with suppress(OSError):
    fill()
offer(30, 8, lambda: log.failure is not None)
failed = str(log.failure)
offer(1, 8)
often = list(told)
mount("-o", "remount," + plenty)
again = offer(30, 8, lambda: log.failure is None)
print(json.dumps({"failed": failed, "slowest_s": slowest_s, "told": often, "again": again}))
"""


@pytest.mark.parametrize(
    ("limit", "plenty", "why"),
    [("size=128k", "size=8m", "No space left"), ("nr_inodes=12", "nr_inodes=1000", "No space left")],
)
def test_a_disk_or_its_inodes_that_are_full_cost_curves_alone(tmp_path, limit, plenty, why):
    command = ["unshare", "--mount", sys.executable, "-c", SCRIPT, str(tmp_path), limit, plenty]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert why in found["failed"]
    assert found["told"] == ["event log stopped"]
    assert found["slowest_s"] < 1, "the loop waits for nobody's disk"
    assert found["again"], "it is tried again"


FLOWS = """
import subprocess, sys
from pathlib import Path
import numpy as np
from unit.daemon.test_flow_recorder import KEY, records
from reinet.daemon.processes.flow_recorder import FlowRecorder, RETRY_S

folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=True)
recorder = FlowRecorder(folder, 1.0, 10**9, KEY)
(folder / "hog").write_bytes(bytes(200_000))
for at in range(0, 400 * 40, 40):  # 320 s, four flows
    recorder.take(np.concatenate([records(cookie, at, 40) for cookie in range(1, 5)]))
before = set(folder.iterdir())
empty = sum(path.stat().st_size == 0 for path in before)
(folder / "hog").unlink()
at += (RETRY_S + 1) * 50
recorder.take(records(9, at, 300))  # six seconds: a shorter flow is not kept
recorder.close()
print(empty, len(before), recorder.left_out, len(set(folder.iterdir()) - before))
"""


def test_recordings_of_flows_on_a_full_disk_are_given_up_for_a_minute(tmp_path: Path) -> None:
    command = ["unshare", "--mount", sys.executable, "-c", FLOWS, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    *told, figures = done.stdout.splitlines()
    empty, files, left_out, new = map(int, figures.split())
    assert empty == 0
    assert files <= 1 + 4 + 400 * 40 // 3000 + 1, "the first four, and one a minute at most"
    assert left_out > 0
    assert new == 1, "with room it is recorded again"
    assert sum("not recorded for now" in line for line in told) <= 1 + sum("recorded again" in line for line in told)


READ_ONLY = """
import subprocess, sys, time
from pathlib import Path
from unit.daemon.test_flow_recorder import KEY, records
from reinet.daemon import event_log
from reinet.daemon.processes.flow_recorder import FlowRecorder, RETRY_S

folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", folder], check=True)
event_log.RETRY_S = event_log.FLUSH_INTERVAL_S = 0.2
log, recorder = event_log.EventLog(folder / "log", 1 << 30), FlowRecorder(folder / "flows", 1.0, 10**9, KEY)
FlowRecorder(folder, 1.0, 10**9, KEY)
recorder.take(records(1, 0, 300))
subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
recorder.take(records(2, (RETRY_S + 1) * 50, 300))
recorder.close()
end_s = time.monotonic() + 30
while not list(log.folder.glob("flow-2/*")) and time.monotonic() < end_s:
    log.offer(records(2, 0, 1))
    time.sleep(0.05)
print(len(list((folder / "flows").iterdir())), recorder.left_out, len(list(log.folder.glob("flow-2/*"))))
"""


def test_a_disk_that_is_read_only_at_a_start_costs_curves_and_recordings_alone(tmp_path: Path) -> None:
    """A daemon ended where one of its processes was to be started anew after the disk had become read-only."""
    command = ["unshare", "--mount", sys.executable, "-c", READ_ONLY, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1 300 1"
