"""Programs under the gate beside the kernel's flows, in a daemon whose processes are confined as in service."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.daemons import Daemon, write_config
from helpers.gated.program import Program, record
from helpers.models import write_model
from reinet.daemon.client import ControlClient


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="reinet-test-") as name:
        yield Path(name)


def test_a_programs_flow_is_capped_listed_and_forgotten_with_it(folder: Path) -> None:
    path = folder / "processes"
    daemon = Daemon(write_config(folder, write_model(folder), processes=str(path)))
    try:
        daemon.wait_for(lambda client: client.health().ok)
        program = Program(path)

        def is_capped(client: ControlClient) -> bool:
            program.tell(record(70, slot=3, time_ns=time.monotonic_ns()))
            flows = {flow.cookie: flow for flow in client.flows().flows}
            if 7 not in flows or 70 not in flows or not flows[70].cap_pkts:
                return False
            assert (flows[7].actuator, flows[7].process) == ("kernel", 0)
            assert (flows[70].actuator, flows[70].process) == ("application", os.getpid())
            return True

        daemon.wait_for(is_capped)
        assert program.caps[3]["cookie"] == 70
        assert program.caps[3]["lease"] & 0xFFFFF >= 4
        program.close()
        daemon.wait_for(lambda client: [flow.cookie for flow in client.flows().flows] == [7])
    finally:
        code, _, log = daemon.end(signal.SIGTERM)
    assert code == 0, log
