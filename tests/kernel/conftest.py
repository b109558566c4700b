"""What the tests with real sockets share: cgroups, and transfers that end with their test."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from helpers.flows import Transfer
from helpers.places import HELPERS
from reinet.kshim.probe import cgroup2_mount, wrappable
from reinet.kshim.shim import WRAPPED_CC


@pytest.fixture
def cleanup():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def cgroup(cleanup):
    path = cgroup2_mount() / f"reinet-test-{os.getpid()}"
    path.mkdir()
    cleanup.callback(path.rmdir)
    return path


@pytest.fixture(params=WRAPPED_CC)
def cc(request):
    """Every congestion control that this host can wrap."""
    feature = wrappable()[request.param]
    if not feature.ok:
        pytest.skip(f"{feature.why}: {feature.cure}")
    return request.param


@pytest.fixture
def transfer(cleanup):
    """Start transfers; whatever still runs at the end of the test is killed."""

    def start(*, own_network=True, **plan):
        command = [
            sys.executable,
            str(HELPERS / "transfer.py"),
            json.dumps(plan, default=str),
        ]
        enter = ["unshare", "-n"] if own_network else []
        process = subprocess.Popen(enter + command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cleanup.enter_context(process)
        cleanup.callback(process.kill)
        return Transfer(process)

    return start
