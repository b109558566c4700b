"""The load on a service: its clients where their library fails, its service where the benchmark is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from reinet.agents.service.bench_load import ANSWER_LOST, ATTEMPTS, upload

MEASUREMENT = """
import sys, time
from pathlib import Path
from reinet.agents.service.bench import Process

process = Process(Path(sys.argv[1]), idle=sys.argv[2] == "idle")
with process.running():
    print(process._pid, flush=True)
    time.sleep(600)
"""


class Refusing:
    """A service that answers so, and so on."""

    def __init__(self, *answers: str) -> None:
        self.left = list(answers)

    async def Upload(self, request: Any) -> str:  # noqa: N802
        answer = self.left.pop(0)
        if answer == "taken":
            return answer
        raise AioRpcError(grpc.StatusCode.INTERNAL, Metadata(), Metadata(), details=answer)


def test_an_answer_that_the_library_lost_is_asked_for_again() -> None:
    stub = Refusing(ANSWER_LOST, ANSWER_LOST, "taken")
    assert asyncio.run(upload(stub, 1, 1000)) == "taken"
    for answers, said in (((ANSWER_LOST, "over the quota", "taken"), "over the quota"),
                          ((ANSWER_LOST,) * ATTEMPTS + ("taken",), ANSWER_LOST)):  # fmt: skip
        stub = Refusing(*answers)
        with pytest.raises(AioRpcError, match=said):
            asyncio.run(upload(stub, 1, 1000))
        assert stub.left == ["taken"]


@pytest.mark.parametrize("kind", ["idle", "real"])
def test_a_measurement_that_is_killed_leaves_no_service(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", MEASUREMENT, str(tmp_path), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as measurement:
        try:
            assert measurement.stdout is not None
            service = int(measurement.stdout.readline())
        finally:
            measurement.kill()
    end_s = time.monotonic() + 60
    while goes_on(service):
        if time.monotonic() > end_s:
            os.kill(service, signal.SIGKILL)
            pytest.fail("the service goes on")
        time.sleep(0.05)


def goes_on(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
