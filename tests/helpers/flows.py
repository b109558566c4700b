"""Real flows under a shim, for the tests of ``tests/kernel``: transfers, loaders, and what the kernel holds of them."""

import functools
import json
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from helpers.places import HELPERS
from reinet.core.records import FLOW_STATS_DTYPE, Flag
from reinet.kshim.leases import LEASE_MS
from reinet.kshim.leftovers import loaded

CAP_PKTS = 10
RATE_MBIT = 20
ANSWER_S = 60.0
"""Longest wait for a line of a helper; only a test that fails takes so long."""


def line_of(process):
    """Return the next line of a child's output. Fails when it says nothing for so long."""
    ready, _, _ = select.select([process.stdout], [], [], ANSWER_S)
    if not ready:
        pytest.fail(f"{process.args} said nothing for {ANSWER_S:g} s")
    return process.stdout.readline()


class Transfer:
    """A running ``transfer.py``; ``result`` waits for its end."""

    def __init__(self, process):
        self.process = process
        start = json.loads(line_of(process))
        self.cookie, self.cc = start["cookie"], start["cc"]

    def wait_idle(self):
        assert json.loads(line_of(self.process)) == {"idle": True}

    def result(self):
        self.process.stdin.close()
        line = line_of(self.process)
        assert self.process.wait(timeout=60) == 0
        return json.loads(line)


def lose_a_few(transfer):
    """Lose what comes out of a transfer's bottleneck in the next 10 ms. The transfer has to be ``lossy``."""
    transfer.process.send_signal(signal.SIGUSR1)


def read_for(shim, seconds, each=None):
    """Return the records of the next seconds, handing every batch to each."""
    batches = [np.zeros(0, FLOW_STATS_DTYPE)]
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        batches.append(shim.poll(timeout_ms=min(20, int(left * 1000) + 1)))
        if each:
            each(batches[-1])
    return np.concatenate(batches)


def until_closed(shim, cookie, timeout_s=ANSWER_S):
    """Return all records up to the flow's CLOSED."""
    batches = [np.zeros(0, FLOW_STATS_DTYPE)]
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        batches.append(shim.poll(timeout_ms=50))
        closed = (batches[-1]["flags"] & Flag.CLOSED) != 0
        if (batches[-1]["cookie"][closed] == cookie).any():
            return np.concatenate(batches)
    pytest.fail(f"flow {cookie} did not close within {timeout_s} s")


def has(records, flag):
    return (records["flags"] & flag) != 0


def settled(condition, timeout_s=ANSWER_S):
    """Tell whether the condition comes true; the kernel frees what nobody holds after a grace period."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def held_by(pid):
    return {(item.kind, item.id) for item in loaded() if pid in item.pids}


def still_loaded(items):
    return items & {(item.kind, item.id) for item in loaded()}


class LaggedError(Exception):
    """The host paused the test or the sender: what was seen proves nothing."""


def undisturbed(test):
    """Run a test again, at most twice, when its loop lagged."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        for _ in range(2):
            with suppress(LaggedError):
                return test(*args, **kwargs)
        return test(*args, **kwargs)

    return run


def capped_loop(keeper, cap_pkts):
    """Return what caps the flows of every batch and keeps the leases. Raises LaggedError when one may have lapsed."""
    renewed_s = time.monotonic()

    def each(records):
        nonlocal renewed_s
        keeper.set(records, np.full(len(records), cap_pkts, np.uint32))
        keeper.tick(time.monotonic_ns())
        pause_s, renewed_s = time.monotonic() - renewed_s, time.monotonic()
        if pause_s * 1000 > LEASE_MS / 2:
            raise LaggedError

    return each


@contextmanager
def running_loader(cgroup, *suffix, enter=()):
    command = [*enter, sys.executable, str(HELPERS / "loader.py"), str(cgroup), str(CAP_PKTS), *suffix]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, json.loads(line_of(process))
        finally:
            process.kill()
