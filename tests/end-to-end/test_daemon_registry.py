"""A daemon whose model is a name of the registry: three processes, of which only the unprivileged ones ask it."""

import signal
import time
from pathlib import Path

from helpers.daemons import DEADLINE_S, Daemon, write_config
from helpers.registry import FIRST, SECOND, Host
from helpers.waiting import wait_for


def test_it_begins_with_what_the_name_points_to_and_follows_it_while_flows_go_on(folder: Path) -> None:
    host = Host(folder / "service.sock")
    path = write_config(folder, "registry:production")
    where = f'{{ address = "unix:{host.socket}", folder = "{folder}/models", called = "host-1" }}'
    path.write_text(path.read_text() + f"registry = {where}\n")
    daemon = Daemon(path)
    try:
        daemon.wait_for(lambda client: FIRST in client.health().model)
        daemon.wait_for(lambda client: host.models.reports and host.models.reports[-1].model == FIRST)
        host.models.move(SECOND)
        daemon.wait_for(lambda client: host.models.reports[-1].model == SECOND)
        assert not host.models.reports[-1].problem
        code, _, log = daemon.end(signal.SIGTERM)
    finally:
        host.down()
    assert code == 0
    assert "swapped to what the registry's name points to" in [entry["event"] for entry in log]
    assert "a process of the daemon failed" not in [entry["event"] for entry in log]


def test_it_ends_at_once_where_it_is_told_to_while_it_waits_for_a_service_that_is_away(folder: Path) -> None:
    path = write_config(folder, "registry:production")
    where = f'{{ address = "unix:{folder}/nobody", folder = "{folder}/models" }}'
    path.write_text(path.read_text() + f"registry = {where}\n")
    daemon = Daemon(path)
    wait_for(lambda: children_of(daemon.process.pid), DEADLINE_S)
    time.sleep(1)
    told_s = time.monotonic()
    code, _, log = daemon.end(signal.SIGTERM)
    assert time.monotonic() - told_s < 10, "a service manager kills it after so long"
    assert code == 0
    assert [entry["event"] for entry in log] == ["stopped before it served"]
    assert not daemon.socket.parent.exists()


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()
