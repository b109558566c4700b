"""Curves on a file system that is really full: it costs curves, and neither time nor the process."""

import json
import subprocess
import sys

import pytest

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
log = event_log.EventLog(Path(folder), 1 << 30)
record = np.zeros(1, FLOW_STATS_DTYPE)

def offer(seconds, cookie, until=lambda: False):
    global slowest_s
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not until():
        record["cookie"], record["time_ns"] = cookie, time.monotonic_ns()
        before_s = time.monotonic()
        log.offer(record, np.array([10], np.uint32))
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
