"""A daemon whose model is a name of the registry: three processes, of which only the unprivileged ones ask it."""

import signal
from pathlib import Path

from helpers.daemons import Daemon, write_config
from helpers.registry import FIRST, SECOND, Host


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
