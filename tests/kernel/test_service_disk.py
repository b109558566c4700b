"""The training service on a file system that is really full: it says so, loses nothing, and goes on with room."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.kills import plain_training
from helpers.places import ROOT
from helpers.trainer import TINY

pytestmark = pytest.mark.kernel

SCRIPT = """
import json, subprocess, sys
from contextlib import suppress
from pathlib import Path
from helpers.trainer import TINY, Service
from helpers.waiting import wait_for
from reinet.core.errors import ReinetError
from reinet.envs.trace import Trace

folder, trace = Path(sys.argv[1]), Trace.constant(10, 70)
LONG = {**TINY, "run": {**TINY["run"], "iterations": 60, "evaluate_every": 20}}
service = Service(folder, more="[trainer.quota]\\nwaiting_jobs = 1000\\n")
service.folder.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", service.folder], check=True)
service.start()
hog, refusals, accepted = service.folder / "hog", [], []
with service.client() as client:
    first = client.submit(LONG)["job"]
    wait_for(lambda: client.job(first)["iteration"] > 3)
    with suppress(OSError), hog.open("wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    with suppress(ReinetError):
        for number in range(3000):
            accepted.append(client.submit(TINY, note="x" * 400)["job"])
    for what in (lambda: client.submit(TINY), lambda: client._upload({trace.sha256: trace}, lambda *_: None)):
        try:
            what()
        except ReinetError as error:
            refusals.append(str(error))
    full = client.job(first)["state"]
service.kill()
hog.unlink()
service.start()
with service.client() as client:
    listed = {job["job"] for job in client.jobs()}
    for job in accepted:
        client.stop(job)
    def ended():
        state = client.job(first)["state"]
        if state == "failed":
            client.resume(first)
        return state == "done"
    wait_for(ended)
    after = client.submit(TINY)["job"]
    found = client.job(first)
service.end()
print(json.dumps({"refusals": refusals, "full": full, "lost": sorted({first, *accepted} - listed), "state":
                  found["state"], "model": found["model"], "log": "Traceback" in service.log()}))
"""


def test_a_full_disk_is_said_loses_no_job_and_the_one_at_work_ends_as_if_there_had_been_room(tmp_path: Path) -> None:
    command = ["unshare", "--mount", sys.executable, "-c", SCRIPT, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["refusals"]) == 2, "neither job nor trace is taken"
    assert all("disk" in said or "cannot store" in said for said in found["refusals"]), found["refusals"]
    assert found["lost"] == []
    assert not found["log"]
    long = {**TINY, "run": {**TINY["run"], "iterations": 60, "evaluate_every": 20}}
    assert (found["state"], found["model"]) == ("done", plain_training(tmp_path / "plain", long))
